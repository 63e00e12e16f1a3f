//! Generated scripts, run on the store and on the core alone: the answers are equal.
//!
//! The model is a map of states and the core's pure functions. It builds its own keys and keeps
//! its own book of receipts, so it shares with the store only what the core decides.

mod oracle;
mod script;

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tollgate::core::Decision;
use tollgate::{Answer, Clock};

use crate::random;
use crate::stage::Stage;
use oracle::Oracle;
use script::{Script, Step};

/// Stamps the model onto the store that `$open` opens, with this many scripts.
#[macro_export]
macro_rules! model {
    ($open:ident, scripts = $scripts:expr) => {
        #[test]
        fn generated_scripts_get_the_answers_of_the_core() {
            $crate::model::check($scripts, |script| $crate::run($open, script));
        }
    };
}

/// Runs `scripts` scripts, each with `play`, which opens a store and hands it over.
///
/// Panics with the shortest script found on which the store and the core disagree.
pub fn check(scripts: u32, play: impl Fn(Box<dyn FnOnce(Stage) -> Played>)) {
    let config = Config { cases: scripts, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&script::scripts(), |script| {
        let (tell, told) = std::sync::mpsc::channel();
        play(Box::new(move |stage| {
            Box::pin(async move {
                tell.send(follow(&stage, &script).await).expect("somebody waits for it");
            })
        }));
        told.recv().expect("the script was played").map_err(TestCaseError::fail)
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// A script being played.
pub type Played = std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// Plays a script on both; the first difference is the error.
async fn follow(stage: &Stage, script: &Script) -> Result<(), String> {
    let names: Vec<String> = script.policies.iter().map(|_| random::name("model")).collect();
    let mut oracle = Oracle::new(script.policies.clone());
    for (policy, name) in names.iter().enumerate() {
        apply(stage, &oracle, policy, name).await;
    }
    let mut receipts = Vec::new();
    for (number, step) in script.steps.iter().enumerate() {
        let now = stage.gate.now();
        let differs = |what: String| format!("step {number}, {step:?} at {now}: {what}");
        // The store swept by itself while the clock was moved: nobody can say what the step saw. It is
        // rare, and the script proved what it could.
        let has_swept = || stage.gate.now() != now;
        oracle.may_be_now(now, stage.clock.now()).map_err(differs)?;
        match step {
            Step::Check { policy, subject, cost } => {
                let answer = stage.gate.check(&names[*policy], &subject.attributes(), *cost).await;
                let answer = answer.map_err(|error| differs(error.to_string()))?;
                if has_swept() {
                    return Ok(());
                }
                let expected = oracle.check(*policy, *subject, *cost, now);
                compare(&answer, &expected).map_err(differs)?;
                receipts.extend(answer.receipt);
            }
            Step::Peek { policy, subject, cost } => {
                let answer = stage.gate.peek(&names[*policy], &subject.attributes(), *cost).await;
                let answer = answer.map_err(|error| differs(error.to_string()))?;
                if has_swept() {
                    return Ok(());
                }
                compare(&answer, &oracle.peek(*policy, *subject, *cost, now)).map_err(differs)?;
            }
            Step::Refund { receipt } if !receipts.is_empty() => {
                let receipt = receipt % receipts.len();
                let refunded = stage.gate.refund(&receipts[receipt]).await;
                let refunded = refunded.map_err(|error| differs(error.to_string()))?;
                if has_swept() {
                    return Ok(());
                }
                let expected = oracle.refund(receipt, now);
                if refunded != expected {
                    return Err(differs(format!("{refunded:?}, and the core {expected:?}")));
                }
            }
            Step::Refund { .. } => {}
            Step::Advance(span) => stage.clock.advance(*span),
            Step::GoBack(span) => stage.clock.step_back(*span),
            Step::SetMax { policy, limit, max } => {
                oracle.set_max(*policy, *limit, *max);
                apply(stage, &oracle, *policy, &names[*policy]).await;
            }
            Step::Sweep => {
                stage.gate.sweep().await.expect("the store sweeps");
                oracle.sweep(now);
            }
        }
        if !matches!(step, Step::Advance(_) | Step::GoBack(_)) && has_swept() {
            return Ok(());
        }
    }
    Ok(())
}

async fn apply(stage: &Stage, oracle: &Oracle, policy: usize, name: &str) {
    let document = oracle.document(policy);
    let policy = tollgate::Policy::from_json(name, document).expect("a generated policy is valid");
    let applied = stage.gate.apply(&policy, "model").await.expect("the store takes the policy");
    assert!(applied.restarted.is_empty(), "a change of max restarts nothing");
}

fn compare(answer: &Answer, expected: &Decision) -> Result<(), String> {
    let answered = &answer.decision;
    if answer.degraded.is_some() {
        return Err(format!("not answered by the store but {:?}", answer.degraded));
    }
    if answered == expected {
        Ok(())
    } else {
        Err(format!("the store answers\n  {answered:?}\nand the core\n  {expected:?}"))
    }
}

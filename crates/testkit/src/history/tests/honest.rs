//! The checker against the real thing: what an honest store says is accepted, and one answer turned
//! from refused to allowed is not.

use tollgate::{Clock, Policy, Refunded, Tollgate};

use crate::ManualClock;
use crate::dice::Dice;
use crate::history::{
    Answer, Fault, GivenBack, History, Outcome, Rule, Seen, Terms, Version, Versions, Wrong,
};

const STEPS: usize = 400;
const PER: i64 = 50_000;

/// One limit by algorithm; its rule as the checker knows it.
fn rule(algorithm: &str) -> Rule {
    match algorithm {
        "fixed" => Rule::Fixed { per: PER },
        "sliding" => Rule::Sliding { per: PER, resolution: PER / 50 },
        "bucket" => Rule::Bucket { per: PER },
        _ => Rule::UnitBucket { per: PER },
    }
}

fn policy(algorithm: &str, max: u64) -> Policy {
    let (algorithm, more) = match algorithm {
        "sliding" => (algorithm, r#", resolution = "1ms""#),
        "own burst" => ("bucket", ", burst = 7"),
        _ => (algorithm, ""),
    };
    let toml = format!(
        r#"limits = [{{ name = "all", max = {max}, per = "50ms", algorithm = "{algorithm}"{more} }}]"#
    );
    Policy::from_toml("honest", &toml).unwrap()
}

fn terms(algorithm: &str, max: u64) -> Terms {
    Terms { max, holds: if algorithm == "own burst" { 7 } else { max } }
}

/// One answer, kept to be told again.
#[derive(Clone)]
struct Told {
    outcome: Outcome,
    at: i64,
    cost: u32,
    version: u64,
    seen: Seen,
}

/// How much happens besides checks.
#[derive(Clone, Copy, PartialEq)]
enum Script {
    Checks,
    ChecksRefundsAndChanges,
}

/// Plays a random script on a store in memory.
async fn play(algorithm: &str, script: Script, seed: u64) -> (Vec<Told>, Vec<Version>) {
    let clock = ManualClock::start();
    let gate = Tollgate::open_with_clock("memory:", clock.shared()).await.unwrap();
    let mut dice = Dice::of(&[seed]);
    let mut versions: Vec<Version> = Vec::new();
    let mut told: Vec<Told> = Vec::new();
    let mut receipts = Vec::new();
    for step in 0..STEPS {
        clock.set(clock.now().plus_micros(dice.below(2 * PER as u64 / 30) as i64));
        let now = clock.now().as_micros();
        let both = script == Script::ChecksRefundsAndChanges;
        if step == 0 || (both && dice.one_in(20)) {
            let max = dice.below(30) + 1;
            let applied = gate.apply(&policy(algorithm, max), "test").await.unwrap();
            if applied.changed {
                if let Some(last) = versions.last_mut() {
                    last.replaced_by = Some(now - 1);
                }
                let (number, terms) = (applied.policy.version(), terms(algorithm, max));
                let terms = vec![terms];
                versions.push(Version { number, created_at: now, replaced_by: None, terms });
            }
        }
        if both && dice.one_in(4) && !receipts.is_empty() {
            let place = dice.below(receipts.len() as u64) as usize;
            let (number, receipt): (usize, String) = receipts.swap_remove(place);
            if gate.refund(&receipt).await.unwrap() == Refunded::Done {
                let given_back = Some(GivenBack { from: now, by: Some(now) });
                told[number].outcome = Outcome::Allowed { given_back };
            }
            continue;
        }
        let cost = dice.below(4) as u32 + 1;
        let answer = gate.check("honest", &[], cost).await.unwrap();
        let standing = answer.decision.limits[0].standing;
        let outcome = if answer.allowed() {
            Outcome::Allowed { given_back: None }
        } else {
            Outcome::Refused { from_memory: false }
        };
        if let Some(receipt) = &answer.receipt {
            receipts.push((told.len(), receipt.clone()));
        }
        told.push(Told {
            outcome,
            at: answer.decision.decided_at.as_micros(),
            cost,
            version: answer.policy.version(),
            seen: Seen {
                key: 0,
                max: standing.max,
                used: standing.used,
                refuses: !answer.allowed(),
            },
        });
    }
    (told, versions)
}

fn history(algorithm: &str, told: &[Told], versions: &[Version]) -> History {
    let versions = Versions::new(versions.to_vec());
    let mut history = History::new("honest", vec![rule(algorithm)], versions);
    for Told { outcome, at, cost, version, seen } in told {
        history.add(&Answer {
            outcome: *outcome,
            asked_at: *at,
            decided_at: *at,
            told_at: *at,
            cost: *cost,
            version: Some(*version),
            limits: &[*seen],
        });
    }
    history
}

#[tokio::test]
async fn what_an_honest_store_says_is_accepted() {
    for seed in 0..60 {
        for algorithm in ["fixed", "sliding", "bucket", "own burst"] {
            for script in [Script::Checks, Script::ChecksRefundsAndChanges] {
                let (told, versions) = play(algorithm, script, seed).await;
                let (_, faults) = history(algorithm, &told, &versions).judge();
                assert_eq!(faults, [], "{algorithm}, seed {seed}");
            }
        }
    }
}

#[tokio::test]
async fn one_refusal_turned_into_a_yes_is_one_too_many() {
    let (mut turned, mut found) = (0, 0);
    for seed in 0..4 {
        for algorithm in ["fixed", "sliding", "bucket", "own burst"] {
            let (told, versions) = play(algorithm, Script::Checks, seed).await;
            for number in 0..told.len() {
                let mut lie = told.clone();
                let said = &mut lie[number];
                if said.outcome != (Outcome::Refused { from_memory: false }) {
                    continue;
                }
                // As a store would say it that counts right and allows too much.
                said.outcome = Outcome::Allowed { given_back: None };
                said.seen.used += u64::from(said.cost);
                let at = said.at;
                let (_, faults) = history(algorithm, &lie, &versions).judge();
                let first = faults.iter().any(|fault| {
                    fault.decided_at == at && matches!(fault.wrong, Wrong::OneTooMany { .. })
                });
                turned += 1;
                // A sliding window refuses for up to a piece longer than it promises.
                found += u32::from(first);
                assert!(first || algorithm == "sliding", "{algorithm}, seed {seed}, {number}");
            }
        }
    }
    assert!(found > 300 && found * 10 > turned * 9, "{found} of {turned} were found");
}

#[tokio::test]
async fn one_answer_left_out_is_told_by_the_others() {
    for algorithm in ["fixed", "sliding", "bucket", "own burst"] {
        let (mut told, versions) = play(algorithm, Script::Checks, 1).await;
        let allowed = |told: &Told| matches!(told.outcome, Outcome::Allowed { .. });
        let number = told.iter().position(allowed).unwrap();
        let Told { cost, at, .. } = told.remove(number);
        let mut incomplete = history(algorithm, &told, &versions);
        let (_, faults) = incomplete.clone().judge();
        assert!(
            faults.iter().any(|fault| matches!(fault.wrong, Wrong::Invented { .. })),
            "{algorithm}: {faults:?}"
        );
        incomplete.doubt(cost, &[0], &(at..=at));
        assert_eq!(incomplete.judge().1, [], "{algorithm}");
    }
}

/// What a store says that forgot to take a refund off its count.
#[tokio::test]
async fn a_refund_that_was_answered_and_not_done_is_found() {
    for algorithm in ["fixed", "sliding"] {
        let (told, versions) = play(algorithm, Script::ChecksRefundsAndChanges, 1).await;
        let mut found = 0;
        for number in 0..told.len() {
            let mut lie = told.clone();
            let said = &mut lie[number];
            let Outcome::Allowed { given_back: given @ None } = &mut said.outcome else { continue };
            // Nobody gave it back: the store goes on counting it, as all later answers show.
            *given = Some(GivenBack { from: said.at, by: Some(said.at) });
            let (_, faults) = history(algorithm, &lie, &versions).judge();
            let invented = |fault: &Fault| matches!(fault.wrong, Wrong::Invented { .. });
            found += u32::from(faults.iter().any(invented));
        }
        assert!(found > 50, "{algorithm}: {found} were found");
    }
}

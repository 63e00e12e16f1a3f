//! A store in another process, moved by lines: for faults that hit a whole process.
//!
//! Each line on `stdin` is a word and its arguments; each gets one line back on `stdout`.

use std::io::{BufRead, Write};
use std::path::Path;

use tollgate::{Answer, Error, IdempotencyKey, OnceAnswer, Policy, Tollgate};

/// Policies by what they do when the store fails, each with room for five per user.
const POLICIES: [(&str, &str); 4] = [
    ("sync", r#"durability = "sync""#),
    ("refuse", r#"on_store_error = "refuse""#),
    ("allow", r#"on_store_error = "allow""#),
    ("local", r#"on_store_error = "local""#),
];
const LIMITS: &str = r#"limits = [
    { name = "user", max = 5, per = "3650d", by = ["user"] },
    { name = "all",  max = 9000000000, per = "3650d" },
]"#;

/// Opens the file and does what the lines say until there are no more; then closes it.
pub fn dance(file: &Path) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let url = format!("sqlite:{}", file.display());
        let gate = Tollgate::open(&url).await.map_err(|error| error.to_string())?;
        for (name, head) in POLICIES {
            let policy = Policy::from_toml(name, &format!("{head}\n{LIMITS}"));
            let policy = policy.map_err(|error| error.to_string())?;
            gate.apply(&policy, "puppet").await.map_err(|error| error.to_string())?;
        }
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            let reply = follow(&gate, &words).await.unwrap_or_else(|error| say_error(&error));
            let mut stdout = std::io::stdout().lock();
            writeln!(stdout, "{reply}").map_err(|error| error.to_string())?;
        }
        Ok(())
    })
}

async fn follow(gate: &Tollgate, words: &[&str]) -> Result<String, Error> {
    Ok(match words {
        ["check", policy, user] => say(&gate.check(policy, &[("user", user)], 1).await?),
        ["check", policy, user, cost] => {
            let cost = cost.parse().unwrap_or_default();
            say(&gate.check(policy, &[("user", user)], cost).await?)
        }
        ["peek", policy, user] => say(&gate.peek(policy, &[("user", user)], 1).await?),
        ["once", key, policy, user] => {
            let key = IdempotencyKey { scope: b"puppet", key };
            let once = gate.check_once(key, policy, &[("user", user)], 1, |_| vec![1]).await?;
            match once {
                OnceAnswer::Fresh(answer) => say(&answer),
                OnceAnswer::Replay(_) => "replay".into(),
            }
        }
        ["refund", receipt] => format!("{:?}", gate.refund(receipt).await?).to_lowercase(),
        ["token", name] => {
            gate.create_token(name, tollgate::Scope::Check).await?;
            "made".into()
        }
        ["ping"] => gate.ping().await.map(|()| "pong".into())?,
        ["store-errors"] => gate.stats().store_errors.to_string(),
        _ => format!("unknown {words:?}"),
    })
}

/// `allowed 3 6 - RECEIPT`: the outcome, what each limit counts, what stood in for the store, the
/// receipt if there is one.
fn say(answer: &Answer) -> String {
    let outcome = match answer.decision.outcome {
        tollgate::Outcome::Allowed => "allowed",
        tollgate::Outcome::Refused { .. } => "refused",
        tollgate::Outcome::NeverFits => "never-fits",
    };
    let used: Vec<String> =
        answer.decision.limits.iter().map(|report| report.standing.used.to_string()).collect();
    let degraded = answer.degraded.map_or("-".into(), |how| format!("{how:?}").to_lowercase());
    let receipt = answer.receipt.as_deref().unwrap_or("-");
    format!("{outcome} {} {degraded} {receipt}", used.join(" "))
}

fn say_error(error: &Error) -> String {
    let kind = match error {
        Error::Store(error) => format!("{:?}", error.kind()).to_lowercase(),
        _ => "other".into(),
    };
    format!("error {kind} {error}")
}

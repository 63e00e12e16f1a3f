//! `check`, `peek` and `refund`.

use serde_json::{Map, Value, json};
use ureq::http::StatusCode;

use super::client::{Remote, Reply};
use super::picture::{self, Look};
use super::show::text;
use crate::exit::{Done, Failure};

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The policy to ask
    policy: String,
    /// Who is asking, such as user=ada
    #[arg(value_name = "NAME=VALUE", value_parser = attribute)]
    subject: Vec<(String, String)>,
    /// Units asked for
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    cost: u32,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RefundArgs {
    /// The receipt of an allowed check
    receipt: String,
    #[command(flatten)]
    remote: Remote,
}

fn attribute(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("give attributes as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl CheckArgs {
    fn ask(&self, path: &str) -> Result<Reply, Failure> {
        for (position, (name, _)) in self.subject.iter().enumerate() {
            if self.subject[..position].iter().any(|(earlier, _)| earlier == name) {
                return Err(Failure::bad_input(format!(
                    "attribute {name:?} is given twice; give it once"
                )));
            }
        }
        let subject: Map<_, _> =
            self.subject.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        let body = json!({ "policy": self.policy, "subject": subject, "cost": self.cost });
        self.remote.post(path, &body)
    }

    fn show(&self, reply: &Reply) -> Result<Done, Failure> {
        let decision = &reply.document;
        let is_decision = decision["allowed"].is_boolean();
        if reply.status == StatusCode::UNPROCESSABLE_ENTITY && is_decision {
            return self.show_never_fits(reply);
        }
        if !(reply.status.is_success() || reply.status == StatusCode::TOO_MANY_REQUESTS) {
            let failure = reply.failure();
            let field = decision["field"].as_str().unwrap_or_default();
            return Err(match field.strip_prefix("subject.") {
                Some(name) if !name.is_empty() => failure.context(format!("as in {name}=VALUE")),
                _ => failure,
            });
        }
        if self.remote.json {
            say!("{decision}");
        } else {
            print_decision(decision);
        }
        let allowed = decision["allowed"].as_bool().unwrap_or(false);
        Ok(if allowed { Done::Ok } else { Done::Refused })
    }

    /// A limit that lets nothing through refuses; a cost above all that a limit holds is bad input.
    fn show_never_fits(&self, reply: &Reply) -> Result<Done, Failure> {
        let decision = &reply.document;
        let mut limits = decision["limits"].as_array().into_iter().flatten();
        if !limits.any(|limit| limit["max"] == 0) {
            return Err(reply.failure());
        }
        if self.remote.json {
            say!("{decision}");
        } else {
            print_decision(decision);
            say!("{}", text(&decision["detail"]));
        }
        Ok(Done::Refused)
    }
}

pub(crate) fn check(args: &CheckArgs) -> Result<Done, Failure> {
    args.show(&args.ask("/api/v1/check")?)
}

pub(crate) fn peek(args: &CheckArgs) -> Result<Done, Failure> {
    args.show(&args.ask("/api/v1/peek")?)
}

pub(crate) fn refund(args: &RefundArgs) -> Result<Done, Failure> {
    let body = json!({ "receipt": args.receipt });
    let answer = args.remote.post("/api/v1/refund", &body)?.success()?;
    if args.remote.json {
        say!("{answer}");
    } else {
        match answer["reason"].as_str() {
            None => say!("refunded"),
            Some(reason) => say!("not refunded: {reason}"),
        }
    }
    let refunded = answer["refunded"].as_bool().unwrap_or(false);
    Ok(if refunded { Done::Ok } else { Done::Refused })
}

fn print_decision(decision: &Value) {
    let allowed = decision["allowed"].as_bool().unwrap_or(false);
    say!(
        "{}: policy {}, cost {}",
        if allowed { "allowed" } else { "refused" },
        text(&decision["policy"]),
        text(&decision["cost"]),
    );
    for line in picture::lines(decision, Look::of_stdout()) {
        say!("{line}");
    }
    if let Some(retry_at) = decision["retry_at"].as_str() {
        let wait = crate::wire::wait(decision["retry_after"].as_u64().unwrap_or(1));
        say!("try again at {retry_at}, in {wait}");
    }
    if let Some(line) = degraded(decision) {
        say!("{line}");
    }
    if let Some(receipt) = decision["receipt"].as_str() {
        say!("receipt {receipt}");
    }
}

/// What was decided without the store is worth less.
fn degraded(decision: &Value) -> Option<String> {
    let how = match decision["degraded"].as_str()? {
        "local" => "counted by this instance alone",
        _ => "not counted",
    };
    Some(format!("the store did not answer: this was {how}, as the policy's on_store_error says"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_without_the_store_says_so() {
        let said = |degraded_as: Value| degraded(&json!({ "degraded": degraded_as }));
        assert!(said("allow".into()).unwrap().contains("was not counted"));
        assert!(said("local".into()).unwrap().contains("by this instance alone"));
        assert_eq!(said(Value::Null), None);
    }
}

//! `mail queue run-now|suspend|activate|delete|cleanup|status`.

use clap::Subcommand;
use serde_json::{Value, json};

use super::{Of, done};
use crate::cli::client::{Query, Remote};
use crate::cli::show::{table, text};
use crate::exit::{Done, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// Try deferred messages now instead of later; limits hold all the same
    RunNow(Chosen),
    /// Hold a tenant's messages, or those of one batch
    Suspend(Batch),
    /// Let them go again
    Activate(Batch),
    /// Delete messages: those named, of one batch, or of one account
    Delete(Chosen),
    /// Remove messages that were sent, or failed, long ago
    Cleanup {
        #[command(flatten)]
        of: Of,
        /// Longer ago than this, such as 30d (default: 7d)
        #[arg(long, value_name = "AGE")]
        older_than: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// How the queue stands
    Status {
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Chosen {
    /// Only these messages
    #[arg(value_name = "MESSAGE_ID")]
    ids: Vec<String>,
    #[command(flatten)]
    of: Of,
    /// Only those of this batch
    #[arg(long, value_name = "CODE")]
    batch: Option<String>,
    /// Only those of this account
    #[arg(long, value_name = "ID")]
    account: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Batch {
    #[command(flatten)]
    of: Of,
    /// Only this batch
    #[arg(long, value_name = "CODE")]
    batch: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

pub(super) fn run(command: &QueueCommand) -> Result<Done, Failure> {
    match command {
        QueueCommand::RunNow(chosen) => {
            let what = |count: &str| format!("{count} messages are tried now");
            tell(&chosen.remote, "run-now", &chosen.body(), what)
        }
        QueueCommand::Suspend(batch) => {
            let what = |count: &str| format!("{count} messages wait until they are activated");
            tell(&batch.remote, "suspend", &batch.body(), what)
        }
        QueueCommand::Activate(batch) => {
            let what = |count: &str| format!("{count} messages go on");
            tell(&batch.remote, "activate", &batch.body(), what)
        }
        QueueCommand::Delete(chosen) => {
            let what = |count: &str| format!("{count} messages are deleted");
            tell(&chosen.remote, "delete-messages", &chosen.body(), what)
        }
        QueueCommand::Cleanup { of, older_than, remote } => {
            let body = json!({ "tenant_id": of.tenant, "older_than": older_than });
            let what = |count: &str| format!("{count} messages are removed");
            tell(remote, "cleanup-messages", &body, what)
        }
        QueueCommand::Status { of, remote } => status(of, remote),
    }
}

impl Chosen {
    fn body(&self) -> Value {
        let ids = (!self.ids.is_empty()).then_some(&self.ids);
        json!({ "tenant_id": self.of.tenant, "batch_code": self.batch,
            "account_id": self.account, "ids": ids })
    }
}

impl Batch {
    fn body(&self) -> Value {
        json!({ "tenant_id": self.of.tenant, "batch_code": self.batch })
    }
}

fn tell(
    remote: &Remote,
    command: &str,
    body: &Value,
    sentence: impl Fn(&str) -> String,
) -> Result<Done, Failure> {
    let answer = remote.post_patiently(&format!("/commands/{command}"), body)?.success()?;
    Ok(done(remote, &answer, &sentence(&text(&answer["messages"]))))
}

fn status(of: &Of, remote: &Remote) -> Result<Done, Failure> {
    let path = Query::default().with("tenant_id", of.tenant.as_deref()).path("/status");
    let answer = remote.get(&path)?.success()?;
    if remote.json {
        say!("{answer}");
        return Ok(Done::Ok);
    }
    let mut table = table(["", "messages"]);
    for name in ["pending", "deferred", "suspended", "sent", "errors"] {
        table.add_row([name.to_owned(), text(&answer[name])]);
    }
    let (tenants, accounts) = (text(&answer["tenants"]), text(&answer["accounts"]));
    say!("{tenants} tenants, {accounts} accounts");
    say!("{table}");
    say!("limits were reached {} times", text(&answer["rate_limited"]));
    Ok(Done::Ok)
}

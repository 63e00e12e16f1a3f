//! `mail messages list|attempts`.

use clap::Subcommand;
use serde_json::Value;

use super::{Of, list, time};
use crate::cli::client::{Query, Remote, encode};
use crate::cli::show::text;
use crate::exit::{Done, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum MessageCommand {
    /// A tenant's messages in the order they came
    List(ListArgs),
    /// Every attempt to send one message
    Attempts {
        /// The message
        id: String,
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    of: Of,
    /// Only pending, deferred, suspended, sent or error
    #[arg(long)]
    status: Option<String>,
    /// Only those of this account
    #[arg(long, value_name = "ID")]
    account: Option<String>,
    /// Only those of this batch
    #[arg(long, value_name = "CODE")]
    batch: Option<String>,
    /// How many to list, 1 to 1000 (default: 100)
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Go on from here: the cursor that the page before printed
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

pub(super) fn run(command: &MessageCommand) -> Result<Done, Failure> {
    match command {
        MessageCommand::List(args) => list_messages(args),
        MessageCommand::Attempts { id, of, remote } => {
            let query = Query::default().with("tenant_id", of.tenant.as_deref());
            let path = query.path(&format!("/messages/{}/attempts", encode(id)));
            let answer = remote.get(&path)?.success()?;
            let columns = [
                ("started", "started_at", text as fn(&Value) -> String),
                ("finished", "finished_at", text),
                ("outcome", "outcome", text),
                ("code", "smtp_code", text),
                ("said", "smtp_text", text),
                ("instance", "instance", text),
            ];
            list(remote, &answer, "attempts", columns);
            Ok(Done::Ok)
        }
    }
}

fn list_messages(args: &ListArgs) -> Result<Done, Failure> {
    let limit = args.limit.map(|limit| limit.to_string());
    let path = Query::default()
        .with("tenant_id", args.of.tenant.as_deref())
        .with("status", args.status.as_deref())
        .with("account_id", args.account.as_deref())
        .with("batch_code", args.batch.as_deref())
        .with("limit", limit.as_deref())
        .with("cursor", args.cursor.as_deref())
        .path("/messages");
    let answer = args.remote.get(&path)?.success()?;
    let columns = [
        ("message", "id", text as fn(&Value) -> String),
        ("account", "account_id", text),
        ("status", "status", text),
        ("priority", "priority", text),
        ("deferred to", "deferred_ts", time),
        ("attempts", "attempts", text),
        ("sent", "sent_ts", time),
        ("last error", "last_error", text),
    ];
    list(&args.remote, &answer, "messages", columns);
    if let (Some(cursor), false) = (answer["next_cursor"].as_str(), args.remote.json) {
        say!("there are more: --cursor {cursor}");
    }
    Ok(Done::Ok)
}

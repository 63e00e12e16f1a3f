//! `mail keys create|list|enable|disable|limit|delete`.

use clap::Subcommand;
use serde_json::{Value, json};

use super::{Of, done, list, time, yes_no};
use crate::cli::client::{Query, Remote, encode};
use crate::cli::show::text;
use crate::exit::{Done, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key; it is shown once
    Create(CreateArgs),
    /// The keys of a tenant, or of all
    List {
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        remote: Remote,
    },
    /// Switch a key on
    Enable {
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Switch a key off
    Disable {
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Change a key's daily limit; what was counted today stays counted
    Limit {
        id: String,
        /// Recipients a day
        daily_limit: u64,
        #[command(flatten)]
        remote: Remote,
    },
    /// Delete a key
    Delete {
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    of: Of,
    /// The account it sends through
    #[arg(long, value_name = "ID")]
    account: String,
    /// What it is for
    #[arg(long)]
    name: Option<String>,
    /// Recipients a day (default: 15)
    #[arg(long, value_name = "N")]
    daily_limit: Option<u64>,
    /// The zone whose midnight resets it, such as Europe/Rome (default: UTC)
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

pub(super) fn run(command: &KeyCommand) -> Result<Done, Failure> {
    match command {
        KeyCommand::Create(args) => create(args),
        KeyCommand::List { of, remote } => {
            let path = Query::default().with("tenant_id", of.tenant.as_deref()).path("/keys");
            let answer = remote.get(&path)?.success()?;
            let columns = [
                ("key", "id", text as fn(&Value) -> String),
                ("tenant", "tenant_id", text),
                ("account", "account_id", text),
                ("name", "name", text),
                ("daily limit", "daily_limit", text),
                ("time zone", "timezone", text),
                ("enabled", "enabled", yes_no),
                ("since", "created_ts", time),
            ];
            list(remote, &answer, "keys", columns);
            Ok(Done::Ok)
        }
        KeyCommand::Enable { id, remote } => {
            change(id, remote, &json!({ "enabled": true }), "is switched on")
        }
        KeyCommand::Disable { id, remote } => {
            change(id, remote, &json!({ "enabled": false }), "is switched off")
        }
        KeyCommand::Limit { id, daily_limit, remote } => {
            let what = format!("may now send to {daily_limit} recipients a day");
            change(id, remote, &json!({ "daily_limit": daily_limit }), &what)
        }
        KeyCommand::Delete { id, remote } => {
            let answer = remote.delete(&format!("/keys/{}", encode(id)))?.success()?;
            Ok(done(remote, &answer, &format!("key {id} is deleted")))
        }
    }
}

fn create(args: &CreateArgs) -> Result<Done, Failure> {
    let CreateArgs { of, account, name, daily_limit, timezone, remote } = args;
    let body = json!({ "tenant_id": of.tenant, "account_id": account, "name": name,
        "daily_limit": daily_limit, "timezone": timezone });
    let answer = remote.post("/keys", &body)?.success()?;
    if remote.json {
        say!("{answer}");
    } else {
        say!("{}", text(&answer["api_key"]));
        note!(
            "this is key {}, shown once; send it as X-API-Key (at most {} recipients a day)",
            text(&answer["id"]),
            text(&answer["daily_limit"])
        );
    }
    crate::say::seen("the key")?;
    Ok(Done::Ok)
}

fn change(id: &str, remote: &Remote, body: &Value, what: &str) -> Result<Done, Failure> {
    let answer = remote.put(&format!("/keys/{}", encode(id)), body)?.success()?;
    Ok(done(remote, &answer, &format!("key {id} {what}")))
}

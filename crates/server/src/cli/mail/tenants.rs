//! `mail tenants list|add|delete|token`.

use clap::Subcommand;
use serde_json::{Value, json};

use super::{done, list, time, yes_no};
use crate::cli::client::{Remote, encode};
use crate::cli::show::text;
use crate::exit::{Done, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum TenantCommand {
    /// The tenants
    List {
        #[command(flatten)]
        remote: Remote,
    },
    /// Make a tenant, or change one
    Add(AddArgs),
    /// Delete a tenant with its accounts, keys and finished messages
    Delete {
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Make a token that reaches this tenant only; it is shown once and replaces the one before
    Token {
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    id: String,
    /// Its name for people (default: its id)
    #[arg(long)]
    name: Option<String>,
    /// Where delivery reports are POSTed to
    #[arg(long, value_name = "URL")]
    report_url: Option<String>,
    /// What signs them (default: the one it has, or a random one that is shown once)
    #[arg(long, value_name = "SECRET", env = "TOLLGATE_REPORT_SECRET", hide_env_values = true)]
    report_secret: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

pub(super) fn run(command: &TenantCommand) -> Result<Done, Failure> {
    match command {
        TenantCommand::List { remote } => {
            let answer = remote.get("/tenants")?.success()?;
            let columns = [
                ("tenant", "id", text as fn(&Value) -> String),
                ("name", "name", text),
                ("reports to", "report_url", text),
                ("suspended", "suspended", yes_no),
                ("token", "has_token", yes_no),
                ("since", "created_ts", time),
            ];
            list(remote, &answer, "tenants", columns);
            Ok(Done::Ok)
        }
        TenantCommand::Add(args) => add(args),
        TenantCommand::Delete { id, remote } => {
            let answer = remote.delete(&format!("/tenant/{}", encode(id)))?.success()?;
            Ok(done(remote, &answer, &format!("tenant {id} is deleted")))
        }
        TenantCommand::Token { id, remote } => {
            let path = format!("/tenant/{}/token", encode(id));
            let answer = remote.post(&path, &json!({}))?.success()?;
            if remote.json {
                say!("{answer}");
            } else {
                say!("{}", text(&answer["token"]));
                note!("this is shown once; any token before it is no longer valid");
            }
            crate::say::seen("the token")?;
            Ok(Done::Ok)
        }
    }
}

fn add(args: &AddArgs) -> Result<Done, Failure> {
    let AddArgs { id, name, report_url, report_secret, remote } = args;
    let body = json!({ "id": id, "name": name, "report_url": report_url,
        "report_secret": report_secret });
    let answer = remote.post("/tenant", &body)?.success()?;
    let what = if answer["created"] == true { "made" } else { "changed" };
    let told = done(remote, &answer, &format!("tenant {id} is {what}"));
    if let (Some(secret), false) = (answer["report_secret"].as_str(), remote.json) {
        say!("reports are signed with {secret}");
        note!("this is shown once; keep it to verify reports");
        crate::say::seen("the secret")?;
    }
    Ok(told)
}

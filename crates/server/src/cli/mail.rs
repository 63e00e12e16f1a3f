//! `mail`: tenants, accounts, keys, messages, the queue, and sending files.

mod accounts;
pub(super) mod eml;
mod keys;
mod messages;
mod queue;
mod send;
mod tenants;

use clap::Subcommand;
use serde_json::Value;

use super::client::Remote;
use super::show::{printable, table};
use crate::exit::{Done, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum MailCommand {
    /// Who mail is sent for
    #[command(subcommand)]
    Tenants(tenants::TenantCommand),
    /// SMTP accounts: where mail goes, and how fast
    #[command(subcommand)]
    Accounts(accounts::AccountCommand),
    /// What became of messages
    #[command(subcommand)]
    Messages(messages::MessageCommand),
    /// API keys with a daily limit, for POST /api/v1/send
    #[command(subcommand)]
    Keys(keys::KeyCommand),
    /// Queue messages from .eml files; may be repeated, as each is queued once
    Send(send::SendArgs),
    /// Suspend, activate, hurry or delete queued mail; show how much there is
    #[command(subcommand)]
    Queue(queue::QueueCommand),
}

pub(crate) fn run(command: &MailCommand) -> Result<Done, Failure> {
    match command {
        MailCommand::Tenants(command) => tenants::run(command),
        MailCommand::Accounts(command) => accounts::run(command),
        MailCommand::Messages(command) => messages::run(command),
        MailCommand::Keys(command) => keys::run(command),
        MailCommand::Send(args) => send::run(args),
        MailCommand::Queue(command) => queue::run(command),
    }
}

/// Which tenant.
#[derive(Debug, clap::Args)]
pub(crate) struct Of {
    /// The tenant; not needed with that tenant's token
    #[arg(long, value_name = "ID", env = "TOLLGATE_TENANT")]
    tenant: Option<String>,
}

/// A column: its heading, the member it shows, and how.
type Column = (&'static str, &'static str, fn(&Value) -> String);

/// Prints a list of objects as a table, or as the server said it.
fn list<const COLUMNS: usize>(
    remote: &Remote,
    answer: &Value,
    name: &str,
    columns: [Column; COLUMNS],
) {
    if remote.json {
        say!("{answer}");
        return;
    }
    let items = answer[name].as_array().map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        say!("no {name} yet");
        return;
    }
    let mut table = table(columns.map(|(heading, _, _)| heading));
    for item in items {
        table.add_row(columns.map(|(_, member, shown)| printable(&shown(&item[member]))));
    }
    say!("{table}");
}

/// Prints what was done, or the answer as the server said it.
fn done(remote: &Remote, answer: &Value, sentence: &str) -> Done {
    if remote.json {
        say!("{answer}");
    } else {
        say!("{}", printable(sentence));
    }
    Done::Ok
}

/// Unix seconds as people read them.
fn time(value: &Value) -> String {
    let at = value.as_i64().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    at.map_or_else(String::new, |at| at.to_string())
}

fn yes_no(value: &Value) -> String {
    if value.as_bool().unwrap_or(false) { "yes" } else { "no" }.into()
}

//! `mail accounts list|add|delete`.

use std::io::BufRead;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use super::{Of, done, list, time};
use crate::cli::client::{Query, Remote, encode, is_said};
use crate::cli::show::text;
use crate::exit::{Done, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum AccountCommand {
    /// The accounts of a tenant, or of all
    List {
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        remote: Remote,
    },
    /// Make an account, or replace one; what it changes is in force at the next send
    Add(Box<AddArgs>),
    /// Delete an account that has no unsent messages
    Delete {
        id: String,
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Behavior {
    /// Over a limit a message waits
    Defer,
    /// Over a limit a message ends in error
    Reject,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Unit {
    Messages,
    Recipients,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Tls {
    None,
    Starttls,
    Implicit,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    /// Unique within its tenant (default: the user, or else the host)
    id: Option<String>,
    #[command(flatten)]
    of: Of,
    /// The SMTP server
    #[arg(long)]
    host: String,
    /// Its port (default: 587)
    #[arg(long, default_value_t = 587, hide_default_value = true)]
    port: u16,
    #[arg(long)]
    user: Option<String>,
    /// The password; better from the environment or --password-stdin than from here
    #[arg(long, env = "TOLLGATE_SMTP_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// Read the password from standard input, one line
    #[arg(long, conflicts_with = "password")]
    password_stdin: bool,
    /// Who mail sent with an API key is from (default: the user)
    #[arg(long, value_name = "ADDRESS")]
    from: Option<String>,
    /// How the connection is encrypted (default: starttls, implicit on port 465)
    #[arg(long, value_enum)]
    tls: Option<Tls>,
    /// A PEM file of an authority to trust for this server
    #[arg(long, value_name = "FILE")]
    root_cert: Option<PathBuf>,
    /// Let the password travel unencrypted to another machine
    #[arg(long)]
    allow_plaintext_auth: bool,
    /// At most so many in any minute (0: no such limit)
    #[arg(long, value_name = "N")]
    limit_minute: Option<u64>,
    /// At most so many in any hour
    #[arg(long, value_name = "N")]
    limit_hour: Option<u64>,
    /// At most so many in any 24 hours
    #[arg(long, value_name = "N")]
    limit_day: Option<u64>,
    /// What happens over a limit
    #[arg(long, value_enum, default_value = "defer")]
    limit_behavior: Behavior,
    /// What the limits count
    #[arg(long, value_enum, default_value = "messages")]
    limit_unit: Unit,
    /// Percent of each limit that only priority 0 may use
    #[arg(long, value_name = "PERCENT")]
    priority0_share: Option<u8>,
    /// Messages that each instance sends at once; 1 keeps their order within it
    #[arg(long, value_name = "N")]
    concurrency: Option<u16>,
    #[command(flatten)]
    remote: Remote,
}

pub(super) fn run(command: &AccountCommand) -> Result<Done, Failure> {
    match command {
        AccountCommand::List { of, remote } => {
            let path = Query::default().with("tenant_id", of.tenant.as_deref()).path("/accounts");
            let answer = remote.get(&path)?.success()?;
            let columns = [
                ("tenant", "tenant_id", text as fn(&Value) -> String),
                ("account", "id", text),
                ("host", "host", text),
                ("port", "port", text),
                ("user", "user", text),
                ("tls", "tls", text),
                ("minute", "limit_per_minute", limit),
                ("hour", "limit_per_hour", limit),
                ("day", "limit_per_day", limit),
                ("over it", "limit_behavior", text),
                ("resumes", "resume_ts", time),
            ];
            list(remote, &answer, "accounts", columns);
            Ok(Done::Ok)
        }
        AccountCommand::Add(args) => add(args),
        AccountCommand::Delete { id, of, remote } => {
            let query = Query::default().with("tenant_id", of.tenant.as_deref());
            let path = query.path(&format!("/account/{}", encode(id)));
            let answer = remote.delete(&path)?.success()?;
            Ok(done(remote, &answer, &format!("account {id} is deleted")))
        }
    }
}

fn limit(value: &Value) -> String {
    if value.is_null() { "-".into() } else { text(value) }
}

fn add(args: &AddArgs) -> Result<Done, Failure> {
    let answer = args.remote.post("/account", &args.body()?)?.success()?;
    Ok(done(&args.remote, &answer, &format!("account {} is in force", args.id())))
}

impl AddArgs {
    fn id(&self) -> &str {
        self.id.as_deref().or(self.user.as_deref()).unwrap_or(&self.host)
    }

    /// Only what was said.
    fn body(&self) -> Result<Value, Failure> {
        let root_cert = self.root_cert.as_ref().map(|path| {
            std::fs::read_to_string(path).map_err(|error| {
                Failure::bad_input(format!("{} cannot be read: {error}", path.display()))
            })
        });
        let members = [
            ("id", json!(self.id())),
            ("tenant_id", json!(self.of.tenant)),
            ("host", json!(self.host)),
            ("port", json!(self.port)),
            ("user", json!(self.user)),
            ("password", json!(self.password()?)),
            ("from_address", json!(self.from)),
            ("use_tls", json!(self.tls.map(|tls| !matches!(tls, Tls::None)))),
            ("tls", json!(self.tls.as_ref().map(name))),
            ("root_cert", json!(root_cert.transpose()?)),
            ("allow_plaintext_auth", json!(self.allow_plaintext_auth)),
            ("limit_per_minute", json!(self.limit_minute)),
            ("limit_per_hour", json!(self.limit_hour)),
            ("limit_per_day", json!(self.limit_day)),
            ("limit_behavior", json!(name(&self.limit_behavior))),
            ("limit_unit", json!(name(&self.limit_unit))),
            ("priority0_share", json!(self.priority0_share)),
            ("concurrency", json!(self.concurrency)),
        ];
        let said = members.into_iter().filter(|(_, value)| !value.is_null());
        Ok(said.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>().into())
    }

    fn password(&self) -> Result<Option<String>, Failure> {
        if !self.password_stdin {
            // `--password ''` takes the password away.
            let is_said = |password: &String| is_said("TOLLGATE_SMTP_PASSWORD", password);
            return Ok(self.password.clone().filter(is_said));
        }
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map_err(|error| {
            Failure::bad_input(format!("no password on standard input: {error}"))
        })?;
        match line.trim_end_matches(['\r', '\n']) {
            // What should have written one has failed: nobody means to take the password away so.
            "" => Err(Failure::bad_input(
                "no password on standard input; `--password ''` takes it away",
            )),
            password => Ok(Some(password.to_owned())),
        }
    }
}

/// As it is written on the command line and on the wire.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

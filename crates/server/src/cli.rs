//! The command line. All commands but `serve`, `migrate`, `sql`, `completions` and `man` talk to a
//! server.

mod check;
mod client;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod mail;
mod picture;
mod policy;
mod show;
mod slot;
mod slot_import;
mod slot_timeline;
mod token;
mod top;

use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser, Subcommand};
use tollgate_mail::{Mail, MailError, MailSettings};
use tracing::level_filters::LevelFilter;

use crate::exit::{Done, Failure};
use crate::serve::{self, ServeArgs};

/// When may this happen? Exact, durable, shared rate limits.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, propagate_version = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// How much to log to standard error: off, error, warn, info, debug or trace
    #[arg(long, global = true, default_value = "info", value_name = "LEVEL", env = "TOLLGATE_LOG")]
    pub(crate) log: LevelFilter,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 allowed or done, 1 refused, 2 bad usage or input, \
                          3 store or server unreachable.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the server
    Serve(ServeArgs),
    /// Ask whether something may happen now; if so, it is counted
    Check(check::CheckArgs),
    /// Show where the limits stand, without spending
    Peek(check::CheckArgs),
    /// Give back what a check spent
    Refund(check::RefundArgs),
    /// Ask for an event's slot; list, cancel, verify, import and draw slots
    Slot(slot::SlotArgs),
    /// List, show, apply and delete policies, and show their history
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Watch who is refused most
    Top(top::TopArgs),
    /// Run the mail relay: tenants, accounts, keys, messages, queue; send files
    #[command(subcommand)]
    Mail(mail::MailCommand),
    /// Make, list and revoke access tokens
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Bring a store's schema up to date (also done by `serve`)
    Migrate {
        /// The store: sqlite:PATH or postgres://USER@HOST/DATABASE
        #[arg(long, value_name = "URL", default_value = "sqlite:tollgate.db")]
        store: String,
    },
    /// Print the SQL doors: functions that limit inside PostgreSQL, with no server
    Sql,
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
    /// Print the manual page, or write one for each command
    Man {
        /// Write the pages into this folder instead, such as /usr/local/share/man/man1
        #[arg(long, value_name = "FOLDER")]
        dir: Option<PathBuf>,
    },
}

pub(crate) fn run(command: Command) -> Result<Done, Failure> {
    match command {
        Command::Serve(args) => serve::run(args).map(|()| Done::Ok),
        Command::Check(args) => check::check(&args),
        Command::Peek(args) => check::peek(&args),
        Command::Refund(args) => check::refund(&args),
        Command::Slot(args) => slot::run(args),
        Command::Policy(command) => policy::run(command),
        Command::Top(args) => top::run(args),
        Command::Mail(command) => mail::run(&command),
        Command::Token(command) => token::run(&command),
        Command::Migrate { store } => migrate(&store),
        Command::Sql => {
            say!("{}", tollgate::sql_doors().trim_end());
            Ok(Done::Ok)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
            say!("{}", String::from_utf8_lossy(&script).trim_end());
            Ok(Done::Ok)
        }
        Command::Man { dir } => man(dir.as_deref()),
    }
}

fn man(dir: Option<&Path>) -> Result<Done, Failure> {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
        rendered.map_err(|error| Failure::unreachable(format!("no page was made: {error}")))?;
        say!("{}", String::from_utf8_lossy(&page).trim_end());
        return Ok(Done::Ok);
    };
    let written =
        std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
    written.map_err(|error| {
        let dir = dir.display();
        Failure::bad_input(format!("{dir} cannot be written to ({error}); name another with --dir"))
    })?;
    say!("the pages are in {}; read one with `man -l {0}/tollgate.1`", dir.display());
    Ok(Done::Ok)
}

fn migrate(store: &str) -> Result<Done, Failure> {
    let if_in_use = "stop it first; a server also brings its store up to date when it starts";
    token::with_store(store, if_in_use, async |gate| {
        // The mail relay's tables stand beside the store's.
        match Mail::open(gate.clone(), store, MailSettings::default()).await {
            Ok(mail) => mail.close(),
            // Tables need no key; who sends will ask for it.
            Err(MailError::Key(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    })?;
    say!("{} is up to date", tollgate::shown_url(store));
    Ok(Done::Ok)
}

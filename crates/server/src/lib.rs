//! The binary `tollgate`: HTTP, command line, metrics. What decisions say on the wire is the
//! library's `wire`.
//!
//! A library only so that its parsers can be fuzzed; nobody else uses it.

#[macro_use]
mod say;
mod alerts;
mod auth;
mod body;
mod cli;
mod client;
mod config;
mod exit;
mod forward_auth;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod idempotency;
mod listener;
mod metrics;
mod open_files;
mod problem;
mod request_id;
mod serve;
mod stall;
mod state;
mod strict;
mod threads;
mod tls;
mod wire;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;

/// What the binary does.
pub fn run() -> ExitCode {
    let cli = cli::Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_max_level(cli.log)
        .with_target(false)
        // It would tell of a full standard error on standard error, and panic.
        .log_internal_errors(false)
        .init();
    exit::code(cli::run(cli.command))
}

//! The binary `tollgate`: HTTP, command line, metrics; the one place that maps decisions to the
//! wire.

mod alerts;
mod auth;
mod body;
mod cli;
mod config;
mod exit;
mod forward_auth;
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
mod tls;
mod wire;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;

/// Measured against the system's: see ARCHITECTURE.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_max_level(cli.log)
        .with_target(false)
        .init();
    exit::code(cli::run(cli.command))
}

//! Runs the README and the pages of `docs/` as their readers would: every `sh` block in order, every file written,
//! every `text` block found in what the block before it printed.
//!
//! In a page: a block that begins with `# file: NAME` is a file; `sh no-run` is for the eye alone;
//! `…` in a `text` block stands for anything.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "docs/page.rs"]
mod page;
#[path = "docs/shell.rs"]
mod shell;
#[path = "../../mail/tests/support/sink.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the relay's own tests")]
mod sink;

use testkit::servers::Postgres;

/// Its first block is `cargo run -- serve`; here that is the binary under test.
#[test]
fn the_readme() {
    page::run_after("tollgate serve &\n", "../README", &[]);
}

#[test]
fn daily_quotas() {
    page::run("daily-quotas", &[]);
}

#[test]
fn schedule_payments() {
    page::run("schedule-payments", &[]);
}

#[test]
fn sql_doors() {
    let postgres = Postgres::start();
    page::run("sql-doors", &[("DATABASE_URL", &postgres.superuser_url())]);
}

#[test]
fn operate() {
    let postgres = Postgres::start();
    page::run("operate", &[("DATABASE_URL", &postgres.url())]);
}

#[test]
fn nginx() {
    page::run("nginx", &[]);
}

#[test]
fn pace_mail() {
    let sink = sink::Sink::start();
    page::run("pace-mail", &[("SMTP_PORT", &sink.plain.to_string())]);
    assert!(sink.messages().len() >= 10, "ten went out at once");
}

//! Runs the README and the pages of `docs/` as their readers would: every `sh` and `sql` block in order, every file
//! written, every `text` block found in what the block before it printed. The program in `docs/axum.md` is a test of the
//! library's documentation; the README's is here.
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
    let postgres = Postgres::start();
    let before = "tollgate serve &\ntollgate sql | psql -q -v ON_ERROR_STOP=1 \"$DATABASE_URL\"\n";
    page::run_after(before, "../README", &[("DATABASE_URL", &postgres.superuser_url())]);
}

/// Its program, word by word: what stands here stands there.
#[tokio::test]
async fn the_program_in_the_readme() -> Result<(), tollgate::Error> {
    use tollgate::{Policy, Tollgate};

    let gate = Tollgate::open("memory:").await?;
    let policy = r#"limits = [{ name = "user", max = 2, per = "60s", by = ["user"] }]"#;
    gate.apply(&Policy::from_toml("api", policy)?, "me").await?;
    let answer = gate.check("api", &[("user", "ada")], 1).await?;
    if !answer.allowed() {
        println!("come back at {}", answer.decision.retry_at().unwrap());
    }

    assert!(answer.allowed());
    let program = page::block_of("../README", "rust");
    let words = |text: &str| -> String {
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        code.flat_map(str::split_whitespace).collect()
    };
    assert!(words(include_str!("docs.rs")).contains(&words(&program)), "{program}");
    Ok(())
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
fn http() {
    page::run("http", &[]);
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

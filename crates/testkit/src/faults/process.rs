//! The server itself ends: killed, or told to stop.

use std::time::Duration;

use super::load::Trouble;
use super::server::Home;
use super::stage::{Promise, Report, Scenery, Stage, blocking};
use super::{Plan, database};
use crate::kill::PROMISED_LOSS_MICROS;
use crate::servers::Postgres;

/// Before whoever watches over it starts it again.
const DOWN: Duration = Duration::from_millis(500);
/// A file that was not closed is brought in order at the next start.
const START: Duration = Duration::from_secs(3);

const GONE: &[Trouble] = &[Trouble::Refused, Trouble::Broken];

/// On which store, and how durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    Sync,
    Interval,
    Postgres,
}

impl Kept {
    async fn open(self, plan: &Plan, home: &Home) -> Result<Stage, String> {
        let store = match self {
            Self::Sync | Self::Interval => {
                format!("sqlite:{}", home.path().join("counts.db").display())
            }
            Self::Postgres => blocking(|| database::url(Postgres::shared())),
        };
        let durability = if self == Self::Interval { "interval" } else { "sync" };
        let (folder, config) = (home.path(), "");
        Stage::open(plan, Scenery { folder, store, durability, config, visitors: 0 }).await
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Sync => "SQLite, `sync`",
            Self::Interval => "SQLite, `interval`",
            Self::Postgres => "PostgreSQL",
        }
    }
}

pub(super) async fn killed(plan: &Plan, name: &'static str, kept: Kept) -> Result<Report, String> {
    let home = Home::new(name)?;
    let mut stage = kept.open(plan, &home).await?;
    stage.begin();
    blocking(|| stage.server.kill());
    tokio::time::sleep(DOWN).await;
    stage.start_again()?;
    let promised = Duration::from_micros(PROMISED_LOSS_MICROS.unsigned_abs());
    let forgets = if kept == Kept::Interval { promised } else { Duration::ZERO };
    let promise = Promise { forgets, back_within: START, ..Promise::of(GONE) };
    let fault = format!("server killed (SIGKILL), started again after 0.5 s; {}", kept.in_words());
    stage.close(name, fault, &promise).await
}

pub(super) async fn stopped(plan: &Plan, name: &'static str, kept: Kept) -> Result<Report, String> {
    let home = Home::new(name)?;
    let mut stage = kept.open(plan, &home).await?;
    stage.begin();
    let status = blocking(|| stage.server.terminate())?;
    stage.start_again()?;
    // Whoever was heard is answered; the others find nobody, and know that nothing was counted.
    let troubles = &[Trouble::Refused];
    let promise =
        Promise { answers_what_it_counts: true, back_within: START, ..Promise::of(troubles) };
    let fault = format!("server stopped (SIGTERM) and started again; {}", kept.in_words());
    let mut report = stage.close(name, fault, &promise).await?;
    if !status.success() {
        report.broken.push(format!("it ended with {status}"));
    }
    Ok(report)
}

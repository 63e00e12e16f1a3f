//! A private PostgreSQL, a file, and a schedule on each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as Stopwatch};

use anyhow::{Result, ensure};
use tempfile::TempDir;
use testkit::servers::{Postgres, Settings};
use tokio::runtime::Runtime;
use tollgate::{Instant, Policy, SlotAnswer, SlotAsk, Tollgate};

use crate::outcome::Outcome;
use crate::postgres::pgbench;

const LINES: [&str; 3] =
    ["shared_buffers = '128MB'", "max_connections = 200", "synchronous_commit = on"];
const SCHEDULE: &str = r#"
limits = [{ name = "window", max = 100, per = "PT4S" }]
schedule = { spread = "even", horizon = "3650d" }
"#;

// In the order in which they must end.
pub(crate) struct Rig {
    pub(crate) runtime: Runtime,
    pub(crate) on_postgres: Scheduler,
    pub(crate) embedded: Scheduler,
    postgres: Postgres,
    folder: TempDir,
}

/// One store, and where its next burst begins.
#[derive(Clone)]
pub(crate) struct Scheduler {
    pub(crate) name: &'static str,
    pub(crate) gate: Tollgate,
    events: Arc<AtomicU64>,
}

impl Rig {
    pub(crate) fn start() -> Result<Self> {
        let lines = LINES.map(str::to_owned).to_vec();
        let postgres = Postgres::start_with(Settings { fsync: true, lines, ..Settings::default() });
        let usual = include_str!("../../sql/usual_slots.sql");
        let usual = format!("create schema usual; set search_path to usual;\n{usual}");
        postgres.psql_through(&postgres.url(), &usual).map_err(anyhow::Error::msg)?;
        let folder = tempfile::tempdir()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let open = async |name, url: String| {
            let gate = Tollgate::open(&url).await?;
            anyhow::Ok(Scheduler { name, gate, events: Arc::default() })
        };
        let (on_postgres, embedded) = runtime.block_on(async {
            let file = folder.path().join("slots.db");
            anyhow::Ok((
                open("PostgreSQL", format!("{}?deadline=30s", postgres.url())).await?,
                open("SQLite", format!("sqlite:{}", file.display())).await?,
            ))
        })?;
        Ok(Self { runtime, on_postgres, embedded, postgres, folder })
    }

    pub(crate) fn version(&self) -> String {
        self.postgres.psql("show server_version")
    }

    pub(crate) fn database_bytes(&self) -> Result<u64> {
        Ok(self.postgres.psql("select pg_database_size(current_database())").parse()?)
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Runs SQL with pgbench in the schema of the usual ways.
    pub(crate) fn sql(&self, script: &str, callers: usize, slice: Duration) -> Result<Outcome> {
        let url = format!("{}?options=-csearch_path%3Dusual", self.postgres.url());
        pgbench::run(&url, script, callers, slice)
    }
}

impl Scheduler {
    /// A schedule that nothing was given of yet.
    pub(crate) async fn schedule(&self, name: &str) -> Result<()> {
        self.gate.apply(&Policy::from_toml(name, SCHEDULE)?, "bench").await?;
        Ok(())
    }

    /// Asks for one slot after the other until told to stop. How long each took.
    pub(crate) async fn ask_until(
        self,
        schedule: String,
        at: Instant,
        ends: Stopwatch,
    ) -> Result<Vec<Duration>> {
        let mut latencies = Vec::new();
        while Stopwatch::now() < ends {
            latencies.push(self.ask(&schedule, at, 1).await?);
        }
        Ok(latencies)
    }

    /// Asks for slots of new events, all at one instant. How long it took.
    pub(crate) async fn ask(&self, schedule: &str, at: Instant, count: usize) -> Result<Duration> {
        let first = self.events.fetch_add(count as u64, Ordering::Relaxed);
        let events = (first..)
            .take(count)
            .map(|number| SlotAsk {
                event_id: format!("event-{number:012}"),
                requested_at: Some(at),
            })
            .collect();
        let asked = Stopwatch::now();
        let answers = self.gate.assign_slots(schedule, events).await?;
        let took = asked.elapsed();
        for answer in answers {
            ensure!(matches!(answer, SlotAnswer::Given(_)), "no slot: {answer:?}");
        }
        Ok(took)
    }
}

//! PostgreSQL goes away, stands still, is full, or somebody holds a row.

use std::time::Duration;

use super::Plan;
use super::load::Trouble;
use super::server::Home;
use super::stage::{Promise, Report, Scenery, Stage, blocking};
use super::strangers::Stranger;
use crate::random;
use crate::servers::{Postgres, Proxy, Settings};

/// How long each fault lasts.
const LASTS: Duration = Duration::from_secs(5);
const AWAY: &[Trouble] = &[Trouble::Status(503)];
/// Callers are answered by the default deadline, and PostgreSQL is used again within a second.
const PROMISE: Promise = Promise {
    answered_within: Duration::from_millis(500),
    back_within: Duration::from_secs(1),
    ..Promise::of(AWAY)
};

/// Small, so that few strangers take all there are. The server's own are six.
const FEW_CONNECTIONS: usize = 20;
/// Kept by PostgreSQL for superusers.
const RESERVED: usize = 3;

/// A schema of its own in that database.
pub(super) fn url(postgres: &Postgres) -> String {
    with_schema(&postgres.url())
}

fn with_schema(url: &str) -> String {
    format!("{url}?schema={}", random::name("s").replace('-', "_"))
}

fn schema(url: &str) -> &str {
    url.rsplit_once("schema=").map_or("tollgate", |(_, schema)| schema)
}

async fn open(plan: &Plan, home: &Home, store: String) -> Result<Stage, String> {
    let (folder, durability, config) = (home.path(), "sync", "");
    Stage::open(plan, Scenery { folder, store, durability, config, visitors: 0 }).await
}

/// Which way PostgreSQL is restarted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Restart {
    Fast,
    Immediate,
}

pub(super) async fn restarted(
    plan: &Plan,
    name: &'static str,
    restart: Restart,
) -> Result<Report, String> {
    let home = Home::new(name)?;
    let postgres = blocking(Postgres::shared);
    let mut stage = open(plan, &home, url(postgres)).await?;
    stage.begin();
    let how = match restart {
        Restart::Fast => {
            blocking(|| postgres.stop());
            "fast"
        }
        Restart::Immediate => {
            blocking(|| postgres.stop_immediately());
            "immediate"
        }
    };
    blocking(|| postgres.start_again());
    stage.end();
    stage.close(name, format!("PostgreSQL restarted ({how})"), &PROMISE).await
}

pub(super) async fn paused(plan: &Plan, name: &'static str) -> Result<Report, String> {
    let home = Home::new(name)?;
    let postgres = blocking(Postgres::shared);
    let mut stage = open(plan, &home, url(postgres)).await?;
    stage.begin();
    blocking(|| postgres.pause());
    tokio::time::sleep(LASTS).await;
    blocking(|| postgres.resume());
    stage.end();
    stage.close(name, "PostgreSQL stands still (SIGSTOP) for 5 s", &PROMISE).await
}

/// What the network does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Network {
    Cut,
    BlackHole,
}

pub(super) async fn cut_off(
    plan: &Plan,
    name: &'static str,
    network: Network,
) -> Result<Report, String> {
    let home = Home::new(name)?;
    let postgres = blocking(Postgres::shared);
    let proxy = Proxy::start(postgres.port());
    let mut stage = open(plan, &home, with_schema(&proxy.through(&postgres.url()))).await?;
    stage.begin();
    let fault = match network {
        Network::Cut => {
            blocking(|| proxy.cut());
            "connections to PostgreSQL cut, new ones refused, for 5 s"
        }
        Network::BlackHole => {
            blocking(|| proxy.stall());
            "network to PostgreSQL swallows everything for 5 s"
        }
    };
    tokio::time::sleep(LASTS).await;
    blocking(|| proxy.pass());
    stage.end();
    stage.close(name, fault, &PROMISE).await
}

/// Strangers take every connection that PostgreSQL has, also those that the server had.
pub(super) async fn exhausted(plan: &Plan, name: &'static str) -> Result<Report, String> {
    let home = Home::new(name)?;
    let lines = vec![
        format!("max_connections = {FEW_CONNECTIONS}"),
        format!("superuser_reserved_connections = {RESERVED}"),
    ];
    let postgres = blocking(|| Postgres::start_with(Settings { lines, ..Settings::default() }));
    let mut stage = open(plan, &home, url(&postgres)).await?;
    stage.begin();
    let mut strangers = Vec::new();
    while strangers.len() < FEW_CONNECTIONS - RESERVED {
        match Stranger::enter(postgres.port()).await? {
            Some(stranger) => strangers.push(stranger),
            // All taken: the server must lose its own, and a stranger be there first.
            None => blocking(|| {
                postgres.psql(
                    "select pg_terminate_backend(pid) from pg_stat_activity \
                     where usename = 'tollgate' and application_name <> 'stranger'",
                );
            }),
        }
    }
    let taken = strangers.len();
    tokio::time::sleep(LASTS).await;
    drop(strangers);
    stage.end();
    let fault = format!("strangers take all {taken} connections of PostgreSQL for 5 s");
    stage.close(name, fault, &PROMISE).await
}

/// Whose row is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Row {
    /// The one that every check counts in.
    Everybodys,
    /// That of one user out of eight.
    OneUsers,
}

pub(super) async fn locked(plan: &Plan, name: &'static str, row: Row) -> Result<Report, String> {
    let home = Home::new(name)?;
    let postgres = blocking(Postgres::shared);
    let url = url(postgres);
    let counter = format!("{}.counter", schema(&url));
    let mut stage = open(plan, &home, url).await?;
    stage.begin();
    let (which, fault) = match row {
        Row::Everybodys => ("length(key) = 8", "a stranger locks the row of everybody for 5 s"),
        Row::OneUsers => ("key like '%user-3'", "a stranger locks the row of one user for 5 s"),
    };
    let held = blocking(|| {
        postgres.psql(&format!(
            "begin; select from {counter} where {which} for update; \
             select pg_sleep({}); select count(*) from {counter} where {which}; rollback",
            LASTS.as_secs()
        ))
    });
    stage.end();
    if held.lines().all(|line| line.trim().is_empty() || line == "0") {
        return Err(format!("no row was held: {held:?}"));
    }
    stage.close(name, fault, &PROMISE).await
}

//! The SQL doors: what they promise, and that the usual SQL does not keep it.
//!
//! Each test has the doors in a schema of its own, and a clock that stands still until it is told
//! otherwise: the doors' one function that reads the time is replaced, nothing else. What is shown
//! of the usual SQL is shown without luck: by instants, by rows put in place, or by two sessions of
//! which one is seen to wait. Deliberately absent: how fast any of them is (see `bench`).

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "sql_doors/bounds.rs"]
mod bounds;
#[path = "sql_doors/cleanup.rs"]
mod cleanup;
#[path = "sql_doors/daily.rs"]
mod daily;
#[path = "sql_doors/fixed.rs"]
mod fixed;
#[path = "sql_doors/installing.rs"]
mod installing;
#[path = "sql_doors/sliding.rs"]
mod sliding;
#[path = "sql_doors/time.rs"]
mod time;
#[path = "sql_doors/transactions.rs"]
mod transactions;

use testkit::servers::Postgres;
use testkit::{ManualClock, random};
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, NoTls, Row};
use tollgate::{Instant, Policy, Tollgate};

const DOORS: &str = include_str!("../../store-postgres/migrations/V2__doors.sql");
const USUAL_UPSERT: &str = include_str!("../../../bench/sql/usual_upsert.sql");
const USUAL_UPSERT_STATEMENT: &str = include_str!("../../../bench/sql/usual_upsert_statement.sql");
const USUAL_QUOTA: &str = include_str!("../../../bench/sql/usual_quota.sql");
const USUAL_SLIDING: &str = include_str!("../../../bench/sql/usual_sliding.sql");

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;
/// 2027-01-15 08:00:00 UTC: the start of a minute and of an hour.
const START: i64 = 1_800_000_000 * SECOND;
const DAY: &str = "2027-01-15";
/// How many race.
const TASKS: usize = 16;

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];
/// Allowed, current count, retry after.
type Answer = (bool, i32, i32);

/// A connection that finds the doors of its schema without naming it.
struct Session {
    client: Client,
    schema: String,
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Session {
    /// The doors and the usual SQL in a new schema, on a clock that stands at `START`.
    async fn install() -> Session {
        let schema = random::name("doors").replace('-', "_");
        let client = connect(&Postgres::shared().url()).await;
        client.batch_execute(&format!("create schema {schema}")).await.unwrap();
        let session = Session { client, schema }.into_schema().await;
        for sql in [DOORS, USUAL_UPSERT, USUAL_QUOTA, USUAL_SLIDING] {
            session.run(sql).await;
        }
        session
            .run(
                "create table test_clock (us bigint not null); insert into test_clock values (0); \
                 create or replace function door_now_us() returns bigint language sql volatile \
                 as 'select us from test_clock'",
            )
            .await;
        session.at(START).await;
        session
    }

    /// Another connection to the same doors.
    async fn another(&self) -> Session {
        let client = connect(&Postgres::shared().url()).await;
        Session { client, schema: self.schema.clone() }.into_schema().await
    }

    async fn into_schema(self) -> Session {
        let path = format!("set search_path to {}, pg_temp", self.schema);
        self.run(&format!("set client_min_messages to warning; {path}")).await;
        self
    }

    /// Sets the clock, for every session of these doors.
    async fn at(&self, us: i64) {
        self.client.execute("update test_clock set us = $1", &[&us]).await.unwrap();
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    async fn ask(&self, sql: &str, parameters: Parameters<'_>) -> Result<Row, Error> {
        self.client.query_one(sql, parameters).await
    }

    async fn number(&self, sql: &str) -> i64 {
        self.ask(&format!("select ({sql})::bigint"), &[]).await.unwrap().get(0)
    }

    async fn flag(&self, sql: &str) -> bool {
        self.ask(&format!("select ({sql})"), &[]).await.unwrap().get(0)
    }

    /// `check_rate_limit`, by the names of its parameters, as a prepared statement.
    async fn sliding(&self, key: &str, limit: i32, window: i32) -> Answer {
        let sql =
            "select * from check_rate_limit(p_window_seconds => $3, p_limit => $2, p_key => $1)";
        answer(&self.ask(sql, &[&key, &limit, &window]).await.unwrap())
    }

    async fn usual_sliding(&self, key: &str, limit: i32, window: i32) -> Answer {
        let sql = "select * from usual_sliding($1, $2, $3)";
        answer(&self.ask(sql, &[&key, &limit, &window]).await.unwrap())
    }

    /// `check_and_consume_quota` for the route `/r`.
    async fn quota(&self, user: &str, limit: i32, window: i32) -> bool {
        let sql = "select check_and_consume_quota(p_user_id => $1, p_route => '/r', \
                   p_limit => $2, p_window_sec => $3)";
        self.ask(sql, &[&user, &limit, &window]).await.unwrap().get(0)
    }

    async fn usual_quota(&self, user: &str, limit: i32) -> bool {
        let sql = "select usual_quota($1, '/r', $2, 60)";
        self.ask(sql, &[&user, &limit]).await.unwrap().get(0)
    }

    /// `check_and_increment_usage` on `DAY`.
    async fn daily(&self, key: &str, amount: i32, limit: i32) -> (bool, i32) {
        self.daily_on(DAY, key, amount, limit).await.unwrap()
    }

    async fn daily_on(
        &self,
        day: &str,
        key: &str,
        amount: i32,
        limit: i32,
    ) -> Result<(bool, i32), Error> {
        let sql = "select * from check_and_increment_usage(p_key => $1, p_day => $2::text::date, \
                   p_amount => $3, p_limit => $4)";
        let row = self.ask(sql, &[&key, &day, &amount, &limit]).await?;
        Ok((row.get("allowed"), row.get("count")))
    }

    /// The new count; none if refused.
    async fn usual_upsert(&self, key: &str, amount: i32, limit: i32) -> Option<i32> {
        let sql = USUAL_UPSERT_STATEMENT.replace("values ($1, $2,", "values ($1, $2::text::date,");
        let row = self.client.query_opt(&sql, &[&key, &DAY, &amount, &limit]).await.unwrap();
        row.map(|row| row.get(0))
    }

    async fn cleanup(&self) -> i32 {
        self.ask("select cleanup_old_rate_limit_buckets()", &[]).await.unwrap().get(0)
    }

    /// Whether the open transaction has written anything, be it a lock.
    async fn has_written(&self) -> bool {
        self.flag("pg_current_xact_id_if_assigned() is not null").await
    }

    /// Asks `sql`, whose one column is a boolean, in a session and task of its own.
    async fn start(&self, sql: &'static str) -> Started {
        let session = self.another().await;
        let pid = session.ask("select pg_backend_pid()", &[]).await.unwrap().get(0);
        let task = tokio::spawn(async move { session.ask(sql, &[]).await.unwrap().get(0) });
        Started { pid, task }
    }

    /// Returns when `started` waits for a lock, or has ended.
    async fn until_it_waits(&self, started: &Started) {
        let waits = "select exists (select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock')";
        while !started.task.is_finished() {
            if self.ask(waits, &[&started.pid]).await.unwrap().get(0) {
                return;
            }
        }
    }
}

struct Started {
    pid: i32,
    task: JoinHandle<bool>,
}

fn answer(row: &Row) -> Answer {
    (row.get("allowed"), row.get("current_count"), row.get("retry_after"))
}

/// A door asked once for one unit under a key, whichever door it is.
#[derive(Clone, Copy, Debug)]
enum Door {
    Sliding,
    Fixed,
    Daily,
}

impl Door {
    const ALL: [Door; 3] = [Door::Sliding, Door::Fixed, Door::Daily];

    async fn ask(self, session: &Session, key: &str, limit: i32) -> Result<bool, Error> {
        let sql = match self {
            Door::Sliding => "select allowed from check_rate_limit($1, $2, 60)",
            Door::Fixed => "select check_and_consume_quota($1, '/r', $2, 60)",
            Door::Daily => "select allowed from check_and_increment_usage($1, '2027-01-15', 1, $2)",
        };
        Ok(session.ask(sql, &[&key, &limit]).await?.get(0))
    }
}

//! Somebody else in the same database.

use std::time::{Duration, Instant as Stopwatch};

pub(crate) struct Session(tokio_postgres::Client);

impl Session {
    pub(crate) async fn open(url: &str) -> Self {
        let (client, connection) =
            tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.0.batch_execute(sql).await.unwrap();
    }

    /// Until somebody waits for what this session holds.
    pub(crate) async fn until_somebody_waits(&self) {
        // Not by pg_stat_activity: within a transaction that shows the sessions of one moment.
        let blocked = "select from pg_locks \
                       where not granted and pg_backend_pid() = any (pg_blocking_pids(pid))";
        let started = Stopwatch::now();
        while self.0.query(blocked, &[]).await.unwrap().is_empty() {
            assert!(started.elapsed() < Duration::from_secs(20), "nobody waits for this session");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.0.query_one(sql, &[]).await.unwrap().get(0)
    }

    pub(crate) async fn clock_micros(&self) -> i64 {
        self.number("select floor(extract(epoch from clock_timestamp()) * 1000000)::bigint").await
    }
}

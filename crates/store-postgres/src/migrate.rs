//! The schema, brought up to date in one transaction.
//!
//! Our own runner and not refinery's: its PostgreSQL driver prepares named statements, which
//! PgBouncer in transaction mode loses, and takes no lock, so that instances that start together
//! collide. See ARCHITECTURE.md.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};
use tollgate_core::store::{StoreError, StoreErrorKind};

use crate::desk::ABANDONED;
use crate::error::failed;
use crate::settings::in_schema;

/// Whoever waits for so long is told for what.
const REMIND_AFTER: Duration = Duration::from_secs(3);

/// One step forward. Never edited after landing.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    pub version: i32,
    pub name: &'static str,
    pub sql: &'static str,
    /// Programs that do not know it must not run on it.
    pub breaking: bool,
}

/// Tables that are brought up to date together.
#[derive(Clone, Copy, Debug)]
pub struct Migrations {
    /// What they are called in messages.
    pub what: &'static str,
    /// Taken by whoever does it.
    pub lock: &'static str,
    /// The table that lists what was done.
    pub table: &'static str,
    /// In order.
    pub steps: &'static [Migration],
}

pub(crate) const STORE: Migrations = Migrations {
    what: "the schema",
    lock: "tollgate migrate",
    table: "migration",
    steps: &[
        Migration {
            breaking: true,
            ..Migration::new(1, "initial", include_str!("../migrations/V1__initial.sql"))
        },
        Migration::new(2, "doors", DOORS),
        Migration::new(3, "slots", include_str!("../migrations/V3__slots.sql")),
        Migration::new(4, "write known", include_str!("../migrations/V4__write_known.sql")),
        Migration::new(5, "offenders", include_str!("../migrations/V5__offenders.sql")),
        Migration::new(6, "give slots", include_str!("../migrations/V6__give_slots.sql")),
        Migration::new(7, "sweep floor", include_str!("../migrations/V7__sweep_floor.sql")),
        Migration::new(8, "counted from", include_str!("../migrations/V8__counted_from.sql")),
        Migration::new(
            9,
            "compare and write",
            include_str!("../migrations/V9__compare_and_write.sql"),
        ),
        Migration::new(10, "plain insert", include_str!("../migrations/V10__plain_insert.sql")),
        Migration::new(11, "sweep pace", include_str!("../migrations/V11__sweep_pace.sql")),
    ],
};

impl Migration {
    /// One that older programs can live with.
    pub const fn new(version: i32, name: &'static str, sql: &'static str) -> Self {
        Self { version, name, sql, breaking: false }
    }
}

/// The SQL doors: functions that need no service.
const DOORS: &str = include_str!("../migrations/V2__doors.sql");

/// A script that installs the SQL doors alone, for a database that no Tollgate serves.
pub fn doors() -> String {
    format!(
        "-- Tollgate's SQL doors. Run it with psql; again does no harm.\n\
         begin;\n\
         do $$ begin\n    \
             if to_regnamespace('tollgate') is null then create schema tollgate; end if;\n\
         end $$;\n\
         set local search_path to tollgate, pg_temp;\n\n\
         {DOORS}\n\
         commit;\n"
    )
}

impl Migrations {
    /// Brings `schema` up to date. Safe when many start together: the first does it all, the others
    /// wait for it.
    pub(crate) async fn run(&self, client: &Client, schema: &str) -> Result<(), StoreError> {
        let what = self.what;
        let mut run = std::pin::pin!(self.run_once(client, schema));
        let result = loop {
            tokio::select! {
                result = &mut run => break result,
                () = tokio::time::sleep(REMIND_AFTER) => tracing::warn!(
                    schema,
                    "waiting to bring {what} up to date: somebody else does it or holds a lock, see pg_locks"
                ),
            }
        };
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(version)) => {
                let message = format!(
                    "{what} {schema:?} is of a newer Tollgate (version {version}) that this one \
                     would damage: update this program"
                );
                Err(StoreError::new(StoreErrorKind::Unavailable, message))
            }
            Err(error) => {
                let _ = client.batch_execute("rollback").await;
                Err(failed(&format!("{what} {schema:?} cannot be brought up to date"), error))
            }
        }
    }

    /// An error is the version that this program must not run on.
    async fn run_once(
        &self,
        client: &Client,
        schema: &str,
    ) -> Result<Result<(), i32>, tokio_postgres::Error> {
        let Self { lock, table, .. } = self;
        let transaction = format!(
            "begin isolation level read committed; {ABANDONED} \
             select pg_advisory_xact_lock(hashtextextended('{lock} {schema}', 0)); \
             set local search_path to \"{schema}\", pg_temp; \
             set local client_min_messages to warning;"
        );
        client.batch_execute(&transaction).await?;
        self.make_list(client, schema).await?;
        let known = self.steps.last().map_or(0, |last| last.version);
        let mut done = BTreeSet::new();
        for row in rows(client, &format!("select version, breaking from {table}")).await? {
            let version = row.get(0).and_then(|text| text.parse().ok()).unwrap_or(i32::MAX);
            if version > known && row.get(1) != Some("f") {
                client.batch_execute("rollback").await?;
                return Ok(Err(version));
            }
            done.insert(version);
        }
        // Not only those after the newest: one that was made beside others may land later.
        let missing: Vec<_> =
            self.steps.iter().filter(|step| !done.contains(&step.version)).collect();
        for Migration { version, name, sql, breaking } in &missing {
            client.batch_execute(&in_schema(sql, schema)).await?;
            let note = format!(
                "insert into {table} (version, name, breaking) \
                 values ({version}, '{name}', {breaking})"
            );
            client.batch_execute(&note).await?;
        }
        client.batch_execute("commit").await?;
        for Migration { version, name, .. } in missing {
            tracing::info!(version, name, schema, "migrated {}", self.what);
        }
        Ok(Ok(()))
    }

    /// Makes the schema and the list of migrations where they are missing. Otherwise nothing is
    /// made, not even "if not exists": that takes rights which an ordinary role may not have.
    async fn make_list(&self, client: &Client, schema: &str) -> Result<(), tokio_postgres::Error> {
        let table = self.table;
        let there = format!("select 1 from pg_namespace where nspname = '{schema}'");
        if rows(client, &there).await?.is_empty() {
            client.batch_execute(&format!("create schema \"{schema}\"")).await?;
        }
        let columns = format!(
            "select attname from pg_attribute \
             where attrelid = to_regclass('\"{schema}\".{table}') and attnum > 0 \
               and not attisdropped"
        );
        let columns = rows(client, &columns).await?;
        if columns.is_empty() {
            let create = format!(
                "create table {table} ( \
                     version int primary key, \
                     name text not null, \
                     breaking bool not null, \
                     applied_at timestamptz not null default now() \
                 )"
            );
            client.batch_execute(&create).await?;
        } else if !columns.iter().any(|row| row.get(0) == Some("breaking")) {
            // Mail's first lists did not say.
            let add =
                format!("alter table {table} add column breaking bool not null default false");
            client.batch_execute(&add).await?;
        }
        Ok(())
    }
}

async fn rows(client: &Client, sql: &str) -> Result<Vec<SimpleQueryRow>, tokio_postgres::Error> {
    let messages = client.simple_query(sql).await?;
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    };
    Ok(messages.into_iter().filter_map(row).collect())
}

//! The schema, brought up to date in one transaction.
//!
//! Our own runner and not refinery's: its PostgreSQL driver prepares named statements, which
//! PgBouncer in transaction mode loses, and takes no lock, so that instances that start together
//! collide. See ARCHITECTURE.md.

use std::collections::BTreeSet;

use tokio_postgres::Client;
use tollgate_core::store::{StoreError, StoreErrorKind};

use crate::catalogue::ABANDONED;
use crate::error::failed;
use crate::settings::in_schema;

/// One step forward. Never edited after landing.
struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
    /// Programs that do not know it must not run on it.
    breaking: bool,
}

const MIGRATIONS: &[Migration] = &[
    Migration {
        breaking: true,
        ..step(1, "initial", include_str!("../migrations/V1__initial.sql"))
    },
    step(2, "doors", DOORS),
    step(3, "slots", include_str!("../migrations/V3__slots.sql")),
    step(4, "write known", include_str!("../migrations/V4__write_known.sql")),
    step(5, "offenders", include_str!("../migrations/V5__offenders.sql")),
    step(6, "give slots", include_str!("../migrations/V6__give_slots.sql")),
    step(7, "sweep floor", include_str!("../migrations/V7__sweep_floor.sql")),
    step(8, "counted from", include_str!("../migrations/V8__counted_from.sql")),
    step(9, "compare and write", include_str!("../migrations/V9__compare_and_write.sql")),
];

/// One that older programs can live with.
const fn step(version: i32, name: &'static str, sql: &'static str) -> Migration {
    Migration { version, name, sql, breaking: false }
}

/// The SQL doors: functions that need no service.
const DOORS: &str = include_str!("../migrations/V2__doors.sql");

/// A script that installs the SQL doors alone, for a database that no Tollgate serves.
pub fn doors() -> String {
    format!(
        "-- Tollgate's SQL doors. Run it with psql; again does no harm.\n\
         begin;\n\
         create schema if not exists tollgate;\n\
         set local search_path to tollgate, pg_temp;\n\n\
         {DOORS}\n\
         commit;\n"
    )
}

/// What brings `schema` up to date. Safe when many start together: the first does it all, the
/// others wait for it.
pub(crate) async fn migrate(client: &Client, schema: &str) -> Result<(), StoreError> {
    let transaction = format!(
        "begin isolation level read committed; {ABANDONED} \
         select pg_advisory_xact_lock(hashtextextended('tollgate migrate {schema}', 0)); \
         set local search_path to \"{schema}\", pg_temp; \
         set local client_min_messages to warning;"
    );
    let run = async {
        client.batch_execute(&transaction).await?;
        let result = match applied(client, schema).await? {
            Applied::TooNew { version } => Err(version),
            Applied::These(versions) => {
                // Not only those after the newest: one that was made beside others may land later.
                let missing = |migration: &&Migration| !versions.contains(&migration.version);
                for migration in MIGRATIONS.iter().filter(missing) {
                    client.batch_execute(&in_schema(migration.sql, schema)).await?;
                    let Migration { version, name, breaking, .. } = migration;
                    let note = format!(
                        "insert into migration (version, name, breaking) \
                         values ({version}, '{name}', {breaking})"
                    );
                    client.batch_execute(&note).await?;
                    tracing::info!(version, name, schema, "migrated");
                }
                Ok(())
            }
        };
        client.batch_execute("commit").await?;
        Ok(result)
    };
    let result = match run.await {
        Ok(result) => result,
        Err(error) => {
            let _ = client.batch_execute("rollback").await;
            return Err(failed(
                &format!("the schema {schema:?} cannot be brought up to date"),
                error,
            ));
        }
    };
    result.map_err(|version| {
        let message = format!(
            "the schema {schema:?} is of a newer Tollgate (version {version}) that this one would \
             damage: update this program"
        );
        StoreError::new(StoreErrorKind::Unavailable, message)
    })
}

enum Applied {
    These(BTreeSet<i32>),
    TooNew { version: i32 },
}

/// Makes the schema and its list of migrations where they are missing; what was applied.
async fn applied(client: &Client, schema: &str) -> Result<Applied, tokio_postgres::Error> {
    // An ordinary role may own the schema without the right to create one.
    let there = format!("select 1 from pg_namespace where nspname = '{schema}'");
    if client.simple_query(&there).await?.iter().all(|message| row(message).is_none()) {
        client.batch_execute(&format!("create schema \"{schema}\"")).await?;
    }
    client
        .batch_execute(
            "create table if not exists migration ( \
                 version int primary key, \
                 name text not null, \
                 breaking bool not null, \
                 applied_at timestamptz not null default now() \
             )",
        )
        .await?;
    let known = MIGRATIONS.last().map_or(0, |last| last.version);
    let mut versions = BTreeSet::new();
    for message in client.simple_query("select version, breaking from migration").await? {
        let Some(row) = row(&message) else { continue };
        let version = row.get(0).and_then(|text| text.parse().ok()).unwrap_or(i32::MAX);
        if version > known && row.get(1) != Some("f") {
            return Ok(Applied::TooNew { version });
        }
        versions.insert(version);
    }
    Ok(Applied::These(versions))
}

fn row(message: &tokio_postgres::SimpleQueryMessage) -> Option<&tokio_postgres::SimpleQueryRow> {
    match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    }
}

//! The relay's tables, brought up to date in one transaction. Safe when many start together: the
//! first does it all, the others wait for it.

use tokio_postgres::{Client, SimpleQueryMessage};
use tollgate::{PostgresNeighbour, StoreError, StoreErrorKind};

use crate::error::MailError;

/// One step forward. Never edited after landing.
struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "initial",
        sql: include_str!("../../../migrations/postgres/V1__initial.sql"),
    },
    Migration {
        version: 2,
        name: "removed",
        sql: include_str!("../../../migrations/postgres/V2__removed.sql"),
    },
];

pub(super) async fn migrate(client: &Client, schema: &str) -> Result<(), MailError> {
    let run = async {
        client
            .batch_execute(&format!(
                // One that vanishes in between must not keep the others from starting.
                "begin isolation level read committed; \
                 set local idle_in_transaction_session_timeout = 5000; \
                 select pg_advisory_xact_lock(hashtextextended('tollgate mail migrate {schema}', 0)); \
                 set local client_min_messages to warning; \
                 create table if not exists \"{schema}\".mail_migration ( \
                     version int primary key, \
                     name text not null, \
                     applied_at timestamptz not null default now() \
                 )"
            ))
            .await?;
        let newest = format!("select coalesce(max(version), 0) from \"{schema}\".mail_migration");
        let newest = client.simple_query(&newest).await?.iter().find_map(number).unwrap_or(0);
        let known = MIGRATIONS.last().map_or(0, |last| last.version);
        if newest > known {
            client.batch_execute("rollback").await?;
            return Ok(Err(newest));
        }
        for migration in MIGRATIONS.iter().filter(|found| found.version > newest) {
            let sql = migration.sql.replace("tollgate.", &format!("\"{schema}\"."));
            client.batch_execute(&sql).await?;
            let Migration { version, name, .. } = migration;
            client
                .batch_execute(&format!(
                    "insert into \"{schema}\".mail_migration (version, name) \
                     values ({version}, '{name}')"
                ))
                .await?;
        }
        client.batch_execute("commit").await?;
        Ok(Ok(()))
    };
    match run.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(version)) => {
            let message = format!(
                "the mail tables in schema {schema:?} are of a newer Tollgate (version {version}): \
                 update this program"
            );
            Err(StoreError::new(StoreErrorKind::Unavailable, message).into())
        }
        Err(error) => {
            let what = format!("the mail tables in schema {schema:?} cannot be brought up to date");
            Err(PostgresNeighbour::error(&what, error).into())
        }
    }
}

fn number(message: &SimpleQueryMessage) -> Option<i32> {
    match message {
        SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
        _ => None,
    }
}

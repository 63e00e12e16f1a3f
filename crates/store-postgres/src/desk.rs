//! Where everything is done that is not a check, a refund or a slot: one transaction at a time on a
//! kept connection.
//!
//! The catalogue has a connection of its own, and whatever else there is takes turns with a few:
//! whoever waits for a lock there holds up no look-up of others.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tollgate_core::store::StoreError;

use crate::error::{closed, failed, timed_out};
use crate::pool::Pool;
use crate::{Inner, migrate};

/// A schema can take longer than an answer may.
const MIGRATE_WITHIN: Duration = Duration::from_secs(60);
/// Many slots take long to count.
const RECOUNT_WITHIN: Duration = Duration::from_secs(60);
/// So may a change: those of all instances are made one after the other.
pub(crate) const WITHIN: Duration = Duration::from_secs(5);
/// Pieces of work besides the catalogue's that are done at the same time, at most.
const MAX_CONNECTIONS: usize = 4;

/// An instance that vanishes in the middle must not keep what it locked: without a word from its
/// machine, PostgreSQL would wait for it for hours.
pub(crate) const ABANDONED: &str = "set local idle_in_transaction_session_timeout = 5000;";
/// Nor may it leave behind somebody who waits for a lock.
const LOCK_TIMEOUT: &str = "set local lock_timeout = 4000";

pub(crate) type Sql<T> = Result<T, tokio_postgres::Error>;

/// What a piece of work at the desk may do.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// Sees one moment of the whole catalogue.
    Read,
    /// Changes the catalogue: alone, until it is committed.
    Change,
    /// Sees one moment of everything else.
    List,
    /// Takes the locks it needs itself.
    Work,
    /// Reads all there is, and takes its time.
    Recount,
}

impl Purpose {
    fn within(self) -> Duration {
        match self {
            Self::Read | Self::Change | Self::List | Self::Work => WITHIN,
            Self::Recount => RECOUNT_WITHIN,
        }
    }
}

pub(crate) struct Desks {
    catalogue: Pool<Client>,
    others: Pool<Client>,
}

impl Default for Desks {
    fn default() -> Self {
        Self { catalogue: Pool::of(1), others: Pool::of(MAX_CONNECTIONS) }
    }
}

impl Inner {
    pub(crate) async fn migrate(&self) -> Result<(), StoreError> {
        let client = self.connect(WITHIN).await?;
        tokio::time::timeout(MIGRATE_WITHIN, migrate::STORE.run(&client, &self.settings.schema))
            .await
            .map_err(|_| timed_out())??;
        self.desks.catalogue.put(client);
        Ok(())
    }

    /// A connection that the store's own thread drives, whoever asks for it.
    async fn connect(&self, within: Duration) -> Result<Client, StoreError> {
        let connector = self.connector.clone();
        let connecting = self.engine.spawn(async move { connector.connect(within).await });
        connecting.await.unwrap_or_else(|_| Err(closed()))
    }

    /// One transaction on a connection kept for such things. Whoever needs the answer sooner
    /// stops waiting for it.
    pub(crate) async fn at_desk<T>(
        &self,
        purpose: Purpose,
        work: impl AsyncFnOnce(&Client) -> Sql<T>,
    ) -> Result<T, StoreError> {
        self.still_open()?;
        let desk = match purpose {
            Purpose::Read | Purpose::Change => Some(&self.desks.catalogue),
            Purpose::List | Purpose::Work => Some(&self.desks.others),
            // On a connection of its own: nobody waits for it.
            Purpose::Recount => None,
        };
        let done = async {
            let _turn = match desk {
                Some(desk) => Some(desk.turn().await?),
                None => None,
            };
            // Taken, so that a connection whose work was abandoned half-way is never used again.
            let kept = desk.and_then(Pool::take).filter(|client| !client.is_closed());
            let client = match kept {
                Some(client) => client,
                None => self.connect(WITHIN).await?,
            };
            let at_work = self.at_work(&client);
            let result = self.transact(&client, purpose, work).await;
            if let Err(error) = &result {
                tracing::debug!(%error, "a transaction failed");
                let _ = client.batch_execute("rollback").await;
            }
            at_work.done();
            if let Some(desk) = desk {
                desk.put(client);
            }
            result.map_err(|error| failed("PostgreSQL did not do what it was asked to do", error))
        };
        tokio::time::timeout(purpose.within(), done).await.map_err(|_| timed_out())?
    }

    async fn transact<T>(
        &self,
        client: &Client,
        purpose: Purpose,
        work: impl AsyncFnOnce(&Client) -> Sql<T>,
    ) -> Sql<T> {
        let timeouts = format!(
            "{ABANDONED} {LOCK_TIMEOUT}; set local statement_timeout = {}",
            purpose.within().as_millis()
        );
        let begin = match purpose {
            Purpose::Read | Purpose::List | Purpose::Recount => {
                format!("begin isolation level repeatable read read only; {timeouts}")
            }
            Purpose::Work => format!("begin isolation level read committed; {timeouts}"),
            Purpose::Change => self.settings.in_schema(&format!(
                "begin isolation level read committed; {timeouts}; \
                 select from tollgate.gate for update",
            )),
        };
        client.batch_execute(&begin).await?;
        let result = work(client).await?;
        client.batch_execute("commit").await?;
        Ok(result)
    }

    pub(crate) async fn query(
        &self,
        client: &Client,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Sql<Vec<Row>> {
        client.query_typed(&self.settings.in_schema(sql), parameters).await
    }

    pub(crate) async fn execute(
        &self,
        client: &Client,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Sql<()> {
        client.execute_typed(&self.settings.in_schema(sql), parameters).await.map(|_| ())
    }
}

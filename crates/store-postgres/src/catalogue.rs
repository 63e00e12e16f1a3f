//! Policies, overrides, tokens and the secret: what the store keeps besides counts.
//!
//! Every change locks the one row of `gate` first, so changes happen one after the other; what
//! decisions depend on raises its epoch, so every instance notices at its next one.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tollgate_core::Instant;
use tollgate_core::store::{
    Base, Catalogue, Override, PolicyVersion, StoreError, StoreErrorKind, Token,
};

use crate::error::{closed, failed, timed_out};
use crate::{Inner, Postgres, migrate};

const SECRET_BYTES: usize = 32;
/// A schema can take longer than an answer may.
const MIGRATE_WITHIN: Duration = Duration::from_secs(60);
/// Many slots take long to count.
const RECOUNT_WITHIN: Duration = Duration::from_secs(60);
/// So may a change: those of all instances are made one after the other.
pub(crate) const WITHIN: Duration = Duration::from_secs(5);

/// An instance that vanishes in the middle must not keep what it locked: without a word from its
/// machine, PostgreSQL would wait for it for hours.
pub(crate) const ABANDONED: &str = "set local idle_in_transaction_session_timeout = 5000;";

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

/// Connections for all that is not a check, a refund or a slot. Whoever needs the catalogue does not
/// wait for the others.
#[derive(Default)]
pub(crate) struct Desks {
    catalogue: tokio::sync::Mutex<Option<Client>>,
    others: tokio::sync::Mutex<Option<Client>>,
}

impl Postgres {
    /// Everything in force, as of one moment. Makes the secret the first time.
    pub async fn catalogue(&self) -> Result<Catalogue, StoreError> {
        let inner = &*self.inner;
        let read = inner.at_desk(Purpose::Read, async |client| inner.read_catalogue(client).await);
        let catalogue = read.await?;
        if !catalogue.secret.is_empty() {
            return Ok(catalogue);
        }
        let mut secret = vec![0; SECRET_BYTES];
        getrandom::fill(&mut secret).map_err(|error| {
            StoreError::new(StoreErrorKind::Unavailable, "the system gave no random bytes")
                .with_source(error)
        })?;
        inner
            .at_desk(Purpose::Change, async |client| {
                // Of several that start together, the first one's stays.
                let sql = "insert into tollgate.setting (name, value) values ('secret', $1) \
                           on conflict (name) do nothing";
                inner.execute(client, sql, &[(&secret, Type::BYTEA)]).await
            })
            .await?;
        inner.at_desk(Purpose::Read, async |client| inner.read_catalogue(client).await).await
    }

    /// The epoch of the catalogue as it is now.
    pub async fn epoch(&self) -> Result<u64, StoreError> {
        let inner = &*self.inner;
        inner.at_desk(Purpose::Read, async |client| inner.read_epoch(client).await).await
    }

    /// Adds a version unless the newest one says the same; either way returns the one in force,
    /// and whether it is new. No document deletes the policy. `None`: `base` holds no longer.
    pub async fn put_policy(
        &self,
        name: String,
        document: Option<String>,
        created_by: String,
        base: Base,
    ) -> Result<Option<(PolicyVersion, bool)>, StoreError> {
        let inner = &*self.inner;
        inner
            .at_desk(Purpose::Change, async |client| {
                let newest = "select name, version, document, created_by, created_at \
                              from tollgate.policy_version where name = $1 \
                              order by version desc limit 1";
                let newest = inner.query(client, newest, &[(&name, Type::TEXT)]).await?;
                let newest = newest.first().map(policy_version);
                if !base.holds(newest.as_ref()) {
                    return Ok(None);
                }
                if let Some(newest) = &newest
                    && newest.document == document
                {
                    return Ok(Some((newest.clone(), false)));
                }
                let version = PolicyVersion {
                    version: newest.map_or(1, |newest| newest.version + 1),
                    created_at: inner.time.now(),
                    name: name.clone(),
                    document: document.clone(),
                    created_by: created_by.clone(),
                };
                let sql = "insert into tollgate.policy_version \
                           (name, version, document, created_by, created_at) \
                           values ($1, $2, $3, $4, $5)";
                let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
                    (&version.name, Type::TEXT),
                    (&version.version.cast_signed(), Type::INT8),
                    (&version.document, Type::TEXT),
                    (&version.created_by, Type::TEXT),
                    (&version.created_at.as_micros(), Type::INT8),
                ];
                inner.execute(client, sql, &parameters).await?;
                inner.raise_epoch(client).await?;
                Ok(Some((version, true)))
            })
            .await
    }

    /// All versions of a policy, newest first.
    pub async fn policy_versions(&self, name: String) -> Result<Vec<PolicyVersion>, StoreError> {
        let inner = &*self.inner;
        inner
            .at_desk(Purpose::Read, async |client| {
                let sql = "select name, version, document, created_by, created_at \
                           from tollgate.policy_version where name = $1 order by version desc";
                let rows = inner.query(client, sql, &[(&name, Type::TEXT)]).await?;
                Ok(rows.iter().map(policy_version).collect())
            })
            .await
    }

    /// The document of a policy as a configuration file last gave it.
    pub async fn file_policy(&self, name: String) -> Result<Option<String>, StoreError> {
        let inner = &*self.inner;
        inner
            .at_desk(Purpose::Read, async |client| {
                let sql = "select document from tollgate.file_policy where name = $1";
                let rows = inner.query(client, sql, &[(&name, Type::TEXT)]).await?;
                Ok(rows.first().map(|row| row.get(0)))
            })
            .await
    }

    pub async fn put_file_policy(&self, name: String, document: String) -> Result<(), StoreError> {
        let inner = &*self.inner;
        inner
            .at_desk(Purpose::Change, async |client| {
                let sql = "insert into tollgate.file_policy (name, document) values ($1, $2) \
                           on conflict (name) do update set document = excluded.document";
                let parameters: [(&(dyn ToSql + Sync), Type); 2] =
                    [(&name, Type::TEXT), (&document, Type::TEXT)];
                inner.execute(client, sql, &parameters).await
            })
            .await
    }

    /// Sets one subject's own maximum.
    pub async fn put_override(&self, change: Override) -> Result<(), StoreError> {
        let inner = &*self.inner;
        inner
            .at_desk(Purpose::Change, async |client| {
                let sql = "insert into tollgate.override \
                           (policy, limit_name, key_values, subject, max, created_by, created_at) \
                           values ($1, $2, $3, $4, $5, $6, $7) \
                           on conflict (policy, limit_name, key_values) do update set \
                               subject = excluded.subject, max = excluded.max, \
                               created_by = excluded.created_by, created_at = excluded.created_at";
                let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
                    (&change.policy, Type::TEXT),
                    (&change.limit, Type::TEXT),
                    (&change.values, Type::BYTEA),
                    (&change.subject, Type::TEXT),
                    (&change.max.cast_signed(), Type::INT8),
                    (&change.created_by, Type::TEXT),
                    (&inner.time.now().as_micros(), Type::INT8),
                ];
                inner.execute(client, sql, &parameters).await?;
                inner.raise_epoch(client).await
            })
            .await
    }

    /// Whether there was one to remove.
    pub async fn delete_override(
        &self,
        policy: String,
        limit: String,
        values: Vec<u8>,
    ) -> Result<bool, StoreError> {
        let inner = &*self.inner;
        inner
            .at_desk(Purpose::Change, async |client| {
                let sql = "delete from tollgate.override \
                           where policy = $1 and limit_name = $2 and key_values = $3 returning 1";
                let parameters: [(&(dyn ToSql + Sync), Type); 3] =
                    [(&policy, Type::TEXT), (&limit, Type::TEXT), (&values, Type::BYTEA)];
                let removed = !inner.query(client, sql, &parameters).await?.is_empty();
                if removed {
                    inner.raise_epoch(client).await?;
                }
                Ok(removed)
            })
            .await
    }

    pub async fn put_token(&self, token: Token) -> Result<(), StoreError> {
        let inner = &*self.inner;
        inner
            .at_desk(Purpose::Change, async |client| {
                let sql = "insert into tollgate.token (hash, name, scope, created_at) \
                           values ($1, $2, $3, $4)";
                let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
                    (&token.hash, Type::BYTEA),
                    (&token.name, Type::TEXT),
                    (&token.scope, Type::TEXT),
                    (&inner.time.now().as_micros(), Type::INT8),
                ];
                inner.execute(client, sql, &parameters).await?;
                inner.raise_epoch(client).await
            })
            .await
    }

    /// Whether it was removed: the last admin's stays.
    pub async fn delete_token(&self, hash: Vec<u8>) -> Result<bool, StoreError> {
        let inner = &*self.inner;
        inner
            .at_desk(Purpose::Change, async |client| {
                let sql = "delete from tollgate.token where hash = $1 and (scope <> 'admin' or \
                           (select count(*) from tollgate.token where scope = 'admin') > 1) \
                           returning 1";
                let removed = !inner.query(client, sql, &[(&hash, Type::BYTEA)]).await?.is_empty();
                if removed {
                    inner.raise_epoch(client).await?;
                }
                Ok(removed)
            })
            .await
    }

    /// Whether the store can answer.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let epoch = tokio::time::timeout(self.inner.settings.deadline, self.epoch());
        epoch.await.map_err(|_| timed_out())?.map(|_| ())
    }
}

impl Inner {
    pub(crate) async fn migrate(&self) -> Result<(), StoreError> {
        let client = self.connect(WITHIN).await?;
        tokio::time::timeout(MIGRATE_WITHIN, migrate::STORE.run(&client, &self.settings.schema))
            .await
            .map_err(|_| timed_out())??;
        *self.desks.catalogue.lock().await = Some(client);
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
        let done = async {
            let mut desk = match purpose {
                Purpose::Read | Purpose::Change => Some(self.desks.catalogue.lock().await),
                Purpose::List | Purpose::Work => Some(self.desks.others.lock().await),
                // On a connection of its own: nobody waits for it.
                Purpose::Recount => None,
            };
            // Taken, so that a connection whose work was abandoned half-way is never used again.
            let kept = desk.as_mut().and_then(|desk| desk.take());
            let client = match kept.filter(|client| !client.is_closed()) {
                Some(client) => client,
                None => self.connect(WITHIN).await?,
            };
            let result = self.transact(&client, purpose, work).await;
            if let Err(error) = &result {
                tracing::debug!(%error, "a transaction failed");
                let _ = client.batch_execute("rollback").await;
            }
            if let Some(desk) = &mut desk {
                **desk = Some(client);
            }
            result.map_err(|error| failed("PostgreSQL undid what it was asked to do", error))
        };
        tokio::time::timeout(purpose.within(), done).await.map_err(|_| timed_out())?
    }

    async fn transact<T>(
        &self,
        client: &Client,
        purpose: Purpose,
        work: impl AsyncFnOnce(&Client) -> Sql<T>,
    ) -> Sql<T> {
        let begin = match purpose {
            Purpose::Read | Purpose::List | Purpose::Recount => {
                "begin isolation level repeatable read read only".to_owned()
            }
            Purpose::Work => format!(
                "begin isolation level read committed; {ABANDONED} set local lock_timeout = 4000"
            ),
            Purpose::Change => self.settings.in_schema(&format!(
                "begin isolation level read committed; {ABANDONED} \
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

    async fn execute(
        &self,
        client: &Client,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Sql<()> {
        client.execute_typed(&self.settings.in_schema(sql), parameters).await.map(|_| ())
    }

    async fn raise_epoch(&self, client: &Client) -> Sql<()> {
        self.execute(client, "update tollgate.gate set epoch = epoch + 1", &[]).await
    }

    async fn read_epoch(&self, client: &Client) -> Sql<u64> {
        let sql = "select epoch, swept_at, floor(extract(epoch from clock_timestamp()) * 1000000)::bigint \
                   from tollgate.gate";
        let rows = self.query(client, sql, &[]).await?;
        let Some(row) = rows.first() else { return Ok(0) };
        self.time.not_before(self.time.read(row.get(2)), row.get(1));
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }

    async fn read_catalogue(&self, client: &Client) -> Sql<Catalogue> {
        let policies = "select distinct on (name) name, version, document, created_by, created_at \
                        from tollgate.policy_version order by name, version desc";
        let overrides = "select policy, limit_name, key_values, subject, max, created_by, created_at \
                         from tollgate.override order by policy, limit_name, subject";
        let tokens =
            "select hash, name, scope, created_at from tollgate.token order by created_at, name";
        let secret = "select value from tollgate.setting where name = 'secret'";
        let (epoch, policies, overrides, tokens, secret) = tokio::join!(
            biased;
            self.read_epoch(client),
            self.query(client, policies, &[]),
            self.query(client, overrides, &[]),
            self.query(client, tokens, &[]),
            self.query(client, secret, &[]),
        );
        Ok(Catalogue {
            epoch: epoch?,
            policies: policies?.iter().map(policy_version).collect(),
            overrides: overrides?.iter().map(override_row).collect(),
            tokens: tokens?.iter().map(token_row).collect(),
            secret: secret?.first().map(|row| row.get(0)).unwrap_or_default(),
        })
    }
}

fn policy_version(row: &Row) -> PolicyVersion {
    PolicyVersion {
        name: row.get(0),
        version: row.get::<_, i64>(1).cast_unsigned(),
        document: row.get(2),
        created_by: row.get(3),
        created_at: Instant::from_micros(row.get(4)),
    }
}

fn override_row(row: &Row) -> Override {
    Override {
        policy: row.get(0),
        limit: row.get(1),
        values: row.get(2),
        subject: row.get(3),
        max: row.get::<_, i64>(4).cast_unsigned(),
        created_by: row.get(5),
        created_at: Instant::from_micros(row.get(6)),
    }
}

fn token_row(row: &Row) -> Token {
    Token {
        hash: row.get(0),
        name: row.get(1),
        scope: row.get(2),
        created_at: Instant::from_micros(row.get(3)),
    }
}

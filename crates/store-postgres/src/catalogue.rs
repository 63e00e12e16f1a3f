//! Policies, overrides, tokens and the secret: what the store keeps besides counts.
//!
//! Every change locks the one row of `gate` first, so changes happen one after the other; what
//! decisions depend on raises its epoch, so every instance notices at its next one.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tollgate_core::Instant;
use tollgate_core::store::{
    Base, Catalogue, Override, PolicyVersion, StoreError, StoreErrorKind, Token,
};

use crate::desk::{Purpose, Sql};
use crate::error::timed_out;
use crate::{Inner, Postgres};

const SECRET_BYTES: usize = 32;
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

//! Policies, overrides, tokens and the secret: what the store keeps besides counts.

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params};
use tollgate_core::Instant;
use tollgate_core::store::{
    Base, Catalogue, Override, PolicyVersion, StoreError, StoreErrorKind, Token,
};

use crate::Embedded;
use crate::keeper::Txn;

const SECRET_BYTES: usize = 32;

impl Embedded {
    /// Everything in force. Makes the secret the first time.
    pub async fn catalogue(&self) -> Result<Catalogue, StoreError> {
        self.run(|txn| {
            Ok(Catalogue {
                epoch: 0,
                policies: rows(
                    txn,
                    "select name, version, document, created_by, created_at from policy_version v \
                     where version = (select max(version) from policy_version where name = v.name) \
                     order by name",
                    policy_version,
                )?,
                overrides: rows(
                    txn,
                    "select policy, limit_name, key_values, subject, max, created_by, created_at \
                     from override order by policy, limit_name, subject",
                    override_row,
                )?,
                tokens: rows(
                    txn,
                    "select hash, name, scope, created_at from token order by created_at, name",
                    token_row,
                )?,
                secret: secret(txn)?,
            })
        })
        .await
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
        self.run(move |txn| {
            let newest = newest_version(txn, &name)?;
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
                created_at: txn.inner.now(),
                name,
                document,
                created_by,
            };
            txn.write(
                "insert into policy_version (name, version, document, created_by, created_at) \
                 values (?1, ?2, ?3, ?4, ?5)",
                vec![
                    version.name.clone().into(),
                    version.version.cast_signed().into(),
                    version.document.clone().map_or(Value::Null, Value::Text),
                    version.created_by.clone().into(),
                    version.created_at.as_micros().into(),
                ],
            );
            Ok(Some((version, true)))
        })
        .await
    }

    /// All versions of a policy, newest first.
    pub async fn policy_versions(&self, name: String) -> Result<Vec<PolicyVersion>, StoreError> {
        self.run(move |txn| {
            let read = || {
                txn.read()
                    .prepare_cached(
                        "select name, version, document, created_by, created_at \
                         from policy_version where name = ?1 order by version desc",
                    )?
                    .query_map(params![name], policy_version)?
                    .collect::<Result<Vec<_>, _>>()
            };
            read().map_err(|error| txn.fail(error))
        })
        .await
    }

    /// The document of a policy as a configuration file last gave it.
    pub async fn file_policy(&self, name: String) -> Result<Option<String>, StoreError> {
        self.run(move |txn| {
            txn.read()
                .prepare_cached("select document from file_policy where name = ?1")
                .and_then(|mut statement| {
                    statement.query_row(params![name], |row| row.get(0)).optional()
                })
                .map_err(|error| txn.fail(error))
        })
        .await
    }

    pub async fn put_file_policy(&self, name: String, document: String) -> Result<(), StoreError> {
        self.run(move |txn| {
            txn.write(
                "insert or replace into file_policy (name, document) values (?1, ?2)",
                vec![name.into(), document.into()],
            );
            Ok(())
        })
        .await
    }

    /// Sets one subject's own maximum.
    pub async fn put_override(&self, change: Override) -> Result<(), StoreError> {
        self.run(move |txn| {
            let created_at = txn.inner.now();
            txn.write(
                "insert or replace into override \
                 (policy, limit_name, key_values, subject, max, created_by, created_at) \
                 values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                vec![
                    change.policy.into(),
                    change.limit.into(),
                    change.values.into(),
                    change.subject.into(),
                    change.max.cast_signed().into(),
                    change.created_by.into(),
                    created_at.as_micros().into(),
                ],
            );
            Ok(())
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
        self.run(move |txn| {
            let found = txn
                .read()
                .prepare_cached(
                    "select 1 from override \
                     where policy = ?1 and limit_name = ?2 and key_values = ?3",
                )
                .and_then(|mut statement| statement.exists(params![policy, limit, values]))
                .map_err(|error| txn.fail(error))?;
            txn.write(
                "delete from override where policy = ?1 and limit_name = ?2 and key_values = ?3",
                vec![policy.into(), limit.into(), values.into()],
            );
            Ok(found)
        })
        .await
    }

    pub async fn put_token(&self, token: Token) -> Result<(), StoreError> {
        self.run(move |txn| {
            let created_at = txn.inner.now();
            txn.write(
                "insert into token (hash, name, scope, created_at) values (?1, ?2, ?3, ?4)",
                vec![
                    token.hash.into(),
                    token.name.into(),
                    token.scope.into(),
                    created_at.as_micros().into(),
                ],
            );
            Ok(())
        })
        .await
    }

    /// Whether it was removed: the last admin's stays.
    pub async fn delete_token(&self, hash: Vec<u8>) -> Result<bool, StoreError> {
        self.run(move |txn| {
            let may_go = txn
                .read()
                .prepare_cached(
                    "select 1 from token where hash = ?1 and (scope <> 'admin' or \
                     (select count(*) from token where scope = 'admin') > 1)",
                )
                .and_then(|mut statement| statement.exists(params![hash]))
                .map_err(|error| txn.fail(error))?;
            if may_go {
                txn.write("delete from token where hash = ?1", vec![hash.into()]);
            }
            Ok(may_go)
        })
        .await
    }
}

fn rows<T>(
    txn: &Txn<'_>,
    sql: &str,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    let query = || txn.read().prepare(sql)?.query_map([], read)?.collect::<Result<Vec<_>, _>>();
    query().map_err(|error| txn.fail(error))
}

fn newest_version(txn: &Txn<'_>, name: &str) -> Result<Option<PolicyVersion>, StoreError> {
    txn.read()
        .prepare_cached(
            "select name, version, document, created_by, created_at \
             from policy_version where name = ?1 order by version desc limit 1",
        )
        .and_then(|mut statement| statement.query_row(params![name], policy_version).optional())
        .map_err(|error| txn.fail(error))
}

fn secret(txn: &mut Txn<'_>) -> Result<Vec<u8>, StoreError> {
    let kept: Option<Vec<u8>> = txn
        .read()
        .query_row("select value from setting where name = 'secret'", [], |row| row.get(0))
        .optional()
        .map_err(|error| txn.fail(error))?;
    if let Some(secret) = kept {
        return Ok(secret);
    }
    let mut secret = vec![0; SECRET_BYTES];
    getrandom::fill(&mut secret).map_err(|error| {
        StoreError::new(StoreErrorKind::Unavailable, "the system gave no random bytes")
            .with_source(error)
    })?;
    txn.write(
        "insert into setting (name, value) values ('secret', ?1)",
        vec![secret.clone().into()],
    );
    Ok(secret)
}

fn policy_version(row: &Row<'_>) -> rusqlite::Result<PolicyVersion> {
    Ok(PolicyVersion {
        name: row.get(0)?,
        version: row.get::<_, i64>(1)?.cast_unsigned(),
        document: row.get(2)?,
        created_by: row.get(3)?,
        created_at: Instant::from_micros(row.get(4)?),
    })
}

fn override_row(row: &Row<'_>) -> rusqlite::Result<Override> {
    Ok(Override {
        policy: row.get(0)?,
        limit: row.get(1)?,
        values: row.get(2)?,
        subject: row.get(3)?,
        max: row.get::<_, i64>(4)?.cast_unsigned(),
        created_by: row.get(5)?,
        created_at: Instant::from_micros(row.get(6)?),
    })
}

fn token_row(row: &Row<'_>) -> rusqlite::Result<Token> {
    Ok(Token {
        hash: row.get(0)?,
        name: row.get(1)?,
        scope: row.get(2)?,
        created_at: Instant::from_micros(row.get(3)?),
    })
}

//! API keys and shared settings, as rows.

use super::db::{Db, Row, values};
use super::owners;
use crate::error::MailError;
use crate::model::{AccountKey, ApiKey};

pub(super) async fn put_key(db: &Db<'_>, key: &ApiKey, hash: &[u8]) -> Result<(), MailError> {
    owners::tenant_stays(db, &key.tenant_id).await?;
    owners::account_stays(db, &AccountKey::new(&key.tenant_id, &key.account_id)).await?;
    db.change(
        "insert into mail_key (id, tenant_id, account_id, hash, name, daily_limit, timezone, \
             enabled, created_at) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        values![
            &key.id,
            &key.tenant_id,
            &key.account_id,
            hash.to_vec(),
            &key.name,
            i64::try_from(key.daily_limit).unwrap_or(i64::MAX),
            &key.timezone,
            key.enabled,
            key.created_at,
        ],
    )
    .await
    .map(drop)
}

/// What is read of a key.
macro_rules! columns {
    () => {
        "id, tenant_id, account_id, name, daily_limit, timezone, enabled, created_at, hash"
    };
}

pub(super) async fn keys(db: &Db<'_>, tenant_id: Option<&str>) -> Result<Vec<ApiKey>, MailError> {
    let sql = concat!(
        "select ",
        columns!(),
        " from mail_key where (?1 is null or tenant_id = ?1) order by tenant_id, created_at, id"
    );
    Ok(db.rows(sql, values![tenant_id]).await?.iter().map(key_of).collect())
}

pub(super) async fn key(db: &Db<'_>, id: &str) -> Result<Option<ApiKey>, MailError> {
    let sql = concat!("select ", columns!(), " from mail_key where id = ?1");
    Ok(db.row(sql, values![id]).await?.as_ref().map(key_of))
}

pub(super) async fn key_of_hash(
    db: &Db<'_>,
    hash: &[u8],
) -> Result<Option<(ApiKey, Vec<u8>)>, MailError> {
    let sql = concat!("select ", columns!(), " from mail_key where hash = ?1");
    let row = db.row(sql, values![hash.to_vec()]).await?;
    Ok(row.map(|row| (key_of(&row), row.opt_bytes(8).unwrap_or_default())))
}

fn key_of(row: &Row) -> ApiKey {
    ApiKey {
        id: row.text(0),
        tenant_id: row.text(1),
        account_id: row.text(2),
        name: row.text(3),
        daily_limit: row.count(4),
        timezone: row.text(5),
        enabled: row.int(6) != 0,
        created_at: row.instant(7),
    }
}

pub(super) async fn change_key(
    db: &Db<'_>,
    id: &str,
    enabled: Option<bool>,
    daily_limit: Option<u64>,
) -> Result<Option<ApiKey>, MailError> {
    let sql = concat!(
        "update mail_key set enabled = coalesce(?2, enabled), \
         daily_limit = coalesce(?3, daily_limit) where id = ?1 returning ",
        columns!()
    );
    let daily_limit = daily_limit.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let row = db.row(sql, values![id, enabled.map(i64::from), daily_limit]).await?;
    Ok(row.as_ref().map(key_of))
}

pub(super) async fn delete_key(db: &Db<'_>, id: &str) -> Result<bool, MailError> {
    Ok(db.change("delete from mail_key where id = ?1", values![id]).await? > 0)
}

/// The first value given stays.
pub(super) async fn setting(
    db: &Db<'_>,
    name: &str,
    first: Option<&[u8]>,
) -> Result<Option<Vec<u8>>, MailError> {
    if let Some(first) = first {
        let sql = "insert into mail_setting (name, value) values (?1, ?2) on conflict do nothing";
        db.change(sql, values![name, first.to_vec()]).await?;
    }
    let row = db.row("select value from mail_setting where name = ?1", values![name]).await?;
    Ok(row.and_then(|row| row.opt_bytes(0)))
}

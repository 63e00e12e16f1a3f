//! Tenants and accounts, as rows.

use tollgate::Instant;

use super::db::{Db, Row, values};
use super::records::{AccountRecord, ReportSecret, TenantPut};
use crate::catalogue::{has_unsent, no_account, no_tenant};
use crate::error::MailError;
use crate::model::{Account, AccountKey, LimitBehavior, LimitUnit, Tenant, Tls};

pub(super) async fn put_tenant(
    db: &Db<'_>,
    tenant: &Tenant,
    secret: &ReportSecret,
) -> Result<TenantPut, MailError> {
    let known = "select 1 from mail_tenant where id = ?1 [for update]";
    let created = db.row(known, values![&tenant.id]).await?.is_none();
    let (sealed, replaces) = match secret {
        ReportSecret::Kept => (None, false),
        ReportSecret::Given(sealed) => (Some(sealed.clone()), true),
        ReportSecret::Made(sealed) => (Some(sealed.clone()), false),
    };
    let row = db
        .row(
            "insert into mail_tenant (id, name, report_url, report_secret, created_at) \
             values (?1, ?2, ?3, ?4, ?5) \
             on conflict (id) do update set name = excluded.name, \
                 report_url = excluded.report_url, report_retry_at = null, \
                 report_secret = case when ?6 = 1 then excluded.report_secret \
                     else coalesce(mail_tenant.report_secret, excluded.report_secret) end \
             returning report_secret",
            values![
                &tenant.id,
                &tenant.name,
                &tenant.report_url,
                &sealed,
                tenant.created_at,
                replaces,
            ],
        )
        .await?;
    if tenant.report_url.is_none() {
        let sql = "delete from mail_report where tenant_id = ?1";
        db.change(sql, values![&tenant.id]).await?;
    }
    Ok(TenantPut { created, report_secret_sealed: row.and_then(|row| row.opt_bytes(0)) })
}

/// What is read of a tenant, of those that the rest of the statement names.
macro_rules! tenants {
    ($rest:literal) => {
        concat!(
            "select id, name, report_url, suspended, token_hash, created_at from mail_tenant ",
            $rest
        )
    };
}

pub(super) async fn tenants(db: &Db<'_>) -> Result<Vec<Tenant>, MailError> {
    Ok(db.rows(tenants!("order by id"), &[]).await?.iter().map(tenant_of).collect())
}

pub(super) async fn tenant(db: &Db<'_>, id: &str) -> Result<Option<Tenant>, MailError> {
    Ok(db.row(tenants!("where id = ?1"), values![id]).await?.as_ref().map(tenant_of))
}

fn tenant_of(row: &Row) -> Tenant {
    Tenant {
        id: row.text(0),
        name: row.text(1),
        report_url: row.opt_text(2),
        suspended: row.int(3) != 0,
        has_token: row.opt_bytes(4).is_some(),
        created_at: row.instant(5),
    }
}

/// Nobody deletes the tenant until the transaction ends; an error if it is gone.
pub(super) async fn tenant_stays(db: &Db<'_>, id: &str) -> Result<(), MailError> {
    let sql = "select 1 from mail_tenant where id = ?1 [stays]";
    db.row(sql, values![id]).await?.map(drop).ok_or_else(|| no_tenant(id))
}

/// Nobody deletes the account until the transaction ends; an error if it is gone.
pub(super) async fn account_stays(db: &Db<'_>, key: &AccountKey) -> Result<(), MailError> {
    let sql = "select 1 from mail_account where tenant_id = ?1 and id = ?2 [stays]";
    let row = db.row(sql, values![&key.tenant_id, &key.account_id]).await?;
    row.map(drop).ok_or_else(|| no_account(key))
}

pub(super) async fn delete_tenant(db: &Db<'_>, id: &str) -> Result<(), MailError> {
    // Whoever gives it a key, an account or a held batch is waited for, and all of theirs is seen
    // below; so are those who add a message, who hold its account.
    db.row("select 1 from mail_tenant where id = ?1 [for update]", values![id]).await?;
    db.change("delete from mail_account where tenant_id = ?1", values![id]).await?;
    let left = "select 1 from mail_message where tenant_id = ?1 limit 1";
    if db.row(left, values![id]).await?.is_some() {
        return Err(MailError::Conflict(format!(
            "tenant {id:?} was given messages while it was deleted: try again"
        )));
    }
    for sql in [
        "delete from mail_key where tenant_id = ?1",
        "delete from mail_suspended_batch where tenant_id = ?1",
        "delete from mail_report where tenant_id = ?1",
        "delete from mail_removed where tenant_id = ?1",
        "delete from mail_tenant where id = ?1",
        "delete from mail_tally where tenant_id = ?1",
    ] {
        db.change(sql, values![id]).await?;
    }
    Ok(())
}

pub(super) async fn set_tenant_token(
    db: &Db<'_>,
    id: &str,
    hash: &[u8],
) -> Result<bool, MailError> {
    let sql = "update mail_tenant set token_hash = ?2 where id = ?1";
    Ok(db.change(sql, values![id, hash.to_vec()]).await? > 0)
}

pub(super) async fn tenant_of_token(db: &Db<'_>, hash: &[u8]) -> Result<Option<String>, MailError> {
    let sql = "select id from mail_tenant where token_hash = ?1";
    Ok(db.row(sql, values![hash.to_vec()]).await?.map(|row| row.text(0)))
}

pub(super) async fn put_account(
    db: &Db<'_>,
    record: &AccountRecord,
    now: Instant,
) -> Result<bool, MailError> {
    let account = &record.account;
    let AccountKey { tenant_id, account_id } = &account.key;
    tenant_stays(db, tenant_id).await?;
    let known = "select 1 from mail_account where tenant_id = ?1 and id = ?2 [for update]";
    let created = db.row(known, values![tenant_id, account_id]).await?.is_none();
    let limit = |max: Option<u64>| max.and_then(|max| i64::try_from(max).ok());
    db.change(
        "insert into mail_account (tenant_id, id, host, port, username, password, from_address, \
             tls, root_cert, allow_plaintext_auth, limit_per_minute, limit_per_hour, \
             limit_per_day, limit_behavior, limit_unit, priority0_share, concurrency, version, \
             created_at, updated_at) \
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, 1, \
             ?18, ?18) \
         on conflict (tenant_id, id) do update set host = excluded.host, port = excluded.port, \
             username = excluded.username, password = excluded.password, \
             from_address = excluded.from_address, tls = excluded.tls, \
             root_cert = excluded.root_cert, \
             allow_plaintext_auth = excluded.allow_plaintext_auth, \
             limit_per_minute = excluded.limit_per_minute, \
             limit_per_hour = excluded.limit_per_hour, limit_per_day = excluded.limit_per_day, \
             limit_behavior = excluded.limit_behavior, limit_unit = excluded.limit_unit, \
             priority0_share = excluded.priority0_share, concurrency = excluded.concurrency, \
             version = mail_account.version + 1, updated_at = excluded.updated_at, \
             resume_at = null, resume_ordinary_at = null",
        values![
            tenant_id,
            account_id,
            &account.host,
            i64::from(account.port),
            &account.user,
            &record.password_sealed,
            &account.from_address,
            tls_word(account.tls),
            &account.root_cert,
            account.allow_plaintext_auth,
            limit(account.limit_per_minute),
            limit(account.limit_per_hour),
            limit(account.limit_per_day),
            if account.limit_behavior == LimitBehavior::Reject { "reject" } else { "defer" },
            if account.limit_unit == LimitUnit::Recipients { "recipients" } else { "messages" },
            i64::from(account.priority0_share),
            i64::from(account.concurrency),
            now,
        ],
    )
    .await?;
    let tally = "insert into mail_tally (tenant_id, account_id) values (?1, ?2) \
         on conflict do nothing";
    db.change(tally, values![tenant_id, account_id]).await?;
    Ok(created)
}

/// What is read of an account, of those that the rest of the statement names.
macro_rules! accounts {
    ($rest:literal) => {
        concat!(
            "select tenant_id, id, host, port, username, password, from_address, tls, root_cert, \
             allow_plaintext_auth, limit_per_minute, limit_per_hour, limit_per_day, \
             limit_behavior, limit_unit, priority0_share, concurrency, resume_at, \
             resume_ordinary_at, version, created_at, updated_at from mail_account ",
            $rest
        )
    };
}

pub(super) async fn account(
    db: &Db<'_>,
    key: &AccountKey,
) -> Result<Option<AccountRecord>, MailError> {
    let sql = accounts!("where tenant_id = ?1 and id = ?2");
    let row = db.row(sql, values![&key.tenant_id, &key.account_id]).await?;
    Ok(row.as_ref().map(account_of))
}

pub(super) async fn accounts(
    db: &Db<'_>,
    tenant_id: Option<&str>,
) -> Result<Vec<AccountRecord>, MailError> {
    let sql = accounts!("where (?1 is null or tenant_id = ?1) order by tenant_id, id");
    Ok(db.rows(sql, values![tenant_id]).await?.iter().map(account_of).collect())
}

fn account_of(row: &Row) -> AccountRecord {
    let tls = match row.text(7).as_str() {
        "none" => Tls::None,
        "implicit" => Tls::Implicit,
        _ => Tls::Starttls,
    };
    let limit = |column| row.opt_int(column).and_then(|max| u64::try_from(max).ok());
    let password_sealed = row.opt_bytes(5);
    let account = Account {
        key: AccountKey::new(row.text(0), row.text(1)),
        host: row.text(2),
        port: row.small(3),
        user: row.opt_text(4),
        password: None,
        has_password: password_sealed.is_some(),
        from_address: row.opt_text(6),
        use_tls: tls != Tls::None,
        tls,
        root_cert: row.opt_text(8),
        allow_plaintext_auth: row.int(9) != 0,
        limit_per_minute: limit(10),
        limit_per_hour: limit(11),
        limit_per_day: limit(12),
        limit_behavior: match row.text(13).as_str() {
            "reject" => LimitBehavior::Reject,
            _ => LimitBehavior::Defer,
        },
        limit_unit: match row.text(14).as_str() {
            "recipients" => LimitUnit::Recipients,
            _ => LimitUnit::Messages,
        },
        priority0_share: row.small(15),
        concurrency: row.small(16),
        resume_at: row.opt_instant(17),
        resume_ordinary_at: row.opt_instant(18),
        version: row.int(19),
        created_at: row.instant(20),
        updated_at: row.instant(21),
    };
    AccountRecord { account, password_sealed }
}

fn tls_word(tls: Tls) -> &'static str {
    match tls {
        Tls::None => "none",
        Tls::Starttls => "starttls",
        Tls::Implicit => "implicit",
    }
}

pub(super) async fn delete_account(db: &Db<'_>, key: &AccountKey) -> Result<bool, MailError> {
    let AccountKey { tenant_id, account_id } = key;
    // Waits for whoever is adding a message to it; their messages are counted then.
    let sql = "delete from mail_account where tenant_id = ?1 and id = ?2";
    if db.change(sql, values![tenant_id, account_id]).await? == 0 {
        return Ok(false);
    }
    let unsent = "select waiting + deferred + sending + suspended from mail_tally \
         where tenant_id = ?1 and account_id = ?2";
    let unsent = db.row(unsent, values![tenant_id, account_id]).await?;
    let unsent = unsent.map_or(0, |row| row.count(0));
    if unsent > 0 {
        return Err(has_unsent(&format!("account {account_id:?}"), unsent));
    }
    let sql = "delete from mail_tally where tenant_id = ?1 and account_id = ?2";
    db.change(sql, values![tenant_id, account_id]).await?;
    Ok(true)
}

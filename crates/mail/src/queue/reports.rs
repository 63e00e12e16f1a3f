//! What is owed: reports to tenants, quota to keys.

use tollgate::Instant;

use super::db::{Db, list, values};
use super::records::ReportClaim;
use super::{Lease, RefundDue};
use crate::error::MailError;
use crate::model::Report;

pub(super) async fn claim(
    db: &Db<'_>,
    lease: Lease<'_>,
    limit: u32,
) -> Result<Option<ReportClaim>, MailError> {
    let tenant = db
        .row(
            "select id, report_url, report_secret, report_failures from mail_tenant t \
             where report_url is not null \
             and (report_lease_by is null or report_lease_until <= ?1) \
             and (report_retry_at is null or report_retry_at <= ?1) \
             and exists (select 1 from mail_report r where r.tenant_id = t.id) \
             order by coalesce(report_lease_until, 0), id limit 1 [skip locked]",
            values![lease.now],
        )
        .await?;
    let Some(tenant) = tenant else { return Ok(None) };
    let tenant_id = tenant.text(0);
    db.change(
        "update mail_tenant set report_lease_until = ?2, report_lease_by = ?3 where id = ?1",
        values![&tenant_id, lease.until, lease.instance],
    )
    .await?;
    let rows = db
        .rows(
            "select seq, message_id, account_id, batch_code, status, at, attempts, smtp_code, \
             error from mail_report where tenant_id = ?1 order by seq limit ?2",
            values![&tenant_id, limit],
        )
        .await?;
    let reports = rows
        .iter()
        .map(|row| Report {
            seq: row.int(0),
            message_id: row.text(1),
            account_id: row.text(2),
            batch_code: row.opt_text(3),
            status: row.text(4),
            at: row.instant(5),
            attempts: row.small(6),
            smtp_code: row.opt_int(7).and_then(|code| u16::try_from(code).ok()),
            error: row.opt_text(8),
        })
        .collect();
    Ok(Some(ReportClaim {
        tenant_id,
        url: tenant.text(1),
        secret_sealed: tenant.opt_bytes(2).unwrap_or_default(),
        failures: tenant.small(3),
        reports,
    }))
}

pub(super) async fn done(
    db: &Db<'_>,
    tenant_id: &str,
    instance: &str,
    seqs: &[i64],
    now: Instant,
) -> Result<(), MailError> {
    // With nobody's lease its end is the time of the last turn: others come first then.
    db.change(
        "update mail_tenant set report_lease_by = null, report_retry_at = null, \
             report_failures = 0, report_lease_until = ?3 \
         where id = ?1 and report_lease_by = ?2",
        values![tenant_id, instance, now],
    )
    .await?;
    let sql = "delete from mail_report where tenant_id = ?1 and seq in [ints ?2]";
    db.change(sql, values![tenant_id, list(seqs)]).await.map(drop)
}

pub(super) async fn failed(
    db: &Db<'_>,
    tenant_id: &str,
    instance: &str,
    retry_at: Instant,
) -> Result<(), MailError> {
    db.change(
        "update mail_tenant set report_lease_until = ?3, report_lease_by = null, \
             report_retry_at = ?3, report_failures = report_failures + 1 \
         where id = ?1 and report_lease_by = ?2",
        values![tenant_id, instance, retry_at],
    )
    .await
    .map(drop)
}

pub(super) async fn due_at(db: &Db<'_>) -> Result<Option<Instant>, MailError> {
    let rows = db
        .rows(
            "select case when report_lease_by is null then null else report_lease_until end, \
             report_retry_at from mail_tenant t \
             where report_url is not null \
             and exists (select 1 from mail_report r where r.tenant_id = t.id)",
            &[],
        )
        .await?;
    let due = |row: &super::db::Row| row.instant(0).max(row.instant(1));
    Ok(rows.iter().map(due).min())
}

pub(super) async fn refunds_due(db: &Db<'_>, limit: u32) -> Result<Vec<RefundDue>, MailError> {
    let rows = db
        .rows("select seq, receipt from mail_refund order by seq limit ?1", values![limit])
        .await?;
    Ok(rows.iter().map(|row| RefundDue { seq: row.int(0), receipt: row.text(1) }).collect())
}

pub(super) async fn refunds_done(db: &Db<'_>, seqs: &[i64]) -> Result<(), MailError> {
    db.change("delete from mail_refund where seq in [ints ?1]", values![list(seqs)]).await.map(drop)
}

//! Postgres, not complete yet.

use tollgate::Instant;

use super::*;

#[derive(Debug)]
pub(crate) struct Postgres;

fn unfinished<T>() -> Result<T, MailError> {
    Err(MailError::unavailable("not there yet"))
}

#[allow(unused_variables)]
impl Postgres {
    pub(crate) async fn open(url: &str) -> Result<Self, MailError> {
        unfinished()
    }
    pub(crate) fn close(&self) {}
    pub(crate) async fn accounts_with_work(
        &self,
        now: Instant,
    ) -> Result<Vec<AccountKey>, MailError> {
        unfinished()
    }
    pub(crate) async fn next_due(&self, now: Instant) -> Result<Option<Instant>, MailError> {
        unfinished()
    }
    pub(crate) async fn claim(
        &self,
        account: &AccountKey,
        lease: Lease<'_>,
        limit: u32,
    ) -> Result<Option<Claims>, MailError> {
        unfinished()
    }
    pub(crate) async fn release(
        &self,
        instance: &str,
        claimed: &[Claimed],
        pause: Option<&Pause>,
    ) -> Result<(), MailError> {
        unfinished()
    }
    pub(crate) async fn finish(&self, finish: &Finish<'_>) -> Result<Finished, MailError> {
        unfinished()
    }
    pub(crate) async fn pause_account(&self, pause: &Pause) -> Result<(), MailError> {
        unfinished()
    }
    pub(crate) async fn recover_expired(
        &self,
        now: Instant,
        limit: u32,
    ) -> Result<Moved, MailError> {
        unfinished()
    }
    pub(crate) async fn promote_due(&self, now: Instant, limit: u32) -> Result<Moved, MailError> {
        unfinished()
    }
    pub(crate) async fn load_content(&self, seq: i64) -> Result<Option<Vec<u8>>, MailError> {
        unfinished()
    }
    pub(crate) async fn refunds_due(&self, limit: u32) -> Result<Vec<RefundDue>, MailError> {
        unfinished()
    }
    pub(crate) async fn refunds_done(&self, seqs: &[i64]) -> Result<(), MailError> {
        unfinished()
    }
    pub(crate) async fn reports_claim(
        &self,
        lease: Lease<'_>,
        limit: u32,
    ) -> Result<Option<ReportClaim>, MailError> {
        unfinished()
    }
    pub(crate) async fn reports_done(
        &self,
        tenant_id: &str,
        instance: &str,
        reports: &[Report],
    ) -> Result<(), MailError> {
        unfinished()
    }
    pub(crate) async fn reports_failed(
        &self,
        tenant_id: &str,
        instance: &str,
        retry_at: Instant,
    ) -> Result<(), MailError> {
        unfinished()
    }
    pub(crate) async fn reports_due_at(&self) -> Result<Option<Instant>, MailError> {
        unfinished()
    }
    pub(crate) async fn put_tenant(&self, tenant: &TenantRecord) -> Result<bool, MailError> {
        unfinished()
    }
    pub(crate) async fn tenants(&self) -> Result<Vec<Tenant>, MailError> {
        unfinished()
    }
    pub(crate) async fn tenant(&self, id: &str) -> Result<Option<TenantRecord>, MailError> {
        unfinished()
    }
    pub(crate) async fn delete_tenant(&self, id: &str) -> Result<(), MailError> {
        unfinished()
    }
    pub(crate) async fn set_tenant_token(&self, id: &str, hash: &[u8]) -> Result<bool, MailError> {
        unfinished()
    }
    pub(crate) async fn tenant_of_token(&self, hash: &[u8]) -> Result<Option<String>, MailError> {
        unfinished()
    }
    pub(crate) async fn put_account(
        &self,
        account: &AccountRecord,
        now: Instant,
    ) -> Result<bool, MailError> {
        unfinished()
    }
    pub(crate) async fn account(
        &self,
        key: &AccountKey,
    ) -> Result<Option<AccountRecord>, MailError> {
        unfinished()
    }
    pub(crate) async fn accounts(
        &self,
        tenant_id: Option<&str>,
    ) -> Result<Vec<AccountRecord>, MailError> {
        unfinished()
    }
    pub(crate) async fn delete_account(&self, key: &AccountKey) -> Result<bool, MailError> {
        unfinished()
    }
    pub(crate) async fn put_key(&self, key: &ApiKey, hash: &[u8]) -> Result<(), MailError> {
        unfinished()
    }
    pub(crate) async fn keys(&self, tenant_id: Option<&str>) -> Result<Vec<ApiKey>, MailError> {
        unfinished()
    }
    pub(crate) async fn key(&self, id: &str) -> Result<Option<ApiKey>, MailError> {
        unfinished()
    }
    pub(crate) async fn key_of_hash(
        &self,
        hash: &[u8],
    ) -> Result<Option<(ApiKey, Vec<u8>)>, MailError> {
        unfinished()
    }
    pub(crate) async fn change_key(
        &self,
        id: &str,
        enabled: Option<bool>,
        daily_limit: Option<u64>,
    ) -> Result<bool, MailError> {
        unfinished()
    }
    pub(crate) async fn delete_key(&self, id: &str) -> Result<bool, MailError> {
        unfinished()
    }
    pub(crate) async fn insert(
        &self,
        messages: Vec<MessageRecord>,
        now: Instant,
    ) -> Result<Vec<Inserted>, MailError> {
        unfinished()
    }
    pub(crate) async fn run_now(
        &self,
        selection: &Selection,
        now: Instant,
    ) -> Result<Moved, MailError> {
        unfinished()
    }
    pub(crate) async fn suspend(
        &self,
        tenant_id: &str,
        batch_code: Option<&str>,
    ) -> Result<u64, MailError> {
        unfinished()
    }
    pub(crate) async fn activate(
        &self,
        tenant_id: &str,
        batch_code: Option<&str>,
        now: Instant,
    ) -> Result<u64, MailError> {
        unfinished()
    }
    pub(crate) async fn delete_messages(
        &self,
        selection: &Selection,
        limit: u32,
    ) -> Result<u64, MailError> {
        unfinished()
    }
    pub(crate) async fn cleanup(
        &self,
        tenant_id: Option<&str>,
        before: Instant,
        limit: u32,
    ) -> Result<u64, MailError> {
        unfinished()
    }
    pub(crate) async fn messages(
        &self,
        query: &MessageQuery,
        after: i64,
        now: Instant,
    ) -> Result<Vec<(i64, MessageRow)>, MailError> {
        unfinished()
    }
    pub(crate) async fn attempts(
        &self,
        tenant_id: &str,
        message_id: &str,
    ) -> Result<Vec<Attempt>, MailError> {
        unfinished()
    }
    pub(crate) async fn counts(
        &self,
        tenant_id: Option<&str>,
        now: Instant,
    ) -> Result<Vec<Counts>, MailError> {
        unfinished()
    }
    pub(crate) async fn setting(
        &self,
        name: &str,
        first: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, MailError> {
        unfinished()
    }
}

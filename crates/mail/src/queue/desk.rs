//! What the facade asks of the queue: tenants, accounts, keys, messages, commands, listings.

use std::sync::Arc;

use tollgate::{Instant, StoreErrorKind};

use super::records::{AccountRecord, Inserted, MessageRecord, NotWritten, ReportSecret, TenantPut};
use super::transaction::{told_transaction, transaction};
use super::{Moved, Queue, holding, intake, keys, listing, owners};
use crate::chunks::in_chunks;
use crate::error::MailError;
use crate::model::{
    AccountKey, ApiKey, Attempt, Counts, MessageQuery, MessageRow, Selection, Tenant,
};

impl Queue {
    /// Makes or changes a tenant.
    pub(crate) async fn put_tenant(
        &self,
        tenant: &Tenant,
        secret: &ReportSecret,
    ) -> Result<TenantPut, MailError> {
        transaction!(write self, [tenant = tenant.clone(), secret = secret.clone()] db => owners::put_tenant(db, &tenant, &secret))
    }

    pub(crate) async fn tenants(&self) -> Result<Vec<Tenant>, MailError> {
        transaction!(read self, [] db => owners::tenants(db))
    }

    pub(crate) async fn tenant(&self, id: &str) -> Result<Option<Tenant>, MailError> {
        transaction!(read self, [id = id.to_owned()] db => owners::tenant(db, &id))
    }

    /// Removes a tenant with its accounts and keys. It must have no messages left.
    pub(crate) async fn delete_tenant(&self, id: &str) -> Result<(), MailError> {
        transaction!(write self, [id = id.to_owned()] db => owners::delete_tenant(db, &id))
    }

    /// The new token replaces the one before.
    pub(crate) async fn set_tenant_token(&self, id: &str, hash: &[u8]) -> Result<bool, MailError> {
        transaction!(write self, [id = id.to_owned(), hash = hash.to_vec()] db => owners::set_tenant_token(db, &id, &hash))
    }

    pub(crate) async fn tenant_of_token(&self, hash: &[u8]) -> Result<Option<String>, MailError> {
        transaction!(read self, [hash = hash.to_vec()] db => owners::tenant_of_token(db, &hash))
    }

    /// Makes or changes an account, and clears its pauses; `true` if it is new.
    pub(crate) async fn put_account(
        &self,
        account: &AccountRecord,
        now: Instant,
    ) -> Result<bool, MailError> {
        transaction!(write self, [account = account.clone()] db => owners::put_account(db, &account, now))
    }

    pub(crate) async fn account(
        &self,
        key: &AccountKey,
    ) -> Result<Option<AccountRecord>, MailError> {
        transaction!(read self, [key = key.clone()] db => owners::account(db, &key))
    }

    /// Of one tenant, or of all.
    pub(crate) async fn accounts(
        &self,
        tenant_id: Option<&str>,
    ) -> Result<Vec<AccountRecord>, MailError> {
        transaction!(read self, [tenant_id = tenant_id.map(ToOwned::to_owned)] db => owners::accounts(db, tenant_id.as_deref()))
    }

    /// `false`: there is none. A conflict if it has unsent messages.
    pub(crate) async fn delete_account(&self, key: &AccountKey) -> Result<bool, MailError> {
        transaction!(write self, [key = key.clone()] db => owners::delete_account(db, &key))
    }

    /// A new key.
    pub(crate) async fn put_key(&self, key: &ApiKey, hash: &[u8]) -> Result<(), MailError> {
        transaction!(write self, [key = key.clone(), hash = hash.to_vec()] db => keys::put_key(db, &key, &hash))
    }

    /// Of one tenant, or of all.
    pub(crate) async fn keys(&self, tenant_id: Option<&str>) -> Result<Vec<ApiKey>, MailError> {
        transaction!(read self, [tenant_id = tenant_id.map(ToOwned::to_owned)] db => keys::keys(db, tenant_id.as_deref()))
    }

    pub(crate) async fn key(&self, id: &str) -> Result<Option<ApiKey>, MailError> {
        transaction!(read self, [id = id.to_owned()] db => keys::key(db, &id))
    }

    /// With the hash it is known by.
    pub(crate) async fn key_of_hash(
        &self,
        hash: &[u8],
    ) -> Result<Option<(ApiKey, Vec<u8>)>, MailError> {
        transaction!(read self, [hash = hash.to_vec()] db => keys::key_of_hash(db, &hash))
    }

    /// The key as it is then. `None`: there is none.
    pub(crate) async fn change_key(
        &self,
        id: &str,
        enabled: Option<bool>,
        daily_limit: Option<u64>,
    ) -> Result<Option<ApiKey>, MailError> {
        transaction!(write self, [id = id.to_owned()] db => keys::change_key(db, &id, enabled, daily_limit))
    }

    pub(crate) async fn delete_key(&self, id: &str) -> Result<bool, MailError> {
        transaction!(write self, [id = id.to_owned()] db => keys::delete_key(db, &id))
    }

    /// Queues messages, all in one transaction, each by itself: one outcome per message, in order.
    pub(crate) async fn insert(
        &self,
        messages: Vec<MessageRecord>,
        now: Instant,
    ) -> Result<Vec<Inserted>, NotWritten> {
        let messages = Arc::new(messages);
        // Two batches with the same ids in another order may stop each other: one goes again.
        for _ in 0..2 {
            match self.try_insert(messages.clone(), now).await {
                Err(NotWritten::Surely(MailError::Store(error)))
                    if error.kind() == StoreErrorKind::Contended => {}
                inserted => return inserted,
            }
        }
        self.try_insert(messages, now).await
    }

    async fn try_insert(
        &self,
        messages: Arc<Vec<MessageRecord>>,
        now: Instant,
    ) -> Result<Vec<Inserted>, NotWritten> {
        told_transaction!(write self, [] db => intake::insert(db, &messages, now))
    }

    /// Makes deferred messages due and forgets pauses of the accounts, so that all are tried now
    /// (limits still hold). Which accounts have mail now.
    pub(crate) async fn run_now(&self, selection: &Selection) -> Result<Moved, MailError> {
        let advance = |limit| async move {
            transaction!(write self, [selection = selection.clone()]
                db => holding::advance(db, &selection, limit))
        };
        let messages = in_chunks(advance).await?;
        let accounts = transaction!(write self, [selection = selection.clone()]
            db => holding::resume_accounts(
                db, &selection.tenant_id, selection.account_id.as_deref()))?;
        Ok(Moved { accounts, messages })
    }

    /// Holds a tenant, or one batch of it, also what is added to it later.
    pub(crate) async fn suspend(
        &self,
        tenant_id: &str,
        batch_code: Option<&str>,
    ) -> Result<u64, MailError> {
        let tenant_id = tenant_id.to_owned();
        let Some(batch) = batch_code.map(ToOwned::to_owned) else {
            return transaction!(write self, []
                db => holding::set_tenant_suspended(db, &tenant_id, true));
        };
        transaction!(write self, [tenant_id = tenant_id.clone(), batch = batch.clone()]
            db => holding::set_batch_suspended(db, &tenant_id, &batch, true))?;
        let (tenant_id, batch) = (&tenant_id, &batch);
        let hold = |limit| async move {
            transaction!(write self, [tenant_id = tenant_id.clone(), batch = batch.clone()]
                db => holding::hold_batch(db, &tenant_id, &batch, limit))
        };
        in_chunks(hold).await
    }

    /// Lets go what [`Queue::suspend`] holds.
    pub(crate) async fn activate(
        &self,
        tenant_id: &str,
        batch_code: Option<&str>,
        now: Instant,
    ) -> Result<u64, MailError> {
        let tenant_id = tenant_id.to_owned();
        let Some(batch) = batch_code.map(ToOwned::to_owned) else {
            return transaction!(write self, []
                db => holding::set_tenant_suspended(db, &tenant_id, false));
        };
        transaction!(write self, [tenant_id = tenant_id.clone(), batch = batch.clone()]
            db => holding::set_batch_suspended(db, &tenant_id, &batch, false))?;
        let (tenant_id, batch) = (&tenant_id, &batch);
        let let_go = |limit| async move {
            transaction!(write self, [tenant_id = tenant_id.clone(), batch = batch.clone()]
                db => holding::let_batch_go(db, &tenant_id, &batch, now, limit))
        };
        in_chunks(let_go).await
    }

    /// Removes up to `limit` messages with all that belongs to them, but those being sent now.
    /// What was never sent is due back to its key.
    pub(crate) async fn delete_messages(
        &self,
        selection: &Selection,
        now: Instant,
        limit: u32,
    ) -> Result<u64, MailError> {
        transaction!(write self, [selection = selection.clone()] db => holding::delete_messages(db, &selection, now, limit))
    }

    /// Removes up to `limit` messages that were sent or failed before an instant.
    pub(crate) async fn cleanup(
        &self,
        tenant_id: Option<&str>,
        before: Instant,
        now: Instant,
        limit: u32,
    ) -> Result<u64, MailError> {
        transaction!(write self, [tenant_id = tenant_id.map(ToOwned::to_owned)] db => holding::cleanup(db, tenant_id.as_deref(), before, now, limit))
    }

    /// A page of messages after `after`, in the order they came, with the name of each row.
    pub(crate) async fn messages(
        &self,
        query: &MessageQuery,
        after: i64,
        now: Instant,
    ) -> Result<Vec<(i64, MessageRow)>, MailError> {
        transaction!(read self, [query = query.clone()] db => listing::messages(db, &query, after, now))
    }

    /// Attempts to send one message, in order.
    pub(crate) async fn attempts(
        &self,
        tenant_id: &str,
        message_id: &str,
    ) -> Result<Vec<Attempt>, MailError> {
        transaction!(read self, [tenant_id = tenant_id.to_owned(), message_id = message_id.to_owned()] db => listing::attempts(db, &tenant_id, &message_id))
    }

    /// Per account, from counters that are kept with every change: no backlog is counted.
    pub(crate) async fn counts(
        &self,
        tenant_id: Option<&str>,
        now: Instant,
    ) -> Result<Vec<Counts>, MailError> {
        transaction!(read self, [tenant_id = tenant_id.map(ToOwned::to_owned)] db => listing::counts(db, tenant_id.as_deref(), now))
    }

    /// A value kept for all instances; the first one given stays. What it is.
    pub(crate) async fn setting(
        &self,
        name: &str,
        first: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, MailError> {
        let name = name.to_owned();
        match first.map(<[u8]>::to_vec) {
            Some(first) => {
                transaction!(write self, [] db => keys::setting(db, &name, Some(&first)))
            }
            None => transaction!(read self, [] db => keys::setting(db, &name, None)),
        }
    }

    /// What is not answered yet is, and then the file is closed.
    pub(crate) fn close(&self) {
        match self {
            Self::Sqlite(sqlite) => sqlite.close(),
            Self::Postgres(postgres) => postgres.close(),
        }
    }
}

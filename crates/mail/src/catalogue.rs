//! Tenants, SMTP accounts and API keys: made, changed, listed, deleted.

use crate::chunks::in_chunks;
use crate::error::MailError;
use crate::mail::Mail;
use crate::model::{
    Account, AccountKey, ApiKey, NewAccount, NewApiKey, NewTenant, Tenant, TenantSaved,
};
use crate::queue::{AccountRecord, ReportSecret};
use crate::secrets::{self, KEY_PREFIX, TOKEN_PREFIX};
use crate::settings::Secret;
use crate::validate;

impl Mail {
    /// Makes a tenant, or changes its name and where its reports go.
    pub async fn put_tenant(&self, new: NewTenant) -> Result<TenantSaved, MailError> {
        validate::tenant(&new)?;
        let inner = &self.inner;
        if new.report_url.is_some() || new.report_secret.is_some() {
            inner.vault.ready(&inner.queue).await?;
        }
        let mut made = None;
        let secret = match (&new.report_url, new.report_secret) {
            (_, Some(given)) => {
                ReportSecret::Given(inner.vault.seal_report_secret(&new.id, given.reveal())?)
            }
            (Some(_), None) => {
                let secret = made.insert(Secret::new(secrets::generate("tgr_")?));
                ReportSecret::Made(inner.vault.seal_report_secret(&new.id, secret.reveal())?)
            }
            (None, None) => ReportSecret::Kept,
        };
        let tenant = Tenant {
            id: new.id,
            name: new.name,
            report_url: new.report_url,
            suspended: false,
            has_token: false,
            created_at: self.now(),
        };
        let put = inner.queue.put_tenant(&tenant, &secret).await?;
        // If it has one already, also since a moment ago, that one stays.
        let is_ours = |sealed| secret == ReportSecret::Made(sealed);
        let report_secret = made.filter(|_| put.report_secret_sealed.is_some_and(is_ours));
        Ok(TenantSaved { created: put.created, report_secret })
    }

    pub async fn tenants(&self) -> Result<Vec<Tenant>, MailError> {
        self.inner.queue.tenants().await
    }

    pub async fn tenant(&self, id: &str) -> Result<Tenant, MailError> {
        let found = self.inner.queue.tenant(id).await?;
        found.ok_or_else(|| no_tenant(id))
    }

    /// Deletes a tenant with its accounts, keys and finished messages. A conflict while it has
    /// unsent ones: delete or send those first.
    pub async fn delete_tenant(&self, id: &str) -> Result<(), MailError> {
        self.tenant(id).await?;
        let queue = &self.inner.queue;
        let counts = queue.counts(Some(id), self.now()).await?;
        let unsent: u64 =
            counts.iter().map(|count| count.pending + count.deferred + count.suspended).sum();
        if unsent > 0 {
            return Err(has_unsent(&format!("tenant {id:?}"), unsent));
        }
        let all = tollgate::Instant::MAX;
        in_chunks(|limit| queue.cleanup(Some(id), all, self.now(), limit)).await?;
        queue.delete_tenant(id).await
    }

    /// A new access token for one tenant, shown this once. It replaces the one before.
    pub async fn new_tenant_token(&self, id: &str) -> Result<String, MailError> {
        let token = secrets::generate(TOKEN_PREFIX)?;
        if self.inner.queue.set_tenant_token(id, &secrets::hash(&token)).await? {
            Ok(token)
        } else {
            Err(no_tenant(id))
        }
    }

    /// Whose token this is.
    pub async fn bearer(&self, token: &str) -> Result<Option<String>, MailError> {
        if !token.starts_with(TOKEN_PREFIX) {
            return Ok(None);
        }
        self.inner.queue.tenant_of_token(&secrets::hash(token)).await
    }

    /// Makes or replaces an account; `true` if it is new. What it changes is in force at the next
    /// send.
    pub async fn put_account(&self, new: NewAccount) -> Result<bool, MailError> {
        let mut account = validate::account(&new, self.now())?;
        let inner = &self.inner;
        if inner.queue.tenant(&new.tenant_id).await?.is_none() {
            return Err(no_tenant(&new.tenant_id));
        }
        let before = inner.queue.account(&account.key).await?;
        let password_sealed = match &new.password {
            Some(password) if password.reveal().is_empty() => None,
            Some(password) => {
                inner.vault.ready(&inner.queue).await?;
                Some(inner.vault.seal_password(&account.key, password)?)
            }
            None => kept_password(before, &account)?,
        };
        account.has_password = password_sealed.is_some();
        let key = account.key.clone();
        let record = AccountRecord { account, password_sealed };
        let created = inner.queue.put_account(&record, self.now()).await?;
        inner.nudges.nudge([key]);
        Ok(created)
    }

    /// Of one tenant, or of all. Never with passwords.
    pub async fn accounts(&self, tenant_id: Option<&str>) -> Result<Vec<Account>, MailError> {
        if let Some(id) = tenant_id {
            self.tenant(id).await?;
        }
        let records = self.inner.queue.accounts(tenant_id).await?;
        Ok(records.into_iter().map(|record| record.account).collect())
    }

    /// Without its password.
    pub async fn account(&self, key: &AccountKey) -> Result<Account, MailError> {
        let found = self.inner.queue.account(key).await?;
        found.map(|record| record.account).ok_or_else(|| no_account(key))
    }

    /// A conflict while it has unsent messages.
    pub async fn delete_account(&self, key: &AccountKey) -> Result<(), MailError> {
        if self.inner.queue.delete_account(key).await? { Ok(()) } else { Err(no_account(key)) }
    }

    /// A new API key and its secret, which is shown this once.
    pub async fn create_key(&self, new: NewApiKey) -> Result<(ApiKey, String), MailError> {
        validate::key(&new)?;
        let key = ApiKey {
            id: format!("key_{}", secrets::random_id()?),
            tenant_id: new.tenant_id,
            account_id: new.account_id,
            name: new.name,
            daily_limit: new.daily_limit,
            timezone: new.timezone,
            enabled: true,
            created_at: self.now(),
        };
        let secret = secrets::generate(KEY_PREFIX)?;
        self.inner.queue.put_key(&key, &secrets::hash(&secret)).await?;
        Ok((key, secret))
    }

    /// Of one tenant, or of all.
    pub async fn keys(&self, tenant_id: Option<&str>) -> Result<Vec<ApiKey>, MailError> {
        if let Some(id) = tenant_id {
            self.tenant(id).await?;
        }
        self.inner.queue.keys(tenant_id).await
    }

    pub async fn key(&self, id: &str) -> Result<ApiKey, MailError> {
        self.inner.queue.key(id).await?.ok_or_else(|| no_key(id))
    }

    /// Changes what is given, and says how the key is then. In force at the next send; what was
    /// counted today stays counted.
    pub async fn change_key(
        &self,
        id: &str,
        enabled: Option<bool>,
        daily_limit: Option<u64>,
    ) -> Result<ApiKey, MailError> {
        daily_limit.map_or(Ok(()), validate::daily_limit)?;
        let changed = self.inner.queue.change_key(id, enabled, daily_limit).await?;
        changed.ok_or_else(|| no_key(id))
    }

    pub async fn delete_key(&self, id: &str) -> Result<(), MailError> {
        if self.inner.queue.delete_key(id).await? { Ok(()) } else { Err(no_key(id)) }
    }
}

/// A password stays only where it was given for: it must not be sent to another server by whoever
/// may change accounts and does not know it.
fn kept_password(
    before: Option<AccountRecord>,
    account: &Account,
) -> Result<Option<Vec<u8>>, MailError> {
    let Some(before) = before else { return Ok(None) };
    let Some(sealed) = before.password_sealed else { return Ok(None) };
    let old = &before.account;
    let same = old.host == account.host && old.port == account.port && old.user == account.user;
    // Nor may it lose its cover.
    let covered = old.tls == account.tls
        && old.root_cert == account.root_cert
        && (old.allow_plaintext_auth || !account.allow_plaintext_auth);
    if same && covered {
        return Ok(Some(sealed));
    }
    Err(MailError::invalid(
        "password",
        "must be given again when host, port, user or TLS change (an empty one removes it)",
    ))
}

pub(crate) fn no_tenant(id: &str) -> MailError {
    MailError::NotFound(format!(
        "there is no tenant {id:?}; make it with POST /tenant or `tollgate mail tenants add`"
    ))
}

pub(crate) fn no_account(key: &AccountKey) -> MailError {
    let AccountKey { tenant_id, account_id } = key;
    MailError::NotFound(format!("tenant {tenant_id:?} has no account {account_id:?}"))
}

fn no_key(id: &str) -> MailError {
    MailError::NotFound(format!("there is no API key {id:?}"))
}

pub(crate) fn has_unsent(what: &str, unsent: u64) -> MailError {
    MailError::Conflict(format!(
        "{what} has {unsent} unsent messages: send them or delete them first"
    ))
}

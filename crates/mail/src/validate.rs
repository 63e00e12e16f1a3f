//! What callers give, checked whole before anything is stored or spent.

mod content;

use sha2::{Digest, Sha256};
use tollgate::Instant;

use crate::error::Invalid;
use crate::model::{
    Account, AccountKey, MessageQuery, NewAccount, NewApiKey, NewMessage, NewTenant, SendRequest,
    Tls,
};
use crate::queue::{MessageRecord, encode_content};
use crate::settings::MailSettings;

pub(crate) use content::{Composite, content, content_bytes, one_line};

const MAX_ID_CHARS: usize = 128;
const MAX_MESSAGE_ID_CHARS: usize = 255;
const MAX_NAME_CHARS: usize = 200;
const MAX_LIST: u32 = 1000;
const MAX_CONCURRENCY: u16 = 100;

pub(crate) fn tenant(new: &NewTenant) -> Result<(), Invalid> {
    id("id", &new.id)?;
    text("name", &new.name, MAX_NAME_CHARS)?;
    if let Some(url) = &new.report_url {
        text("report_url", url, 2000)?;
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        if rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) {
            return Err(Invalid::new("report_url", "must be an http:// or https:// URL"));
        }
        if url.contains(char::is_whitespace) {
            return Err(Invalid::new("report_url", "must not hold white space"));
        }
    }
    if let Some(secret) = &new.report_secret
        && secret.reveal().len() < 16
    {
        return Err(Invalid::new("report_secret", "must be at least 16 characters long"));
    }
    Ok(())
}

pub(crate) fn account(new: &NewAccount, now: Instant) -> Result<Account, Invalid> {
    id("id", &new.id)?;
    id("tenant_id", &new.tenant_id)?;
    host(&new.host)?;
    if new.port == 0 {
        return Err(Invalid::new("port", "must be from 1 to 65535"));
    }
    let user = new.user.clone().filter(|user| !user.is_empty());
    if let Some(user) = &user {
        text("user", user, 320)?;
    }
    if let Some(password) = &new.password {
        text("password", password.reveal(), 1000)?;
        if user.is_none() && !password.reveal().is_empty() {
            return Err(Invalid::new("user", "is required with a password"));
        }
    }
    if let Some(address) = &new.from_address {
        content::address("from_address", address)?;
    }
    if let Some(pem) = &new.root_cert
        && (pem.len() > 100_000 || !pem.contains("-----BEGIN CERTIFICATE-----"))
    {
        return Err(Invalid::new("root_cert", "must be a certificate in PEM"));
    }
    if new.priority0_share > 99 {
        return Err(Invalid::new("priority0_share", "must be from 0 to 99 percent"));
    }
    if new.concurrency == 0 || new.concurrency > MAX_CONCURRENCY {
        let message = format!("must be from 1 to {MAX_CONCURRENCY}");
        return Err(Invalid::new("concurrency", message));
    }
    let tls = new.tls.unwrap_or(match (new.use_tls, new.port) {
        (false, _) => Tls::None,
        (true, 465) => Tls::Implicit,
        (true, _) => Tls::Starttls,
    });
    Ok(Account {
        key: AccountKey::new(&new.tenant_id, &new.id),
        host: new.host.clone(),
        port: new.port,
        user,
        password: None,
        has_password: false,
        from_address: new.from_address.clone(),
        use_tls: tls != Tls::None,
        tls,
        root_cert: new.root_cert.clone(),
        allow_plaintext_auth: new.allow_plaintext_auth,
        limit_per_minute: limit("limit_per_minute", new.limit_per_minute)?,
        limit_per_hour: limit("limit_per_hour", new.limit_per_hour)?,
        limit_per_day: limit("limit_per_day", new.limit_per_day)?,
        limit_behavior: new.limit_behavior,
        limit_unit: new.limit_unit,
        priority0_share: new.priority0_share,
        concurrency: new.concurrency,
        resume_at: None,
        resume_ordinary_at: None,
        version: 0,
        created_at: now,
        updated_at: now,
    })
}

/// 0 is no limit.
fn limit(field: &str, max: Option<u64>) -> Result<Option<u64>, Invalid> {
    let max = max.filter(|max| *max > 0);
    if max.is_some_and(|max| max > tollgate::core::MAX_UNITS) {
        let message = format!("must be at most {}", tollgate::core::MAX_UNITS);
        return Err(Invalid::new(field, message));
    }
    Ok(max)
}

pub(crate) fn key(new: &NewApiKey) -> Result<(), Invalid> {
    id("tenant_id", &new.tenant_id)?;
    id("account_id", &new.account_id)?;
    text("name", &new.name, MAX_NAME_CHARS)?;
    daily_limit(new.daily_limit)?;
    tollgate::parse_zone(&new.timezone).map_err(|why| Invalid::new("timezone", why))?;
    Ok(())
}

pub(crate) fn daily_limit(limit: u64) -> Result<(), Invalid> {
    if limit > tollgate::core::MAX_UNITS {
        let message = format!("must be at most {}", tollgate::core::MAX_UNITS);
        return Err(Invalid::new("daily_limit", message));
    }
    Ok(())
}

/// A message for the queue, if everything about it that can be known without the queue is valid.
pub(crate) fn message(
    message: NewMessage,
    settings: &MailSettings,
) -> Result<MessageRecord, Invalid> {
    text("id", &message.id, MAX_MESSAGE_ID_CHARS)?;
    if message.id.is_empty() {
        return Err(Invalid::new("id", "is required"));
    }
    id("tenant_id", &message.tenant_id)?;
    id("account_id", &message.account_id)?;
    if message.priority > 3 {
        return Err(Invalid::new("priority", "must be from 0 (immediate) to 3 (low)"));
    }
    if let Some(code) = &message.batch_code {
        text("batch_code", code, MAX_ID_CHARS)?;
        if code.is_empty() {
            return Err(Invalid::new("batch_code", "is empty; leave it out or give it a value"));
        }
    }
    content(&message.content, settings)?;
    let NewMessage { id, tenant_id, account_id, content, priority, deferred_until, batch_code } =
        message;
    let recipients = content.recipient_count();
    let encoded = encode_content(&content);
    let digest = digest(&[
        account_id.as_bytes(),
        &[priority],
        &deferred_until.map_or(0, Instant::as_micros).to_le_bytes(),
        batch_code.as_deref().unwrap_or("").as_bytes(),
        &encoded,
    ]);
    Ok(MessageRecord {
        account: AccountKey { tenant_id, account_id },
        id,
        priority,
        recipients,
        deferred_until,
        batch_code,
        receipt: None,
        digest,
        former_digest: None,
        content: encoded,
    })
}

/// Of a request with an API key, as it was given.
pub(crate) fn request_digest(request: &SendRequest) -> Vec<u8> {
    let SendRequest { to, subject, text, html, headers, account_id, from } = request;
    let given = (to, subject, text, html, headers, account_id, from);
    digest(&[b"send", &serde_json::to_vec(&given).expect("texts are always JSON")])
}

/// Each part with its length, so that they cannot run into each other.
fn digest(parts: &[&[u8]]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().to_vec()
}

/// Where the page begins.
pub(crate) fn query(query: &MessageQuery) -> Result<i64, Invalid> {
    if query.limit == 0 || query.limit > MAX_LIST {
        return Err(Invalid::new("limit", format!("must be from 1 to {MAX_LIST}")));
    }
    match &query.cursor {
        None => Ok(0),
        Some(cursor) => cursor
            .parse()
            .ok()
            .filter(|after| *after >= 0)
            .ok_or_else(|| Invalid::new("cursor", "is not what a listing gave as next_cursor")),
    }
}

/// Ids stand in URLs, metrics and log lines, so they are plain.
pub(crate) fn id(field: &str, id: &str) -> Result<(), Invalid> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:@+".contains(c);
    if id.is_empty() {
        Err(Invalid::new(field, "is required"))
    } else if id.len() > MAX_ID_CHARS {
        Err(Invalid::new(field, format!("must be at most {MAX_ID_CHARS} characters long")))
    } else if !id.chars().all(plain) {
        Err(Invalid::new(field, "may hold only letters, digits and . _ - : @ +"))
    } else {
        Ok(())
    }
}

fn text(field: &str, text: &str, max_chars: usize) -> Result<(), Invalid> {
    if text.chars().count() > max_chars {
        return Err(Invalid::new(field, format!("must be at most {max_chars} characters long")));
    }
    one_line(field, text)
}

fn host(host: &str) -> Result<(), Invalid> {
    if host.is_empty() {
        return Err(Invalid::new("host", "is required"));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-:_".contains(c);
    if host.len() > 253 || !host.chars().all(plain) {
        return Err(Invalid::new("host", "must be a host name or an address, without a port"));
    }
    // A colon is an IPv6 address or a mistake.
    if host.contains(':') && host.parse::<std::net::Ipv6Addr>().is_err() {
        return Err(Invalid::new("host", "must not hold a port: that is a field of its own"));
    }
    Ok(())
}

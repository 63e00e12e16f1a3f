//! Messages: as they are given, as they are listed, and the attempts to send them.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use tollgate::Instant;

use crate::address::mailbox;

/// A message for the queue, as `add-messages` takes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewMessage {
    /// Unique within the tenant: the same one again is not queued twice.
    pub id: String,
    pub tenant_id: String,
    pub account_id: String,
    pub content: Content,
    /// 0 immediate, 1 high, 2 medium, 3 low.
    pub priority: u8,
    /// Not before this.
    pub deferred_until: Option<Instant>,
    pub batch_code: Option<String>,
}

impl NewMessage {
    pub const DEFAULT_PRIORITY: u8 = 2;
}

/// What is sent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Content {
    pub from: String,
    pub to: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cc: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bcc: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    pub subject: String,
    /// Plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    pub filename: String,
    /// Such as `application/pdf`.
    #[serde(default = "any_bytes")]
    pub content_type: String,
    /// Standard base64; line breaks are no harm.
    pub content_base64: String,
}

fn any_bytes() -> String {
    "application/octet-stream".into()
}

impl Content {
    /// Recipients, each counted once however often it is named: so often the server is told of it.
    pub fn recipient_count(&self) -> u32 {
        let named = [&self.to, &self.cc, &self.bcc].into_iter().flatten();
        let address = |given: &String| match mailbox(given) {
            Ok(mailbox) => mailbox.email.to_string(),
            Err(_) => given.clone(),
        };
        let addresses: HashSet<String> = named.map(address).collect();
        u32::try_from(addresses.len()).unwrap_or(u32::MAX)
    }
}

/// What became of a batch of messages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Added {
    /// Messages that are in the queue now, those that were there already included.
    pub queued: u64,
    pub rejected: Vec<Rejected>,
}

/// A message that was not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejected {
    pub id: String,
    pub reason: String,
}

/// A message sent with an API key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SendRequest {
    pub to: Vec<String>,
    pub subject: String,
    pub text: Option<String>,
    pub html: Option<String>,
    pub headers: BTreeMap<String, String>,
    /// `None`: the key's own.
    pub account_id: Option<String>,
    /// `None`: the account's user, if that is an address.
    pub from: Option<String>,
}

/// A message taken with an API key. It is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    pub id: String,
    /// Recipients that still fit today.
    pub remaining: u64,
    /// How the day's limit stands, as HTTP headers.
    pub headers: Vec<(String, String)>,
    /// It was taken before, under the same idempotency key.
    pub replayed: bool,
}

/// Where a message is in its life, as it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Next in line, or being sent at this moment.
    Pending,
    /// Waits for an instant: its own, a retry's, or its account's.
    Deferred,
    /// Waits for its tenant or batch to be activated.
    Suspended,
    Sent,
    Error,
}

impl Status {
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Deferred, Self::Suspended, Self::Sent, Self::Error];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Deferred => "deferred",
            Self::Suspended => "suspended",
            Self::Sent => "sent",
            Self::Error => "error",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// Which messages to list: in the order they came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageQuery {
    pub tenant_id: String,
    pub status: Option<Status>,
    pub account_id: Option<String>,
    pub batch_code: Option<String>,
    pub id: Option<String>,
    /// 1 to 1000.
    pub limit: u32,
    /// What the page before gave as `next_cursor`.
    pub cursor: Option<String>,
}

impl MessageQuery {
    pub fn of_tenant(tenant_id: impl Into<String>) -> Self {
        Self {
            tenant_id: tenant_id.into(),
            status: None,
            account_id: None,
            batch_code: None,
            id: None,
            limit: 100,
            cursor: None,
        }
    }
}

/// A message as it is listed: without its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageRow {
    pub id: String,
    pub tenant_id: String,
    pub account_id: String,
    pub status: Status,
    pub priority: u8,
    /// The instant it waits for, its own or its account's, while it is deferred.
    pub deferred_until: Option<Instant>,
    pub batch_code: Option<String>,
    pub recipients: u32,
    /// Attempts to send it, the present one included.
    pub attempts: u32,
    pub last_error: Option<String>,
    pub created_at: Instant,
    pub sent_at: Option<Instant>,
    /// When it ended in error.
    pub failed_at: Option<Instant>,
}

/// One attempt to send a message, from `send_log`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    pub message_id: String,
    pub account_id: String,
    /// The decision's instant that let it begin.
    pub started_at: Instant,
    pub finished_at: Instant,
    pub instance: String,
    pub smtp_code: Option<u16>,
    pub smtp_text: String,
    /// `sent`, `retry`, `throttled`, `error` or `unknown` (its instance died).
    pub outcome: String,
}

//! How the relay works. Every setting has a default.

use std::path::PathBuf;
use std::time::Duration;

/// The `[mail]` section, as values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MailSettings {
    /// SMTP attempts in flight at once, over all accounts of this instance. One that takes longer
    /// than ten seconds no longer counts, up to four times as many; one account takes at most half.
    pub concurrency: usize,
    /// The first delay before a retry; it doubles with each attempt.
    pub retry_base: Duration,
    /// The longest delay before a retry.
    pub retry_max: Duration,
    /// A message that still fails this long after its first attempt ends in error.
    pub max_age: Duration,
    /// The first pause of an account whose server says that it is too much.
    pub throttle_base: Duration,
    /// The whole of one SMTP attempt: connecting, greeting, sending.
    pub attempt_timeout: Duration,
    /// How long a claim lasts. Longer than any attempt, so that it needs no renewal.
    pub lease: Duration,
    /// How often other instances' mail is looked for.
    pub poll_interval: Duration,
    /// Where the key that seals passwords comes from.
    pub key: KeySource,
    /// A PEM file of authorities that SMTP servers are trusted by, besides the public ones.
    pub root_cert: Option<PathBuf>,
    /// One message with its attachments, in bytes.
    pub max_message_bytes: usize,
    /// Recipients of one message: to, cc and bcc.
    pub max_recipients: usize,
    /// One POST of delivery reports, from connecting to the answer.
    pub report_timeout: Duration,
    /// The first delay after reports were not taken; it doubles.
    pub report_retry_base: Duration,
    /// Names this instance in leases and in `send_log`. Empty: a random name.
    pub instance: String,
}

/// Where the key that seals passwords comes from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum KeySource {
    /// `TOLLGATE_MAIL_KEY` if it is set; else a file beside the embedded store, made at first
    /// need. On PostgreSQL there is no such place, so it must be given.
    #[default]
    Standard,
    /// 32 bytes as hex or base64, or a passphrase of at least 16 characters.
    Given(Secret),
    /// A file that holds such a text. Made at first need, readable by its owner only.
    File(PathBuf),
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Default for MailSettings {
    fn default() -> Self {
        Self {
            concurrency: 32,
            retry_base: Duration::from_secs(60),
            retry_max: Duration::from_secs(3600),
            max_age: Duration::from_secs(24 * 3600),
            throttle_base: Duration::from_secs(60),
            attempt_timeout: Duration::from_secs(120),
            lease: Duration::from_secs(300),
            poll_interval: Duration::from_secs(1),
            key: KeySource::Standard,
            root_cert: None,
            max_message_bytes: 25 * 1024 * 1024,
            max_recipients: 1000,
            report_timeout: Duration::from_secs(30),
            report_retry_base: Duration::from_secs(10),
            instance: String::new(),
        }
    }
}

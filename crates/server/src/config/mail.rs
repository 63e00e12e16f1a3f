//! The `[mail]` section: how the relay works, and what a call may bring.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tollgate_mail::{KeySource, MailSettings};

use super::{Count, Timeout};

#[derive(Debug, Deserialize)]
#[serde(try_from = "Written")]
pub(crate) struct MailSection {
    pub(crate) settings: MailSettings,
    /// Of one call that brings messages.
    pub(crate) max_body_bytes: usize,
    /// For such a body to arrive.
    pub(crate) body_timeout: Duration,
}

/// As it is written; what is absent keeps its default.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    concurrency: Option<Count>,
    retry_base: Option<Timeout>,
    retry_max: Option<Timeout>,
    max_age: Option<Timeout>,
    throttle_base: Option<Timeout>,
    attempt_timeout: Option<Timeout>,
    lease: Option<Timeout>,
    poll_interval: Option<Timeout>,
    key_file: Option<PathBuf>,
    root_cert: Option<PathBuf>,
    max_message_bytes: Option<Count>,
    max_recipients: Option<Count>,
    report_timeout: Option<Timeout>,
    report_retry_base: Option<Timeout>,
    instance: Option<String>,
    max_body_bytes: Option<Count>,
    body_timeout: Option<Timeout>,
}

impl Default for MailSection {
    fn default() -> Self {
        Self {
            settings: MailSettings::default(),
            max_body_bytes: 25 << 20,
            body_timeout: Duration::from_secs(60),
        }
    }
}

impl TryFrom<Written> for MailSection {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let mut section = Self::default();
        let settings = &mut section.settings;
        for (given, value) in [
            (written.retry_base, &mut settings.retry_base),
            (written.retry_max, &mut settings.retry_max),
            (written.max_age, &mut settings.max_age),
            (written.throttle_base, &mut settings.throttle_base),
            (written.attempt_timeout, &mut settings.attempt_timeout),
            (written.lease, &mut settings.lease),
            (written.poll_interval, &mut settings.poll_interval),
            (written.report_timeout, &mut settings.report_timeout),
            (written.report_retry_base, &mut settings.report_retry_base),
            (written.body_timeout, &mut section.body_timeout),
        ] {
            if let Some(Timeout(time)) = given {
                *value = time;
            }
        }
        for (given, value) in [
            (written.concurrency, &mut settings.concurrency),
            (written.max_message_bytes, &mut settings.max_message_bytes),
            (written.max_recipients, &mut settings.max_recipients),
            (written.max_body_bytes, &mut section.max_body_bytes),
        ] {
            if let Some(Count(count)) = given {
                *value = count;
            }
        }
        if let Some(path) = written.key_file {
            settings.key = KeySource::File(path);
        }
        settings.root_cert = written.root_cert;
        settings.instance = written.instance.unwrap_or_default();
        // A claim that ends before its attempt would let a second instance send the same message.
        if settings.lease <= settings.attempt_timeout {
            return Err(format!(
                "lease ({:?}) must be longer than attempt_timeout ({:?})",
                settings.lease, settings.attempt_timeout
            ));
        }
        Ok(section)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_written_keeps_its_default() {
        let section: MailSection = toml::from_str("retry_base = \"2s\"\nconcurrency = 3").unwrap();
        assert_eq!(section.settings.retry_base, Duration::from_secs(2));
        assert_eq!(section.settings.concurrency, 3);
        let expected = MailSettings {
            retry_base: Duration::from_secs(2),
            concurrency: 3,
            ..MailSettings::default()
        };
        assert_eq!(section.settings, expected);
        assert_eq!(section.max_body_bytes, 25 * 1024 * 1024);
    }

    #[test]
    fn an_unknown_key_and_a_lease_that_is_too_short_are_named() {
        for (text, name) in [
            ("retry_bas = \"2s\"", "retry_bas"),
            ("lease = \"60s\"", "lease"),
            ("attempt_timeout = \"10m\"", "attempt_timeout"),
            ("concurrency = 0", "concurrency"),
        ] {
            let error = toml::from_str::<MailSection>(text).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}

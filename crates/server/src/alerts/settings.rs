//! The section `[alerts]` of the configuration file.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use tollgate::{AlertRule, AlertScope, Span, parse_duration};

use crate::config::{Count, Timeout};

const MAX_RULES: usize = 16;
const MAX_RULE_NAME_BYTES: usize = 128;
const MAX_REFUSALS: u64 = 1_000_000_000;
const LONGEST: Span = Span::from_secs(86_400);
const SHORTEST: Span = Span::from_secs(1);

/// Rules, and where alerts are sent.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Section")]
pub(crate) struct AlertSettings {
    /// Whether refusals are recorded at all; without, there are no offenders and no alerts.
    pub(crate) watch: bool,
    pub(crate) rules: Vec<AlertRule>,
    pub(crate) webhook: Option<Target>,
}

/// A webhook.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) url: String,
    /// Signs what is sent.
    pub(crate) secret: Option<Secret>,
    /// For one attempt.
    pub(crate) timeout: Duration,
    pub(crate) attempts: usize,
}

/// Never shown.
#[derive(Clone, Deserialize)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Default for AlertSettings {
    fn default() -> Self {
        Self { watch: true, rules: vec![RuleEntry::default().into()], webhook: None }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Section {
    watch: bool,
    rules: Vec<RuleEntry>,
    webhook: Option<String>,
    secret: Option<Secret>,
    webhook_timeout: Timeout,
    webhook_attempts: Count,
}

impl Default for Section {
    fn default() -> Self {
        Self {
            watch: true,
            rules: vec![RuleEntry::default()],
            webhook: None,
            secret: None,
            webhook_timeout: Timeout(Duration::from_secs(5)),
            webhook_attempts: Count(6),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RuleEntry {
    name: Option<String>,
    refusals: Refusals,
    within: Within,
    per: Per,
    policies: Vec<String>,
}

impl Default for RuleEntry {
    fn default() -> Self {
        Self {
            name: None,
            refusals: Refusals(5),
            within: Within(Span::from_secs(600)),
            per: Per::Subject,
            policies: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Per {
    Subject,
    Policy,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "i64")]
struct Refusals(u64);

impl TryFrom<i64> for Refusals {
    type Error = String;

    fn try_from(count: i64) -> Result<Self, String> {
        let usable = u64::try_from(count).ok().filter(|count| (1..=MAX_REFUSALS).contains(count));
        usable.map(Self).ok_or_else(|| format!("must be from 1 to {MAX_REFUSALS}, not {count}"))
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Within(Span);

impl TryFrom<String> for Within {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let span = parse_duration(&text)?;
        if (SHORTEST..=LONGEST).contains(&span) {
            return Ok(Self(span));
        }
        Err(format!("must be from 1s to 1d, not {text:?}"))
    }
}

impl From<RuleEntry> for AlertRule {
    fn from(entry: RuleEntry) -> Self {
        let RuleEntry { name, refusals: Refusals(refusals), within: Within(within), .. } = entry;
        let (per, scope) = match entry.per {
            Per::Subject => ("subject", AlertScope::Subject),
            Per::Policy => ("policy", AlertScope::Policy),
        };
        let time = jiff::SignedDuration::from_micros(within.as_micros());
        let name = name.unwrap_or_else(|| format!("{refusals} per {per} in {time:#}"));
        Self { name, refusals, within, per: scope, policies: entry.policies }
    }
}

impl TryFrom<Section> for AlertSettings {
    type Error = String;

    fn try_from(section: Section) -> Result<Self, String> {
        let Section { watch, rules, webhook, secret, webhook_timeout, webhook_attempts } = section;
        if rules.len() > MAX_RULES {
            return Err(format!("rules: at most {MAX_RULES} are possible, not {}", rules.len()));
        }
        let rules: Vec<AlertRule> = rules.into_iter().map(AlertRule::from).collect();
        let mut names = HashSet::new();
        for rule in &rules {
            if !(1..=MAX_RULE_NAME_BYTES).contains(&rule.name.len()) {
                return Err(format!("rules: a name has 1 to {MAX_RULE_NAME_BYTES} bytes"));
            }
            if !names.insert(&rule.name) {
                return Err(format!("rules: two have the name {:?}; give each its own", rule.name));
            }
        }
        if secret.as_ref().is_some_and(|Secret(secret)| secret.is_empty()) {
            return Err("secret: is empty; leave it out or give it a value".into());
        }
        let target = |url: String| {
            check_url(&url)?;
            let (timeout, attempts) = (webhook_timeout.0, webhook_attempts.0);
            Ok::<_, String>(Target { url, secret, timeout, attempts })
        };
        Ok(Self { watch, rules, webhook: webhook.map(target).transpose()? })
    }
}

fn check_url(url: &str) -> Result<(), String> {
    let uri = url.parse::<ureq::http::Uri>().ok();
    let is_web = |uri: &ureq::http::Uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
    };
    if uri.as_ref().is_some_and(is_web) {
        return Ok(());
    }
    // It may hold a password.
    Err("webhook: is not a URL that begins with https:// or http://".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AlertSettings, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_said_is_five_in_ten_minutes_per_subject() {
        for settings in [AlertSettings::default(), read("").unwrap(), read("rules = [{}]").unwrap()]
        {
            let [rule] = &settings.rules[..] else { panic!("{settings:?}") };
            assert_eq!((rule.refusals, rule.within), (5, Span::from_secs(600)));
            assert_eq!((rule.per, &*rule.name), (AlertScope::Subject, "5 per subject in 10m"));
            assert!(settings.webhook.is_none());
        }
        assert!(read("rules = []").unwrap().rules.is_empty());
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        let two = r#"rules = [{ name = "a" }, { name = "a", refusals = 9 }]"#;
        for (text, named) in [
            ("webhok = 'https://x'", "webhok"),
            ("rules = [{ whithin = '1m' }]", "whithin"),
            ("rules = [{ refusals = 0 }]", "refusals"),
            ("rules = [{ within = 'soon' }]", "within"),
            ("rules = [{ within = '2d' }]", "1s to 1d"),
            ("rules = [{ per = 'user' }]", "per"),
            ("webhook = 'x.org/alerts'", "webhook"),
            ("webhook = 'ftp://x.org'", "webhook"),
            ("secret = ''", "secret"),
            ("webhook_timeout = 'never'", "webhook_timeout"),
            ("webhook_attempts = 0", "webhook_attempts"),
            (two, "\"a\""),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(named), "{text}: {why}");
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let settings = read("webhook = 'https://x.org/a'\nsecret = 'h1dden'").unwrap();
        assert!(!format!("{settings:?}").contains("h1dden"));
    }
}

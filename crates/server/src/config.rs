//! The configuration file. Every key has a default; an unknown one is an error that names it.

#[cfg(test)]
mod example;
mod mail;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tollgate::{Policy, parse_duration, policies_from_toml};

use crate::alerts::settings::AlertSettings;
use crate::forward_auth::config::Gate;
use mail::MailSection;

/// What `--config FILE` says.
#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) server: Server,
    pub(crate) store: Store,
    pub(crate) gate: Gate,
    pub(crate) alerts: AlertSettings,
    pub(crate) mail: MailSection,
    policy: toml::Table,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Server {
    pub(crate) listen: String,
    /// PEM files; both or neither.
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) max_connections: Count,
    pub(crate) max_body_bytes: Count,
    pub(crate) max_batch_body_bytes: Count,
    /// What bodies may hold beyond `max_body_bytes`, all requests together.
    pub(crate) max_large_bodies_bytes: Count,
    pub(crate) header_timeout: Timeout,
    pub(crate) body_timeout: Timeout,
    pub(crate) shutdown_timeout: Timeout,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Store {
    pub(crate) url: String,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".into(),
            tls_cert: None,
            tls_key: None,
            max_connections: Count(16_384),
            max_body_bytes: Count(256 << 10),
            max_batch_body_bytes: Count(1 << 20),
            max_large_bodies_bytes: Count(256 << 20),
            header_timeout: Timeout(Duration::from_secs(30)),
            body_timeout: Timeout(Duration::from_secs(15)),
            shutdown_timeout: Timeout(Duration::from_secs(10)),
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        Self { url: "sqlite:tollgate.db".into() }
    }
}

/// A number of connections or bytes: at least one, and no more than a server can mean.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "i64")]
pub(crate) struct Count(pub(crate) usize);

impl TryFrom<i64> for Count {
    type Error = String;

    fn try_from(count: i64) -> Result<Self, String> {
        let usable = usize::try_from(count).ok().filter(|count| (1..=1 << 30).contains(count));
        usable.map(Self).ok_or_else(|| format!("must be from 1 to {}, not {count}", 1 << 30))
    }
}

/// A duration as people write it.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Timeout(pub(crate) Duration);

impl TryFrom<String> for Timeout {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let span = parse_duration(&text)?;
        Ok(Self(Duration::from_micros(span.as_micros().unsigned_abs())))
    }
}

/// A configuration that cannot be used, and why.
#[derive(Debug)]
pub(crate) struct BadConfig(String);

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadConfig {}

impl Config {
    /// The file's settings, and its policies, all valid.
    pub(crate) fn read(path: &Path) -> Result<(Self, Vec<Policy>), BadConfig> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            BadConfig(format!(
                "{shown} cannot be read: {error}; check the path, or begin with a copy of \
                     tollgate.example.toml"
            ))
        })?;
        Self::parse(&text).map_err(|BadConfig(why)| BadConfig(format!("{shown}: {why}")))
    }

    pub(crate) fn parse(text: &str) -> Result<(Self, Vec<Policy>), BadConfig> {
        let mut config: Self =
            toml::from_str(text).map_err(|error| BadConfig(placed(text, &error)))?;
        let policies = policies_from_toml(std::mem::take(&mut config.policy));
        let policies = policies.map_err(|invalid| {
            let faults: Vec<_> = invalid.faults.iter().map(ToString::to_string).collect();
            let count = match faults.len() {
                1 => "1 fault".to_owned(),
                count => format!("{count} faults"),
            };
            BadConfig(format!("{count} in policies:\n  {}", faults.join("\n  ")))
        })?;
        Ok((config, policies))
    }
}

/// What is wrong, on which line, and with which key. Not the line itself, which may hold a secret:
/// this ends in logs.
fn placed(text: &str, error: &toml::de::Error) -> String {
    let message = without_value(error.message());
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return message;
    };
    let line = before.matches('\n').count() + 1;
    match key_of_value_after(before) {
        Some(key) => format!("line {line}: {key} {message}"),
        None => format!("line {line}: {message}"),
    }
}

/// A value of the wrong kind is quoted by serde, and may be a secret without its quotation marks:
/// "invalid type: integer `31415926`, expected a string".
fn without_value(message: &str) -> String {
    let Some((kind, rest)) = message.split_once(['`', '"']) else { return message.to_owned() };
    match rest.rfind(", expected ") {
        Some(end) if kind.starts_with("invalid ") => {
            format!("{}{}", kind.trim_end(), &rest[end..])
        }
        _ => message.to_owned(),
    }
}

/// The key, if what follows is its value.
fn key_of_value_after(before: &str) -> Option<&str> {
    let before = before.trim_end_matches([' ', '\t']).strip_suffix('=')?.trim_end();
    let is_bare = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
    let key = &before[before.trim_end_matches(is_bare).len()..];
    (!key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_placed_and_what_stands_there_is_not_repeated() {
        for text in [
            "[server]\n[alerts]\nsecrt = \"whsec-sesame\"",
            "[server]\n[alerts]\nsecret = \"whsec-sesame",
            "[server]\n[alerts]\nsecret = whsec-sesame",
            "[server]\n[store]\nurl = [\"postgres://ada:whsec-sesame@db/toll\"]",
            "[server]\n[alerts]\nsecret = 31415926",
            "[server]\n[alerts]\nsecret = -31415926.5",
            "[server]\n[alerts]\nrules = \"whsec-sesame, expected more\"",
        ] {
            let BadConfig(why) = Config::parse(text).unwrap_err();
            let is_repeated = why.contains("sesame") || why.contains("31415926");
            assert!(why.contains("line 3") && !is_repeated, "{why}");
        }
    }

    #[test]
    fn a_bad_value_is_named_by_its_key() {
        for (text, named) in [
            ("[server]\nmax_connections = 0", "line 2: max_connections must be"),
            ("[alerts]\nrules = [{ name = \"a\", refusals = 0 }]", "line 2: refusals must be"),
            ("[server]\nlisten=7", "line 2: listen invalid type: integer, expected a string"),
        ] {
            let BadConfig(why) = Config::parse(text).unwrap_err();
            assert!(why.starts_with(named), "{why}");
        }
    }

    #[test]
    fn an_empty_file_is_all_defaults() {
        let (config, policies) = Config::parse("").unwrap();
        assert_eq!(config.server.listen, "127.0.0.1:8080");
        assert_eq!(config.store.url, "sqlite:tollgate.db");
        assert!(policies.is_empty());
    }

    #[test]
    fn an_unknown_key_is_named() {
        for (text, name) in [
            ("[server]\nlisen = \"x\"", "lisen"),
            ("[sever]\n", "sever"),
            ("[mail]\nconcurency = 1", "concurency"),
            ("[policy.a]\nlimits = []\nroute = []", "policy.a.route"),
        ] {
            let BadConfig(why) = Config::parse(text).unwrap_err();
            assert!(why.contains(name), "{why}");
        }
    }

    #[test]
    fn every_fault_of_every_policy_is_listed() {
        let text = r#"
            [policy.a]
            limits = [{ name = "x", max = -1, per = "0s", algorithm = "slidng" }]
            [policy.b]
            durability = "never"
            limits = [{ name = "x", max = 1, per = "day", timezone = "Mars/Base" }]
        "#;
        let BadConfig(why) = Config::parse(text).unwrap_err();
        for place in [
            "policy.a.limits[0].max",
            "policy.a.limits[0].per",
            "policy.a.limits[0].algorithm",
            "policy.b.durability",
            "policy.b.limits[0].timezone",
        ] {
            assert!(why.contains(place), "{place} is not in {why}");
        }
    }
}

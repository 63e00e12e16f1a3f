//! `tollgate.example.toml` is true: it loads as it is, with everything uncommented, and with each
//! setting uncommented alone; it names every setting there is, with its default.
//!
//! In it, `#name = value` is a setting and `# text` is prose.

use serde_json::json;
use tollgate::Policy;
use tollgate_mail::{KeySource, MailSettings};

use super::Config;

const EXAMPLE: &str = include_str!("../../../../tollgate.example.toml");

/// The setting on a line that is commented out.
fn setting(line: &str) -> Option<&str> {
    let line = line.strip_prefix('#')?;
    let (name, _) = line.split_once(" = ")?;
    name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_').then_some(line)
}

fn uncommented() -> String {
    let lines: Vec<_> = EXAMPLE.lines().map(|line| setting(line).unwrap_or(line)).collect();
    lines.join("\n")
}

#[test]
fn as_it_is_it_says_only_the_defaults() {
    let (config, policies) = Config::parse(EXAMPLE).unwrap();
    let shown = |config: &Config| {
        format!("{:?}{:?}{:?}{:?}", config.server, config.store, config.gate, config.alerts)
    };
    assert_eq!(shown(&config), shown(&Config::default()));
    assert_eq!(config.mail.settings, MailSettings::default());
    let names: Vec<_> = policies.iter().map(Policy::name).collect();
    assert_eq!(names, ["default", "example"]);
}

#[test]
fn uncommented_it_says_the_same_but_where_there_is_no_default() {
    let (mut config, _) = Config::parse(&uncommented()).unwrap();
    assert!(config.server.tls_cert.take().is_some() && config.server.tls_key.take().is_some());
    let default = Config::default();
    assert_eq!(format!("{:?}", config.server), format!("{:?}", default.server));
    assert_eq!(format!("{:?}", config.store), format!("{:?}", default.store));
    let Some(webhook) = config.alerts.webhook.take() else { panic!("{:?}", config.alerts) };
    assert_eq!((webhook.timeout.as_secs(), webhook.attempts), (5, 6));
    assert_eq!(format!("{:?}", config.alerts), format!("{:?}", default.alerts));
    assert!(config.gate.jwt.take().is_some() && config.gate.api_key.take().is_some());
    config.gate.identity.clear();
    assert_eq!(format!("{:?}", config.gate), format!("{:?}", default.gate));
    let mail = &mut config.mail;
    mail.settings.key = KeySource::Standard;
    mail.settings.root_cert = None;
    mail.settings.instance = String::new();
    assert_eq!(mail.settings, default.mail.settings);
    let of_bodies = (default.mail.max_body_bytes, default.mail.body_timeout);
    assert_eq!((mail.max_body_bytes, mail.body_timeout), of_bodies);
}

#[test]
fn each_setting_can_be_uncommented_alone() {
    let mut tried = 0;
    for (number, line) in EXAMPLE.lines().enumerate() {
        let Some(setting) = setting(line) else { continue };
        let mut lines: Vec<_> = EXAMPLE.lines().collect();
        lines[number] = setting;
        let read = Config::parse(&lines.join("\n"));
        assert!(read.is_ok(), "line {}: {:?}", number + 1, read.err());
        tried += 1;
    }
    assert!(tried > 40, "{tried}");
}

/// What stands between backticks after "expected" in the parser's complaint of an unknown field.
fn fields(section: &str) -> Vec<String> {
    let why = Config::parse(section).unwrap_err().to_string();
    let (_, expected) = why.split_once("expected ").unwrap_or_else(|| panic!("{why}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_field_that_the_parser_knows_is_in_it() {
    let jwt = "algorithm = \"HS256\", key_files = []";
    for section in [
        "no-such = 1",
        "[server]\nno-such = 1",
        "[store]\nno-such = 1",
        "[gate]\nno-such = 1",
        "[gate]\napi_key = { no-such = 1 }",
        &format!("[gate]\njwt = {{ {jwt}, no-such = 1 }}"),
        "[alerts]\nno-such = 1",
        "[alerts]\nrules = [{ no-such = 1 }]",
        "[mail]\nno-such = 1",
    ] {
        let known = fields(section);
        assert!(!known.is_empty(), "{section}");
        for field in known {
            let is_there =
                EXAMPLE.contains(&format!("{field} = ")) || EXAMPLE.contains(&format!("[{field}"));
            assert!(is_there, "{field} (known where it says {section:?}) is not in the example");
        }
    }
}

#[test]
fn every_field_of_a_policy_is_in_it() {
    let limit = json!({ "name": "a", "max": 1, "per": "1s", "no-such": 1 });
    let calendar = json!({ "no-such": 1 });
    let document = json!({ "limits": [limit], "no-such": 1,
        "schedule": { "no-such": 1, "calendar": calendar } });
    let faults = Policy::from_json("p", document).unwrap_err().faults;
    let lists: Vec<_> =
        faults.iter().filter_map(|fault| fault.message.split_once("known here are ")).collect();
    assert_eq!(lists.len(), 4, "{faults:?}");
    for field in lists.iter().flat_map(|(_, known)| known.split(", ")) {
        assert!(EXAMPLE.contains(&format!("{field} = ")), "{field} is not in the example");
    }
}

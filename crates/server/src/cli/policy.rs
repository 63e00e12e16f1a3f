//! `policy list|show|apply|history|delete`.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::Value;
use tollgate::Policy;

use super::client::{Remote, encode};
use super::show::{table, text};
use crate::config::Config;
use crate::exit::{Done, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// The policies in force
    List {
        #[command(flatten)]
        remote: Remote,
    },
    /// One policy's document
    Show {
        name: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Put the policies of a TOML file ([policy.NAME] sections) in force
    Apply {
        file: PathBuf,
        #[command(flatten)]
        remote: Remote,
    },
    /// Every version a policy ever had
    History {
        name: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Take a policy out of force; its versions are kept
    Delete {
        name: String,
        #[command(flatten)]
        remote: Remote,
    },
}

pub(crate) fn run(command: PolicyCommand) -> Result<Done, Failure> {
    match command {
        PolicyCommand::List { remote } => list(&remote),
        PolicyCommand::Show { name, remote } => {
            let policy = remote.get(&format!("/admin/policies/{}", encode(&name)))?.success()?;
            if remote.json {
                say!("{policy}");
            } else {
                say!("{policy:#}");
            }
            Ok(Done::Ok)
        }
        PolicyCommand::Apply { file, remote } => apply(&file, &remote),
        PolicyCommand::History { name, remote } => history(&name, &remote),
        PolicyCommand::Delete { name, remote } => {
            let answer = remote.delete(&format!("/admin/policies/{}", encode(&name)))?.success()?;
            if remote.json {
                say!("{answer}");
            } else {
                say!("policy {name} is no longer in force; its versions are kept");
            }
            Ok(Done::Ok)
        }
    }
}

fn list(remote: &Remote) -> Result<Done, Failure> {
    let answer = remote.get("/admin/policies")?.success()?;
    if remote.json {
        say!("{answer}");
        return Ok(Done::Ok);
    }
    let mut table = table(["policy", "version", "since", "limits"]);
    for policy in answer["policies"].as_array().into_iter().flatten() {
        table.add_row([
            text(&policy["name"]),
            text(&policy["version"]),
            text(&policy["effective_from"]),
            limits(policy),
        ]);
    }
    say!("{table}");
    Ok(Done::Ok)
}

fn history(name: &str, remote: &Remote) -> Result<Done, Failure> {
    let path = format!("/admin/policies/{}/versions", encode(name));
    let answer = remote.get(&path)?.success()?;
    if remote.json {
        say!("{answer}");
        return Ok(Done::Ok);
    }
    let mut table = table(["version", "when", "who", "limits"]);
    for version in answer["versions"].as_array().into_iter().flatten() {
        let deleted = version["deleted"].as_bool().unwrap_or(false);
        table.add_row([
            text(&version["version"]),
            text(&version["created_at"]),
            text(&version["created_by"]),
            if deleted { "(deleted)".into() } else { limits(&version["policy"]) },
        ]);
    }
    say!("{table}");
    Ok(Done::Ok)
}

/// All of the file is valid before any of it is sent.
fn apply(file: &Path, remote: &Remote) -> Result<Done, Failure> {
    let policies = read_policies(file)?;
    let mut changes = Vec::new();
    for policy in &policies {
        let path = format!("/admin/policies/{}", encode(policy.name()));
        let change = remote.put(&path, policy.document())?.success()?;
        if !remote.json {
            let (version, detail) = (text(&change["version"]), text(&change["detail"]));
            say!("{}: version {version}, {detail}", policy.name());
        }
        changes.push(change);
    }
    if remote.json {
        say!("{}", Value::Array(changes));
    }
    Ok(Done::Ok)
}

/// From a configuration file, all of which must be valid.
fn read_policies(file: &Path) -> Result<Vec<Policy>, Failure> {
    let (_, policies) = Config::read(file)
        .map_err(|error| Failure::bad_input(format!("nothing was applied: {error}")))?;
    if policies.is_empty() {
        return Err(Failure::bad_input(format!(
            "{} has no [policy.NAME] section, so there is nothing to apply; \
             tollgate.example.toml has two",
            file.display()
        )));
    }
    Ok(policies)
}

fn limits(policy: &Value) -> String {
    let limit = |limit: &Value| {
        format!("{} {} per {}", text(&limit["name"]), text(&limit["max"]), text(&limit["per"]))
    };
    let limits: Vec<_> = policy["limits"].as_array().into_iter().flatten().map(limit).collect();
    limits.join("\n")
}

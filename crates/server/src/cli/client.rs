//! Calls to a running server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use ureq::http::StatusCode;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::exit::Failure;

/// No answer by then counts as unreachable.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The same for calls that carry much mail or move much of it: a server takes a minute to read a
/// body alone, by default.
const PATIENT_TIMEOUT: Duration = Duration::from_secs(300);
/// Every account of a large relay fits; nothing a server of ours says is longer.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";

/// Which server, and how to show what it says.
#[derive(Debug, clap::Args)]
pub(crate) struct Remote {
    /// The server to talk to
    #[arg(
        long,
        value_name = "URL",
        env = "TOLLGATE_SERVER",
        default_value = DEFAULT_SERVER
    )]
    server: String,
    /// Access token for the server
    #[arg(long, value_name = "TOKEN", env = "TOLLGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Trust only the authorities in this PEM file when the server speaks https (default: Mozilla's)
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// Print the server's answer as JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Whether a value that may come from this variable was given at all: one that is set to nothing says nothing, while
/// nothing on the command line is meant.
pub(crate) fn is_said(variable: &str, value: &str) -> bool {
    !value.is_empty() || std::env::var_os(variable).is_none_or(|value| !value.is_empty())
}

/// The server's answer: its status and document.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) document: Value,
    is_for_programs: bool,
}

impl Reply {
    /// The document, or the problem as a failure.
    pub(crate) fn success(self) -> Result<Value, Failure> {
        if self.status.is_success() {
            return Ok(self.document);
        }
        Err(self.failure())
    }

    /// What the server said is wrong; its own errors count as unreachable.
    pub(crate) fn failure(&self) -> Failure {
        let detail = self.document["detail"].as_str().unwrap_or("the server gave no reason");
        let status = self.status.as_u16();
        let failure = match self.status {
            StatusCode::UNAUTHORIZED => {
                Failure::bad_input(format!("{detail} (set TOLLGATE_TOKEN, or pass --token)"))
            }
            _ if self.status.is_server_error() => {
                Failure::unreachable(format!("{detail} (status {status})"))
            }
            _ => Failure::bad_input(detail.to_owned()),
        };
        if self.is_for_programs { failure.told_to_programs(self.document.clone()) } else { failure }
    }
}

impl Remote {
    pub(crate) fn get(&self, path: &str) -> Result<Reply, Failure> {
        self.call("GET", path, None, TIMEOUT)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Reply, Failure> {
        self.call("POST", path, Some(body), TIMEOUT)
    }

    /// For what may take long.
    pub(crate) fn post_patiently(&self, path: &str, body: &Value) -> Result<Reply, Failure> {
        self.call("POST", path, Some(body), PATIENT_TIMEOUT)
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Result<Reply, Failure> {
        self.call("PUT", path, Some(body), TIMEOUT)
    }

    pub(crate) fn delete(&self, path: &str) -> Result<Reply, Failure> {
        self.call("DELETE", path, None, TIMEOUT)
    }

    fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        within: Duration,
    ) -> Result<Reply, Failure> {
        let is_said = is_said("TOLLGATE_SERVER", &self.server);
        let server = if is_said { self.server.trim_end_matches('/') } else { DEFAULT_SERVER };
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(within))
            .http_status_as_error(false)
            // A token is for the server it was given for, not for where that one points.
            .max_redirects(0)
            .max_redirects_will_error(false);
        let config = match &self.ca_file {
            Some(path) => config.tls_config(trusting(path)?),
            None => config,
        };
        let agent: ureq::Agent = config.build().into();
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{server}{path}"))
            .header("content-type", "application/json");
        let request = match &self.token {
            Some(token) => request.header("x-api-token", token),
            None => request,
        };
        let bad = |error: &dyn std::fmt::Display| {
            Failure::bad_input(format!(
                "{server:?} is not a server address ({error}); write it as http://127.0.0.1:8080"
            ))
        };
        let answer = match body {
            Some(body) => agent.run(request.body(body.to_string()).map_err(|error| bad(&error))?),
            None => agent.run(request.body(()).map_err(|error| bad(&error))?),
        };
        let unreachable = |error: ureq::Error| match error {
            ureq::Error::BadUri(why) => bad(&why),
            other => no_answer(server, &other),
        };
        let mut answer = answer.map_err(unreachable)?;
        let body = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES);
        let text = body.read_to_string().map_err(unreachable)?;
        let document = serde_json::from_str(&text).map_err(|_| {
            Failure::unreachable(format!("{server} does not answer like a tollgate server"))
        })?;
        Ok(Reply { status: answer.status(), document, is_for_programs: self.json })
    }
}

/// A query string of what was said.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<String>);

impl Query {
    pub(super) fn with(mut self, name: &str, value: Option<&str>) -> Self {
        self.0.extend(value.map(|value| format!("{name}={}", encode(value))));
        self
    }

    pub(super) fn path(&self, path: &str) -> String {
        if self.0.is_empty() { path.to_owned() } else { format!("{path}?{}", self.0.join("&")) }
    }
}

/// Names are plain, but what a person types may not be; a dot alone would be a step in the path.
pub(super) fn encode(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-:".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Trusts the authorities in a file and no others.
fn trusting(path: &Path) -> Result<TlsConfig, Failure> {
    let unusable = |why: &dyn std::fmt::Display| {
        let path = path.display();
        Failure::bad_input(format!("--ca-file {path}: {why}; give certificates in PEM"))
    };
    let text = std::fs::read(path).map_err(|error| unusable(&error))?;
    let items = parse_pem(&text).collect::<Result<Vec<_>, _>>();
    let certificates: Vec<_> = items
        .map_err(|error| unusable(&error))?
        .into_iter()
        .filter_map(|item| match item {
            PemItem::Certificate(certificate) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(unusable(&"it holds no certificate"));
    }
    Ok(TlsConfig::builder().root_certs(RootCerts::from(certificates)).build())
}

/// Why there is no answer, and what to do about it.
fn no_answer(server: &str, error: &ureq::Error) -> Failure {
    if is_about_certificates(error) {
        return Failure::unreachable(format!(
            "{server} could not show a certificate that is trusted ({error}): name the authority \
             that signed it with --ca-file FILE, and call the server by a name in it"
        ));
    }
    if let ureq::Error::BodyExceedsLimit(_) = error {
        let most = MAX_ANSWER_BYTES >> 20;
        return Failure::unreachable(format!(
            "the answer of {server} is longer than {most} MiB, which is more than this program \
             reads: ask for less at a time, or fetch it with another client"
        ));
    }
    let plain = match server.strip_prefix("https://") {
        Some(rest) => format!("; if it has no certificate it is http://{rest}"),
        None => String::new(),
    };
    Failure::unreachable(format!(
        "no answer from {server} ({error}): start one with `tollgate serve`, or name another with \
         --server URL{plain}"
    ))
}

fn is_about_certificates(error: &ureq::Error) -> bool {
    let tls = match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref().and_then(|error| error.downcast_ref()),
        _ => None,
    };
    matches!(tls, Some(rustls::Error::InvalidCertificate(_)))
}

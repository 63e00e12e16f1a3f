//! A store URL taken apart: what PostgreSQL's client understands, and what is ours.
//!
//! Ours stand among the URL's parameters, so that every command and the library set them one way:
//! `postgres://user@host/db?schema=limits&lanes=8&deadline=250ms`.

use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

use tokio_postgres::config::SslMode;

/// How the store works. Every one has a default.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) client: tokio_postgres::Config,
    pub(crate) verify: Verify,
    /// Everything lives in this schema.
    pub(crate) schema: String,
    /// Batches in flight at once, each on a connection of its own.
    pub(crate) lanes: usize,
    /// Requests in one batch, at most.
    pub(crate) batch: usize,
    /// Requests that wait for one lane, at most.
    pub(crate) queue: usize,
    /// Checks and refunds have their answer, or an error, by then; so has one slot.
    pub(crate) deadline: Duration,
    /// Whether refusals are repeated from memory for a moment.
    pub(crate) shield: bool,
    /// A key that counts nothing any more stays so long: one that comes back soon is written in place.
    pub(crate) keep_idle: Duration,
    /// Whether connections prepare statements, if no pooler stands in between.
    pub(crate) prepare: bool,
}

/// What a URL may say, for whoever said something else.
const SETTINGS: &str = "settings are schema, lanes, batch, queue, deadline, shield, keep_idle, prepare, \
                        sslmode=disable|prefer|require|verify-full, sslrootcert and libpq's own";

/// Whether the server must prove who it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verify {
    /// As libpq does with `prefer` and `require`.
    No,
    /// By the public authorities, or by those in this file.
    Yes { authorities: Option<PathBuf> },
}

/// A URL that cannot be used, and why. It never quotes the URL: there may be a password in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadUrl(pub String);

impl Settings {
    /// Reads a `postgres://` URL.
    pub fn parse(url: &str) -> Result<Self, BadUrl> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut ours = Ours::default();
        let mut theirs: Vec<String> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let Some(theirs_then) = ours.take(name, &decode(value)?)? {
                theirs.push(theirs_then.unwrap_or_else(|| pair.to_owned()));
            }
        }
        let url = if theirs.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", theirs.join("&"))
        };
        let mut client: tokio_postgres::Config = url.parse().map_err(|error| {
            // The parser's words name the parameter and never quote the URL.
            bad(format!("the PostgreSQL URL cannot be read: {} ({SETTINGS})", Cause(&error)))
        })?;
        if client.get_hosts().is_empty() && client.get_hostaddrs().is_empty() {
            return Err(bad("the PostgreSQL URL names no server: postgres://USER@HOST/DATABASE"));
        }
        if client.get_application_name().is_none() {
            client.application_name("tollgate");
        }
        if client.get_connect_timeout().is_none() {
            client.connect_timeout(ours.deadline);
        }
        client.keepalives_idle(Duration::from_secs(10));
        let verify = if ours.verify || ours.authorities.is_some() {
            if client.get_ssl_mode() == SslMode::Disable {
                return Err(bad("sslrootcert and sslmode=disable contradict each other"));
            }
            client.ssl_mode(SslMode::Require);
            Verify::Yes { authorities: ours.authorities }
        } else {
            Verify::No
        };
        let Ours { schema, lanes, batch, queue, deadline, shield, keep_idle, prepare, .. } = ours;
        Ok(Self {
            client,
            verify,
            schema,
            lanes,
            batch,
            queue,
            deadline,
            shield,
            keep_idle,
            prepare,
        })
    }

    /// A statement written for the schema `tollgate`, in the schema that is set.
    pub(crate) fn in_schema(&self, sql: &str) -> String {
        in_schema(sql, &self.schema)
    }

    /// How long a batch waits for what somebody else holds. Half of the deadline: the other half
    /// is for answering everybody whom that does not concern.
    pub(crate) fn lock_wait(&self) -> Duration {
        self.deadline / 2
    }
}

/// SQL is written for the schema `tollgate`, qualified: setting a search path costs every call.
pub(crate) fn in_schema(sql: &str, schema: &str) -> String {
    sql.replace("tollgate.", &format!("\"{schema}\"."))
}

#[derive(Debug)]
struct Ours {
    schema: String,
    lanes: usize,
    batch: usize,
    queue: usize,
    deadline: Duration,
    shield: bool,
    keep_idle: Duration,
    prepare: bool,
    verify: bool,
    authorities: Option<PathBuf>,
}

impl Default for Ours {
    fn default() -> Self {
        Self {
            schema: "tollgate".into(),
            // Larger batches cost less of everybody's time than more of them at once: see ARCHITECTURE.md.
            lanes: available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 4)),
            batch: 1024,
            queue: 16_384,
            deadline: Duration::from_millis(500),
            shield: true,
            keep_idle: Duration::from_secs(60),
            prepare: true,
            verify: false,
            authorities: None,
        }
    }
}

impl Ours {
    /// Takes a parameter that is ours. `Some(None)`: it is the client's; `Some(Some(pair))`: it is,
    /// in other words.
    fn take(&mut self, name: &str, value: &str) -> Result<Option<Option<String>>, BadUrl> {
        match name {
            "schema" => self.schema = schema(value)?,
            "lanes" => self.lanes = count(name, value, 64)?,
            "batch" => self.batch = count(name, value, 65_536)?,
            "queue" => self.queue = count(name, value, 1 << 20)?,
            "deadline" => self.deadline = duration(name, value, 10, 60_000)?,
            "keep_idle" => self.keep_idle = duration(name, value, 0, 3_600_000)?,
            "shield" => self.shield = on(name, value)?,
            "prepare" => self.prepare = on(name, value)?,
            "sslrootcert" => self.authorities = Some(PathBuf::from(value)),
            "sslmode" if matches!(value, "verify-full" | "verify-ca") => {
                self.verify = true;
                return Ok(Some(Some("sslmode=require".into())));
            }
            _ => return Ok(Some(None)),
        }
        Ok(None)
    }
}

fn on(name: &str, value: &str) -> Result<bool, BadUrl> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(bad(format!("{name} must be on or off, not {value:?}"))),
    }
}

fn count(name: &str, value: &str, most: usize) -> Result<usize, BadUrl> {
    let count = value.parse().ok().filter(|count| (1..=most).contains(count));
    count.ok_or_else(|| bad(format!("{name} must be from 1 to {most}, not {value:?}")))
}

/// From `least` to `most` milliseconds.
fn duration(name: &str, value: &str, least: u64, most: u64) -> Result<Duration, BadUrl> {
    let (digits, scale) = match value.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        None => (value.strip_suffix('s').unwrap_or(""), 1000),
    };
    let millis = digits.parse::<u64>().ok().and_then(|digits| digits.checked_mul(scale));
    let millis = millis.filter(|millis| (least..=most).contains(millis));
    let message =
        || bad(format!("{name} must be from {least}ms to {}s, not {value:?}", most / 1000));
    millis.map(Duration::from_millis).ok_or_else(message)
}

/// A name that needs no thought about quoting anywhere.
fn schema(value: &str) -> Result<String, BadUrl> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let fits = (1..=63).contains(&value.len())
        && value.chars().all(plain)
        && !value.starts_with("pg_")
        && !value.starts_with(|c: char| c.is_ascii_digit());
    if fits {
        Ok(value.to_owned())
    } else {
        Err(bad(format!(
            "schema must be 1 to 63 of a-z, 0-9 and _, begin with no digit and not with pg_; \
             not {value:?}"
        )))
    }
}

fn decode(value: &str) -> Result<String, BadUrl> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, tail @ ..] = rest {
        (bytes, rest) = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                let (Some(high), Some(low)) = (digit(high), digit(low)) else {
                    return Err(bad("the URL has a % that two hexadecimal digits do not follow"));
                };
                bytes.push((high * 16 + low) as u8);
                (bytes, tail)
            }
            _ => {
                bytes.push(*first);
                (bytes, tail)
            }
        };
    }
    String::from_utf8(bytes).map_err(|_| bad("the URL is not UTF-8"))
}

fn bad(message: impl Into<String>) -> BadUrl {
    BadUrl(message.into())
}

/// An error with its cause.
struct Cause<'a>(&'a tokio_postgres::Error);

impl std::fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match std::error::Error::source(self.0) {
            Some(cause) => write!(f, "{cause}"),
            None => write!(f, "{}", self.0),
        }
    }
}

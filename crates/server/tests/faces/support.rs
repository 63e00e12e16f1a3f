//! Starts the binary, talks to it, and stops it again.

pub(crate) mod command;
pub(crate) mod http;
pub(crate) mod mail;
pub(crate) mod proxy;
pub(crate) mod raw;
pub(crate) mod receiver;
pub(crate) mod server;
#[path = "../../../mail/tests/support/sink.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the relay's own tests")]
pub(crate) mod sink;
pub(crate) mod slots;

use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) use command::{Ended, tollgate};
pub(crate) use http::{Call, Reply};
pub(crate) use server::{Server, Setup};

/// Long enough for a busy machine; nothing waits this long when all is well.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
/// A window that does not end while a test runs.
pub(crate) const FOREVER: &str = "3650d";

/// Asks again and again until there is an answer.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < DEADLINE, "gave up waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An instant of the wire, as microseconds: RFC 3339, UTC, six digits, or the test fails.
pub(crate) fn micros(value: &Value) -> i64 {
    let text = value.as_str().unwrap_or_else(|| panic!("{value} is not a time"));
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000000Z", "{text}");
    text.parse::<jiff::Timestamp>().unwrap().as_microsecond()
}

/// The names of an object's members, sorted.
pub(crate) fn members(value: &Value) -> Vec<&str> {
    let object = value.as_object().unwrap_or_else(|| panic!("{value} is not an object"));
    let mut names: Vec<_> = object.keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// What each limit of a decision has counted.
pub(crate) fn used(decision: &Value) -> Vec<u64> {
    let limits = decision["limits"].as_array().unwrap_or_else(|| panic!("no limits: {decision}"));
    limits.iter().map(|limit| limit["used"].as_u64().unwrap()).collect()
}

/// The named limit of a decision.
pub(crate) fn limit<'a>(decision: &'a Value, name: &str) -> &'a Value {
    let limits = decision["limits"].as_array().unwrap_or_else(|| panic!("no limits: {decision}"));
    limits.iter().find(|limit| limit["name"] == name).unwrap_or_else(|| panic!("{decision}"))
}

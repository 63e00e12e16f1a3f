//! A refusal's wait is the real one: refused before it, allowed at it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Server, limit, micros};

/// Fills the policy, then asks without pause until it passes.
fn passes_at_the_promised_instant(limits: &Value, fill: u64, cost: u64) {
    let server = Server::memory();
    server.policy("p", limits);
    server.check_cost("p", &json!({}), fill).ok();
    let first = server.check_cost("p", &json!({}), cost).problem(429);
    let retry_at = micros(&first["retry_at"]);
    loop {
        let reply = server.check_cost("p", &json!({}), cost);
        if reply.status == 429 {
            let refused = reply.json();
            assert_eq!(micros(&refused["retry_at"]), retry_at, "the promise moved: {refused}");
            assert!(micros(&refused["decided_at"]) < retry_at, "late: {refused}");
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        let allowed = reply.ok();
        assert!(micros(&allowed["decided_at"]) >= retry_at, "early: {allowed}");
        break;
    }
}

#[test]
fn a_sliding_limit_passes_at_its_retry_at_and_not_before() {
    let limits = json!([{ "name": "s", "max": 3, "per": "2s", "algorithm": "sliding" }]);
    passes_at_the_promised_instant(&limits, 3, 2);
}

#[test]
fn a_bucket_passes_at_its_retry_at_and_not_before() {
    let limits = json!([{ "name": "b", "max": 2, "per": "4s", "algorithm": "bucket" }]);
    passes_at_the_promised_instant(&limits, 2, 1);
}

#[test]
fn a_fixed_limit_passes_at_its_retry_at_and_not_before() {
    let server = Server::memory();
    let limits = json!([{ "name": "f", "max": 1, "per": "1s" }]);
    server.policy("p", &limits);
    // A window may end between two checks, so fill until one refuses.
    let refused = loop {
        let reply = server.check("p", &json!({}));
        if reply.status == 429 {
            break reply.problem(429);
        }
    };
    let retry_at = micros(&refused["retry_at"]);
    assert_eq!(retry_at % 1_000_000, 0, "windows are counted from the epoch");
    assert_eq!(refused["retry_after"], 1, "never 0 while refusing");
    assert_eq!(limit(&refused, "f")["resets_at"], refused["retry_at"]);
    let allowed = loop {
        let reply = server.check("p", &json!({}));
        if reply.status == 200 {
            break reply.ok();
        }
        assert!(micros(&reply.json()["decided_at"]) < retry_at);
    };
    assert!(micros(&allowed["decided_at"]) >= retry_at);
}

#[test]
fn the_wait_is_the_longest_of_the_refusing_limits_and_each_has_its_own() {
    let server = Server::memory();
    server.policy(
        "p",
        &json!([
            { "name": "minute", "max": 1, "per": "60s", "algorithm": "sliding" },
            { "name": "open", "max": 100, "per": "60s", "algorithm": "sliding" },
            { "name": "hour", "max": 1, "per": "1h", "algorithm": "sliding" },
        ]),
    );
    server.spend("p", &json!({}));
    let reply = server.check("p", &json!({}));
    let problem = reply.problem(429);
    assert_eq!(problem["violated-policies"], json!(["minute", "hour"]));
    let wait_of = |name: &str| limit(&problem, name)["retry_after"].as_i64();
    let (minute, hour) = (wait_of("minute").unwrap(), wait_of("hour").unwrap());
    // The default resolution is a sixtieth of the window, and rounds against the caller.
    assert!((59..=62).contains(&minute), "{problem}");
    assert!((3_599..=3_662).contains(&hour), "{problem}");
    assert_eq!(wait_of("open"), None);
    assert_eq!(problem["retry_after"], hour);
    assert_eq!(reply.number("retry-after"), Some(hour));
    let wait_micros = micros(&problem["retry_at"]) - micros(&problem["decided_at"]);
    assert_eq!(wait_micros.unsigned_abs().div_ceil(1_000_000).cast_signed(), hour);
}

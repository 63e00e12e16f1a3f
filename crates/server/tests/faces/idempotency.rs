//! `Idempotency-Key`: a retry has no second effect.

use serde_json::{Value, json};

use crate::support::{Call, FOREVER, Reply, Server, Setup, eventually};

const ADMIN: &str = "the-admin-token";

fn server(max: u64) -> Server {
    let server = Server::memory();
    server.policy("p", &limits(max));
    server
}

fn limits(max: u64) -> Value {
    json!([{ "name": "all", "max": max, "per": FOREVER }])
}

fn call(key: &str) -> Call {
    Call::post("/api/v1/check", &json!({ "policy": "p" })).header("Idempotency-Key", key)
}

/// The headers that are part of the answer.
fn rate_limit_headers(reply: &Reply) -> Vec<Option<&str>> {
    [
        "ratelimit",
        "ratelimit-policy",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
    ]
    .map(|name| reply.header(name))
    .to_vec()
}

#[test]
fn a_replay_is_the_same_to_the_byte_and_spends_nothing() {
    let server = server(9);
    let first = server.send(call("abc"));
    let receipt = first.ok()["receipt"].clone();
    assert!(receipt.is_string());
    server.spend("p", &json!({}));
    for _ in 0..3 {
        let replay = server.send(call("abc"));
        assert_eq!((replay.status, &replay.body), (200, &first.body));
        assert_eq!(replay.ok()["receipt"], receipt);
        assert_eq!(rate_limit_headers(&replay), rate_limit_headers(&first));
    }
    assert_eq!(server.used("p", &json!({})), [2]);
    assert_ne!(server.send(call("abd")).body, first.body, "another key, another answer");
    assert_eq!(server.used("p", &json!({})), [3]);
}

#[test]
fn a_quoted_key_and_a_bare_one_are_the_same_key() {
    let server = server(9);
    let bare = server.send(call("9f2c-1"));
    assert_eq!(server.send(call("\"9f2c-1\"")).body, bare.body);
    let quoted = server.send(call("\"with \\\"quotes\\\" in it\""));
    quoted.ok();
    assert_eq!(server.send(call("\"with \\\"quotes\\\" in it\"")).body, quoted.body);
    assert_eq!(server.used("p", &json!({})), [2]);
}

#[test]
fn a_refusal_is_not_recorded_so_the_key_is_decided_afresh() {
    let server = server(1);
    let spent = server.spend("p", &json!({}));
    for _ in 0..2 {
        server.send(call("later")).problem(429);
    }
    server.post("/api/v1/refund", &json!({ "receipt": spent["receipt"] })).ok();
    let allowed = server.send(call("later"));
    allowed.ok();
    assert_eq!(server.send(call("later")).body, allowed.body);
    assert_eq!(server.used("p", &json!({})), [1]);
}

#[test]
fn an_error_is_not_recorded_either() {
    let server = Server::memory();
    server.send(call("early")).problem(404);
    server.policy("p", &limits(9));
    server.send(call("early")).ok();
}

#[test]
fn the_same_key_with_another_body_is_422_and_spends_nothing() {
    let server = server(9);
    let first = server.send(call("k"));
    server.policy("q", &limits(9));
    for body in [
        json!({ "policy": "p", "cost": 2 }),
        json!({ "policy": "p", "subject": { "user": "ada" } }),
        json!({ "policy": "q" }),
    ] {
        let reply = server.send(Call::post("/api/v1/check", &body).header("Idempotency-Key", "k"));
        reply.fault(422, "Idempotency-Key");
        assert_eq!(reply.header("retry-after"), None);
    }
    assert_eq!((server.used("p", &json!({})), server.used("q", &json!({}))), (vec![1], vec![0]));
    assert_eq!(server.send(call("k")).body, first.body);
}

#[test]
fn eight_duplicates_at_once_spend_once_and_answer_alike() {
    let server = server(100);
    for round in 0..10 {
        let key = format!("round-{round}");
        let start = std::sync::Barrier::new(8);
        let bodies: Vec<String> = std::thread::scope(|scope| {
            let duplicates: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        let reply = server.send(call(&key));
                        reply.ok();
                        reply.body
                    })
                })
                .collect();
            duplicates.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
        assert_eq!(server.used("p", &json!({})), [round + 1]);
    }
}

#[test]
fn keys_of_different_tokens_and_routes_never_meet() {
    let server = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", ADMIN).into_server();
    let policy = Call::new("PUT", "/admin/policies/p").json(&json!({ "limits": limits(9) }));
    assert_eq!(server.send(policy.token(ADMIN)).status, 201);
    let make = Call::post("/admin/tokens", &json!({ "scope": "check" })).token(ADMIN);
    let token = server.send(make).json()["token"].as_str().unwrap().to_owned();
    let mine = server.send(call("k").token(ADMIN));
    let theirs = server.send(call("k").token(&token));
    assert_ne!(mine.ok()["receipt"], theirs.ok()["receipt"]);
    let bearer = call("k").header("Authorization", &format!("Bearer {token}"));
    assert_eq!(server.send(bearer).body, theirs.body, "one token however it is sent");
    let refund = json!({ "receipt": mine.ok()["receipt"] });
    let refund = Call::post("/api/v1/refund", &refund).header("Idempotency-Key", "k").token(ADMIN);
    assert_eq!(server.send(refund).ok()["refunded"], true, "another route, another key");
}

#[test]
fn a_key_that_is_too_long_or_malformed_is_400() {
    let server = server(9);
    let long = "k".repeat(256);
    let quoted_long = format!("\"{long}\"");
    for bad in [&long, &quoted_long, "\"open", "\"\"", "\"a\" \"b\"", "\"a\", \"b\"", "\"a\\x\""] {
        server.send(call(bad)).fault(400, "Idempotency-Key");
    }
    let twice = call("a").header("Idempotency-Key", "b");
    server.send(twice).fault(400, "Idempotency-Key");
    assert_eq!(server.used("p", &json!({})), [0]);
    server.send(call(&long[1..])).ok();
}

#[test]
fn a_record_survives_kill_9() {
    let setup = Setup::sqlite();
    let server = setup.start();
    server.policy("p", &limits(9));
    let first = server.send(call("k"));
    first.ok();
    server.kill();
    let server = eventually("the file is free", || Some(setup.start()));
    assert_eq!(server.send(call("k")).body, first.body);
    assert_eq!(server.used("p", &json!({})), [1]);
}

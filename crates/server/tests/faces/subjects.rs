//! Attribute values are opaque text: whatever is in them is counted as it is.

use serde_json::{Value, json};

use crate::support::{Call, FOREVER, Server, Setup};

fn server() -> Server {
    let server = Server::memory();
    let limits = json!([{ "name": "pair", "max": 2, "per": FOREVER, "by": ["user", "route"] }]);
    server.policy("p", &limits);
    server
}

#[test]
fn nul_control_characters_and_emoji_count_as_they_are() {
    let server = server();
    let values = [
        "ada",
        "Ada",
        " ada",
        "ada ",
        "ada\0",
        "\0",
        "\u{1}\u{7f}\u{1b}[31m",
        "ada\n",
        "ada\r\n",
        "\u{1f600}",
        "\u{1f600}\u{200d}",
        "é",
        "e\u{301}",
        "\u{202e}ada",
        "\\",
        "\"",
        "'; drop table --",
        "../../etc",
        "%00",
        "null",
        "\u{fffd}",
        "\u{10ffff}",
    ];
    for value in values {
        let subject = json!({ "user": value, "route": "/" });
        server.spend("p", &subject);
        assert_eq!(server.used("p", &subject), [1], "{value:?} is a subject of its own");
    }
    for value in values {
        let subject = json!({ "user": value, "route": "/" });
        server.spend("p", &subject);
        server.check("p", &subject).problem(429);
    }
}

#[test]
fn neighbouring_values_never_run_together() {
    let server = server();
    for (user, route) in [("ab", "c"), ("a", "bc"), ("a\0b", "c"), ("a", "b\0c"), ("abc", "c")] {
        let subject = json!({ "user": user, "route": route });
        assert_eq!(server.used("p", &subject), [0], "{subject}");
        server.spend("p", &subject);
    }
}

#[test]
fn escapes_are_the_characters_they_stand_for_and_order_says_nothing() {
    let server = server();
    server.spend("p", &json!({ "user": "\u{1f600}", "route": "/a" }));
    let escaped = r#"{"subject":{"route":"\/a","user":"\ud83d\ude00"},"policy":"p"}"#;
    let reply = server.send(Call::new("POST", "/api/v1/check").bytes(escaped));
    assert_eq!(crate::support::used(&reply.ok()), [2]);
    // Half a pair is no character.
    let half = r#"{"policy":"p","subject":{"route":"/a","user":"\ud83d"}}"#;
    server.send(Call::new("POST", "/api/v1/check").bytes(half)).problem(400);
}

#[test]
fn attributes_nobody_counts_by_change_nothing() {
    let server = server();
    server.spend("p", &json!({ "user": "ada", "route": "/" }));
    server.spend("p", &json!({ "user": "ada", "route": "/", "colour": "red" }));
    server.check("p", &json!({ "user": "ada", "route": "/", "colour": "blue" })).problem(429);
}

#[test]
fn a_value_of_1024_bytes_counts_and_one_more_is_named() {
    let server = server();
    let of = |length: usize| json!({ "user": "x".repeat(length), "route": "/" });
    server.spend("p", &of(1024));
    assert_eq!(server.used("p", &of(1024)), [1]);
    server.check("p", &of(1025)).fault(400, "subject.user");
}

#[test]
fn subjects_are_in_no_log_no_metric_and_no_problem() {
    let setup = Setup::sqlite().arg("--log").arg("trace");
    let server = setup.start();
    server.policy("p", &json!([{ "name": "u", "max": 1, "per": FOREVER, "by": ["user"] }]));
    let subject = json!({ "user": "hush-hush-value" });
    server.spend("p", &subject);
    let mut shown = server.check("p", &subject).body;
    shown += &server.check("p", &json!({ "user": "hush-hush-value", "x": "" })).body;
    shown += &server.get("/metrics").body;
    shown += &server.said();
    assert!(!shown.contains("hush-hush"), "{shown}");
    let metrics: Value = server.get("/metrics").body.into();
    assert!(metrics.as_str().unwrap().contains("policy=\"p\""));
}

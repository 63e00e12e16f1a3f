//! Bad mail: refused message by message, clearly, with nothing lost and nobody else delayed.

use serde_json::{Value, json};

use crate::support::mail::{CLOSED_PORT, FAR_TS, message_body, with};
use crate::support::{Server, Setup};

/// A message that waits, with some members others.
fn message(id: &str, more: Value) -> Value {
    with(with(message_body("acme", id), json!({ "deferred_ts": FAR_TS })), more)
}

#[test]
fn mail_that_is_bad_is_rejected_by_itself_with_its_reason() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    server.mail_tenant("globex", CLOSED_PORT);
    let other = json!({ "id": "theirs", "tenant_id": "globex", "host": "127.0.0.1", "port": 9 });
    server.post("/account", &other).ok();
    let file = |content: &str| {
        json!({ "attachments": [{ "filename": "a.txt", "content_type": "text/plain",
            "content_base64": content }] })
    };
    let bad = [
        (json!({ "to": ["nonsense"] }), "to[0]"),
        (json!({ "to": ["a@b.org", "a b@c"] }), "to[1]"),
        (json!({ "to": [] }), "to"),
        (json!({ "to": ["a@b.org\r\nBcc: x@y.org"] }), "to[0]"),
        (json!({ "from": "" }), "from"),
        (json!({ "from": null }), "from"),
        (json!({ "cc": ["@"] }), "cc[0]"),
        (json!({ "bcc": ["@"] }), "bcc[0]"),
        (json!({ "reply_to": "x" }), "reply_to"),
        (json!({ "subject": "a\nBcc: x@y.org" }), "subject"),
        (json!({ "headers": { "X-A": "a\r\nBcc: x@y.org" } }), "X-A"),
        (json!({ "headers": { "X A": "a" } }), "X A"),
        (json!({ "headers": { "Bcc": "x@y.org" } }), "Bcc"),
        (json!({ "body": null }), "body"),
        (json!({ "priority": 4 }), "priority"),
        (json!({ "priority": -1 }), "priority: invalid value: integer `-1`, expected a whole"),
        (json!({ "priority": 300 }), "expected a whole number from 0 to 3"),
        (json!({ "priority": 0.5 }), "expected a whole number from 0 to 3"),
        (json!({ "priority": "high" }), "priority"),
        (json!({ "body": "a\0b" }), "body must not hold a zero byte"),
        (json!({ "headers": { "X-B": "y".repeat(901) } }), "X-B"),
        (json!({ "deferred_ts": -1 }), "deferred_ts"),
        (json!({ "deferred_ts": "tomorrow" }), "deferred_ts"),
        (json!({ "deferred_ts": 1e300 }), "deferred_ts"),
        (json!({ "deferred_ts": -0.5 }), "deferred_ts"),
        (json!({ "account_id": "nope" }), "nope"),
        (json!({ "account_id": "theirs" }), "theirs"),
        (json!({ "tenant_id": "nope" }), "nope"),
        (json!({ "tenant_id": null }), "tenant_id"),
        (file("not base64!"), "content_base64"),
        (json!({ "attachments": [{ "filename": "a" }] }), "content_base64"),
        (json!({ "colour": "red" }), "colour"),
    ];
    let mut messages = vec![message("good-0", json!({}))];
    for (number, (more, _)) in bad.iter().enumerate() {
        messages.push(message(&format!("bad-{number}"), more.clone()));
    }
    messages.push(message("good-1", json!({})));
    let added = server.add_messages(&messages).ok();
    assert_eq!(added["queued"], 2);
    let rejected = added["rejected"].as_array().unwrap();
    assert_eq!(rejected.len(), bad.len(), "{added}");
    for (number, (_, said)) in bad.iter().enumerate() {
        let id = format!("bad-{number}");
        let found = rejected.iter().find(|message| message["id"] == *id);
        let reason = found.unwrap_or_else(|| panic!("{id}: {added}"))["reason"].as_str().unwrap();
        assert!(reason.contains(said), "{id}: {said} is not in {reason}");
    }
    let queued: Vec<_> = server.mail("acme").into_keys().collect();
    assert_eq!(queued, ["good-0", "good-1"]);
    assert!(server.mail("globex").is_empty());
}

#[test]
fn mail_that_is_all_bad_is_400_and_says_why_for_each() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    let bad = [message("a", json!({ "to": [] })), message("b", json!({ "body": null }))];
    let problem = server.add_messages(&bad).problem(400);
    assert_eq!(problem["queued"], 0);
    assert_eq!(problem["rejected"].as_array().unwrap().len(), 2, "{problem}");
    assert!(problem["rejected"][1]["reason"].as_str().unwrap().contains("body"), "{problem}");
    // What has no id has its place.
    let nameless = json!({ "messages": [{ "tenant_id": "acme" }] });
    let problem = server.post("/commands/add-messages", &nameless).problem(400);
    assert!(
        problem["rejected"][0]["reason"].as_str().unwrap().contains("messages[0]"),
        "{problem}"
    );
}

#[test]
fn mail_calls_that_are_no_list_of_messages_are_400() {
    let server = Server::memory();
    for (body, field) in [
        (json!({}), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": {} }), "messages"),
        (json!({ "messages": [], "more": 1 }), "more"),
    ] {
        server.post("/commands/add-messages", &body).fault(400, field);
    }
    server.post("/commands/add-messages", &json!({ "messages": ["text"] })).problem(400);
}

#[test]
fn mail_that_is_too_large_is_413_and_the_limit_is_settable() {
    let config = "[mail]\nmax_body_bytes = 20000\nmax_message_bytes = 5000\n";
    let server = Setup::memory().config(config).into_server();
    server.mail_tenant("acme", CLOSED_PORT);
    let sized = |id: &str, bytes: usize| {
        let content = "QUJD".repeat(bytes / 4);
        message(id, json!({ "attachments": [{ "filename": "a", "content_base64": content }] }))
    };
    let problem = server.add_messages(&[sized("a", 30_000)]).problem(413);
    assert!(problem["detail"].as_str().unwrap().contains("20000"), "{problem}");
    // One that is larger than a message may be, among others.
    let added = server.add_messages(&[sized("b", 6_000), sized("c", 3_000)]).ok();
    assert_eq!((&added["queued"], &added["rejected"][0]["id"]), (&json!(1), &json!("b")));
    let (_, key) = server.api_key("acme", json!({}));
    let large = |bytes: usize| {
        let body = json!({ "to": "a@b.org", "subject": "x", "text": "x".repeat(bytes) });
        server.send_mail(&key, &body)
    };
    large(30_000).problem(413);
    large(6_000).problem(413);
    assert_eq!(large(1_000).status, 202);
    assert_eq!(server.usage(&key)["emails_sent_today"], 1);
}

#[test]
fn mail_of_25_mib_less_a_little_is_taken() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    let content = "QUJD".repeat((24 << 20) / 4);
    let file = json!({ "filename": "a.bin", "content_base64": content });
    server.queue(&[message("big", json!({ "attachments": [file] }))]);
    let content = "QUJD".repeat((26 << 20) / 4);
    let file = json!({ "filename": "a.bin", "content_base64": content });
    server.add_messages(&[message("bigger", json!({ "attachments": [file] }))]).problem(413);
}

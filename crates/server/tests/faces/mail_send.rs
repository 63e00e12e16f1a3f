//! Sending with an API key: the quota, exactly; and every answer there is.

use serde_json::{Value, json};

use crate::support::mail::{CLOSED_PORT, letter, with};
use crate::support::{Call, Server, members, micros};

/// A server with a key of this daily limit. Nothing it takes is sent: the tenant is suspended.
fn limited(daily_limit: u64) -> (Server, String, String) {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    server.post("/commands/suspend", &json!({ "tenant_id": "acme" })).ok();
    let (id, secret) = server.api_key("acme", json!({ "daily_limit": daily_limit }));
    (server, id, secret)
}

#[test]
fn mail_is_accepted_and_the_quota_counts_recipients() {
    let (server, id, key) = limited(10);
    let reply = server.send_mail(&key, &letter(3));
    assert_eq!(reply.status, 202, "{reply:?}");
    let queued = reply.json();
    assert_eq!(members(&queued), ["id", "remaining", "status"]);
    assert_eq!((&queued["status"], &queued["remaining"]), (&json!("queued"), &json!(7)));
    // One address as a text.
    let one = json!({ "to": "bob@example.org", "subject": "hi", "html": "<p>hi</p>" });
    assert_eq!(server.send_mail(&key, &one).json()["remaining"], 6);
    // Named twice, sent to once.
    let twice = json!({ "to": ["bob@example.org", "Bob <bob@example.org>"], "text": "hi",
        "subject": "hi" });
    assert_eq!(server.send_mail(&key, &twice).json()["remaining"], 5);
    let usage = server.usage(&key);
    let mut expected = json!({ "api_key_id": id, "daily_limit": 10, "emails_sent_today": 5,
        "emails_remaining": 5 });
    expected["reset_time"] = usage["reset_time"].clone();
    assert_eq!(usage, expected);
    let day = 86_400_000_000;
    let reset = micros(&usage["reset_time"]);
    assert_eq!(reset % day, 0, "midnight, UTC");
    assert!(reset > jiff::Timestamp::now().as_microsecond());
    assert_eq!(server.mail("acme")[queued["id"].as_str().unwrap()]["recipients"], 3);
}

#[test]
fn mail_over_the_quota_is_429_with_all_the_numbers() {
    let (server, _, key) = limited(100);
    let queued = server.send_mail(&key, &letter(95));
    let refused = server.send_mail(&key, &letter(10));
    // Both are decisions, and say so as those of a check do.
    for reply in [&queued, &refused] {
        assert!(reply.header("ratelimit-policy").unwrap().starts_with("\"day\";q=100;w="));
        assert!(reply.header("ratelimit").unwrap().starts_with("\"day\";r=5;t="));
        assert_eq!(reply.number("x-ratelimit-limit"), Some(100));
        assert_eq!(reply.number("x-ratelimit-remaining"), Some(5));
    }
    assert_eq!((queued.status, queued.header("retry-after")), (202, None));
    let problem = refused.problem(429);
    let wait = refused.number("retry-after").unwrap();
    assert!((1..=86_400).contains(&wait), "{wait}");
    let detail = problem["detail"].as_str().unwrap();
    for part in ["95", "10", "100", &wait.to_string()] {
        assert!(detail.contains(part), "{part} is not in {detail}");
    }
    assert_eq!(
        (&problem["current"], &problem["requested"], &problem["limit"], &problem["retry_after"]),
        (&json!(95), &json!(10), &json!(100), &json!(wait))
    );
    assert_eq!(problem["violated-policies"], json!(["day"]));
    // Exactly at the limit passes.
    assert_eq!(server.send_mail(&key, &letter(5)).json()["remaining"], 0);
    server.send_mail(&key, &letter(1)).problem(429);
    assert_eq!(server.usage(&key)["emails_sent_today"], 100);
}

#[test]
fn mail_to_more_than_a_day_allows_can_never_be_sent() {
    let (server, _, key) = limited(100);
    let never = server.send_mail(&key, &letter(500));
    let problem = never.problem(422);
    assert!(never.header("retry-after").is_none());
    assert!(problem["detail"].as_str().unwrap().contains("never"), "{problem}");
    assert_eq!(server.usage(&key)["emails_sent_today"], 0);
}

#[test]
fn mail_usage_is_right_above_a_lowered_limit() {
    let (server, id, key) = limited(10);
    assert_eq!(server.send_mail(&key, &letter(8)).status, 202);
    server.put(&format!("/keys/{id}"), &json!({ "daily_limit": 5 })).ok();
    let usage = server.usage(&key);
    assert_eq!(
        (&usage["daily_limit"], &usage["emails_sent_today"], &usage["emails_remaining"]),
        (&json!(5), &json!(8), &json!(0))
    );
    server.send_mail(&key, &letter(1)).problem(429);
    server.put(&format!("/keys/{id}"), &json!({ "daily_limit": 9 })).ok();
    assert_eq!(server.send_mail(&key, &letter(1)).status, 202);
}

#[test]
fn mail_needs_a_key_that_is_known_and_enabled() {
    let (server, id, key) = limited(10);
    let send = |headers: &[(&str, &str)]| {
        let call = Call::post("/api/v1/send", &letter(1));
        server.send(headers.iter().fold(call, |call, (name, value)| call.header(name, value)))
    };
    for headers in [
        vec![],
        vec![("X-API-Key", "")],
        vec![("X-API-Key", "tgk_x")],
        vec![("X-API-Token", key.as_str())],
    ] {
        let reply = send(&headers);
        reply.problem(401);
        assert!(reply.header("www-authenticate").is_some());
    }
    server.get("/api/v1/usage").problem(401);
    // Before its body is looked at.
    let nonsense = Call::new("POST", "/api/v1/send").bytes("nonsense");
    server.send(nonsense.clone()).problem(401);
    server.send(nonsense.header("X-API-Key", &key)).problem(400);
    server.put(&format!("/keys/{id}"), &json!({ "enabled": false })).ok();
    send(&[("X-API-Key", &key)]).problem(403);
    server.send(Call::new("GET", "/api/v1/usage").header("X-API-Key", &key)).problem(403);
    server.put(&format!("/keys/{id}"), &json!({ "enabled": true })).ok();
    assert_eq!(send(&[("X-API-Key", &key)]).status, 202);
    server.delete(&format!("/keys/{id}")).ok();
    send(&[("X-API-Key", &key)]).problem(401);
}

#[test]
fn mail_that_is_invalid_is_422_and_costs_nothing() {
    let (server, _, key) = limited(10);
    server.mail_tenant("globex", CLOSED_PORT);
    let other = json!({ "id": "theirs", "tenant_id": "globex", "host": "127.0.0.1", "port": 9 });
    server.post("/account", &other).ok();
    for (more, field) in [
        (json!({ "to": "nonsense" }), "to[0]"),
        (json!({ "to": [] }), "to"),
        (json!({ "to": null }), "to"),
        (json!({ "to": 5 }), "to"),
        (json!({ "to": ["a@b.org", "x\r\ny@b.org"] }), "to[1]"),
        (json!({ "subject": "x".repeat(257) }), "subject"),
        (json!({ "subject": "x\nBcc: a@b.org" }), "subject"),
        (json!({ "subject": null }), "subject"),
        (json!({ "text": null }), "text"),
        (json!({ "text": "a\0b" }), "text"),
        (json!({ "headers": { "X-A": "a\nb" } }), "headers.X-A"),
        (json!({ "account_id": "nope" }), "account_id"),
        (json!({ "account_id": "theirs" }), "account_id"),
    ] {
        server.send_mail(&key, &with(letter(1), more)).fault(422, field);
    }
    let missing = json!({ "to": "a@b.org", "text": "x" });
    server.send_mail(&key, &missing).fault(422, "subject");
    // What is no such request at all.
    server.send_mail(&key, &with(letter(1), json!({ "colour": 1 }))).fault(400, "colour");
    server.send_mail(&key, &json!([])).problem(400);
    assert_eq!(server.usage(&key)["emails_sent_today"], 0);
    assert!(server.mail("acme").is_empty());
    assert_eq!(
        server.send_mail(&key, &with(letter(1), json!({ "subject": "x".repeat(256) }))).status,
        202
    );
}

#[test]
fn mail_under_an_idempotency_key_is_counted_and_queued_once() {
    let (server, _, key) = limited(10);
    let send = |once: &str, body: &Value| {
        let call = Call::post("/api/v1/send", body).header("X-API-Key", &key);
        server.send(call.header("Idempotency-Key", once))
    };
    let first = send("k-1", &letter(3));
    assert_eq!(first.status, 202, "{first:?}");
    assert!(!first.headers.contains_key("idempotency-replayed"), "{first:?}");
    for once in ["k-1", "\"k-1\"", "k-1"] {
        let again = send(once, &letter(3));
        assert_eq!(again.json(), first.json());
        assert_eq!(again.headers["idempotency-replayed"], "true");
    }
    for other in [letter(2), with(letter(3), json!({ "text": "other" }))] {
        send("k-1", &other).fault(422, "Idempotency-Key");
    }
    assert_eq!(server.usage(&key)["emails_sent_today"], 3);
    assert_eq!(server.mail("acme").len(), 1);
    assert_eq!(send("k-2", &letter(3)).json()["remaining"], 4);
    // A refusal is not recorded: with more quota the same key is decided afresh.
    send("k-3", &letter(5)).problem(429);
    let (id, _) = (server.get("/keys").ok()["keys"][0]["id"].clone(), ());
    server.put(&format!("/keys/{}", id.as_str().unwrap()), &json!({ "daily_limit": 20 })).ok();
    assert_eq!(send("k-3", &letter(5)).status, 202);
}

/// Letters of mixed sizes, 320 recipients in all, to several servers at once: those taken.
pub(crate) fn storm(servers: &[&Server], key: &str) -> Vec<usize> {
    let sizes = [7, 11, 3, 1, 13, 5];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let server = servers[n % servers.len()];
                scope.spawn(move || {
                    let sizes = (0..6).map(|round| sizes[(n + round) % sizes.len()]);
                    let taken = |size: &usize| match server.send_mail(key, &letter(*size)).status {
                        202 => true,
                        429 => false,
                        other => panic!("{other}"),
                    };
                    sizes.filter(taken).collect::<Vec<usize>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn mail_from_many_at_once_never_exceeds_100_and_whatever_fits_is_taken() {
    let (server, _, key) = limited(100);
    let accepted = storm(&[&server], &key);
    let sum: usize = accepted.iter().sum();
    assert!(sum <= 100, "{sum}");
    assert_eq!(server.usage(&key)["emails_sent_today"], sum);
    assert_eq!(server.mail("acme").len(), accepted.len(), "one message for each 202");
    // Units of one were among what was asked for to the end: nothing that fits is refused.
    for _ in sum..100 {
        assert_eq!(server.send_mail(&key, &letter(1)).status, 202);
    }
    server.send_mail(&key, &letter(1)).problem(429);
}

#[test]
fn mail_under_one_idempotency_key_from_many_at_once_is_one_message() {
    let (server, _, key) = limited(100);
    let replies: Vec<Value> = std::thread::scope(|scope| {
        let send = || {
            let call = Call::post("/api/v1/send", &letter(3)).header("X-API-Key", &key);
            let reply = server.send(call.header("Idempotency-Key", "same"));
            assert_eq!(reply.status, 202, "{reply:?}");
            reply.json()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(send)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(replies.iter().all(|reply| *reply == replies[0]), "{replies:?}");
    assert_eq!(server.usage(&key)["emails_sent_today"], 3);
    assert_eq!(server.mail("acme").len(), 1);
}

#[test]
fn mail_that_is_deleted_unsent_gives_its_quota_back() {
    let (server, _, key) = limited(10);
    let id = server.send_mail(&key, &letter(4)).json()["id"].clone();
    let body = json!({ "tenant_id": "acme", "ids": [id] });
    assert_eq!(server.post("/commands/delete-messages", &body).ok()["messages"], 1);
    assert_eq!(server.usage(&key)["emails_sent_today"], 0);
}

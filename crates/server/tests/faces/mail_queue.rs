//! The queue from outside: ids, listing, holding, releasing, deleting.

use serde_json::{Value, json};

use crate::support::mail::{CLOSED_PORT, FAR_TS, message_body, with};
use crate::support::{Server, members};

fn waiting(id: &str, more: Value) -> Value {
    with(with(message_body("acme", id), json!({ "deferred_ts": FAR_TS })), more)
}

fn acme() -> Server {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    server
}

#[test]
fn mail_is_listed_with_its_status_and_times_in_unix_seconds() {
    let server = acme();
    server.queue(&[waiting(
        "m",
        json!({ "priority": 0, "batch_code": "spring", "cc": ["c@d.org"] }),
    )]);
    let listed = server.get("/messages?tenant_id=acme").ok();
    assert_eq!(members(&listed), ["messages", "next_cursor"]);
    let mut message = listed["messages"][0].clone();
    let created = message["created_ts"].as_i64().unwrap();
    assert!((jiff::Timestamp::now().as_second() - created).abs() < 60);
    message.as_object_mut().unwrap().remove("created_ts");
    let expected = json!({ "id": "m", "tenant_id": "acme", "account_id": "main",
        "status": "deferred", "priority": 0, "deferred_ts": FAR_TS, "batch_code": "spring",
        "recipients": 2, "attempts": 0, "last_error": null, "sent_ts": null, "error_ts": null });
    assert_eq!(message, expected);
    assert_eq!(listed["next_cursor"], Value::Null);
    assert_eq!(server.get("/messages/m/attempts?tenant_id=acme").ok(), json!({ "attempts": [] }));
    server.get("/messages/x/attempts?tenant_id=acme").problem(404);
    // A time within a second shows as the first whole second that is not before it.
    server.queue(&[waiting("n", json!({ "deferred_ts": 4_000_000_000.25 }))]);
    assert_eq!(server.mail("acme")["n"]["deferred_ts"], FAR_TS + 1);
}

#[test]
fn mail_with_an_id_that_is_there_is_queued_once() {
    let server = acme();
    let first = waiting("m", json!({}));
    for _ in 0..3 {
        server.queue(std::slice::from_ref(&first));
    }
    assert_eq!(server.mail("acme").len(), 1);
    let problem = server.add_messages(&[waiting("m", json!({ "body": "other" }))]).problem(400);
    assert!(problem["rejected"][0]["reason"].as_str().unwrap().contains("already used"));
    // The same id is free in another tenant.
    server.mail_tenant("globex", CLOSED_PORT);
    server.queue(&[with(first, json!({ "tenant_id": "globex" }))]);
}

#[test]
fn mail_is_listed_by_pages_and_filters() {
    let server = acme();
    let messages: Vec<_> = (0..25)
        .map(|n| {
            waiting(&format!("m{n:02}"), json!({ "batch_code": if n < 5 { "a" } else { "b" } }))
        })
        .collect();
    server.queue(&messages);
    let mut seen = Vec::new();
    let mut path = "/messages?tenant_id=acme&limit=10".to_owned();
    loop {
        let page = server.get(&path).ok();
        let ids = page["messages"].as_array().unwrap().iter();
        seen.extend(ids.map(|message| message["id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/messages?tenant_id=acme&limit=10&cursor={cursor}");
    }
    let expected: Vec<_> = (0..25).map(|n| format!("m{n:02}")).collect();
    assert_eq!(seen, expected);
    let count = |query: &str| {
        let page = server.get(&format!("/messages?tenant_id=acme&{query}")).ok();
        page["messages"].as_array().unwrap().len()
    };
    for (query, expected) in [
        ("status=deferred", 25),
        ("status=sent", 0),
        ("status=pending", 0),
        ("batch_code=a", 5),
        ("id=m07", 1),
        ("account_id=main", 25),
        ("account_id=other", 0),
    ] {
        assert_eq!(count(query), expected, "{query}");
    }
}

#[test]
fn mail_is_suspended_and_activated_by_tenant_and_by_batch() {
    let server = acme();
    server.queue(&[waiting("a", json!({ "batch_code": "x" })), waiting("b", json!({}))]);
    let status = |id: &str| server.mail("acme")[id]["status"].as_str().unwrap().to_owned();
    let command = |name: &str, body: Value| {
        server.post(&format!("/commands/{name}"), &body).ok()["messages"].as_u64().unwrap()
    };
    let batch = json!({ "tenant_id": "acme", "batch_code": "x" });
    assert_eq!(command("suspend", batch.clone()), 1);
    assert_eq!((status("a").as_str(), status("b").as_str()), ("suspended", "deferred"));
    // Also what comes later.
    server.queue(&[waiting("c", json!({ "batch_code": "x" }))]);
    assert_eq!(status("c"), "suspended");
    assert_eq!(command("activate", batch), 2);
    assert_eq!(status("a"), "deferred");
    // Also by query, without a body.
    assert_eq!(server.post("/commands/suspend?tenant_id=acme", &json!({})).status, 400);
    let call = crate::support::Call::new("POST", "/commands/suspend?tenant_id=acme");
    assert_eq!(server.send(call).ok()["messages"], 3);
    assert_eq!(status("b"), "suspended");
    assert_eq!(server.get("/status?tenant_id=acme").ok()["suspended"], 3);
    assert_eq!(server.get("/tenants").ok()["tenants"][0]["suspended"], true);
    command("activate", json!({ "tenant_id": "acme" }));
    assert_eq!(status("b"), "deferred");
}

#[test]
fn mail_is_deleted_by_id_batch_and_account() {
    let server = acme();
    let names = ["a", "b", "c", "d"];
    let batch = |id: &str| if id < "c" { json!({ "batch_code": "x" }) } else { json!({}) };
    server.queue(&names.map(|id| waiting(id, batch(id))));
    let delete = |more: Value| {
        let body = with(json!({ "tenant_id": "acme" }), more);
        server.post("/commands/delete-messages", &body).ok()["messages"].as_u64().unwrap()
    };
    assert_eq!(delete(json!({ "ids": ["d", "nope"] })), 1);
    assert_eq!(delete(json!({ "ids": [] })), 0);
    assert_eq!(delete(json!({ "batch_code": "x" })), 2);
    assert_eq!(delete(json!({ "account_id": "main" })), 1);
    assert!(server.mail("acme").is_empty());
}

#[test]
fn mail_status_counts_all_tenants_or_one() {
    let server = acme();
    server.mail_tenant("globex", CLOSED_PORT);
    server.queue(&[waiting("a", json!({})), waiting("b", json!({ "tenant_id": "globex" }))]);
    let all = server.get("/status").ok();
    let expected = json!({ "ok": true, "tenants": 2, "accounts": 2, "pending": 0, "deferred": 2,
        "suspended": 0, "sent": 0, "errors": 0, "rate_limited": 0 });
    assert_eq!(all, expected);
    let one = server.get("/status?tenant_id=acme").ok();
    assert_eq!((&one["tenants"], &one["deferred"]), (&json!(1), &json!(1)));
}

#[test]
fn mail_run_now_without_a_tenant_is_about_all_of_them() {
    let server = acme();
    server.mail_tenant("globex", CLOSED_PORT);
    server.queue(&[waiting("a", json!({})), waiting("b", json!({ "tenant_id": "globex" }))]);
    assert_eq!(server.post("/commands/run-now", &json!({})).ok()["messages"], 2);
    let body = json!({ "tenant_id": "acme", "ids": ["x"] });
    assert_eq!(server.post("/commands/run-now", &body).ok()["messages"], 0);
}

#[test]
fn mail_run_now_leaves_a_suspended_tenants_mail_its_time() {
    let server = acme();
    server.queue(&[waiting("a", json!({}))]);
    let due = || server.mail("acme")["a"]["deferred_ts"].clone();
    let before = due();
    let body = json!({ "tenant_id": "acme" });
    server.post("/commands/suspend", &body).ok();
    assert_eq!(server.post("/commands/run-now", &body).ok()["messages"], 0);
    server.post("/commands/activate", &body).ok();
    assert!(before.is_number());
    assert_eq!(due(), before);
    assert_eq!(server.post("/commands/run-now", &body).ok()["messages"], 1);
}

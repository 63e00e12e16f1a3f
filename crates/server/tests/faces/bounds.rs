//! Every bound on what comes from outside that no other test is about. SECURITY.md lists them all.

use serde_json::{Value, json};

use crate::support::mail::{CLOSED_PORT, FAR_TS, message_body, with};
use crate::support::raw::{Raw, RawReply, post};
use crate::support::slots::NOON;
use crate::support::{Call, Reply, Server, Setup, eventually};

/// A limit's policy with some members more.
fn policy(server: &Server, more: Value) -> Reply {
    let limits = json!([{ "name": "u", "max": 9, "per": "1h", "by": ["user"] }]);
    server.put("/admin/policies/p", &with(json!({ "limits": limits }), more))
}

fn limit(more: Value) -> Value {
    with(json!({ "name": "u", "max": 9, "per": "1h", "by": ["user"] }), more)
}

#[test]
fn json_deeper_than_128_is_refused_everywhere() {
    let server = Server::memory();
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    for depth in [200, 100_000] {
        let deep = deep(depth);
        for (method, path, body) in [
            ("POST", "/api/v1/check", format!(r#"{{"policy":{deep}}}"#)),
            (
                "POST",
                "/api/v1/check",
                format!(r#"{{"policy":"default","subject":{{"a":{deep}}}}}"#),
            ),
            ("POST", "/api/v1/slots", format!(r#"{{"eventId":{deep}}}"#)),
            ("POST", "/api/v1/slots/batch", format!(r#"{{"events":{deep}}}"#)),
            ("PUT", "/admin/policies/p", format!(r#"{{"limits":{deep}}}"#)),
            ("POST", "/commands/add-messages", format!(r#"{{"messages":{deep}}}"#)),
            ("POST", "/account", deep.clone()),
        ] {
            server.send(Call::new(method, path).bytes(body)).problem(400);
        }
    }
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn heads_have_100_lines_and_64_kib() {
    let server = Server::memory();
    let status = |headers: String| {
        let mut raw = Raw::connect(&server);
        raw.send(format!("GET /healthz HTTP/1.1\r\nHost: test\r\n{headers}\r\n"));
        raw.reply().status
    };
    assert_eq!(status("X-Many: 1\r\n".repeat(99)), 200);
    assert_eq!(status("X-Many: 1\r\n".repeat(100)), 431);
    let long = |bytes: usize| format!("X-Long: {}\r\n", "x".repeat(bytes));
    assert_eq!(status(long(60 << 10)), 200);
    let path = |bytes: usize| {
        let mut raw = Raw::connect(&server);
        raw.send(format!("GET /{} HTTP/1.1\r\nHost: test\r\n\r\n", "x".repeat(bytes)));
        raw.reply().status
    };
    assert_eq!(path(60 << 10), 404);
}

#[test]
fn large_bodies_are_bounded_together_and_small_ones_pass() {
    let config = "[server]\nmax_large_bodies_bytes = 1\n[mail]\nmax_body_bytes = 2000000\n";
    let server = Setup::memory().config(config).into_server();
    let large = post("/commands/add-messages", &" ".repeat(2_000_000));
    let batch = |bytes: usize| post("/api/v1/slots/batch", &" ".repeat(bytes));
    let reply = |request: &str| -> RawReply {
        let mut raw = Raw::connect(&server);
        raw.send(request);
        raw.reply()
    };
    assert_eq!(reply(&large).status, 400, "the largest alone has room");
    // While one is nearly there: nobody tells how far it was read, so perhaps not the first time.
    let refused = eventually("there is no room for another", || {
        let mut half_way = Raw::connect(&server);
        half_way.send(&large[..1_900_000]);
        let (refused, batch, small) =
            (reply(&large), reply(&batch(900_000)), reply(&batch(200_000)));
        server.check("default", &json!({})).ok();
        half_way.send(&large[1_900_000..]);
        let statuses = [&refused, &batch, &small, &half_way.reply()].map(|reply| reply.status);
        (statuses == [503, 503, 400, 400]).then_some(refused)
    });
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    assert!(refused.body.contains("urn:tollgate:busy"), "{}", refused.body);
    assert_eq!(reply(&large).status, 400, "what was held is free again");
    // Two half-way ones do not wait for each other.
    let mut both = [Raw::connect(&server), Raw::connect(&server)];
    for raw in &mut both {
        raw.send(&large[..1_500_000]);
    }
    for raw in &mut both {
        raw.send(&large[1_500_000..]);
    }
    let statuses = both.map(|mut raw| raw.reply().status);
    assert!(statuses.iter().all(|status| [400, 503].contains(status)), "{statuses:?}");
}

#[test]
fn an_answer_repeats_only_so_much_of_what_was_sent() {
    let server = Server::memory();
    let long = "x".repeat(50_000);
    for reply in [
        server.get(&format!("/{long}")),
        server.check(&long, &json!({})),
        server.check("default", &json!({ &long: "1" })),
        server.post("/api/v1/check", &json!({ "policy": "default", &long: 1 })),
        server.put(&format!("/admin/policies/{long}"), &json!({ "limits": [] })),
        server.post("/api/v1/slots", &json!({ "eventId": "e", "configName": long })),
        server.get(&format!("/api/v1/windows?configName={long}")),
        server.get(&format!("/api/v1/slots?configName=default&cursor={long}")),
        server.get(&format!("/messages?tenant_id={long}")),
        server.post("/tenant", &json!({ "id": long })),
    ] {
        assert!((200..500).contains(&reply.status), "{reply:?}");
        assert!(reply.body.len() < 10_000, "{} bytes: {:.300}", reply.body.len(), reply.body);
    }
}

#[test]
fn policies_are_bounded() {
    let server = Server::memory();
    let many = |count: usize| -> Vec<_> {
        (0..count).map(|n| limit(json!({ "name": format!("l{n}") }))).collect()
    };
    let names = |count: usize| -> Vec<_> { (0..count).map(|n| format!("a{n}")).collect() };
    let routes = |count: usize| -> Vec<_> { (0..count).map(|n| format!("/r{n}")).collect() };
    let segments = |count: usize| "/s".repeat(count);
    for (what, good, bad, field) in [
        ("limits", json!({ "limits": many(16) }), json!({ "limits": many(17) }), "limits"),
        (
            "attributes of a limit",
            json!({ "limits": [limit(json!({ "by": names(8) }))] }),
            json!({ "limits": [limit(json!({ "by": names(9) }))] }),
            "limits[0].by",
        ),
        ("routes", json!({ "routes": routes(256) }), json!({ "routes": routes(257) }), "routes"),
        (
            "segments",
            json!({ "routes": [segments(32)] }),
            json!({ "routes": [segments(33)] }),
            "routes[0]",
        ),
        (
            "max",
            json!({ "limits": [limit(json!({ "max": (1_u64 << 53) - 1 }))] }),
            json!({ "limits": [limit(json!({ "max": 1_u64 << 53 }))] }),
            "limits[0].max",
        ),
        (
            "per",
            json!({ "limits": [limit(json!({ "per": "3660d" }))] }),
            json!({ "limits": [limit(json!({ "per": "3661d" }))] }),
            "limits[0].per",
        ),
    ] {
        let taken = policy(&server, good);
        assert!([200, 201].contains(&taken.status), "{what}: {taken:?}");
        policy(&server, bad).fault(400, field);
    }
    let large = json!({ "routes": [format!("/{}", "x".repeat(256 << 10))] });
    policy(&server, large).problem(413);
}

#[test]
fn names_keys_and_attributes_have_lengths() {
    let server = Server::memory();
    policy(&server, json!({}));
    let name = |bytes: usize| json!({ "user": "ada", "x".repeat(bytes): "1" });
    server.check("p", &name(64)).ok();
    server.check("p", &name(65)).problem(400);
    let keyed = |chars: usize| {
        let body = json!({ "policy": "p", "subject": { "user": "ada" } });
        let call = Call::post("/api/v1/check", &body);
        server.send(call.header("Idempotency-Key", &"k".repeat(chars)))
    };
    keyed(255).ok();
    keyed(256).fault(400, "Idempotency-Key");
    let event = |chars: usize| {
        server
            .post("/api/v1/slots", &json!({ "eventId": "e".repeat(chars), "requestedTime": NOON }))
    };
    event(255).ok();
    event(256).fault(400, "eventId");
    server.post("/tenant", &json!({ "id": "t".repeat(128) })).ok();
    server.post("/tenant", &json!({ "id": "t".repeat(129) })).fault(400, "id");
    server.post("/tenant", &json!({ "id": "n", "name": "n".repeat(201) })).fault(400, "name");
    // The last, because it closes the server.
    let token = |chars: usize| {
        server.post("/admin/tokens", &json!({ "scope": "admin", "name": "n".repeat(chars) }))
    };
    token(129).fault(400, "name");
    token(0).fault(400, "name");
    assert_eq!(token(128).status, 201);
}

#[test]
fn lists_and_batches_have_lengths() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    for (path, max) in [
        ("/api/v1/slots?configName=default&", 1_000_u64),
        ("/admin/offenders?", 1_000_u64),
        ("/admin/alerts?", 1_000_u64),
        ("/messages?tenant_id=acme&", 1_000_u64),
    ] {
        assert_eq!(server.get(&format!("{path}limit={max}")).status, 200, "{path}");
        for bad in [0, max + 1, 1_u64 << 40] {
            server.get(&format!("{path}limit={bad}")).fault(400, "limit");
        }
    }
    let events: Vec<_> =
        (0..1_001).map(|n| json!({ "eventId": format!("e{n}"), "requestedTime": NOON })).collect();
    let batch = |events: &[Value]| server.post("/api/v1/slots/batch", &json!({ "events": events }));
    batch(&events[..1_000]).ok();
    batch(&events).fault(400, "events");
    let ids = |count: usize| -> Vec<_> { (0..count).map(|n| format!("m{n}")).collect() };
    // As many ids as a body holds.
    let delete = json!({ "tenant_id": "acme", "ids": ids(10_001) });
    assert_eq!(server.post("/commands/delete-messages", &delete).ok()["messages"], 0);
    let messages: Vec<_> = (0..10_001).map(|n| json!({ "id": n.to_string() })).collect();
    server.add_messages(&messages).fault(400, "messages");
}

#[test]
fn mail_has_bounds() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    let addresses =
        |count: usize| -> Vec<_> { (0..count).map(|n| format!("r{n}@example.org")).collect() };
    let files = |count: usize| -> Vec<_> {
        (0..count)
            .map(|n| json!({ "filename": format!("{n}"), "content_base64": "AAAA" }))
            .collect()
    };
    let headers = |count: usize| -> Value {
        (0..count)
            .map(|n| (format!("X-H-{n}"), json!("1")))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    for (n, (good, bad)) in [
        (json!({ "subject": "s".repeat(998) }), json!({ "subject": "s".repeat(999) })),
        (json!({ "attachments": files(100) }), json!({ "attachments": files(101) })),
        (json!({ "headers": headers(64) }), json!({ "headers": headers(65) })),
        (json!({ "to": addresses(1_000) }), json!({ "to": addresses(1_001) })),
        (
            json!({ "headers": { "X-A": "word ".repeat(820)[..4_096] } }),
            json!({ "headers": { "X-A": "word ".repeat(820)[..4_097] } }),
        ),
        (
            json!({ "headers": { "X-A": "v".repeat(900) } }),
            json!({ "headers": { "X-A": "v".repeat(901) } }),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let message = |id: String, more: Value| {
            with(with(message_body("acme", &id), json!({ "deferred_ts": FAR_TS })), more)
        };
        let taken = server.add_messages(&[message(format!("good{n}"), good)]);
        assert_eq!(taken.json()["queued"], 1, "{n}: {taken:?}");
        server.add_messages(&[message(format!("bad{n}"), bad)]).problem(400);
    }
}

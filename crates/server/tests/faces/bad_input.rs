//! Bad requests: each is a clear problem that names its field, and no count moves.

use serde_json::{Value, json};

use crate::support::raw::{Raw, post};
use crate::support::{Call, FOREVER, Server, Setup};

/// A server whose policy `p` has counted 1 of 5 for `ada`.
fn server() -> Server {
    let server = Server::memory();
    let limits = json!([{ "name": "user", "max": 5, "per": FOREVER, "by": ["user"] }]);
    server.policy("p", &limits);
    server.spend("p", &ada());
    server
}

fn ada() -> Value {
    json!({ "user": "ada" })
}

fn unharmed(server: &Server) {
    assert_eq!(server.used("p", &ada()), [1]);
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn a_body_that_is_no_json_object_is_400_on_every_check_route() {
    let server = server();
    for path in ["/api/v1/check", "/api/v1/peek", "/api/v1/refund"] {
        for body in [
            "",
            " ",
            "{",
            "{,}",
            "policy=p&subject=ada",
            "[]",
            "[\"p\",{\"user\":\"ada\"},1]",
            "null",
            "7",
            "\"p\"",
            "\u{feff}{}",
            "{}{}",
        ] {
            let reply = server.send(Call::new("POST", path).bytes(body));
            let problem = reply.problem(400);
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("JSON") || body == "{}{}", "{body}: {problem}");
        }
        server.send(Call::new("POST", path).bytes(vec![0xff, 0xfe, b'{'])).problem(400);
        server.send(Call::new("POST", path).bytes("{".repeat(100_000))).problem(400);
    }
    unharmed(&server);
}

#[test]
fn each_bad_member_is_400_and_named() {
    let server = server();
    for (name, value, field) in [
        ("cost", json!(0), "cost"),
        ("cost", json!(-1), "cost"),
        ("cost", json!(1.5), "cost"),
        ("cost", json!(1.0), "cost"),
        ("cost", json!("1"), "cost"),
        ("cost", json!(null), "cost"),
        ("cost", json!(true), "cost"),
        ("cost", json!(4_294_967_296_u64), "cost"),
        ("cost", json!(1e300), "cost"),
        ("policy", json!(7), "policy"),
        ("policy", json!(null), "policy"),
        ("subject", json!("ada"), "subject"),
        ("subject", json!(["ada"]), "subject"),
        ("subject", json!({}), "subject.user"),
        ("subject", json!({ "User": "ada" }), "subject.user"),
        ("subject", json!({ "user": 7 }), "subject.user"),
        ("subject", json!({ "user": null }), "subject.user"),
        ("subject", json!({ "user": ["ada"] }), "subject.user"),
        ("subject", json!({ "user": "" }), "subject.user"),
        ("subject", json!({ "user": "x".repeat(10_000) }), "subject.user"),
        ("subject", json!({ "user": "ada", "": "x" }), "subject."),
        ("costs", json!(1), "costs"),
        ("Policy", json!("p"), "Policy"),
    ] {
        for path in ["/api/v1/check", "/api/v1/peek"] {
            let mut body = json!({ "policy": "p", "subject": ada() });
            body[name] = value.clone();
            let problem = server.post(path, &body).fault(400, field);
            assert!(problem["detail"].as_str().unwrap().contains(field), "{problem}");
        }
    }
    let two = json!({ "policy": "p", "subject": ada(), "zork": 1, "blah": 2 });
    let problem = server.post("/api/v1/check", &two).fault(400, "blah");
    assert!(problem["detail"].as_str().unwrap().contains("zork"), "every one is named: {problem}");
    server.post("/api/v1/check", &json!({ "subject": ada() })).fault(400, "policy");
    unharmed(&server);
}

#[test]
fn a_member_or_an_attribute_given_twice_is_named() {
    let server = server();
    for (body, field) in [
        (r#"{"policy":"p","policy":"q","subject":{"user":"ada"}}"#, "policy"),
        (r#"{"policy":"p","subject":{"user":"ada"},"cost":1,"cost":1}"#, "cost"),
        (r#"{"policy":"p","subject":{"user":"ada","user":"bob"}}"#, "subject.user"),
        (r#"{"policy":"p","subject":{"user":"ada","user":"ada"}}"#, "subject.user"),
    ] {
        server.send(Call::new("POST", "/api/v1/check").bytes(body)).fault(400, field);
    }
    unharmed(&server);
}

#[test]
fn an_attribute_given_twice_in_an_override_is_named() {
    let server = server();
    let body = r#"{"policy":"p","limit":"user","subject":{"user":"ada","user":"bob"},"max":9}"#;
    let call = Call::new("PUT", "/admin/overrides").bytes(body);
    server.send(call).fault(400, "subject.user");
}

#[test]
fn a_member_given_twice_in_a_policy_is_refused() {
    let server = server();
    let body = r#"{"limits":[{"name":"x","max":1,"max":1000000,"per":"1h"}]}"#;
    server.send(Call::new("PUT", "/admin/policies/q").bytes(body)).problem(400);
}

#[test]
fn thirty_three_attributes_are_too_many_and_thirty_two_are_not() {
    let server = server();
    let attributes = |count: usize| -> Value {
        let more = (1..count).map(|position| (format!("a{position}"), json!("x")));
        Value::Object([("user".to_owned(), json!("ada"))].into_iter().chain(more).collect())
    };
    server.check("p", &attributes(33)).fault(400, "subject");
    unharmed(&server);
    server.check("p", &attributes(32)).ok();
}

#[test]
fn an_unknown_policy_is_404() {
    let server = server();
    let long = "x".repeat(10_000);
    for name in ["nope", "", "P", "p ", "p\u{0}", &long] {
        for path in ["/api/v1/check", "/api/v1/peek"] {
            server.post(path, &json!({ "policy": name, "subject": ada() })).problem(404);
        }
    }
    unharmed(&server);
}

#[test]
fn a_cost_above_max_is_422_and_the_largest_cost_too() {
    let server = server();
    for cost in [6, 4_294_967_295] {
        server.check_cost("p", &ada(), cost).fault(422, "cost");
    }
    unharmed(&server);
}

#[test]
fn ten_megabytes_are_413_fully_readable_and_then_the_connection_closes() {
    let server = server();
    let mut raw = Raw::connect(&server);
    raw.send(post("/api/v1/check", &" ".repeat(10 << 20)));
    let reply = raw.reply();
    assert_eq!(reply.status, 413);
    assert!(reply.head.contains("content-type: application/problem+json"), "{}", reply.head);
    assert!(reply.head.contains("connection: close"), "{}", reply.head);
    let problem: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!((&problem["status"], problem["request_id"].is_string()), (&json!(413), true));
    assert!(problem["detail"].as_str().unwrap().contains("262144"), "{problem}");
    assert_eq!(raw.rest(), "");
    for path in ["/api/v1/peek", "/api/v1/refund", "/admin/rate-limit/config", "/admin/tokens"] {
        server.send(Call::new("POST", path).bytes(vec![b' '; 10 << 20])).problem(413);
    }
    let put = |path: &str| Call::new("PUT", path).bytes(vec![b' '; 10 << 20]);
    server.send(put("/admin/policies/p")).problem(413);
    server.send(put("/admin/overrides")).problem(413);
    unharmed(&server);
}

#[test]
fn a_chunked_body_over_the_limit_is_413() {
    let server = server();
    let mut raw = Raw::connect(&server);
    raw.send("POST /api/v1/check HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    for _ in 0..5 {
        raw.send(&chunk);
    }
    raw.send("0\r\n\r\n");
    let reply = raw.reply();
    assert_eq!(reply.status, 413, "{reply:?}");
    assert!(reply.head.contains("connection: close"), "{}", reply.head);
    assert_eq!(raw.rest(), "");
    unharmed(&server);
}

#[test]
fn a_body_of_exactly_the_limit_is_read() {
    let server = server();
    let body = r#"{"policy":"p","subject":{"user":"bob"}}"#;
    let padded = |length: usize| format!("{body}{}", " ".repeat(length - body.len()));
    let send =
        |length: usize| server.send(Call::new("POST", "/api/v1/check").bytes(padded(length)));
    send(256 << 10).ok();
    send((256 << 10) + 1).problem(413);
    assert_eq!(server.used("p", &json!({ "user": "bob" })), [1]);
}

#[test]
fn a_broken_chunked_body_is_400_and_spends_nothing() {
    let server = server();
    let mut raw = Raw::connect(&server);
    raw.send(
        "POST /api/v1/check HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    );
    assert_eq!(raw.reply().status, 400);
    raw.rest();
    unharmed(&server);
}

#[test]
fn a_body_cut_short_spends_nothing() {
    let server = server();
    let mut raw = Raw::connect(&server);
    let body = r#"{"policy":"p","subject":{"user":"ada"}}"#;
    let whole = post("/api/v1/check", body).replace("Content-Length: 39", "Content-Length: 40");
    assert!(whole.contains("Content-Length: 40"));
    raw.send(whole);
    raw.0.shutdown(std::net::Shutdown::Write).unwrap();
    raw.rest();
    unharmed(&server);
}

#[test]
fn a_large_body_nobody_wanted_is_answered_readably() {
    let server = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", "secret").into_server();
    for (path, status) in [
        ("/api/v1/check", 401),
        ("/api/v1/peek", 401),
        ("/admin/tokens", 401),
        ("/nope", 404),
        ("/healthz", 405),
    ] {
        let mut raw = Raw::connect(&server);
        raw.send(post(path, &" ".repeat(10 << 20)));
        assert_eq!(raw.reply().status, status, "{path}");
    }
}

/// Calls about the server itself, and those that stand where a client's own URL did, take any query.
const FREE: [&str; 4] = ["/healthz", "/readyz", "/metrics", "/gate"];

#[test]
fn an_unknown_parameter_of_a_query_is_400_and_named_on_every_call() {
    let server = server();
    let api = server.get("/openapi.json?any=1").ok();
    let mut calls = 0;
    for (path, item) in api["paths"].as_object().unwrap() {
        let filled = path.replace("{eventId}", "a").replace("{name}", "p").replace("{id}", "a");
        assert!(!filled.contains('{'), "{path}");
        for method in item.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            if FREE.contains(&path.as_str()) {
                let free = server.send(Call::new(&method, &format!("{filled}?surprise=1")));
                assert!(!free.body.contains("surprise"), "{method} {path}");
                continue;
            }
            let reply = server.send(Call::new(&method, &format!("{filled}?surpri%73e=1&a=b")));
            let problem = reply.problem(400);
            assert_eq!(problem["field"], "surprise", "{method} {path}: {problem}");
            assert!(problem["detail"].as_str().unwrap().contains("surprise"), "{problem}");
            calls += 1;
        }
    }
    assert!(calls > 40, "{calls}");
    // A question mark alone asks nothing.
    server.get("/admin/policies?").ok();
    unharmed(&server);
}

#[test]
fn who_has_no_token_is_told_that_before_anything_about_the_query() {
    let server = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", "sesame").into_server();
    for path in ["/admin/policies?x=1", "/api/v1/slots/a?x=1", "/tenants?x=1"] {
        server.get(path).problem(401);
    }
    server.send(Call::new("POST", "/api/v1/check?x=1")).problem(401);
}

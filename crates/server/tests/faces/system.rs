//! Health, metrics, request ids, and what is not there.

use serde_json::json;

use crate::support::{Call, FOREVER, Server, Setup, eventually};

/// The value of one sample.
fn sample(metrics: &str, name: &str) -> Option<String> {
    let line = metrics
        .lines()
        .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))?;
    Some(line[name.len() + 1..].to_owned())
}

fn count(policy: &str, outcome: &str) -> String {
    format!("tollgate_decisions_total{{policy=\"{policy}\",outcome=\"{outcome}\"}}")
}

#[test]
fn health_and_readiness_answer() {
    let setup = Setup::sqlite();
    for server in [Server::memory(), setup.start()] {
        assert_eq!(server.get("/healthz").ok(), json!({ "status": "ok" }));
        assert_eq!(server.get("/readyz").ok(), json!({ "status": "ready" }));
    }
}

#[test]
fn metrics_count_decisions_by_policy_and_outcome() {
    let server = Server::memory();
    let metrics = server.get("/metrics");
    assert_eq!(metrics.status, 200);
    assert_eq!(sample(&metrics.body, "tollgate_store_errors_total").as_deref(), Some("0"));
    assert_eq!(sample(&metrics.body, "tollgate_keys").as_deref(), Some("0"));
    // Before anybody asked: a first refusal is a rise from 0.
    for series in [
        r#"tollgate_decisions_total{policy="default",outcome="allowed"}"#,
        r#"tollgate_decisions_total{policy="default",outcome="refused"}"#,
        r#"tollgate_slots_total{policy="default",outcome="given"}"#,
    ] {
        assert_eq!(sample(&metrics.body, series).as_deref(), Some("0"), "{series}");
    }
    assert_eq!(sample(&metrics.body, "tollgate_decision_seconds_count").as_deref(), Some("0"));
    server.policy("p", &json!([{ "name": "u", "max": 2, "per": FOREVER, "by": ["user"] }]));
    for user in ["ada-the-subject", "bob-the-subject"] {
        for _ in 0..5 {
            server.check("p", &json!({ "user": user }));
        }
    }
    server.check_cost("p", &json!({ "user": "ada-the-subject" }), 3).problem(422);
    server.spend("default", &json!({}));
    // These are no decisions.
    server.peek("p", &json!({ "user": "ada-the-subject" }));
    server.check("p", &json!({})).problem(400);
    server.check("nope", &json!({})).problem(404);
    let metrics = server.get("/metrics").body;
    for (name, value) in [
        (count("p", "allowed"), "4"),
        (count("p", "refused"), "6"),
        (count("default", "allowed"), "1"),
        ("tollgate_decision_seconds_count".to_owned(), "12"),
        ("tollgate_decision_seconds_bucket{le=\"+Inf\"}".to_owned(), "12"),
        ("tollgate_store_errors_total".to_owned(), "0"),
        ("tollgate_keys".to_owned(), "3"),
    ] {
        assert_eq!(sample(&metrics, &name).as_deref(), Some(value), "{name}: {metrics}");
    }
    for name in ["tollgate_decision_seconds", "tollgate_batch_size"] {
        assert!(metrics.contains(&format!("# TYPE {name} histogram")), "{metrics}");
        assert!(sample(&metrics, &format!("{name}_sum")).is_some(), "{metrics}");
    }
    assert!(!metrics.contains("the-subject") && !metrics.contains("nope"), "{metrics}");
}

#[test]
fn metrics_are_openmetrics_for_who_asks_for_it() {
    let server = Server::memory();
    let openmetrics = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    for (accept, kind, counter, ends) in [
        (openmetrics, "application/openmetrics-text", "tollgate_decisions", true),
        ("text/plain", "text/plain; version=0.0.4", "tollgate_decisions_total", false),
        ("*/*", "text/plain; version=0.0.4", "tollgate_decisions_total", false),
    ] {
        let reply = server.send(Call::new("GET", "/metrics").header("accept", accept));
        assert!(reply.header("content-type").unwrap().starts_with(kind), "{reply:?}");
        assert!(reply.body.contains(&format!("\n# TYPE {counter} counter\n")), "{}", reply.body);
        assert_eq!(reply.body.ends_with("# EOF\n"), ends, "{}", reply.body);
    }
}

#[test]
fn metrics_count_the_groups_written_to_the_file() {
    let setup = Setup::sqlite();
    let server = setup.start();
    let limits = json!([{ "name": "all", "max": 50, "per": FOREVER }]);
    let policy = json!({ "limits": limits, "durability": "sync" });
    server.put("/admin/policies/p", &policy);
    for _ in 0..5 {
        server.spend("p", &json!({}));
    }
    let metrics = eventually("five decisions in the file", || {
        let metrics = server.get("/metrics").body;
        let sum = sample(&metrics, "tollgate_batch_size_sum")?;
        (sum == "5.0" || sum == "5").then_some(metrics)
    });
    // Answered one by one, so written one by one.
    let groups = sample(&metrics, "tollgate_batch_size_bucket{le=\"1.0\"}").unwrap();
    assert!(groups.parse::<u64>().unwrap() >= 5, "{metrics}");
}

#[test]
fn a_request_id_is_echoed_or_made_and_is_in_every_problem() {
    let server = Server::memory();
    server.policy("p", &json!([{ "name": "all", "max": 1, "per": FOREVER }]));
    let ask = || Call::post("/api/v1/check", &json!({ "policy": "p" }));
    for call in [ask(), ask(), Call::new("GET", "/healthz"), Call::new("GET", "/nope")] {
        let given = server.send(call.clone().header("X-Request-ID", "req-42.a:b_c"));
        assert_eq!(given.header("x-request-id"), Some("req-42.a:b_c"));
        if given.status >= 400 {
            given.problem(given.status);
        }
        let ids: Vec<_> = (0..3)
            .map(|_| {
                let reply = server.send(call.clone());
                if reply.status >= 400 {
                    reply.problem(reply.status);
                }
                reply.header("x-request-id").unwrap().to_owned()
            })
            .collect();
        assert!(ids.iter().all(|id| !id.is_empty()), "{ids:?}");
        assert!(ids[0] != ids[1] && ids[1] != ids[2], "{ids:?}");
    }
}

#[test]
fn a_request_id_that_is_not_plain_is_replaced() {
    let server = Server::memory();
    let long = "x".repeat(10_000);
    for strange in ["a b", "\"", "<script>", "a\tb", "{}", &long] {
        let reply = server.send(Call::new("GET", "/nope").header("X-Request-ID", strange));
        let id = reply.problem(404)["request_id"].as_str().unwrap().to_owned();
        assert!(!id.is_empty() && id != strange, "{id}");
    }
}

#[test]
fn what_is_not_there_is_a_404_problem() {
    let server = Server::memory();
    for path in [
        "/",
        "/nope",
        "/api/v1/check/",
        "/api/v1",
        "/admin",
        "/admin/policies/",
        "/healthz/x",
        "//",
    ] {
        for method in ["GET", "POST"] {
            server.send(Call::new(method, path)).problem(404);
        }
    }
}

#[test]
fn a_wrong_method_is_405_and_says_which_are_right() {
    let server = Server::memory();
    for (method, path, allowed) in [
        ("GET", "/api/v1/check", vec!["POST"]),
        ("PUT", "/api/v1/check", vec!["POST"]),
        ("GET", "/api/v1/peek", vec!["POST"]),
        ("DELETE", "/api/v1/refund", vec!["POST"]),
        ("POST", "/healthz", vec!["GET"]),
        ("PATCH", "/admin/policies", vec!["GET"]),
        ("POST", "/admin/policies/p", vec!["GET", "PUT", "DELETE"]),
        ("POST", "/admin/overrides", vec!["PUT", "DELETE"]),
        ("DELETE", "/admin/rate-limit/config", vec!["GET", "POST"]),
        ("GET", "/admin/rate-limit/cache/flush", vec!["POST"]),
        ("POST", "/openapi.json", vec!["GET"]),
    ] {
        let reply = server.send(Call::new(method, path));
        reply.problem(405);
        let allow = reply.header("allow").unwrap_or_else(|| panic!("{method} {path}: {reply:?}"));
        let given: Vec<_> = allow.split(',').map(str::trim).collect();
        assert!(allowed.iter().all(|method| given.contains(method)), "{path}: {allow}");
        assert!(!given.contains(&method), "{path}: {allow}");
    }
}

#[test]
fn a_path_that_is_not_text_is_a_400_problem() {
    let server = Server::memory();
    server.get("/admin/policies/%FF").problem(400);
    assert_eq!(server.get("/healthz").status, 200);
}

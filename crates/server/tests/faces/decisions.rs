//! What a decision looks like on the wire.

use serde_json::{Value, json};

use crate::support::{FOREVER, Server, limit, members, micros, used};

fn server_with(limits: &Value) -> Server {
    let server = Server::memory();
    server.policy("p", limits);
    server
}

fn one(max: u64) -> Value {
    json!([{ "name": "all", "max": max, "per": FOREVER, "by": ["user"] }])
}

#[test]
fn an_allowed_check_has_exactly_the_documented_members() {
    let server = server_with(&one(5));
    let reply = server.check_cost("p", &json!({ "user": "ada" }), 2);
    let decision = reply.ok();
    assert_eq!(
        members(&decision),
        ["allowed", "cost", "decided_at", "limits", "policy", "receipt"],
        "{decision}"
    );
    assert_eq!(decision["allowed"], true);
    assert_eq!(decision["policy"], "p");
    assert_eq!(decision["cost"], 2);
    assert!(decision["receipt"].as_str().is_some_and(|receipt| !receipt.is_empty()));
    let all = limit(&decision, "all");
    assert_eq!(members(all), ["max", "name", "remaining", "resets_at", "used"]);
    assert_eq!((&all["max"], &all["used"], &all["remaining"]), (&json!(5), &json!(2), &json!(3)));
    assert!(micros(&all["resets_at"]) > micros(&decision["decided_at"]));
    let now = jiff::Timestamp::now().as_microsecond();
    assert!((now - micros(&decision["decided_at"])).abs() < 60_000_000, "{decision}");
}

#[test]
fn cost_and_subject_may_be_left_out() {
    let server = Server::memory();
    let decision = server.post("/api/v1/check", &json!({ "policy": "default" })).ok();
    assert_eq!(decision["cost"], 1);
    assert_eq!(used(&decision), [1]);
}

#[test]
fn a_refusal_is_a_problem_with_the_decision_at_its_top_level() {
    let server = server_with(&one(1));
    let subject = json!({ "user": "ada" });
    server.spend("p", &subject);
    let reply = server.check("p", &subject);
    let problem = reply.problem(429);
    assert_eq!(
        members(&problem),
        [
            "allowed",
            "cost",
            "decided_at",
            "detail",
            "limits",
            "policy",
            "request_id",
            "retry_after",
            "retry_at",
            "status",
            "title",
            "type",
            "violated-policies",
        ],
        "{problem}"
    );
    let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    assert_eq!(problem["type"], kind);
    assert_eq!(problem["violated-policies"], json!(["all"]));
    assert_eq!(problem["allowed"], false);
    assert_eq!(problem["policy"], "p");
    assert_eq!(problem["cost"], 1);
    let all = limit(&problem, "all");
    assert_eq!(members(all), ["max", "name", "remaining", "resets_at", "retry_after", "used"]);
    assert_eq!((&all["used"], &all["remaining"]), (&json!(1), &json!(0)));
    assert_eq!(all["retry_after"], problem["retry_after"]);
    let wait_micros = micros(&problem["retry_at"]) - micros(&problem["decided_at"]);
    let retry_after = problem["retry_after"].as_i64().unwrap();
    assert!(wait_micros > 0 && retry_after >= 1);
    assert_eq!(retry_after, wait_micros.unsigned_abs().div_ceil(1_000_000).cast_signed());
    assert_eq!(reply.number("retry-after"), Some(retry_after));
}

#[test]
fn the_detail_of_a_refusal_is_a_sentence_with_limit_counts_and_wait() {
    let server = server_with(&json!([
        { "name": "burst", "max": 3, "per": "90s", "algorithm": "sliding" }
    ]));
    server.check_cost("p", &json!({}), 2).ok();
    let problem = server.check_cost("p", &json!({}), 2).problem(429);
    let detail = problem["detail"].as_str().unwrap();
    for part in ["\"burst\"", "\"p\"", "2 of 3", "2 requested", " seconds"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    let hourly = server_with(&json!([
        { "name": "hourly", "max": 1, "per": "1h", "algorithm": "sliding" }
    ]));
    hourly.spend("p", &json!({}));
    let problem = hourly.check("p", &json!({})).problem(429);
    assert!(problem["detail"].as_str().unwrap().contains(" minutes"), "{problem}");
}

#[test]
fn exactly_max_is_allowed_and_a_refusal_reports_the_true_count() {
    let server = server_with(&one(10));
    let subject = json!({ "user": "ada" });
    server.check_cost("p", &subject, 7).ok();
    let problem = server.check_cost("p", &subject, 4).problem(429);
    assert_eq!(used(&problem), [7]);
    assert_eq!(limit(&problem, "all")["remaining"], 3);
    assert_eq!(used(&server.check_cost("p", &subject, 3).ok()), [10]);
    assert_eq!(used(&server.check("p", &subject).problem(429)), [10]);
    assert_eq!(server.used("p", &json!({ "user": "bob" })), [0], "bob has counts of his own");
}

#[test]
fn a_peek_answers_200_and_writes_nothing() {
    let server = server_with(&one(3));
    let subject = json!({ "user": "ada" });
    server.check_cost("p", &subject, 2).ok();
    let ask = |cost: u64| {
        let body = json!({ "policy": "p", "subject": subject, "cost": cost });
        server.post("/api/v1/peek", &body)
    };
    for _ in 0..3 {
        let fits = ask(1).ok();
        assert_eq!(members(&fits), ["allowed", "cost", "decided_at", "limits", "policy"]);
        assert_eq!((&fits["allowed"], used(&fits)), (&json!(true), vec![2]));
        let waits = ask(2).ok();
        assert_eq!((&waits["allowed"], used(&waits)), (&json!(false), vec![2]));
        assert!(micros(&waits["retry_at"]) > micros(&waits["decided_at"]));
        assert!(waits["retry_after"].as_i64().unwrap() >= 1);
        let never = ask(4).ok();
        assert_eq!((&never["allowed"], used(&never)), (&json!(false), vec![2]));
        assert_eq!((&never["retry_at"], &never["retry_after"]), (&Value::Null, &Value::Null));
    }
    assert_eq!(used(&server.spend("p", &subject)), [3], "the peeks left room for one");
    server.get("/metrics").body.lines().find(|line| *line == "tollgate_keys 1").unwrap();
}

#[test]
fn a_cost_above_max_is_422_without_a_wait() {
    let server = server_with(&one(5));
    let subject = json!({ "user": "ada" });
    let reply = server.check_cost("p", &subject, 6);
    let problem = reply.fault(422, "cost");
    assert_eq!(reply.header("retry-after"), None);
    assert_eq!((&problem["retry_at"], &problem["retry_after"]), (&Value::Null, &Value::Null));
    assert_eq!(limit(&problem, "all")["retry_after"], Value::Null);
    assert_eq!(problem["allowed"], false);
    assert!(problem["detail"].as_str().unwrap().contains("at most 5"), "{problem}");
    assert_eq!(server.used("p", &subject), [0]);
    // Not even when the limit also happens to be full.
    server.check_cost("p", &subject, 5).ok();
    let full = server.check_cost("p", &subject, 6);
    full.problem(422);
    assert_eq!(full.header("retry-after"), None);
}

#[test]
fn a_max_of_zero_refuses_all_without_a_wait() {
    let server = server_with(&one(0));
    let subject = json!({ "user": "ada" });
    let reply = server.check("p", &subject);
    let problem = reply.problem(422);
    assert_eq!(reply.header("retry-after"), None);
    assert_eq!(problem["retry_at"], Value::Null);
    assert_eq!(problem["violated-policies"], json!(["all"]));
    let peeked = server.peek("p", &subject);
    assert_eq!((&peeked["allowed"], &peeked["retry_at"]), (&json!(false), &Value::Null));
}

#[test]
fn a_shadow_limit_counts_and_reports_but_never_refuses() {
    let server = server_with(&json!([
        { "name": "real", "max": 4, "per": FOREVER },
        { "name": "trial", "max": 1, "per": FOREVER, "shadow": true },
    ]));
    for spent in 1..=4 {
        let decision = server.spend("p", &json!({}));
        assert_eq!(used(&decision), [spent, spent]);
        let trial = limit(&decision, "trial");
        assert_eq!((&trial["shadow"], &trial["remaining"]), (&json!(true), &json!(0)));
        assert_eq!(trial["retry_after"].is_null(), spent == 1, "it says when it would refuse");
    }
    let problem = server.check("p", &json!({})).problem(429);
    assert_eq!(problem["violated-policies"], json!(["real"]));
    assert_eq!(used(&problem), [4, 4]);
    // Not even a cost it could never hold.
    assert_eq!(server.peek("p", &json!({}))["allowed"], false);
    server.policy(
        "q",
        &json!([
            { "name": "real", "max": 9, "per": FOREVER },
            { "name": "trial", "max": 1, "per": FOREVER, "shadow": true },
        ]),
    );
    assert_eq!(used(&server.check_cost("q", &json!({}), 5).ok()), [5, 5]);
}

#[test]
fn a_calendar_limit_resets_at_midnight_in_its_own_zone() {
    let server = server_with(&json!([
        { "name": "day", "max": 3, "per": "day", "timezone": "Europe/Rome" }
    ]));
    let decision = server.spend("p", &json!({}));
    let resets_at = micros(&limit(&decision, "day")["resets_at"]);
    let rome = jiff::tz::TimeZone::get("Europe/Rome").unwrap();
    let local = jiff::Timestamp::from_microsecond(resets_at).unwrap().to_zoned(rome.clone());
    assert_eq!(local.time(), jiff::civil::Time::midnight(), "{local}");
    let decided_at = jiff::Timestamp::from_microsecond(micros(&decision["decided_at"])).unwrap();
    assert_eq!(local.date(), decided_at.to_zoned(rome).date().tomorrow().unwrap());
}

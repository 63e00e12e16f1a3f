//! Slots that cannot be: the field at fault is named, and nothing is counted.

use serde_json::{Value, json};

use crate::support::slots::{NOON, SLOTS, event_body};
use crate::support::{Call, FOREVER, Server};

fn with(name: &str, value: Value) -> Value {
    let mut body = event_body("e", "default", NOON);
    body[name] = value;
    body
}

#[test]
fn a_bad_event_is_400_and_names_the_field() {
    let server = Server::memory();
    for (name, value) in [
        ("eventId", json!("")),
        ("eventId", json!("x".repeat(256))),
        ("eventId", json!("é".repeat(256))),
        ("eventId", json!("a\u{0}b")),
        ("eventId", json!(null)),
        ("eventId", json!(7)),
        ("eventId", json!(["e"])),
        ("configName", json!(7)),
        ("requestedTime", json!("")),
        ("requestedTime", json!("soon")),
        ("requestedTime", json!("2026-12-01")),
        ("requestedTime", json!("2026-12-01T12:00:00")),
        ("requestedTime", json!("2026-13-01T12:00:00Z")),
        ("requestedTime", json!("2026-02-30T12:00:00Z")),
        ("requestedTime", json!("2026-12-01T25:00:00Z")),
        ("requestedTime", json!("0000-01-01T00:00:00Z")),
        ("requestedTime", json!("0001-01-01T00:00:00Z")),
        ("requestedTime", json!("-009999-01-01T00:00:00Z")),
        ("requestedTime", json!("1969-12-31T23:59:59.999999Z")),
        ("requestedTime", json!("9999-01-01T00:00:00Z")),
        ("requestedTime", json!("9999-12-31T23:59:59.999999999Z")),
        ("requestedTime", json!("+010000-01-01T00:00:00Z")),
        ("requestedTime", json!("2026-12-01T12:00:60Z")),
        ("requestedTime", json!("2026-12-01T12:00:00+24:00")),
        ("requestedTime", json!("2026-12-01T12:00:00+02")),
        ("requestedTime", json!("2026-12-01T12:00:00,5Z")),
        ("requestedTime", json!("20261201T120000Z")),
        ("requestedTime", json!("2026-12-01T12Z")),
        ("requestedTime", json!("2026-12-01T12:00:00+05:00[Europe/Rome]")),
        ("requestedTime", json!(1_764_590_400)),
        ("requestedtime", json!(NOON)),
        ("event_id", json!("e")),
    ] {
        let problem = server.post(SLOTS, &with(name, value.clone())).fault(400, name);
        assert!(problem["detail"].as_str().unwrap().contains(name), "{value}: {problem}");
    }
    server.post(SLOTS, &json!({ "configName": "default" })).fault(400, "eventId");
    assert_eq!(server.fill("default"), [0; 0], "nothing was counted");
    assert_eq!(server.get(SLOTS).ok()["slots"], json!([]));
}

#[test]
fn the_last_usable_time_is_usable() {
    let server = Server::memory();
    let last = "9900-01-01T00:00:00Z";
    let slot = server.ask_slot("e", "default", last).ok();
    assert!(slot["scheduledTime"].as_str().unwrap().starts_with("9900-01-01T00:00:0"), "{slot}");
    server.ask_slot("f", "default", "9900-01-01T00:00:00.000001Z").fault(400, "requestedTime");
    assert_eq!(server.get(SLOTS).ok()["slots"].as_array().unwrap().len(), 1);
    assert_eq!(server.fill("default"), [1]);
}

#[test]
fn a_body_that_is_no_json_object_is_400() {
    let server = Server::memory();
    for body in
        ["", "[]", "null", "{", "\"e\"", "{\"eventId\":\"a\",\"eventId\":\"b\"}", "\u{feff}{}"]
    {
        for path in [SLOTS, "/api/v1/slots/batch"] {
            server.send(Call::new("POST", path).bytes(body)).problem(400);
        }
    }
    assert_eq!(server.get(SLOTS).ok()["slots"], json!([]));
}

#[test]
fn a_time_in_the_past_is_legal_and_one_older_than_what_is_kept_is_400() {
    let server = Server::memory();
    let policy = json!({
        "limits": [{ "name": "window", "max": 5, "per": "PT4S" }],
        "schedule": { "retention": "2d" },
    });
    server.put("/admin/policies/c", &policy);
    let now = jiff::Timestamp::now();
    let before = |hours: i64| (now - jiff::SignedDuration::from_hours(hours)).to_string();
    let slot = server.ask_slot("yesterday", "c", &before(24)).ok();
    assert!(slot["scheduledTime"].as_str().unwrap() < now.to_string().as_str(), "{slot}");
    let problem = server.ask_slot("old", "c", &before(49)).fault(400, "requestedTime");
    assert!(problem["detail"].as_str().unwrap().contains("or later"), "{problem}");
    assert_eq!(server.fill("c"), [1]);
}

#[test]
fn what_is_finer_than_a_microsecond_is_rounded_up() {
    let server = Server::memory();
    for (id, asked, kept) in [
        ("a", "2026-12-01T12:00:03.999998001Z", "2026-12-01T12:00:03.999999Z"),
        ("b", "2026-12-01T12:00:03.999999Z", "2026-12-01T12:00:03.999999Z"),
        ("c", "2026-12-01T12:00:03.999999999Z", "2026-12-01T12:00:04.000000Z"),
    ] {
        let given = server.ask_slot(id, "default", asked).ok();
        assert_eq!(server.ask_slot(id, "default", asked).ok(), given);
        let shown = server.get(&format!("/api/v1/slots/{id}")).ok();
        assert_eq!(shown["requestedTime"], kept);
        assert!(shown["scheduledTime"].as_str().unwrap() >= kept, "{shown}");
    }
}

#[test]
fn an_unknown_config_is_404() {
    let server = Server::memory();
    for name in ["unknown", "", "a b", "a\u{0}b", "Default"] {
        server.ask_slot("e", name, NOON).problem(404);
    }
    for path in [SLOTS, "/api/v1/windows", "/admin/slots/verify"] {
        server.get(&format!("{path}?configName=unknown")).problem(404);
    }
    server.get("/api/v1/slots/e").problem(404);
}

#[test]
fn a_policy_that_cannot_schedule_is_400_and_says_why() {
    let server = Server::memory();
    let limit = |name: &str| json!({ "name": name, "max": 5, "per": "60s" });
    let with = |name: &str, value: Value| {
        let mut changed = limit("a");
        changed[name] = value;
        json!([changed])
    };
    for (limits, said) in [
        (json!([limit("a"), limit("b")]), "exactly one limit"),
        (with("by", json!(["user"])), "by"),
        (with("algorithm", json!("sliding")), "fixed"),
        (with("algorithm", json!("bucket")), "fixed"),
        (with("per", json!("day")), "duration"),
        (with("max", json!(0)), "at least 1"),
        (with("max", json!(60_000_001)), "microsecond"),
        (json!([{ "name": "a", "max": 1_u64 << 40, "per": FOREVER }]), "max"),
    ] {
        server.policy("p", &limits);
        let problem = server.ask_slot("e", "p", NOON).fault(400, "configName");
        assert_eq!(problem["type"], "urn:tollgate:not-a-schedule");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("cannot schedule") && detail.contains(said), "{said}: {detail}");
        server.get("/api/v1/windows?configName=p").problem(400);
    }
    server.get("/api/v1/slots/e").problem(404);
}

#[test]
fn an_id_that_cannot_be_is_400_also_in_a_path() {
    let server = Server::memory();
    for path in [&format!("/api/v1/slots/{}", "x".repeat(256)), "/api/v1/slots/a%00b"] {
        server.get(path).fault(400, "eventId");
        server.delete(path).fault(400, "eventId");
    }
    server.get("/api/v1/slots/%FF").problem(400);
    server.get("/api/v1/slots/").problem(404);
    server.get("/api/v1/slots/a/b").problem(404);
}

//! A slot for every event: asked for, seen again, cancelled.

use std::collections::HashSet;

use serde_json::json;

use crate::support::command::clean;
use crate::support::slots::{NOON, SLOTS, event_body};
use crate::support::{Call, Ended, Server, Setup, members, micros};

/// The commands of the seed, as they stand in it.
const SEED_CONFIG: &str = r#"curl -X POST http://localhost:8080/admin/rate-limit/config \
  -H 'Content-Type: application/json' \
  -d '{
    "configName": "default",
    "maxPerWindow": 100,
    "windowSize": "PT4S"
  }'"#;
const SEED_SLOT: &str = r#"curl -X POST http://localhost:8080/api/v1/slots \
  -H 'Content-Type: application/json' \
  -d "{
    \"eventId\": \"$(uuidgen)\",
    \"configName\": \"default\",
    \"requestedTime\": \"2025-06-01T12:00:00Z\"
  }""#;
const SEED_RAISE: &str = r#"curl -X POST http://localhost:8080/admin/rate-limit/config \
  -H 'Content-Type: application/json' \
  -d '{
    "configName": "default",
    "maxPerWindow": 200,
    "windowSize": "PT4S"
  }'"#;
const SEED_FLUSH: &str = "curl -X POST http://localhost:8080/admin/rate-limit/cache/flush";

#[test]
fn the_commands_of_the_seed_work_as_written() {
    let server = Server::memory();
    let paste = |line: &str| {
        let line = line.replace("localhost:8080", &server.address);
        // Not every machine has one.
        let uuidgen = "uuidgen() { cat /proc/sys/kernel/random/uuid; }";
        let mut bash = clean("bash");
        bash.args(["-c", &format!("{uuidgen}\n{line}")]);
        Ended::of(bash).expect(0).json()
    };
    let config = paste(SEED_CONFIG);
    assert_eq!((&config["maxPerWindow"], &config["windowSize"]), (&json!(100), &json!("PT4S")));
    let slot = paste(SEED_SLOT);
    assert_eq!(members(&slot), ["delayMs", "eventId", "scheduledTime"]);
    assert_eq!(slot["eventId"].as_str().unwrap().len(), 36);
    let requested = micros(&json!("2025-06-01T12:00:00.000000Z"));
    let delay = micros(&slot["scheduledTime"]) - requested;
    assert!((0..4_000_000).contains(&delay), "in the first window: {slot}");
    assert_eq!(slot["delayMs"], delay / 1_000);
    assert_eq!(paste(SEED_RAISE)["maxPerWindow"], 200);
    assert_eq!(paste(SEED_FLUSH), json!({ "status": "cache flushed" }));
    assert_ne!(paste(SEED_SLOT)["scheduledTime"], slot["scheduledTime"]);
    assert_eq!(server.get("/admin/rate-limit/config?name=default").ok()["maxPerWindow"], 200);
}

#[test]
fn every_event_has_an_instant_of_its_own_and_each_window_its_maximum() {
    let server = Server::memory();
    server.slot_config("c", 5, "PT4S");
    let mut instants = HashSet::new();
    let start = micros(&json!("2026-12-01T12:00:00.000000Z"));
    for number in 0..12 {
        let slot = server.ask_slot(&format!("e-{number}"), "c", NOON).ok();
        let after = micros(&slot["scheduledTime"]) - start;
        assert_eq!(after / 4_000_000, number / 5, "{slot}");
        assert_eq!(slot["delayMs"], after / 1_000);
        assert!(instants.insert(after), "{slot}");
    }
    assert_eq!(server.fill("c"), [5, 5, 2]);
}

#[test]
fn the_same_event_gets_the_same_slot_and_is_counted_once() {
    for server in [Server::memory(), Setup::sqlite().into_server()] {
        server.slot_config("c", 5, "PT4S");
        let first = server.ask_slot("e", "c", NOON);
        for _ in 0..3 {
            assert_eq!(server.ask_slot("e", "c", NOON).ok(), first.ok());
        }
        // The same time, otherwise written.
        let same = server.ask_slot("e", "c", "2026-12-01T14:00:00.000+02:00");
        assert_eq!(same.ok(), first.ok());
        assert_eq!(server.fill("c"), [1]);
    }
}

#[test]
fn callers_who_race_with_one_event_get_one_slot() {
    let server = Setup::sqlite().into_server();
    server.slot_config("c", 5, "PT4S");
    let answers: Vec<_> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..10)
            .map(|_| scope.spawn(|| server.ask_slot("e", "c", NOON).ok().to_string()))
            .collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().collect::<HashSet<_>>().len(), 1, "{answers:?}");
    assert_eq!(server.fill("c"), [1]);
    assert_eq!(server.verified("c")["slots"], 1);
}

#[test]
fn without_a_time_it_is_as_soon_as_possible_and_without_a_config_the_default() {
    let server = Server::memory();
    let before = jiff::Timestamp::now().as_microsecond();
    let slot = server.post(SLOTS, &json!({ "eventId": "soon" })).ok();
    let at = micros(&slot["scheduledTime"]);
    assert!((before..before + 60_000_000).contains(&at), "{slot}");
    assert_eq!(server.post(SLOTS, &json!({ "eventId": "soon" })).ok(), slot, "also later");
    let shown = server.get("/api/v1/slots/soon").ok();
    assert_eq!(shown["configName"], "default");
    let nulls = json!({ "eventId": "soon", "configName": null, "requestedTime": null });
    assert_eq!(server.post(SLOTS, &nulls).ok(), slot, "null is the same as nothing");
}

#[test]
fn the_same_event_with_other_inputs_is_409_and_changes_nothing() {
    let server = Server::memory();
    server.slot_config("c", 5, "PT4S");
    let first = server.ask_slot("e", "c", NOON).ok();
    for other in [
        event_body("e", "default", NOON),
        event_body("e", "c", "2026-12-01T12:00:01Z"),
        json!({ "eventId": "e", "configName": "c" }),
    ] {
        let problem = server.post(SLOTS, &other).fault(409, "eventId");
        assert_eq!(problem["type"], "urn:tollgate:slot-differs");
        assert!(problem["detail"].as_str().unwrap().contains("2026-12-01T12:00:00"), "{problem}");
    }
    assert_eq!(server.ask_slot("e", "c", NOON).ok(), first);
    assert_eq!((server.fill("c"), server.fill("default")), (vec![1], vec![]));
}

#[test]
fn a_slot_is_shown_with_all_that_is_kept_of_it() {
    let server = Server::memory();
    server.slot_config("c", 5, "PT4S");
    server.slot_config("c", 6, "PT4S");
    let given = server.ask_slot("e", "c", NOON).ok();
    let shown = server.get("/api/v1/slots/e").ok();
    let names = "configName configVersion createdAt delayMs eventId requestedTime scheduledTime";
    assert_eq!(members(&shown), names.split(' ').collect::<Vec<_>>());
    assert_eq!((&shown["configName"], &shown["configVersion"]), (&json!("c"), &json!(2)));
    assert_eq!(shown["requestedTime"], "2026-12-01T12:00:00.000000Z");
    for name in ["eventId", "scheduledTime", "delayMs"] {
        assert_eq!(shown[name], given[name]);
    }
    let age = jiff::Timestamp::now().as_microsecond() - micros(&shown["createdAt"]);
    assert!((0..60_000_000).contains(&age), "{shown}");
    server.get("/api/v1/slots/other").problem(404);
}

#[test]
fn a_cancel_frees_the_place_and_may_be_repeated() {
    for server in [Server::memory(), Setup::sqlite().into_server()] {
        server.slot_config("c", 2, "PT4S");
        let places: Vec<_> =
            ["a", "b", "later"].map(|id| server.ask_slot(id, "c", NOON).ok()).into();
        let cancelled = server.delete("/api/v1/slots/a").ok();
        micros(&cancelled["cancelledAt"]);
        assert_eq!(cancelled["scheduledTime"], places[0]["scheduledTime"]);
        assert_eq!(server.delete("/api/v1/slots/a").ok(), cancelled, "again");
        assert_eq!(server.get("/api/v1/slots/a").ok(), cancelled);
        let next = server.ask_slot("d", "c", NOON).ok();
        assert_eq!(next["scheduledTime"], places[0]["scheduledTime"], "the place that was freed");
        let problem = server.ask_slot("a", "c", NOON).fault(409, "eventId");
        assert_eq!(problem["type"], "urn:tollgate:slot-cancelled");
        server.delete("/api/v1/slots/unknown").problem(404);
        assert_eq!(server.fill("c"), [2, 1]);
        assert_eq!(server.verified("c")["slots"], 3);
    }
}

#[test]
fn a_full_horizon_is_503_that_says_so_until_a_place_is_free() {
    let server = Server::memory();
    server.short_config("c", 1);
    server.ask_slot("a", "c", NOON).ok();
    let problem = server.ask_slot("b", "c", NOON).problem(503);
    assert_eq!(problem["type"], "urn:tollgate:horizon-full");
    assert!(problem["detail"].as_str().unwrap().contains("horizon"), "{problem}");
    server.ask_slot("a", "c", NOON).ok();
    server.delete("/api/v1/slots/a").ok();
    server.ask_slot("b", "c", NOON).ok();
}

#[test]
fn an_event_may_be_called_anything() {
    let server = Server::memory();
    for (id, path) in [
        ("a/b", "a%2Fb"),
        ("a b?c#d&e", "a%20b%3Fc%23d%26e"),
        ("100%", "100%25"),
        ("%2F", "%252F"),
        ("\u{1f600}é", "%F0%9F%98%80%C3%A9"),
        ("..", "%2E%2E"),
        ("batch", "batch"),
        ("{eventId}", "%7BeventId%7D"),
        ("\"'\\\n\u{1}", "%22%27%5C%0A%01"),
        ("+", "+"),
    ] {
        assert_eq!(server.ask_slot(id, "default", NOON).ok()["eventId"], id);
        let path = format!("/api/v1/slots/{path}");
        assert_eq!(server.get(&path).ok()["eventId"], id, "{path}");
        assert!(server.delete(&path).ok()["cancelledAt"].is_string(), "{path}");
    }
    let longest = "é".repeat(255);
    server.ask_slot(&longest, "default", NOON).ok();
    assert_eq!(server.get(&format!("/api/v1/slots/{}", "%C3%A9".repeat(255))).status, 200);
}

#[test]
fn a_change_of_the_config_is_in_force_at_the_next_slot_and_old_slots_stay() {
    let server = Server::memory();
    server.slot_config("c", 2, "PT4S");
    let before: Vec<_> = ["a", "b"].map(|id| server.ask_slot(id, "c", NOON).ok()).into();
    server.slot_config("c", 4, "PT4S");
    for id in ["c", "d", "e"] {
        server.ask_slot(id, "c", NOON).ok();
    }
    assert_eq!(server.fill("c"), [4, 1], "a raise opens the rest of a window");
    server.slot_config("c", 3, "PT4S");
    server.ask_slot("f", "c", NOON).ok();
    assert_eq!(server.fill("c"), [4, 2], "a window above a lowered max is full");
    server.slot_config("c", 3, "PT8S");
    assert_eq!(server.fill("c"), [6], "counted again in longer windows");
    server.ask_slot("g", "c", NOON).ok();
    assert_eq!(server.fill("c"), [6, 1]);
    assert_eq!(server.ask_slot("a", "c", NOON).ok(), before[0]);
    assert_eq!(server.get("/api/v1/slots/a").ok()["configVersion"], 1);
    assert_eq!(server.get("/api/v1/slots/g").ok()["configVersion"], 4);
    assert_eq!(server.verified("c")["slots"], 7);
}

#[test]
fn a_token_that_may_check_may_use_slots_but_not_verify_them() {
    let setup = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", "admin");
    let server = setup.into_server();
    let make = Call::post("/admin/tokens", &json!({ "scope": "check" })).token("admin");
    let token = server.send(make).json()["token"].as_str().unwrap().to_owned();
    let event = event_body("e", "default", NOON);
    let batch = json!({ "events": [event] });
    for call in [
        Call::post(SLOTS, &event),
        Call::post("/api/v1/slots/batch", &batch),
        Call::new("GET", "/api/v1/slots/e"),
        Call::new("DELETE", "/api/v1/slots/e"),
        Call::new("GET", "/api/v1/slots/batch"),
        Call::new("DELETE", "/api/v1/slots/batch"),
        Call::new("GET", SLOTS),
        Call::new("GET", "/api/v1/windows"),
    ] {
        server.send(call.clone()).problem(401);
        let status = server.send(call.clone().token(&token)).status;
        assert!([200, 404].contains(&status), "{call:?}: {status}");
    }
    let verify = Call::new("GET", "/admin/slots/verify");
    server.send(verify.clone().token(&token)).problem(403);
    server.send(verify.token("admin")).ok();
}

#[test]
fn slots_are_counted_in_the_metrics_by_what_they_were_told() {
    let server = Server::memory();
    server.short_config("c", 2);
    server.ask_slot("a", "c", NOON).ok();
    server.ask_slot("b", "c", NOON).ok();
    server.ask_slot("a", "c", NOON).ok();
    server.ask_slot("c", "c", NOON).problem(503);
    server.ask_slot("a", "c", "2026-12-02T12:00:00Z").problem(409);
    server.delete("/api/v1/slots/a").ok();
    server.ask_slot("a", "c", NOON).problem(409);
    server.ask_slot("old", "c", "1999-12-31T12:00:00Z").problem(400);
    server.ask_slot("x", "unknown", NOON).problem(404);
    let text = server.get("/metrics").body;
    for (outcome, count) in [
        ("given", 2),
        ("repeated", 1),
        ("horizon_full", 1),
        ("differs", 1),
        ("cancelled", 1),
        ("too_old", 1),
    ] {
        let line = format!("tollgate_slots_total{{policy=\"c\",outcome=\"{outcome}\"}} {count}\n");
        assert!(text.contains(&line), "{line} is not in {text}");
    }
    assert!(text.contains("tollgate_slot_delay_seconds_count 2\n"), "{text}");
    assert!(!text.contains("unknown"), "{text}");
}

#[test]
fn nothing_is_given_beyond_the_horizon() {
    let server = Server::memory();
    let limits = json!([{ "name": "a", "max": 4, "per": "1d" }]);
    let policy = json!({ "limits": limits, "schedule": { "horizon": "7h" } });
    assert_eq!(server.put("/admin/policies/h", &policy).status, 201);
    let midnight = "2030-06-01T00:00:00Z";
    for (id, at) in [("a", "2030-06-01T00:00:00.000000Z"), ("b", "2030-06-01T06:00:00.000000Z")] {
        assert_eq!(server.ask_slot(id, "h", midnight).ok()["scheduledTime"], at);
    }
    // The day has two more places, at noon and at six in the evening.
    server.ask_slot("c", "h", midnight).problem(503);
    server.ask_slot("c", "h", "2030-06-01T05:00:00Z").ok();
}

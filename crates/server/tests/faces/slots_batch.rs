//! Many events in one call.

use serde_json::{Value, json};

use crate::support::slots::{NOON, event_body};
use crate::support::{Call, Reply, Server, Setup, members};

const BATCH: &str = "/api/v1/slots/batch";

fn post(server: &Server, events: &[Value]) -> Reply {
    server.post(BATCH, &json!({ "events": events }))
}

fn numbered(count: usize, config: &str) -> Vec<Value> {
    (0..count).map(|number| event_body(&format!("e-{number}"), config, NOON)).collect()
}

#[test]
fn a_thousand_events_get_the_slots_they_would_have_got_one_by_one() {
    let server = Setup::sqlite().into_server();
    server.slot_config("one", 7, "PT4S");
    server.slot_config("all", 7, "PT4S");
    let answer = post(&server, &numbered(1_000, "all")).ok();
    let results = answer["results"].as_array().unwrap();
    assert_eq!((results.len(), &answer["repeated"]), (1_000, &json!(0)));
    for (number, result) in results.iter().take(20).enumerate() {
        let alone = server.ask_slot(&format!("alone-{number}"), "one", NOON).ok();
        assert_eq!(members(result), ["delayMs", "eventId", "scheduledTime"]);
        assert_eq!(result["eventId"], format!("e-{number}"));
        assert_eq!(result["scheduledTime"], alone["scheduledTime"]);
    }
    let fill = server.fill("all");
    assert_eq!((fill.len(), fill.iter().max(), fill.last()), (143, Some(&7), Some(&6)));
    assert_eq!(server.verified("all")["slots"], 1_000);
}

#[test]
fn a_batch_that_is_sent_again_changes_nothing_and_says_so() {
    let server = Server::memory();
    server.slot_config("c", 7, "PT4S");
    let first = post(&server, &numbered(20, "c")).ok();
    let again = post(&server, &numbered(20, "c")).ok();
    assert_eq!(first["results"], again["results"]);
    assert_eq!((&first["repeated"], &again["repeated"]), (&json!(0), &json!(20)));
    let more = post(&server, &numbered(25, "c")).ok();
    assert_eq!(more["repeated"], 20);
    assert_eq!(server.verified("c")["slots"], 25);
}

#[test]
fn of_one_id_under_two_policies_the_first_in_the_batch_is_given() {
    let server = Server::memory();
    server.slot_config("one", 7, "PT4S");
    server.slot_config("other", 7, "PT4S");
    let events = [("a", "one"), ("e", "other"), ("e", "one"), ("b", "one"), ("b", "other")];
    let events = events.map(|(id, config)| event_body(id, config, NOON));
    let answer = post(&server, &events).ok();
    let given = |position: usize| answer["results"][position]["scheduledTime"].is_string();
    assert_eq!([0, 1, 2, 3, 4].map(given), [true, true, false, true, false], "{answer}");
    assert_eq!(answer["results"][2]["status"], 409);
    assert_eq!((server.fill("one"), server.fill("other")), (vec![2], vec![1]));
}

#[test]
fn an_event_that_stands_twice_in_a_batch_has_one_slot() {
    let server = Server::memory();
    let event = event_body("e", "default", NOON);
    let answer = post(&server, &[event.clone(), event]).ok();
    assert_eq!(answer["results"][0], answer["results"][1]);
    assert_eq!(answer["repeated"], 1);
    assert_eq!(server.fill("default"), [1]);
}

#[test]
fn configs_may_be_mixed_and_the_answers_keep_the_order_of_the_events() {
    let server = Server::memory();
    server.slot_config("a", 1, "PT4S");
    server.slot_config("b", 1, "PT8S");
    let events: Vec<_> = (0..30)
        .map(|number| event_body(&format!("e-{number}"), ["a", "b", "default"][number % 3], NOON))
        .collect();
    let answer = post(&server, &events).ok();
    for (number, result) in answer["results"].as_array().unwrap().iter().enumerate() {
        assert_eq!(result["eventId"], format!("e-{number}"));
    }
    let fills = [server.fill("a"), server.fill("b"), server.fill("default")];
    assert_eq!(fills, [vec![1; 10], vec![1; 10], vec![10]]);
}

#[test]
fn what_is_wrong_with_one_event_holds_up_no_other() {
    let server = Server::memory();
    server.short_config("full", 1);
    server.ask_slot("taken", "full", NOON).ok();
    server.ask_slot("gone", "default", NOON).ok();
    server.delete("/api/v1/slots/gone").ok();
    server.policy("p", &json!([{ "name": "a", "max": 5, "per": "60s", "by": ["user"] }]));
    let events = [
        (event_body("good-1", "default", NOON), None),
        (event_body("", "default", NOON), Some((400, Some("eventId")))),
        (event_body(&"x".repeat(256), "default", NOON), Some((400, Some("eventId")))),
        (event_body("t", "default", "soon"), Some((400, Some("requestedTime")))),
        (event_body("t", "default", "1999-01-01T00:00:00Z"), Some((400, Some("requestedTime")))),
        (event_body("t", "default", "9999-01-01T00:00:00Z"), Some((400, Some("requestedTime")))),
        (event_body("t", "unknown", NOON), Some((404, None))),
        (event_body("taken", "default", NOON), Some((409, Some("eventId")))),
        (event_body("gone", "default", NOON), Some((409, Some("eventId")))),
        (event_body("t", "p", NOON), Some((400, Some("configName")))),
        (json!({}), Some((400, Some("eventId")))),
        (json!({ "eventId": 7 }), Some((400, Some("eventId")))),
        (json!({ "eventId": "t", "requestedTime": 5 }), Some((400, Some("requestedTime")))),
        (event_body("t", "full", NOON), Some((503, None))),
        (event_body("good-2", "default", NOON), None),
    ];
    let bodies: Vec<_> = events.iter().map(|(body, _)| body.clone()).collect();
    let answer = post(&server, &bodies).ok();
    for ((body, wanted), result) in events.iter().zip(answer["results"].as_array().unwrap()) {
        match wanted {
            None => assert_eq!(result["eventId"], body["eventId"], "{result}"),
            Some((status, field)) => {
                let mut names = vec!["detail", "request_id", "status", "title", "type"];
                names.extend(field.map(|_| "field"));
                names.sort_unstable();
                assert_eq!(members(result), names, "{body}: {result}");
                assert_eq!((&result["status"], &result["field"]), (&json!(status), &json!(field)));
            }
        }
    }
    assert_eq!(server.fill("default"), [2]);
}

#[test]
fn none_and_1001_events_are_400_and_nothing_is_counted() {
    let server = Server::memory();
    let problem = post(&server, &numbered(1_001, "default")).fault(400, "events");
    assert!(problem["detail"].as_str().unwrap().contains("1001"), "{problem}");
    post(&server, &[]).fault(400, "events");
    server.post(BATCH, &json!({})).fault(400, "events");
    server.post(BATCH, &json!({ "events": {} })).fault(400, "events");
    assert_eq!(server.fill("default"), [0; 0]);
}

#[test]
fn a_batch_of_the_wrong_shape_is_400_and_names_the_place() {
    let server = Server::memory();
    let good = event_body("e", "default", NOON);
    for (event, place) in [
        (json!({ "eventid": "f" }), "events[1].eventid"),
        (json!({ "eventId": "f", "more": 1 }), "events[1].more"),
        (json!("f"), "events[1]"),
    ] {
        post(&server, &[good.clone(), event]).fault(400, place);
    }
    server.post(BATCH, &json!({ "events": [good], "more": 1 })).fault(400, "more");
    assert_eq!(server.fill("default"), [0; 0]);
}

#[test]
fn a_batch_may_be_larger_than_other_bodies_up_to_what_is_set() {
    let padded = |server: &Server, bytes: usize| {
        let mut body = json!({ "events": numbered(1, "default") }).to_string().into_bytes();
        body.resize(bytes, b' ');
        server.send(Call::new("POST", BATCH).bytes(body))
    };
    let server = Server::memory();
    padded(&server, 1 << 20).ok();
    padded(&server, (1 << 20) + 1).problem(413);
    let server = Setup::memory().config("[server]\nmax_batch_body_bytes = 1000\n").into_server();
    padded(&server, 1_000).ok();
    padded(&server, 1_001).problem(413);
}

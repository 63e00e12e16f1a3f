//! What schedules have given: slots in order of time, and windows with their fill.

use serde_json::{Value, json};

use crate::support::slots::{NOON, SLOTS};
use crate::support::{Server, Setup, members, micros};

fn filled(server: &Server) {
    server.slot_config("c", 5, "PT4S");
    for number in 0..12 {
        server.ask_slot(&format!("e-{number}"), "c", NOON).ok();
    }
}

fn list(server: &Server, query: &str) -> Value {
    server.get(&format!("{SLOTS}?configName=c{query}")).ok()
}

fn times(list: &Value) -> Vec<i64> {
    let slots = list["slots"].as_array().unwrap();
    slots.iter().map(|slot| micros(&slot["scheduledTime"])).collect()
}

#[test]
fn slots_are_listed_in_order_of_time_page_by_page() {
    for server in [Server::memory(), Setup::sqlite().into_server()] {
        filled(&server);
        server.delete("/api/v1/slots/e-3").ok();
        let whole = list(&server, "");
        assert_eq!(members(&whole), ["slots"], "no next page");
        let all = times(&whole);
        assert!(all.len() == 12 && all.is_sorted(), "{all:?}");
        let cancelled = whole["slots"].as_array().unwrap().iter();
        let cancelled: Vec<_> = cancelled.filter(|slot| slot["cancelledAt"].is_string()).collect();
        assert!(cancelled.len() == 1 && cancelled[0]["eventId"] == "e-3", "{cancelled:?}");
        let mut paged = Vec::new();
        let mut query = "&limit=5".to_owned();
        loop {
            let page = list(&server, &query);
            paged.extend(times(&page));
            let Some(cursor) = page["nextCursor"].as_str() else { break };
            assert_eq!(page["slots"].as_array().unwrap().len(), 5);
            query = format!("&limit=5&cursor={cursor}");
        }
        assert_eq!(paged, all);
        assert_eq!(list(&server, "&limit=12").get("nextCursor"), None);
        assert!(list(&server, "&limit=11")["nextCursor"].is_string());
    }
}

#[test]
fn a_page_is_not_moved_by_what_is_given_meanwhile() {
    let server = Server::memory();
    filled(&server);
    let page = list(&server, "&limit=6");
    server.ask_slot("early", "c", "2026-12-01T11:00:00Z").ok();
    let rest = list(&server, &format!("&cursor={}", page["nextCursor"].as_str().unwrap()));
    assert_eq!((times(&page).len(), times(&rest).len()), (6, 6));
    assert!(times(&page).last() < times(&rest).first());
}

#[test]
fn an_interval_holds_its_beginning_and_not_its_end() {
    let server = Server::memory();
    filled(&server);
    let second = list(&server, "&from=2026-12-01T12:00:04Z&to=2026-12-01T12:00:08Z");
    assert_eq!(times(&second).len(), 5);
    let first = second["slots"][0]["scheduledTime"].as_str().unwrap();
    assert_eq!(times(&list(&server, &format!("&from={first}")))[0], micros(&json!(first)));
    assert_eq!(times(&list(&server, &format!("&to={first}"))).len(), 5);
    assert_eq!(times(&list(&server, &format!("&from={first}&to={first}"))).len(), 0);
    assert_eq!(times(&server.get(SLOTS).ok()).len(), 0, "another config");
}

#[test]
fn windows_are_listed_with_their_bounds_and_fill() {
    for server in [Server::memory(), Setup::sqlite().into_server()] {
        filled(&server);
        let found = server.get("/api/v1/windows?configName=c").ok();
        assert_eq!(members(&found), ["configName", "windowSize", "windows"]);
        assert_eq!((&found["configName"], &found["windowSize"]), (&json!("c"), &json!("PT4S")));
        let window = |start: &str, end: &str, count: u64| {
            let (start, end) = (
                format!("2026-12-01T12:00:{start}.000000Z"),
                format!("2026-12-01T12:00:{end}.000000Z"),
            );
            json!({ "start": start, "end": end, "count": count, "max": 5 })
        };
        let windows = json!([window("00", "04", 5), window("04", "08", 5), window("08", "12", 2)]);
        assert_eq!(found["windows"], windows);
        let part = "/api/v1/windows?configName=c&from=2026-12-01T12:00:05Z&to=2026-12-01T12:00:08Z";
        assert_eq!(server.get(part).ok()["windows"], json!([windows[1]]), "those it touches");
        let none = "/api/v1/windows?configName=c&from=2026-12-02T00:00:00Z";
        assert_eq!(server.get(none).ok()["windows"], json!([]));
        server.delete("/api/v1/slots/e-0").ok();
        assert_eq!(server.fill("c"), [4, 5, 2]);
        server.slot_config("c", 3, "PT4S");
        let lowered = server.get("/api/v1/windows?configName=c").ok();
        assert_eq!(
            (&lowered["windows"][1]["count"], &lowered["windows"][1]["max"]),
            (&json!(5), &json!(3))
        );
    }
}

#[test]
fn more_windows_than_an_answer_holds_are_listed_in_parts() {
    let server = Server::memory();
    server.slot_config("c", 1, "PT1S");
    let event = |number: usize| json!({ "eventId": format!("{number}"), "configName": "c", "requestedTime": NOON });
    for batch in 0..11 {
        let events: Vec<_> = (0..1_000).map(|number| event(batch * 1_000 + number)).collect();
        server.post("/api/v1/slots/batch", &json!({ "events": events })).ok();
    }
    let first = server.get("/api/v1/windows?configName=c").ok();
    assert_eq!(first["windows"].as_array().unwrap().len(), 10_000);
    let next = first["nextFrom"].as_str().unwrap();
    assert_eq!(first["windows"][9_999]["end"], next);
    let rest = server.get(&format!("/api/v1/windows?configName=c&from={next}")).ok();
    assert_eq!((rest["windows"].as_array().unwrap().len(), rest.get("nextFrom")), (1_000, None));
}

#[test]
fn a_recount_says_what_it_counted() {
    let server = Setup::sqlite().into_server();
    filled(&server);
    server.delete("/api/v1/slots/e-3").ok();
    let found = server.verified("c");
    assert_eq!(found, json!({ "configName": "c", "windows": 3, "slots": 11, "drifts": [] }));
    let nothing = json!({ "configName": "default", "windows": 0, "slots": 0, "drifts": [] });
    assert_eq!(server.get("/admin/slots/verify").ok(), nothing);
}

#[test]
fn a_bad_query_is_400_and_names_the_parameter() {
    let server = Server::memory();
    filled(&server);
    let cursor = list(&server, "&limit=5")["nextCursor"].as_str().unwrap().to_owned();
    for (query, name) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=-1", "limit"),
        ("limit=ten", "limit"),
        ("limit=", "limit"),
        ("cursor=", "cursor"),
        ("cursor=nonsense", "cursor"),
        ("cursor=!!", "cursor"),
        ("cursor=AAAAAAAAAAAA_w", "cursor"),
        ("cursor=AAAAAAAAAAAA", "cursor"),
        (&format!("cursor={cursor}="), "cursor"),
        ("from=yesterday", "from"),
        ("to=9999-12-31T00:00:00Z", "to"),
        ("from=2026-12-01T12:00:00+01:00", "from"),
        ("from=2026-12-02T00:00:00Z&to=2026-12-01T00:00:00Z", "to"),
        ("form=2026-12-01T12:00:00Z", "form"),
        ("limit=5&limit=6", "limit"),
    ] {
        server.get(&format!("{SLOTS}?{query}")).fault(400, name);
    }
    for (query, name) in
        [("from=x", "from"), ("to=x", "to"), ("limit=5", "limit"), ("config=c", "config")]
    {
        server.get(&format!("/api/v1/windows?{query}")).fault(400, name);
    }
    server.get("/admin/slots/verify?name=c").fault(400, "name");
    assert_eq!(list(&server, "&limit=1000")["slots"].as_array().unwrap().len(), 12);
}

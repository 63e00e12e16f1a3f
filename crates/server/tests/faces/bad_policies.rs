//! A bad policy is refused whole, with every fault and its place.

use serde_json::{Value, json};

use crate::support::{Call, FOREVER, Server};

fn limit_with(name: &str, value: Value) -> Value {
    let mut limit = json!({ "name": "x", "max": 5, "per": "60s" });
    limit[name] = value;
    json!({ "limits": [limit] })
}

#[test]
fn every_fault_is_listed_with_its_place() {
    let server = Server::memory();
    let bad = json!({
        "on_store_error": "shrug",
        "durability": 7,
        "routes": ["no-slash"],
        "colour": "red",
        "limits": [
            { "name": "a b", "max": -1, "per": "0s", "by": ["u", "u"], "bust": 3 },
            { "max": 1, "per": "day", "timezone": "Mars/Base" },
            { "name": "c", "max": 1, "per": "day", "algorithm": "sliding" },
            "not a limit",
        ],
    });
    let problem = server.put("/admin/policies/p", &bad).problem(400);
    let errors = problem["errors"].as_array().unwrap_or_else(|| panic!("{problem}"));
    let places: Vec<_> = errors.iter().map(|error| error["field"].as_str().unwrap()).collect();
    for place in [
        "on_store_error",
        "durability",
        "routes[0]",
        "colour",
        "limits[0].name",
        "limits[0].max",
        "limits[0].per",
        "limits[0].by[1]",
        "limits[0].bust",
        "limits[1].name",
        "limits[1].timezone",
        "limits[2].per",
        "limits[3]",
    ] {
        assert!(places.contains(&place), "{place} is not in {places:?}");
    }
    assert_eq!(problem["field"], places[0], "the first one is the problem's own field");
    for error in errors {
        assert!(error["detail"].as_str().is_some_and(|text| !text.is_empty()), "{error}");
        assert!(problem["detail"].as_str().unwrap().contains(error["field"].as_str().unwrap()));
    }
    server.get("/admin/policies/p").problem(404);
}

#[test]
fn each_bad_value_is_400_and_names_its_field() {
    let server = Server::memory();
    server.policy("p", &json!([{ "name": "all", "max": 9, "per": FOREVER }]));
    server.spend("p", &json!({}));
    for (name, values) in [
        (
            "per",
            vec![
                json!("0s"),
                json!("-5s"),
                json!("P1Y"),
                json!("P1M"),
                json!("fortnight"),
                json!(""),
                json!("60"),
                json!(60),
                json!("1ns"),
                json!("20000d"),
                json!("Day"),
            ],
        ),
        ("timezone", vec![json!("Mars/Base"), json!("UTC"), json!(1)]),
        ("algorithm", vec![json!("leaky"), json!(""), json!("Fixed"), json!(1)]),
        ("max", vec![json!(-1), json!(1.5), json!("5"), json!(null), json!(1_u64 << 53)]),
        (
            "name",
            vec![
                json!(""),
                json!("a b"),
                json!("é"),
                json!("a\"b"),
                json!("n".repeat(129)),
                json!(5),
            ],
        ),
        ("burst", vec![json!(3), json!(0)]),
        ("resolution", vec![json!("1s")]),
        ("private", vec![json!(true), json!("yes")]),
        ("shadow", vec![json!(1)]),
        ("by", vec![json!("user")]),
        ("max_by", vec![json!({}), json!("role"), json!({ "a": {}, "b": {} })]),
        ("ipv6_prefix", vec![json!(0), json!(129)]),
        ("color", vec![json!("red")]),
    ] {
        for value in values {
            let bad = limit_with(name, value);
            let problem = server.put("/admin/policies/p", &bad).problem(400);
            let place = format!("limits[0].{name}");
            let listed = problem["errors"].as_array().unwrap();
            assert!(listed.iter().any(|error| error["field"] == *place), "{bad}: {problem}");
        }
    }
    assert_eq!(server.get("/admin/policies/p").ok()["version"], 1);
    assert_eq!(server.used("p", &json!({})), [1], "counts are as they were");
}

#[test]
fn a_timezone_needs_to_exist_and_units_need_to_be_known() {
    let server = Server::memory();
    let mut bad = limit_with("timezone", json!("Europe/Atlantis"));
    bad["limits"][0]["per"] = "day".into();
    server.put("/admin/policies/p", &bad).fault(400, "limits[0].timezone");
    server.put("/admin/policies/p", &limit_with("per", json!("year"))).fault(400, "limits[0].per");
    for (schedule, place) in [
        (json!({ "spread": "lumpy" }), "schedule.spread"),
        (json!({ "horizon": "0s" }), "schedule.horizon"),
        (json!({ "calendar": { "timezone": "Mars/Base" } }), "schedule.calendar.timezone"),
        (json!({ "calendar": { "timezone": "Etc/Unknown" } }), "schedule.calendar.timezone"),
        (
            json!({ "calendar": { "open": { "someday": "09:00-17:00" } } }),
            "schedule.calendar.open.someday",
        ),
        (json!({ "calendar": { "open": { "mon": "17:00-09:00" } } }), "schedule.calendar.open.mon"),
        (json!({ "calendar": { "closed": ["2026-02-30"] } }), "schedule.calendar.closed[0]"),
        (json!({ "pace": 1 }), "schedule.pace"),
    ] {
        let mut bad = limit_with("max", json!(5));
        bad["schedule"] = schedule;
        server.put("/admin/policies/p", &bad).fault(400, place);
    }
}

#[test]
fn a_policy_needs_limits_with_names_of_their_own() {
    let server = Server::memory();
    let limit = json!({ "name": "x", "max": 1, "per": "1h" });
    for limits in [json!([]), json!({}), json!("x"), json!(null), json!(vec![limit.clone(); 17])] {
        let problem = server.put("/admin/policies/p", &json!({ "limits": limits })).problem(400);
        let field = problem["field"].as_str().unwrap();
        assert!(field.starts_with("limits"), "{problem}");
    }
    server.put("/admin/policies/p", &json!({})).fault(400, "limits");
    let twice = json!({ "limits": [limit, limit] });
    server.put("/admin/policies/p", &twice).fault(400, "limits[1].name");
}

#[test]
fn a_policy_name_is_plain() {
    let server = Server::memory();
    let good = limit_with("max", json!(5));
    let long = "n".repeat(129);
    for name in ["a%20b", "a%2Fb", "%C3%A9", "a%22b", "%00", &long] {
        server.put(&format!("/admin/policies/{name}"), &good).fault(400, "name");
    }
    for name in ["a", "A-1_b.c:d", &long[1..]] {
        assert_eq!(server.put(&format!("/admin/policies/{name}"), &good).status, 201, "{name}");
    }
}

#[test]
fn a_body_that_is_no_json_object_is_no_policy() {
    let server = Server::memory();
    for body in ["", "[]", "7", "\"text\"", "null", "{", "limits = []", "{\"limits\":[}"] {
        let reply = server.send(Call::new("PUT", "/admin/policies/p").bytes(body));
        reply.problem(400);
    }
    server.get("/admin/policies/p").problem(404);
}

//! The seed's own way to set a policy of one limit.

use serde_json::{Value, json};

use crate::support::{Server, members, micros};

const PATH: &str = "/admin/rate-limit/config";

fn config(max: u64, size: &str) -> Value {
    json!({ "configName": "payments", "maxPerWindow": max, "windowSize": size })
}

#[test]
fn a_config_is_201_with_exactly_the_seeds_members_also_when_unchanged() {
    let server = Server::memory();
    let made = server.post(PATH, &config(200, "PT4S"));
    assert_eq!(made.status, 201, "{made:?}");
    let first = made.json();
    assert_eq!(
        members(&first),
        ["configName", "effectiveFrom", "maxPerWindow", "version", "windowSize"]
    );
    assert_eq!(first["configName"], "payments");
    assert_eq!(first["maxPerWindow"], 200);
    assert_eq!(first["windowSize"], "PT4S");
    assert_eq!(first["version"], 1);
    micros(&first["effectiveFrom"]);
    let again = server.post(PATH, &config(200, "PT4S"));
    assert_eq!((again.status, again.json()), (201, first.clone()));
    assert_eq!(server.get("/admin/rate-limit/config?name=payments").ok(), first);
    let mut in_other_words = first;
    in_other_words["windowSize"] = json!("4s");
    let again = server.post(PATH, &config(200, "4s"));
    assert_eq!((again.status, again.json()), (201, in_other_words), "another way to write it");
    let changed = server.post(PATH, &config(80, "PT10S"));
    assert_eq!((changed.status, &changed.json()["version"]), (201, &json!(2)));
    assert_eq!(server.get("/admin/rate-limit/config?name=payments").ok(), changed.json());
    assert_eq!(server.spend("payments", &json!({}))["limits"][0]["max"], 80, "in force at once");
}

#[test]
fn the_default_config_needs_no_name_and_an_unknown_one_is_404() {
    let server = Server::memory();
    let default = server.get(PATH).ok();
    assert_eq!((&default["configName"], &default["version"]), (&json!("default"), &json!(1)));
    assert_eq!((&default["maxPerWindow"], &default["windowSize"]), (&json!(100), &json!("PT4S")));
    assert_eq!(server.get("/admin/rate-limit/config?name=default").ok(), default);
    server.get("/admin/rate-limit/config?name=unknown").problem(404);
    server.get("/admin/rate-limit/config?name=").problem(404);
    server.delete("/admin/policies/default");
    server.get(PATH).problem(404);
}

#[test]
fn a_config_keeps_everything_its_policy_says_but_the_limits() {
    let server = Server::memory();
    let schedule =
        json!({ "calendar": { "timezone": "America/New_York", "closed": ["2026-12-25"] } });
    let mut policy = json!({
        "limits": [{ "name": "mine", "max": 50, "per": "1m" }],
        "schedule": schedule,
        "durability": "sync",
        "on_store_error": "allow",
        "routes": ["/pay"],
    });
    server.put("/admin/policies/payments", &policy);
    assert_eq!(server.post(PATH, &config(60, "PT2M")).status, 201);
    let shown = server.get("/admin/policies/payments").ok();
    policy["limits"] = json!([{ "name": "mine", "max": 60, "per": "PT2M" }]);
    for (name, value) in policy.as_object().unwrap() {
        assert_eq!(shown[name], *value, "{name}");
    }
    assert_eq!(shown["version"], 2);
}

#[test]
fn a_policy_of_several_limits_becomes_one_of_one_limit() {
    let server = Server::memory();
    let limit = |name: &str| json!({ "name": name, "max": 50, "per": "1m", "by": ["user"] });
    let policy = json!({ "limits": [limit("a"), limit("b")], "durability": "sync" });
    server.put("/admin/policies/payments", &policy);
    assert_eq!(server.post(PATH, &config(60, "PT1M")).status, 201);
    let shown = server.get("/admin/policies/payments").ok();
    assert_eq!(shown["limits"], json!([{ "name": "window", "max": 60, "per": "PT1M" }]));
    assert_eq!(shown["durability"], "sync");
}

#[test]
fn configs_set_at_the_same_moment_all_become_versions_and_lose_nothing_else() {
    let server = Server::memory();
    let policy = json!({
        "limits": [{ "name": "window", "max": 1, "per": "PT4S" }], "durability": "sync",
    });
    server.put("/admin/policies/payments", &policy);
    std::thread::scope(|scope| {
        for max in 2..10 {
            let server = &server;
            scope.spawn(move || assert_eq!(server.post(PATH, &config(max, "PT4S")).status, 201));
        }
    });
    let versions = server.get("/admin/policies/payments/versions").ok();
    let versions = versions["versions"].as_array().unwrap();
    assert_eq!(versions.len(), 9);
    for version in versions {
        assert_eq!(version["policy"]["durability"], "sync", "{version}");
    }
}

#[test]
fn a_bad_config_is_400_and_names_the_seeds_field() {
    let server = Server::memory();
    server.post(PATH, &config(5, "PT4S"));
    for (name, value) in [
        ("windowSize", json!("0s")),
        ("windowSize", json!("PT0S")),
        ("windowSize", json!("-PT4S")),
        ("windowSize", json!("P1Y")),
        ("windowSize", json!("soon")),
        ("windowSize", json!("day")),
        ("windowSize", json!("")),
        ("windowSize", json!(4)),
        ("windowSize", json!("P1M")),
        ("windowSize", json!("20000d")),
        ("maxPerWindow", json!(0)),
        ("maxPerWindow", json!(4_000_001)),
        ("maxPerWindow", json!(-1)),
        ("maxPerWindow", json!("5")),
        ("maxPerWindow", json!(1.5)),
        ("maxPerWindow", json!(1_u64 << 53)),
        ("configName", json!("")),
        ("configName", json!("a b")),
        ("configName", json!(7)),
        ("max_per_window", json!(5)),
    ] {
        let mut bad = config(5, "PT4S");
        bad[name] = value;
        server.post(PATH, &bad).fault(400, name);
    }
    for missing in ["configName", "maxPerWindow", "windowSize"] {
        let mut bad = config(5, "PT4S");
        bad.as_object_mut().unwrap().remove(missing);
        server.post(PATH, &bad).fault(400, missing);
    }
    assert_eq!(server.get("/admin/rate-limit/config?name=payments").ok()["version"], 1);
}

#[test]
fn a_flush_says_so_and_changes_nothing() {
    let server = Server::memory();
    server.post(PATH, &config(5, "PT4S"));
    let reply = server.post("/admin/rate-limit/cache/flush", &json!({}));
    assert_eq!(reply.ok(), json!({ "status": "cache flushed" }));
    assert_eq!(server.get("/admin/rate-limit/config?name=payments").ok()["version"], 1);
}

#[test]
fn an_unknown_query_parameter_is_named() {
    let server = Server::memory();
    server.get("/admin/rate-limit/config?nam=default").fault(400, "nam");
}

#[test]
fn a_repeated_query_parameter_is_named() {
    let server = Server::memory();
    server.get("/admin/rate-limit/config?name=default&name=other").fault(400, "name");
}

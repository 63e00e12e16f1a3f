//! Policies and their versions over HTTP.

use serde_json::{Value, json};

use crate::support::{Call, FOREVER, Reply, Server, Setup, members, micros, used};

fn document(max: u64) -> Value {
    json!({ "limits": [{ "name": "all", "max": max, "per": FOREVER }] })
}

fn put(server: &Server, document: &Value) -> Reply {
    server.put("/admin/policies/p", document)
}

#[test]
fn a_policy_is_made_with_201_replaced_with_200_and_unchanged_without_a_version() {
    let server = Server::memory();
    let made = put(&server, &document(5));
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!((&made.json()["name"], &made.json()["version"]), (&json!("p"), &json!(1)));
    let again = put(&server, &document(5));
    assert_eq!((again.status, &again.json()["version"]), (200, &json!(1)));
    assert_eq!(again.json()["changed"], false);
    assert_eq!(again.json()["effective_from"], made.json()["effective_from"]);
    // The order of members says nothing.
    let text = format!(r#"{{"limits":[{{"per":"{FOREVER}","name":"all","max":5}}]}}"#);
    let reordered = server.send(Call::new("PUT", "/admin/policies/p").bytes(text));
    assert_eq!(reordered.json()["version"], 1);
    // Nor does how a duration is written, or a default.
    let respelled = json!({
        "limits": [{ "name": "all", "max": 5, "per": "PT87600H", "by": [], "algorithm": "fixed" }],
        "durability": "interval", "on_store_error": "refuse",
    });
    let again = put(&server, &respelled);
    assert_eq!((&again.json()["version"], &again.json()["changed"]), (&json!(1), &json!(false)));
    let changed = put(&server, &document(6));
    assert_eq!((changed.status, &changed.json()["version"]), (200, &json!(2)));
    let versions = server.get("/admin/policies/p/versions").ok();
    assert_eq!(versions["versions"].as_array().unwrap().len(), 2);
}

#[test]
fn what_get_answers_can_be_put_back_and_replaces_no_version_but_its_own() {
    let server = Server::memory();
    put(&server, &document(5));
    let read = server.get("/admin/policies/p").ok();
    let again = put(&server, &read);
    assert_eq!((again.status, &again.json()["changed"]), (200, &json!(false)), "as it was");
    let mut mine = read.clone();
    mine["limits"][0]["max"] = 6.into();
    assert_eq!(put(&server, &mine).json()["version"], 2);
    let mut late = read;
    late["limits"][0]["max"] = 7.into();
    put(&server, &late).fault(409, "version");
    let in_force = server.get("/admin/policies/p").ok();
    assert_eq!((&in_force["version"], &in_force["limits"][0]["max"]), (&json!(2), &json!(6)));
    server.delete("/admin/policies/p").ok();
    put(&server, &late).fault(409, "version");
    server.get("/admin/policies/p").problem(404);
    // Without a version it replaces whatever there is.
    late.as_object_mut().unwrap().remove("version");
    assert_eq!(put(&server, &late).status, 201);
    let versions = server.get("/admin/policies/p/versions").ok();
    let stored = members(&versions["versions"][0]["policy"]);
    assert!(!stored.contains(&"name") && !stored.contains(&"effective_from"), "{stored:?}");
    late["name"] = "q".into();
    put(&server, &late).fault(400, "name");
    late["name"] = "p".into();
    late["version"] = "2".into();
    put(&server, &late).fault(400, "version");
}

#[test]
fn a_change_is_in_force_at_once_and_says_which_counts_start_anew() {
    let server = Server::memory();
    put(&server, &document(5));
    for _ in 0..5 {
        server.spend("p", &json!({}));
    }
    let raised = put(&server, &document(6)).json();
    assert_eq!(raised["restarted"], json!([]), "another max keeps the counts");
    assert_eq!(used(&server.spend("p", &json!({}))), [6]);
    put(&server, &document(2));
    let over = server.peek("p", &json!({}));
    assert_eq!((used(&over), &over["limits"][0]["remaining"]), (vec![6], &json!(0)));
    server.check("p", &json!({})).problem(429);
    let mut sliding = document(6);
    sliding["limits"][0]["algorithm"] = "sliding".into();
    let restarted = put(&server, &sliding).json();
    assert_eq!(restarted["restarted"], json!(["all"]));
    assert!(restarted["detail"].as_str().unwrap().contains("all"), "{restarted}");
    assert_eq!(server.used("p", &json!({})), [0]);
}

#[test]
fn versions_carry_who_when_and_what_newest_first() {
    let admin = "an-admin-token";
    let server = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", admin).into_server();
    let send = |call: Call, token: &str| server.send(call.token(token));
    let make = Call::post("/admin/tokens", &json!({ "scope": "admin", "name": "grace" }));
    let grace = send(make, admin).json()["token"].as_str().unwrap().to_owned();
    let put = |max| Call::new("PUT", "/admin/policies/p").json(&document(max));
    send(put(1), admin);
    send(put(2), &grace);
    assert_eq!(send(Call::new("DELETE", "/admin/policies/p"), &grace).status, 200);
    let reply = send(Call::new("GET", "/admin/policies/p/versions"), admin).ok();
    assert_eq!(reply["name"], "p");
    let versions = reply["versions"].as_array().unwrap();
    let field = |name: &str| versions.iter().map(|v| v[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("version"), [3, 2, 1].map(Value::from));
    assert_eq!(field("created_by"), ["grace", "grace", "admin"].map(Value::from));
    assert_eq!(field("deleted"), [true, false, false].map(Value::from));
    assert_eq!(field("policy"), [Value::Null, document(2), document(1)]);
    let when: Vec<_> = field("created_at").iter().map(micros).collect();
    assert!(when[0] >= when[1] && when[1] >= when[2], "{reply}");
    // Made again, it goes on counting versions.
    let again = send(put(2), admin);
    assert_eq!((again.status, &again.json()["version"]), (201, &json!(4)));
}

#[test]
fn a_policy_is_listed_shown_deleted_and_then_gone() {
    let server = Server::memory();
    let document = json!({
        "limits": [{ "name": "all", "max": 5, "per": "1d" }],
        "routes": ["/a"], "on_store_error": "allow", "durability": "sync",
        "schedule": { "spread": "even", "horizon": "365d" },
    });
    let made = put(&server, &document).json();
    let shown = server.get("/admin/policies/p").ok();
    for (name, value) in document.as_object().unwrap() {
        assert_eq!(shown[name], *value);
    }
    assert_eq!((&shown["name"], &shown["version"]), (&json!("p"), &json!(1)));
    assert_eq!(shown["effective_from"], made["effective_from"]);
    micros(&shown["effective_from"]);
    let listed = server.get("/admin/policies").ok();
    let names: Vec<_> =
        listed["policies"].as_array().unwrap().iter().map(|policy| &policy["name"]).collect();
    assert_eq!(names, ["default", "p"]);
    server.spend("p", &json!({}));
    assert_eq!(server.delete("/admin/policies/p").status, 200);
    server.check("p", &json!({})).problem(404);
    server.get("/admin/policies/p").problem(404);
    server.delete("/admin/policies/p").problem(404);
    assert_eq!(server.get("/admin/policies").ok()["policies"].as_array().unwrap().len(), 1);
    server.get("/admin/policies/never-was/versions").problem(404);
}

#[test]
fn the_default_policy_is_100_per_4_seconds() {
    let server = Server::memory();
    let shown = server.get("/admin/policies/default").ok();
    assert_eq!(shown["limits"], json!([{ "name": "window", "max": 100, "per": "PT4S" }]));
    // What the seed asks for lies long past, and must be kept.
    let schedule = json!({ "spread": "even", "horizon": "365d" });
    assert_eq!(shown["schedule"], schedule);
    let mut names = members(&shown);
    names.retain(|name| !["name", "version", "effective_from"].contains(name));
    assert_eq!(names, ["limits", "schedule"]);
}

#[test]
fn policies_of_many_shapes_from_the_documents_are_accepted() {
    let server = Server::memory();
    for document in [
        json!({ "limits": [{ "name": "day", "max": 100, "per": "day", "timezone": "Europe/Rome", "by": ["api_key"] }] }),
        json!({ "limits": [{ "name": "window", "max": 50, "per": "1m" }], "schedule": { "calendar": {
            "timezone": "America/New_York", "open": { "mon-fri": "09:00-17:00" }, "closed": ["2026-12-25"] } } }),
        json!({ "limits": [{ "name": "b", "max": 10, "per": "PT4S", "algorithm": "bucket", "burst": 3 }] }),
        json!({ "limits": [{ "name": "m", "max": 0, "per": "month" }], "on_store_error": "local" }),
        json!({ "limits": [{ "name": "w", "max": 1, "per": "1w", "algorithm": "sliding", "resolution": "1h" }] }),
    ] {
        let reply = put(&server, &document);
        assert!([200, 201].contains(&reply.status), "{document}: {reply:?}");
    }
}

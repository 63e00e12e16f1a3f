//! Several limits at once: all of them are charged, or none.

use serde_json::{Value, json};

use crate::support::{Call, Server, Setup, limit, used};

const CLEANUP: &str = r#"
[policy.cleanup]
on_store_error = "refuse"
durability = "interval"
limits = [
  { name = "global", max = 1000, per = "60s", algorithm = "sliding" },
  { name = "ip",     max = 5,    per = "60s", algorithm = "sliding", by = ["ip"],    private = true },
  { name = "email",  max = 3,    per = "1h",  algorithm = "sliding", by = ["email"], private = true },
]

[policy.tag-categorize]
routes = ["/tag-categorize", "/tag-categorize-dryrun"]
limits = [{ name = "minute", max = 2, per = "3650d", by = ["user", "route"], max_by = { role = { free = 1, pro = 3, banned = 0 } } }]
"#;

fn subject(ip: &str, email: &str) -> Value {
    json!({ "ip": ip, "email": email })
}

#[test]
fn a_refusal_of_the_third_tier_spends_nothing_in_the_first_two() {
    let server = Setup::memory().config(CLEANUP).into_server();
    let ada = subject("203.0.113.7", "ada@example.com");
    for spent in 1..=3 {
        assert_eq!(used(&server.spend("cleanup", &ada)), [spent; 3]);
    }
    for _ in 0..10 {
        let problem = server.check("cleanup", &ada).problem(429);
        assert_eq!(problem["violated-policies"], json!(["email"]));
        assert_eq!(used(&problem), [3, 3, 3]);
    }
    // The other tiers still have their room: two more of the address, under another e-mail.
    let bob = subject("203.0.113.7", "bob@example.com");
    server.spend("cleanup", &bob);
    assert_eq!(used(&server.spend("cleanup", &bob)), [5, 5, 2]);
    let problem = server.check("cleanup", &bob).problem(429);
    assert_eq!(problem["violated-policies"], json!(["ip"]));
    assert_eq!(used(&problem), [5, 5, 2]);
    let both = server.check("cleanup", &ada).problem(429);
    assert_eq!(both["violated-policies"], json!(["ip", "email"]));
    assert_eq!(both["retry_after"], limit(&both, "email")["retry_after"], "the longest wait");
}

#[test]
fn private_values_count_normalised_and_are_shown_nowhere() {
    let server = Setup::memory().config(CLEANUP).arg("--log").arg("trace").into_server();
    server.spend("cleanup", &subject("2001:db8:1:2::1", "Ada@Example.COM"));
    let second = subject("2001:db8:1:2:ffff::9", " ada@example.com ");
    assert_eq!(used(&server.spend("cleanup", &second)), [2, 2, 2]);
    let shown = [
        server.get("/metrics").body,
        server.get("/admin/policies").body,
        server.peek("cleanup", &second).to_string(),
        server.said(),
    ];
    for text in shown {
        for secret in ["2001:db8", "ada@", "Ada@", "xample.com"] {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
    }
}

#[test]
fn a_role_has_its_own_max_and_a_subject_without_one_the_default() {
    let server = Setup::memory().config(CLEANUP).into_server();
    for (user, role, max) in [
        ("a", Some("free"), 1),
        ("b", Some("pro"), 3),
        ("c", Some("unheard-of"), 2),
        ("d", None, 2),
        ("e", Some("banned"), 0),
    ] {
        let mut subject = json!({ "user": user, "route": "/tag-categorize" });
        if let Some(role) = role {
            subject["role"] = role.into();
        }
        for _ in 0..max {
            assert_eq!(server.spend("tag-categorize", &subject)["limits"][0]["max"], max);
        }
        let status = server.check("tag-categorize", &subject).status;
        assert_eq!(status, if max == 0 { 422 } else { 429 }, "{user}");
        subject["route"] = "/tag-categorize-dryrun".into();
        assert_eq!(server.used("tag-categorize", &subject), [0], "a route of its own");
    }
}

#[test]
fn an_override_is_in_force_at_once_and_gone_at_once() {
    let server = Setup::memory().config(CLEANUP).into_server();
    let ada = subject("203.0.113.7", "ada@example.com");
    for _ in 0..3 {
        server.spend("cleanup", &ada);
    }
    server.check("cleanup", &ada).problem(429);
    let name = json!({
        "policy": "cleanup", "limit": "email", "subject": { "email": "ADA@example.com" }
    });
    let mut change = name.clone();
    change["max"] = 4.into();
    let put = server.put("/admin/overrides", &change).ok();
    assert_eq!((&put["policy"], &put["limit"]), (&json!("cleanup"), &json!("email")));
    assert_eq!(put["max"], 4);
    let listed = server.get("/admin/overrides");
    assert_eq!(listed.json()["overrides"].as_array().unwrap().len(), 1);
    for text in [&put.to_string(), &listed.body] {
        assert!(!text.to_lowercase().contains("ada@"), "private values are not shown: {text}");
    }
    let decision = server.spend("cleanup", &ada);
    assert_eq!(limit(&decision, "email")["max"], 4);
    assert_eq!(used(&decision), [4; 3], "counts are kept");
    let bob = server.peek("cleanup", &subject("203.0.113.8", "bob@example.com"));
    assert_eq!(limit(&bob, "email")["max"], 3, "one subject's only");
    let deleted = server.send(Call::new("DELETE", "/admin/overrides").json(&name));
    assert_eq!(deleted.status, 200, "{deleted:?}");
    let problem = server.check("cleanup", &ada).problem(429);
    assert_eq!((&limit(&problem, "email")["max"], used(&problem)), (&json!(3), vec![4; 3]));
    server.send(Call::new("DELETE", "/admin/overrides").json(&name)).problem(404);
}

#[test]
fn an_override_of_zero_shuts_one_subject_out() {
    let server = Server::memory();
    server.policy("p", &json!([{ "name": "u", "max": 5, "per": "1h", "by": ["user"] }]));
    let change = json!({ "policy": "p", "limit": "u", "subject": { "user": "eve" }, "max": 0 });
    server.put("/admin/overrides", &change).ok();
    let reply = server.check("p", &json!({ "user": "eve" }));
    reply.problem(422);
    assert_eq!(reply.header("retry-after"), None);
    server.spend("p", &json!({ "user": "ada" }));
}

#[test]
fn a_bad_override_is_refused_with_its_field() {
    let server = Setup::memory().config(CLEANUP).into_server();
    let good = json!({
        "policy": "cleanup", "limit": "email", "subject": { "email": "a@b.c" }, "max": 9
    });
    for (name, value, status, field) in [
        ("policy", json!("nope"), 404, None),
        ("limit", json!("nope"), 404, None),
        ("limit", json!("global"), 400, Some("limit")),
        ("subject", json!({}), 400, Some("subject.email")),
        ("subject", json!({ "email": "" }), 400, Some("subject.email")),
        ("subject", json!({ "email": "a@b.c", "ip": "::1" }), 400, Some("subject.ip")),
        ("subject", json!({ "email": 7 }), 400, Some("subject.email")),
        ("max", json!(-1), 400, Some("max")),
        ("max", json!(1_u64 << 53), 400, Some("max")),
        ("max", json!("9"), 400, Some("max")),
        ("extra", json!(1), 400, Some("extra")),
    ] {
        let mut change = good.clone();
        change[name] = value;
        let problem = server.put("/admin/overrides", &change).problem(status);
        assert_eq!(problem["field"].as_str(), field, "{change}: {problem}");
    }
    assert_eq!(server.get("/admin/overrides").ok()["overrides"], json!([]));
}

#[test]
fn an_override_is_deleted_by_the_body_that_made_it() {
    let server = Server::memory();
    server.policy("p", &json!([{ "name": "u", "max": 5, "per": "1h", "by": ["user"] }]));
    let change = json!({ "policy": "p", "limit": "u", "subject": { "user": "ada" }, "max": 9 });
    server.put("/admin/overrides", &change).ok();
    let deleted = server.send(Call::new("DELETE", "/admin/overrides").json(&change));
    assert_eq!(deleted.status, 200, "{deleted:?}");
}

//! `/gate`: what a proxy asks, asked directly.

use serde_json::json;

use crate::support::{Call, Reply, Server, Setup, used};

const ADMIN: &str = "admin-from-the-environment";

/// The tests are the proxy: they come from the loopback.
const TRUSTING: &str = r#"
[gate]
trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
identity = { "X-User-ID" = "user", "X-User-Role" = "role" }
"#;

const POLICIES: &str = r#"
[policy.users]
routes = ["/api/users/{id}", "GET /api/users"]
limits = [{ name = "user", max = 2, per = "3650d", by = ["user", "route"], max_by = { role = { pro = 4, shut = 0 } } }]

[policy.api]
routes = ["/api/*"]
limits = [{ name = "ip", max = 3, per = "3650d", by = ["ip"] }]

[policy.one]
routes = ["POST /one/{id}"]
limits = [{ name = "id", max = 1, per = "3650d", by = ["param.id"] }]

[policy.closed]
routes = ["/closed"]
limits = [{ name = "none", max = 0, per = "1h" }]

[policy.odd]
routes = ["/odd"]
limits = [{ name = "odd", max = 1, per = "3650d", by = ["shoe_size"] }]
"#;

fn server(gate: &str) -> Server {
    Setup::memory().config(&format!("{gate}{POLICIES}")).into_server()
}

fn ask(uri: &str) -> Call {
    Call::new("GET", "/gate").header("X-Original-URI", uri)
}

fn statuses(server: &Server, call: &Call, count: usize) -> Vec<u16> {
    (0..count).map(|_| server.send(call.clone()).status).collect()
}

/// Allowed answers have headers and no body.
fn passes(reply: &Reply) {
    assert_eq!((reply.status, reply.body.as_str()), (200, ""), "{reply:?}");
}

#[test]
fn a_route_passes_until_its_limit_and_says_so_in_headers() {
    let server = server(TRUSTING);
    let call = ask("/api/things?page=1");
    for remaining in [2, 1, 0] {
        let reply = server.send(call.clone());
        passes(&reply);
        assert_eq!(reply.number("x-ratelimit-remaining"), Some(remaining));
        assert_eq!(reply.number("x-ratelimit-limit"), Some(3));
        assert!(reply.header("ratelimit").unwrap().starts_with("\"ip\";r="), "{reply:?}");
        assert_eq!(reply.header("ratelimit-policy"), Some("\"ip\";q=3;w=315360000"));
        assert_eq!(reply.header("retry-after"), None);
    }
    let reply = server.send(call);
    let problem = reply.problem(429);
    assert_eq!(problem["policy"], "api");
    assert_eq!(problem["violated-policies"], json!(["ip"]));
    for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-reset"] {
        assert!(reply.header(name).is_some(), "{name}: {reply:?}");
    }
    assert!(reply.number("retry-after").unwrap() >= 1);
    assert!(
        server
            .get("/metrics")
            .body
            .contains(r#"decisions_total{policy="api",outcome="refused"} 1"#)
    );
}

#[test]
fn a_refusal_can_be_a_403_with_the_same_headers() {
    let server = server(TRUSTING);
    statuses(&server, &ask("/api/x"), 3);
    let refused =
        |path: &str| server.send(Call::new("GET", path).header("X-Original-URI", "/api/x"));
    let (plain, nginx) = (refused("/gate"), refused("/gate?refuse=403"));
    assert_eq!(refused("/gate?refuse=429").status, 429);
    assert_eq!(nginx.problem(403)["violated-policies"], json!(["ip"]));
    for name in
        ["ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]
    {
        assert_eq!(plain.header(name), nginx.header(name), "{name}");
    }
    assert!(nginx.number("retry-after").unwrap() >= 1);
    // Caddy hands on the query of the end user.
    for query in ["refuse=200", "refuse=", "x=1", "&&=", "%"] {
        assert_eq!(refused(&format!("/gate?{query}")).status, 429, "{query}");
    }
    assert_eq!(refused("/gate?x=1&refuse=403").status, 403);
}

#[test]
fn a_route_that_is_closed_is_refused_as_any_other() {
    let server = server(TRUSTING);
    let reply = server.send(ask("/closed"));
    let problem = reply.json();
    assert_eq!(reply.status, 429, "{problem}");
    assert!(problem["type"].as_str().unwrap().ends_with("#quota-exceeded"), "{problem}");
    assert_eq!(problem["violated-policies"], json!(["none"]), "{problem}");
    assert!(problem["field"].is_null(), "nobody chose a cost: {problem}");
}

#[test]
fn a_route_without_a_policy_passes_without_headers() {
    let server = server(TRUSTING);
    for _ in 0..5 {
        let reply = server.send(ask("/elsewhere"));
        passes(&reply);
        assert_eq!(reply.header("ratelimit"), None);
    }
}

#[test]
fn the_most_specific_route_decides_and_is_what_is_counted() {
    let server = server(TRUSTING);
    let user = |uri: &str| ask(uri).header("X-User-ID", "ada");
    assert_eq!(statuses(&server, &user("/api/users/1"), 1), [200]);
    assert_eq!(statuses(&server, &user("/api/users/2"), 2), [200, 429], "one pattern, one count");
    assert_eq!(statuses(&server, &user("/api/users"), 3), [200, 200, 429], "another pattern");
    let post = user("/api/users").header("X-Original-Method", "POST");
    let reply = server.send(post);
    assert!(reply.header("ratelimit").unwrap().contains("\"ip\""), "the prefix has the rest");
    let subject = json!({ "user": "ada", "route": "/api/users/{id}" });
    assert_eq!(server.used("users", &subject), [2], "checks count with the gate");
}

#[test]
fn caddy_and_traefik_say_the_same_in_other_headers() {
    let server = server(TRUSTING);
    let call = |method: &str, id: &str| {
        Call::new("GET", "/gate")
            .header("X-Forwarded-Uri", &format!("/one/{id}?x"))
            .header("X-Forwarded-Method", method)
    };
    assert_eq!(statuses(&server, &call("POST", "a"), 2), [200, 429]);
    assert_eq!(statuses(&server, &call("POST", "b"), 1), [200], "another parameter");
    assert_eq!(statuses(&server, &call("GET", "a"), 2), [200, 200], "another method");
}

#[test]
fn a_header_that_the_client_added_cannot_name_another_route() {
    let server = server(TRUSTING);
    let both = ask("/elsewhere").header("X-Forwarded-Uri", "/api/x");
    server.send(both).fault(400, "x-forwarded-uri");
    let twice = ask("/elsewhere").header("X-Original-URI", "/api/x");
    server.send(twice).fault(400, "x-original-uri");
    let methods =
        ask("/one/a").header("X-Original-Method", "POST").header("X-Forwarded-Method", "GET");
    server.send(methods).fault(400, "x-forwarded-method");
    passes(&server.send(ask("/api/x").header("X-Forwarded-Uri", "/api/x")));
    server.send(Call::new("GET", "/gate")).fault(400, "x-original-uri");
    let named = format!("{TRUSTING}uri_headers = [\"X-Forwarded-Uri\"]\n");
    let server = self::server(&named);
    let call = ask("/elsewhere").header("X-Forwarded-Uri", "/api/x");
    assert_eq!(statuses(&server, &call, 4), [200, 200, 200, 429], "only the named one counts");
}

#[test]
fn no_way_of_writing_a_path_gets_past_its_limit() {
    let server = server(TRUSTING);
    statuses(&server, &ask("/api/x"), 3);
    for uri in [
        "/api/x/",
        "//api//x",
        "/./api/x",
        "/elsewhere/../api/x",
        "/elsewhere/%2e%2e/api/x",
        "/%61pi/x",
        "/api%2Fx",
        "/api%2fx",
        "/elsewhere/..%2fapi/x",
        "/api\\x",
        "/api%5Cx",
        "/api;a=b/x",
        "/api/x?/../elsewhere",
        "http://host/api/x",
        "/api",
        "/api/%00",
        "/api/%ff",
        "/api/%",
        "/api/%zz",
        "/api/../api/x",
        "/../api/x",
    ] {
        assert_eq!(server.send(ask(uri)).status, 429, "{uri}");
    }
    server.send(ask("/odd/../api/..%2fodd")).problem(400);
    let huge = format!("/api/{}", "x/".repeat(20_000));
    assert_eq!(server.send(ask(&huge)).status, 429);
}

#[test]
fn the_client_address_is_walked_to_through_trusted_proxies() {
    let server = server(TRUSTING);
    let from = |forwarded: &str| ask("/api/x").header("X-Forwarded-For", forwarded);
    assert_eq!(statuses(&server, &from("203.0.113.7"), 3), [200; 3]);
    for forwarded in ["203.0.113.7", "1.1.1.1, 203.0.113.7", "9.9.9.9,203.0.113.7, 10.1.2.3"] {
        assert_eq!(server.send(from(forwarded)).status, 429, "{forwarded}");
    }
    assert_eq!(server.send(from("203.0.113.8")).status, 200, "somebody else");
    assert_eq!(server.used("api", &json!({ "ip": "203.0.113.7" })), [3]);
    assert_eq!(server.used("api", &json!({ "ip": "1.1.1.1" })), [0]);
}

#[test]
fn an_untrusted_peer_is_who_it_is_whatever_it_says() {
    let server = server("[gate]\nidentity = { \"X-User-ID\" = \"user\" }\n");
    for (count, forwarded) in ["203.0.113.7", "203.0.113.8", "127.0.0.1"].iter().enumerate() {
        let reply = server.send(ask("/api/x").header("X-Forwarded-For", forwarded));
        assert_eq!(reply.number("x-ratelimit-remaining"), Some(2 - count as i64), "{reply:?}");
    }
    let call = ask("/api/x").header("X-Forwarded-For", "198.51.100.1");
    assert_eq!(server.send(call).status, 429);
    assert_eq!(server.used("api", &json!({ "ip": "127.0.0.1" })), [3]);
    // An identity that no trusted proxy vouches for is none.
    let reply = server.send(ask("/api/users/1").header("X-User-ID", "ada"));
    reply.fault(401, "subject.user");
    let subject = json!({ "user": "ada", "route": "/api/users/{id}" });
    assert_eq!(server.used("users", &subject), [0]);
}

#[test]
fn a_role_has_its_own_max_and_no_identity_is_401() {
    let server = server(TRUSTING);
    let user = |name: &str| ask("/api/users/1").header("X-User-ID", name);
    let pro = user("ada").header("X-User-Role", "pro");
    assert_eq!(statuses(&server, &pro, 5), [200, 200, 200, 200, 429]);
    assert_eq!(statuses(&server, &user("bob"), 3), [200, 200, 429]);
    let shut = server.send(user("eve").header("X-User-Role", "shut"));
    shut.problem(429);
    assert_eq!(shut.header("retry-after"), None, "no wait helps");
    for call in [ask("/api/users/1"), user(""), user(" ")] {
        let reply = server.send(call);
        let problem = reply.fault(401, "subject.user");
        assert!(problem["detail"].as_str().unwrap().contains("users"), "{problem}");
        assert!(reply.header("www-authenticate").is_some());
    }
    server.send(user("ada").header("X-User-ID", "bob")).fault(400, "x-user-id");
    server.send(ask("/odd")).fault(400, "subject.shoe_size");
}

#[test]
fn only_the_api_token_lets_a_proxy_in() {
    let setup = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", ADMIN);
    let server = setup.config(&format!("{TRUSTING}{POLICIES}")).into_server();
    server.send(ask("/api/x")).problem(401);
    server.send(ask("/api/x").token("wrong")).problem(401);
    let bearer = format!("Bearer {ADMIN}");
    server.send(ask("/api/x").header("Authorization", &bearer)).problem(401);
    let end_user = ask("/api/x").header("Authorization", "Bearer of-the-end-user");
    passes(&server.send(end_user.token(ADMIN)));
}

#[test]
fn a_page_of_another_site_passes_through_a_proxy() {
    let server = server(TRUSTING);
    passes(&server.send(ask("/api/x").header("Origin", "https://app.example.com")));
}

#[test]
fn every_method_and_a_body_are_answered_alike() {
    let server = server(TRUSTING);
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let call = Call::new(method, "/gate").header("X-Original-URI", "/elsewhere");
        passes(&server.send(call));
    }
    let call = Call::new("POST", "/gate").header("X-Original-URI", "/elsewhere");
    passes(&server.send(call.bytes(vec![b'x'; 1_000_000])));
}

#[test]
fn api_keys_are_known_by_their_hashes() {
    let setup = Setup::memory();
    // The SHA-256 of "secret-of-ada".
    let hash = "4591655316303bc45834b338c1baa371b7b61ba9dbeba8a6639c95dd4dc0a3f9";
    let file = setup.write("keys.txt", &format!("# customers\nada {hash}\n"));
    let policy = r#"
[policy.keyed]
routes = ["/keyed"]
limits = [{ name = "key", max = 1, per = "3650d", by = ["customer"] }]
"#;
    let known = format!(
        "[gate.api_key]\nattribute = \"customer\"\nfile = {:?}\n{policy}",
        file.display().to_string()
    );
    let server = setup.config(&known).into_server();
    let invented = server.send(ask("/keyed").header("X-API-Key", "invented")).problem(401);
    assert!(invented["detail"].as_str().unwrap().contains("is not known"), "{invented}");
    server.send(ask("/keyed")).fault(401, "subject.customer");
    let ada = ask("/keyed").header("X-API-Key", "secret-of-ada");
    assert_eq!(statuses(&server, &ada, 2), [200, 429]);
    assert_eq!(server.used("keyed", &json!({ "customer": "ada" })), [1]);
    let any = format!("[gate.api_key]\nattribute = \"customer\"\n{policy}");
    let server = Setup::memory().config(&any).arg("--log").arg("trace").into_server();
    let key = ask("/keyed").header("X-API-Key", "any-secret-at-all");
    assert_eq!(statuses(&server, &key, 2), [200, 429]);
    assert_eq!(server.send(ask("/keyed").header("X-API-Key", "another")).status, 200);
    assert!(!server.said().contains("any-secret-at-all"));
}

#[test]
fn a_bad_section_is_refused_at_the_start_and_says_what_is_wrong() {
    for (text, why) in [
        ("trusted = []", "trusted"),
        ("trusted_proxies = [\"10.0.0.1/8\"]", "10.0.0.0/8"),
        ("trusted_proxies = [\"nginx\"]", "nginx"),
        ("uri_headers = []", "uri_headers"),
        ("address_header = \"a b\"", "a b"),
        ("identity = { \"X-User\" = \"ip\" }", "the request's own"),
        ("identity = { \"X-A\" = \"user\", \"X-B\" = \"user\" }", "two sources"),
        ("identity = { \"X-A\" = \"\" }", "not a name"),
        ("api_key = { file = \"nowhere.txt\" }", "nowhere.txt"),
        ("api_key = { key = \"x\" }", "key"),
    ] {
        let ended = Setup::memory().config(&format!("[gate]\n{text}\n")).start_in_vain();
        let ended = ended.expect(2);
        assert!(ended.err.contains(why), "{text}: {ended:?}");
    }
}

#[test]
fn three_tiers_refuse_together_and_spend_nothing() {
    let config = r#"
[gate]
trusted_proxies = ["127.0.0.1"]
identity = { "X-Email" = "email" }

[policy.cleanup]
routes = ["POST /cleanup"]
limits = [
  { name = "global", max = 1000, per = "60s", algorithm = "sliding" },
  { name = "ip",     max = 5,    per = "60s", algorithm = "sliding", by = ["ip"],    private = true },
  { name = "email",  max = 3,    per = "1h",  algorithm = "sliding", by = ["email"], private = true },
]
"#;
    let server = Setup::memory().config(config).into_server();
    let call = ask("/cleanup")
        .header("X-Original-Method", "POST")
        .header("X-Forwarded-For", "203.0.113.7")
        .header("X-Email", "ada@example.com");
    assert_eq!(statuses(&server, &call, 3), [200; 3]);
    for _ in 0..5 {
        let problem = server.send(call.clone()).problem(429);
        assert_eq!(problem["violated-policies"], json!(["email"]));
        assert_eq!(used(&problem), [3, 3, 3]);
    }
}

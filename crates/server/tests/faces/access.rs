//! Who may do what: every route against every kind of token.

use serde_json::{Value, json};

use crate::support::mail::{CLOSED_PORT, account_body};
use crate::support::slots::NOON;
use crate::support::{Call, Server, Setup, tollgate};

const ADMIN: &str = "admin-from-the-environment";

#[derive(Clone, Copy, PartialEq, Debug)]
enum Needs {
    Nothing,
    Check,
    Admin,
}

/// A call of a route that succeeds for whoever may make it.
fn sample(method: &str, path: &str, receipt: &Value) -> (Needs, Call) {
    let limits = json!([{ "name": "u", "max": 9, "per": "1h", "by": ["user"] }]);
    let ask = json!({ "policy": "default" });
    let name = json!({ "policy": "p", "limit": "u", "subject": { "user": "ada" } });
    let mut own = name.clone();
    own["max"] = 3.into();
    let config = json!({ "configName": "c", "maxPerWindow": 5, "windowSize": "PT4S" });
    let event = json!({ "eventId": "e", "requestedTime": NOON });
    let (needs, body) = match (method, path) {
        ("get", "/healthz" | "/readyz" | "/metrics" | "/openapi.json") => (Needs::Nothing, None),
        (_, "/gate") => (Needs::Check, None),
        ("post", "/api/v1/check" | "/api/v1/peek") => (Needs::Check, Some(ask)),
        ("post", "/api/v1/refund") => (Needs::Check, Some(json!({ "receipt": receipt }))),
        ("post", "/api/v1/slots") => (Needs::Check, Some(event)),
        ("post", "/api/v1/slots/batch") => (Needs::Check, Some(json!({ "events": [event] }))),
        ("get" | "delete", "/api/v1/slots" | "/api/v1/slots/{eventId}" | "/api/v1/windows") => {
            (Needs::Check, None)
        }
        ("put", "/admin/policies/{name}") => (Needs::Admin, Some(json!({ "limits": limits }))),
        ("put", "/admin/overrides") => (Needs::Admin, Some(own)),
        ("delete", "/admin/overrides") => (Needs::Admin, Some(name)),
        ("post", "/admin/rate-limit/config") => (Needs::Admin, Some(config)),
        ("post", "/admin/tokens") => (Needs::Admin, Some(json!({ "scope": "check" }))),
        ("get" | "delete" | "post", path) if path.starts_with("/admin/") => (Needs::Admin, None),
        other => panic!("{other:?} is a new route: say here who may call it"),
    };
    // The event was made by the routes before.
    let path = path.replace("{name}", "p").replace("{eventId}", "e").replace("{id}", "none");
    let call = Call::new(&method.to_uppercase(), &path);
    let call = if path == "/gate" { call.header("X-Original-URI", "/") } else { call };
    (needs, body.into_iter().fold(call, |call, body| call.json(&body)))
}

/// Every route the server says it has.
fn routes(server: &Server) -> Vec<(String, String)> {
    let api = server.get("/openapi.json").json();
    let mut routes = vec![("get".to_owned(), "/openapi.json".to_owned())];
    for (path, methods) in api["paths"].as_object().unwrap() {
        let methods = methods.as_object().unwrap().iter();
        // Mail knows tenants besides: see `mail_access`.
        let methods = methods.filter(|(_, operation)| !is_mail(operation));
        routes.extend(methods.map(|(method, _)| (method.clone(), path.clone())));
    }
    routes
}

pub(crate) fn is_mail(operation: &Value) -> bool {
    operation["tags"][0].as_str().is_some_and(|tag| tag.starts_with("mail"))
}

fn make_token(server: &Server, scope: &str) -> String {
    let call = Call::post("/admin/tokens", &json!({ "scope": scope })).token(ADMIN);
    let reply = server.send(call);
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.json()["token"].as_str().unwrap().to_owned()
}

/// Tokens of mail: a tenant's that was replaced, the one that replaced it, and an API key.
pub(crate) fn strangers(server: &Server) -> Vec<(&'static str, String)> {
    let send = |call: Call| server.send(call.token(ADMIN)).json();
    send(Call::post("/tenant", &json!({ "id": "stranger" })));
    send(Call::post("/account", &account_body("stranger", "main", CLOSED_PORT)));
    let token = || {
        let made = send(Call::new("POST", "/tenant/stranger/token"));
        made["token"].as_str().unwrap().to_owned()
    };
    let body = json!({ "tenant_id": "stranger", "account_id": "main" });
    let key = send(Call::post("/keys", &body));
    let key = key["api_key"].as_str().unwrap().to_owned();
    vec![("wrong", token()), ("tenant", token()), ("wrong", key)]
}

#[test]
fn every_route_is_in_one_of_the_tables() {
    let server = Server::memory();
    let api = server.get("/openapi.json").json();
    let all: usize = api["paths"]
        .as_object()
        .unwrap()
        .values()
        .map(|item| item.as_object().unwrap().len())
        .sum();
    // Besides what the document says: the document.
    let known = routes(&server).len() - 1;
    let mail = crate::mail_access::mail_routes(&server).len();
    assert_eq!(known + mail + crate::mail_access::KEY_ROUTES.len(), all);
}

#[test]
fn every_route_lets_in_exactly_whom_it_should() {
    let server = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", ADMIN).into_server();
    let check = make_token(&server, "check");
    let admin = make_token(&server, "admin");
    let strangers = strangers(&server);
    let routes = routes(&server);
    assert!(routes.len() >= 17, "{routes:?}");
    let limits = json!({ "limits": [{ "name": "u", "max": 9, "per": "1h", "by": ["user"] }] });
    let decision = || {
        let call = Call::post("/api/v1/check", &json!({ "policy": "default" }));
        server.send(call.token(ADMIN)).ok()
    };
    for (method, path) in &routes {
        // The policy is there whatever the route before did to it.
        server.send(Call::new("PUT", "/admin/policies/p").json(&limits).token(ADMIN));
        let (needs, call) = sample(method, path, &decision()["receipt"]);
        let wrong = format!("{admin}x");
        let known = [
            ("none", None),
            ("wrong", Some(&wrong)),
            ("check", Some(&check)),
            ("admin", Some(&admin)),
        ];
        let strangers = strangers.iter().map(|(given, token)| (*given, Some(token)));
        for (given, token) in known.into_iter().chain(strangers) {
            let call = token.into_iter().fold(call.clone(), |call, token| call.token(token));
            let reply = server.send(call);
            let expected = match (needs, given) {
                (Needs::Nothing, _) | (_, "admin") => None,
                (_, "none" | "wrong") => Some(401),
                (_, "tenant") | (Needs::Admin, _) => Some(403),
                (Needs::Check, _) => None,
            };
            match expected {
                Some(status) => {
                    assert_eq!(reply.status, status, "{method} {path} with {given}");
                    // An answer to HEAD has no body.
                    if method != "head" {
                        reply.problem(status);
                    }
                    let challenge = reply.header("www-authenticate");
                    assert_eq!(challenge.is_some(), status == 401, "{method} {path} with {given}");
                }
                // The override and the token to delete are not there; all else succeeds.
                None if matches!(
                    (&**method, &**path),
                    ("delete", "/admin/overrides" | "/admin/tokens/{id}")
                ) =>
                {
                    reply.problem(404);
                }
                None => assert!((200..300).contains(&reply.status), "{given} {path} {reply:?}"),
            }
        }
    }
}

#[test]
fn without_any_token_on_loopback_everything_is_open() {
    let server = Server::memory();
    for (method, path) in routes(&server) {
        // A token would end it.
        if path == "/admin/tokens" {
            continue;
        }
        let (_, call) = sample(&method, &path, &json!("none"));
        let status = server.send(call).status;
        assert!(![401, 403].contains(&status), "{method} {path}: {status}");
    }
}

#[test]
fn the_first_token_closes_what_was_open() {
    let server = Server::memory();
    server.spend("default", &json!({}));
    let made = tollgate(&server, &["token", "create", "--scope", "admin"]).expect(0);
    let token = made.out.trim();
    assert!(!token.is_empty() && !token.contains(char::is_whitespace), "{made:?}");
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    server.check("default", &json!({})).problem(401);
    server.get("/admin/policies").problem(401);
    let call = || Call::post("/api/v1/check", &json!({ "policy": "default" }));
    server.send(call().token(token)).ok();
    server.send(call().token("wrong")).problem(401);
}

#[test]
fn both_ways_to_send_a_token_work_and_nothing_else_does() {
    let server = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", ADMIN).into_server();
    let status = |name: &str, value: &str| {
        server.send(Call::new("GET", "/admin/policies").header(name, value)).status
    };
    for (name, value) in [
        ("X-API-Token", ADMIN.to_owned()),
        ("x-api-token", ADMIN.to_owned()),
        ("Authorization", format!("Bearer {ADMIN}")),
        ("authorization", format!("bearer {ADMIN}")),
    ] {
        assert_eq!(status(name, &value), 200, "{name}: {value}");
    }
    for (name, value) in [
        ("X-API-Token", String::new()),
        ("X-API-Token", format!("Bearer {ADMIN}")),
        ("X-API-Token", ADMIN[1..].to_owned()),
        ("X-API-Token", format!("{ADMIN}{ADMIN}")),
        ("X-API-Key", ADMIN.to_owned()),
        ("Authorization", ADMIN.to_owned()),
        ("Authorization", format!("Basic {ADMIN}")),
        ("Authorization", "Bearer ".to_owned()),
        ("Cookie", format!("token={ADMIN}")),
    ] {
        assert_eq!(status(name, &value), 401, "{name}: {value}");
    }
    let query = server.get(&format!("/admin/policies?token={ADMIN}"));
    query.problem(401);
}

#[test]
fn a_bad_body_without_a_token_is_401_not_400() {
    let server = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", ADMIN).into_server();
    for path in ["/api/v1/check", "/api/v1/peek", "/api/v1/refund", "/admin/tokens"] {
        server.send(Call::new("POST", path).bytes("nonsense")).problem(401);
    }
    server.send(Call::new("POST", "/api/v1/check").bytes("nonsense").token(ADMIN)).problem(400);
}

//! Whose mail a token reaches: every route of the relay against every kind of token.

use serde_json::{Value, json};

use crate::access::{is_mail, strangers};
use crate::support::mail::{CLOSED_PORT, FAR_TS, account_body, message_body, with};
use crate::support::{Call, Server, Setup};

const ADMIN: &str = "admin-from-the-environment";

/// Who may make a call for a tenant with a tenant's token.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Own {
    Allowed,
    AdminsOnly,
}

/// A call of a route about tenant `t`, and about nobody by name where that can be left out.
fn sample(method: &str, path: &str, t: &str, key: &str) -> (Own, Call, Option<Call>) {
    let message = with(message_body(t, "m"), json!({ "deferred_ts": FAR_TS }));
    let key_body = json!({ "tenant_id": t, "account_id": "main" });
    let add = json!({ "messages": [message] });
    let body = match (method, path) {
        ("post", "/tenant") => Some(json!({ "id": t, "name": t })),
        ("post", "/account") => Some(account_body(t, "main", CLOSED_PORT)),
        ("post", "/commands/add-messages") => Some(add),
        ("post", "/keys") => Some(key_body),
        ("put", "/keys/{id}") => Some(json!({ "daily_limit": 20 })),
        ("post", "/commands/delete-messages") => Some(json!({ "tenant_id": t, "ids": ["x"] })),
        ("post", path) if path.starts_with("/commands/") => Some(json!({ "tenant_id": t })),
        ("post", "/tenant/{id}/token")
        | ("get", "/tenants" | "/accounts" | "/messages" | "/status" | "/keys")
        | ("get", "/messages/{id}/attempts")
        | ("delete", "/tenant/{id}" | "/account/{id}" | "/keys/{id}") => None,
        other => panic!("{other:?} is a new route: say here who may call it"),
    };
    let own = match (method, path) {
        ("post", "/tenant") | ("delete", "/tenant/{id}") => Own::AdminsOnly,
        _ => Own::Allowed,
    };
    let id = match path {
        "/account/{id}" => "extra",
        "/messages/{id}/attempts" => "m",
        "/keys/{id}" => key,
        _ => t,
    };
    let has_query = method == "get" && path != "/tenants" || path == "/account/{id}";
    let query = if has_query { format!("?tenant_id={t}") } else { String::new() };
    let real = path.replace("{id}", id);
    let call = |query: &str, body: Option<Value>| {
        let call = Call::new(&method.to_uppercase(), &format!("{real}{query}"));
        body.into_iter().fold(call, |call, body| call.json(&body))
    };
    let unnamed = body.clone().map(|mut body| {
        let inner =
            if path == "/commands/add-messages" { &mut body["messages"][0] } else { &mut body };
        inner.as_object_mut().unwrap().remove("tenant_id");
        body
    });
    let can_be_unnamed = own == Own::Allowed;
    (own, call(&query, body), can_be_unnamed.then(|| call("", unnamed)))
}

/// What asks for a key instead of a token.
pub(crate) const KEY_ROUTES: [(&str, &str); 2] =
    [("post", "/api/v1/send"), ("get", "/api/v1/usage")];

pub(crate) fn mail_routes(server: &Server) -> Vec<(String, String)> {
    let api = server.get("/openapi.json").json();
    let mut routes = Vec::new();
    for (path, methods) in api["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            if is_mail(operation) && !KEY_ROUTES.contains(&(method, path)) {
                routes.push((method.clone(), path.clone()));
            }
        }
    }
    routes
}

struct House {
    server: Server,
    tokens: [String; 2],
    keys: [String; 2],
}

const TENANTS: [&str; 2] = ["acme", "globex"];

impl House {
    fn send(&self, call: Call) -> crate::support::Reply {
        self.server.send(call.token(ADMIN))
    }

    /// Two tenants, each with the same things under the same names.
    fn open() -> Self {
        let server = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", ADMIN).into_server();
        let mut house = Self { server, tokens: Default::default(), keys: Default::default() };
        for (n, t) in TENANTS.into_iter().enumerate() {
            house.furnish(t);
            let reply = house.send(Call::new("POST", &format!("/tenant/{t}/token")));
            assert_eq!(reply.status, 201, "{reply:?}");
            house.tokens[n] = reply.json()["token"].as_str().unwrap().to_owned();
        }
        house
    }

    fn furnish(&self, t: &str) {
        self.send(Call::post("/tenant", &json!({ "id": t }))).ok();
        for account in ["main", "extra"] {
            self.send(Call::post("/account", &account_body(t, account, CLOSED_PORT))).ok();
        }
        let message = with(message_body(t, "m"), json!({ "deferred_ts": FAR_TS }));
        let add = json!({ "messages": [message] });
        self.send(Call::post("/commands/add-messages", &add)).ok();
    }

    fn new_key(&self, t: &str) -> String {
        let body = json!({ "tenant_id": t, "account_id": "main" });
        self.send(Call::post("/keys", &body)).json()["id"].as_str().unwrap().to_owned()
    }
}

#[test]
fn mail_routes_let_in_exactly_whom_they_should() {
    let mut house = House::open();
    let check = house.send(Call::post("/admin/tokens", &json!({ "scope": "check" })));
    let check = check.json()["token"].as_str().unwrap().to_owned();
    let strangers = strangers(&house.server);
    let routes = mail_routes(&house.server);
    assert!(routes.len() >= 20, "{routes:?}");
    for (method, path) in &routes {
        let t = TENANTS[0];
        let fresh = |house: &mut House| {
            house.furnish(t);
            house.keys[0] = house.new_key(t);
            // The call before may have made another, and this one worthless.
            let reply = house.send(Call::new("POST", "/tenant/acme/token"));
            house.tokens[0] = reply.json()["token"].as_str().unwrap().to_owned();
        };
        for who in [
            "none",
            "wrong",
            "replaced",
            "api key",
            "check",
            "other tenant",
            "own tenant",
            "unnamed",
            "admin",
        ] {
            fresh(&mut house);
            let (own, call, unnamed) = sample(method, path, t, &house.keys[0]);
            let token = match who {
                "none" => None,
                "wrong" => Some(format!("{}x", house.tokens[0])),
                "replaced" => Some(strangers[0].1.clone()),
                "api key" => Some(strangers[2].1.clone()),
                "check" => Some(check.clone()),
                "other tenant" => Some(house.tokens[1].clone()),
                "own tenant" | "unnamed" => Some(house.tokens[0].clone()),
                _ => Some(ADMIN.to_owned()),
            };
            let call = match (who, unnamed) {
                ("unnamed", None) => continue,
                ("unnamed", Some(unnamed)) => unnamed,
                _ => call,
            };
            let reply = house.server.send(token.iter().fold(call, |call, token| call.token(token)));
            // Naming nobody, each sees its own.
            let is_about_nobody = path == "/tenants";
            let expected = match (who, own) {
                ("none" | "wrong" | "replaced" | "api key", _) => 401,
                ("check", _) => 403,
                ("other tenant", _) if !is_about_nobody => 403,
                ("own tenant", Own::AdminsOnly) => 403,
                // It has unsent mail.
                ("admin", _) if (&**method, &**path) == ("delete", "/tenant/{id}") => 409,
                _ => 200,
            };
            match expected {
                200 => {
                    assert!((200..300).contains(&reply.status), "{who}: {method} {path}: {reply:?}")
                }
                status => assert_eq!(reply.status, status, "{who}: {method} {path}: {reply:?}"),
            }
        }
    }
}

#[test]
fn routes_of_keys_let_in_keys_that_are_enabled_and_nobody_else() {
    let house = House::open();
    let key = |t: &str| {
        let body = json!({ "tenant_id": t, "account_id": "main" });
        let made = house.send(Call::post("/keys", &body)).json();
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        (text("id"), text("api_key"))
    };
    let check = house.send(Call::post("/admin/tokens", &json!({ "scope": "check" })));
    let check = check.json()["token"].as_str().unwrap().to_owned();
    let ((_, good), (off, disabled), (gone, deleted)) = (key("acme"), key("acme"), key("acme"));
    let disable = Call::new("PUT", &format!("/keys/{off}")).json(&json!({ "enabled": false }));
    assert_eq!(house.send(disable).status, 200);
    assert_eq!(house.send(Call::new("DELETE", &format!("/keys/{gone}"))).status, 200);
    for (method, path) in KEY_ROUTES {
        let call = || {
            let call = Call::new(&method.to_uppercase(), path);
            let letter = json!({ "to": "bob@example.org", "subject": "hello", "text": "hello" });
            if method == "post" { call.json(&letter) } else { call }
        };
        let allowed = if method == "post" { 202 } else { 200 };
        for (header, secret, status) in [
            ("X-API-Key", &*good, allowed),
            ("X-API-Key", &disabled, 403),
            ("X-API-Key", &deleted, 401),
            ("X-API-Key", "", 401),
            ("X-API-Key", "garbage", 401),
            ("X-API-Key", ADMIN, 401),
            ("X-API-Key", &check, 401),
            ("X-API-Key", &house.tokens[0], 401),
            ("X-API-Token", &good, 401),
            ("X-API-Token", ADMIN, 401),
            ("Accept", "*/*", 401),
        ] {
            let reply = house.server.send(call().header(header, secret));
            assert_eq!(reply.status, status, "{method} {path}, {header}: {reply:?}");
        }
    }
}

#[test]
fn a_tenants_token_sees_nothing_of_another_tenant() {
    let house = House::open();
    let see = |path: &str| house.server.send(Call::new("GET", path).token(&house.tokens[0]));
    for path in ["/tenants", "/accounts", "/messages", "/keys", "/status"] {
        let seen = see(path);
        assert_eq!(seen.status, 200, "{path}: {seen:?}");
        assert!(!seen.body.contains("globex"), "{path}: {seen:?}");
    }
    assert_eq!(see("/status").ok()["tenants"], 1);
    // A batch that names another tenant among its own is refused whole.
    let foreign = json!({ "messages": [message_body("acme", "n"), message_body("globex", "n")] });
    let call = Call::post("/commands/add-messages", &foreign).token(&house.tokens[0]);
    house.server.send(call).problem(403);
    assert!(!see("/messages").body.contains("\"n\""));
    // The same ids are other things in another tenant.
    let body = json!({ "ids": ["m"] });
    let call = Call::post("/commands/delete-messages", &body).token(&house.tokens[0]);
    assert_eq!(house.server.send(call).ok()["messages"], 1);
    let other = house.server.send(Call::new("GET", "/messages").token(&house.tokens[1])).ok();
    assert_eq!(other["messages"].as_array().unwrap().len(), 1);
}

#[test]
fn a_tenants_token_does_nothing_but_mail() {
    let house = House::open();
    for (method, path) in [
        ("GET", "/admin/policies"),
        ("POST", "/api/v1/check"),
        ("POST", "/api/v1/peek"),
        ("GET", "/api/v1/slots"),
        ("GET", "/gate"),
    ] {
        let call = || Call::new(method, path).json(&json!({ "policy": "default" }));
        let problem = house.server.send(call().token(&house.tokens[0])).problem(403);
        assert_eq!(problem["type"], "urn:tollgate:wrong-scope", "{path}");
        house.server.send(call().token(&format!("{}x", house.tokens[0]))).problem(401);
    }
}

#[test]
fn a_tenants_token_is_confined_also_while_everything_is_open() {
    let server = Server::memory();
    for t in TENANTS {
        server.mail_tenant(t, CLOSED_PORT);
    }
    let reply = server.post("/tenant/acme/token", &json!({}));
    let token = reply.json()["token"].as_str().unwrap().to_owned();
    assert_eq!(server.get("/accounts?tenant_id=globex").status, 200, "still open");
    let get = |path: &str| server.send(Call::new("GET", path).token(&token));
    get("/accounts?tenant_id=globex").problem(403);
    assert_eq!(get("/accounts").ok()["accounts"].as_array().unwrap().len(), 1);
}

#[test]
fn a_new_tenants_token_replaces_the_one_before() {
    let house = House::open();
    let old = &house.tokens[0];
    assert!(old.starts_with("tgt_") && old.len() > 40, "{old}");
    let reply = house.server.send(Call::new("POST", "/tenant/acme/token").token(old));
    assert_eq!(reply.status, 201, "it may do so itself: {reply:?}");
    let new = reply.json()["token"].as_str().unwrap().to_owned();
    house.server.send(Call::new("GET", "/accounts").token(old)).problem(401);
    house.server.send(Call::new("GET", "/accounts").token(&new)).ok();
    // And it ends with its tenant.
    let ids = json!({ "tenant_id": "acme", "ids": ["m"] });
    house.send(Call::post("/commands/delete-messages", &ids)).ok();
    house.send(Call::new("DELETE", "/tenant/acme")).ok();
    house.server.send(Call::new("GET", "/accounts").token(&new)).problem(401);
}

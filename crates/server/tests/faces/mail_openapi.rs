//! The mail relay's answers have the bodies that `/openapi.json` describes.

use serde_json::{Value, json};

use crate::openapi::Api;
use crate::support::mail::{CLOSED_PORT, FAR_TS, account_body, letter, message_body, with};
use crate::support::{Call, Server};

#[test]
fn mail_calls_have_the_bodies_it_describes() {
    let server = Server::memory();
    let api = Api::of(&server);
    let post = |path: &str, body: Value| {
        let reply = server.post(path, &body);
        api.covers("post", path, &reply);
        reply
    };
    let hook = "https://example.org/hook";
    post("/tenant", json!({ "id": "acme", "name": "Acme", "report_url": hook }));
    post("/tenant", json!({}));
    post(
        "/account",
        with(account_body("acme", "main", CLOSED_PORT), json!({ "user": "a", "password": "b" })),
    );
    post("/account", json!({}));
    post("/account", account_body("nope", "main", CLOSED_PORT));
    let message = with(message_body("acme", "m"), json!({ "deferred_ts": FAR_TS }));
    let add = "/commands/add-messages";
    post(add, json!({ "messages": [message, {}] }));
    post(add, json!({ "messages": [{}] }));
    post(add, json!({ "messages": [] }));
    for command in ["suspend", "activate", "run-now", "cleanup-messages"] {
        post(&format!("/commands/{command}"), json!({ "tenant_id": "acme" }));
        post(&format!("/commands/{command}"), json!({ "tenant_id": "nope" }));
        post(&format!("/commands/{command}"), json!({ "nope": 1 }));
    }
    for (path, queries) in [
        ("/tenants", ["", ""]),
        ("/accounts", ["", "?tenant_id=nope"]),
        ("/messages", ["?tenant_id=acme", ""]),
        ("/keys", ["", "?tenant_id=nope"]),
        ("/status", ["", "?tenant_id=nope"]),
    ] {
        for query in queries {
            api.covers("get", path, &server.get(&format!("{path}{query}")));
        }
    }
    for id in ["m", "nope"] {
        let reply = server.get(&format!("/messages/{id}/attempts?tenant_id=acme"));
        api.covers("get", "/messages/{id}/attempts", &reply);
    }
    for path in ["/account/main", "/account/nope"] {
        let reply = server.delete(&format!("{path}?tenant_id=acme"));
        api.covers("delete", "/account/{id}", &reply);
    }
    api.covers("post", "/tenant/{id}/token", &server.post("/tenant/acme/token", &json!({})));
    api.covers("post", "/tenant/{id}/token", &server.post("/tenant/nope/token", &json!({})));
    let ids = json!({ "tenant_id": "acme", "ids": ["m"] });
    for path in ["/tenant/acme", "/tenant/nope"] {
        api.covers("delete", "/tenant/{id}", &server.delete(path));
    }
    post("/commands/delete-messages", ids);
    api.covers("delete", "/tenant/{id}", &server.delete("/tenant/acme"));
}

#[test]
fn mail_key_calls_have_the_bodies_it_describes() {
    let server = Server::memory();
    let api = Api::of(&server);
    server.mail_tenant("acme", CLOSED_PORT);
    server.post("/commands/suspend", &json!({ "tenant_id": "acme" })).ok();
    let new = server.post("/keys", &json!({ "tenant_id": "acme", "account_id": "main" }));
    api.covers("post", "/keys", &new);
    api.covers("post", "/keys", &server.post("/keys", &json!({})));
    let (id, key) = server.api_key("acme", json!({ "daily_limit": 5 }));
    let path = format!("/keys/{id}");
    api.covers("put", "/keys/{id}", &server.put(&path, &json!({ "enabled": true })));
    api.covers("put", "/keys/{id}", &server.put(&path, &json!({})));
    let send = "/api/v1/send";
    for body in [letter(4), letter(4), letter(9), json!({}), json!({ "x": 1 }), json!([])] {
        api.covers("post", send, &server.send_mail(&key, &body));
    }
    api.covers("post", send, &server.post(send, &letter(1)));
    let usage = |key: &str| server.send(Call::new("GET", "/api/v1/usage").header("X-API-Key", key));
    for key in [&key, "x"] {
        api.covers("get", "/api/v1/usage", &usage(key));
    }
    server.put(&path, &json!({ "enabled": false })).ok();
    api.covers("get", "/api/v1/usage", &usage(&key));
    api.covers("post", send, &server.send_mail(&key, &letter(1)));
    api.covers("delete", "/keys/{id}", &server.delete(&path));
    api.covers("delete", "/keys/{id}", &server.delete(&path));
}

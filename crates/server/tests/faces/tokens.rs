//! Making and keeping access tokens.

use serde_json::json;

use crate::support::command::alone;
use crate::support::{Call, Server, Setup, eventually, members, tollgate};

fn get(server: &Server, token: &str) -> u16 {
    server.send(Call::new("GET", "/admin/policies").token(token)).status
}

#[test]
fn the_first_token_must_be_an_admins() {
    let server = Server::memory();
    server.post("/admin/tokens", &json!({ "scope": "check" })).problem(409);
    let refused = tollgate(&server, &["token", "create", "--scope", "check"]).expect(2);
    assert!(refused.err.contains("admin"), "{refused:?}");
    assert_eq!(server.get("/admin/policies").status, 200, "still open");
    let made = server.post("/admin/tokens", &json!({ "scope": "admin", "name": "root" }));
    assert_eq!(made.status, 201);
    let made = made.json();
    assert_eq!(members(&made), ["name", "scope", "token"]);
    assert_eq!((&made["name"], &made["scope"]), (&json!("root"), &json!("admin")));
    assert_eq!(get(&server, made["token"].as_str().unwrap()), 200);
}

#[test]
fn a_bad_request_for_a_token_names_its_field() {
    let server = Server::memory();
    for (body, field) in [
        (json!({}), "scope"),
        (json!({ "scope": "root" }), "scope"),
        (json!({ "scope": "" }), "scope"),
        (json!({ "scope": 1 }), "scope"),
        (json!({ "scope": "admin", "name": 7 }), "name"),
        (json!({ "scope": "admin", "token": "mine" }), "token"),
    ] {
        server.post("/admin/tokens", &body).fault(400, field);
    }
    assert_eq!(server.get("/admin/policies").status, 200, "still open");
}

#[test]
fn tokens_survive_a_restart_and_are_not_in_the_file() {
    let setup = Setup::sqlite();
    let server = setup.start();
    let create = |scope: &str, token: &str| {
        let args = ["token", "create", "--scope", scope, "--token", token, "--json"];
        let made = tollgate(&server, &args).expect(0).json();
        made["token"].as_str().unwrap().to_owned()
    };
    let admin = create("admin", "");
    let check = create("check", &admin);
    assert_ne!(admin, check);
    server.terminate();
    for entry in std::fs::read_dir(setup.home.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for token in [&admin, &check] {
            let found = bytes.windows(token.len()).any(|window| window == token.as_bytes());
            assert!(!found, "tokens are stored hashed");
        }
    }
    let server = setup.start();
    assert_eq!(server.get("/admin/policies").status, 401);
    assert_eq!(get(&server, &admin), 200);
    assert_eq!(get(&server, &check), 403);
    let call = Call::post("/api/v1/check", &json!({ "policy": "default" }));
    server.send(call.token(&check)).ok();
}

#[test]
fn a_token_is_in_no_log() {
    let secret = "environment-secret";
    let setup = Setup::sqlite().arg("--log").arg("trace").env("TOLLGATE_ADMIN_TOKEN", secret);
    let server = setup.start();
    let make = Call::post("/admin/tokens", &json!({ "scope": "check" })).token(secret);
    let token = server.send(make).json()["token"].as_str().unwrap().to_owned();
    let call = || Call::post("/api/v1/check", &json!({ "policy": "default" }));
    server.send(call().token(&token)).ok();
    server.send(call().header("Authorization", &format!("Bearer {token}"))).ok();
    server.send(call().token("wrong-secret")).problem(401);
    server.send(call().token(&token).header("Idempotency-Key", "k")).ok();
    server.signal("TERM");
    let said = eventually("the last line", || {
        let said = server.said();
        said.contains("stopped").then_some(said)
    });
    for secret in [secret, &token, &token[3..], "wrong-secret"] {
        assert!(!said.contains(secret), "{said}");
    }
}

#[test]
fn a_token_can_be_made_in_a_store_that_is_not_in_use() {
    let setup = Setup::sqlite();
    let url = setup.store_url();
    let args = ["token", "create", "--scope", "admin", "--store", &url];
    let made = alone(setup.home.path(), &args).expect(0);
    let token = made.out.trim().to_owned();
    assert!(!made.err.contains(&token));
    let server = setup.start();
    assert_eq!((server.get("/admin/policies").status, get(&server, &token)), (401, 200));
    let busy = alone(setup.home.path(), &args).expect(3);
    assert!(busy.err.contains("in use"), "{busy:?}");
}

#[test]
fn the_first_token_in_a_store_must_be_an_admins_too() {
    let setup = Setup::sqlite();
    let args = ["token", "create", "--scope", "check", "--store", &setup.store_url()];
    let refused = alone(setup.home.path(), &args).expect(2);
    assert!(refused.err.contains("admin"), "{refused:?}");
}

#[test]
fn the_environments_token_is_an_admin_beside_the_stored_ones() {
    let setup = Setup::sqlite();
    let args = ["token", "create", "--scope", "admin", "--store", &setup.store_url()];
    let stored = alone(setup.home.path(), &args).expect(0).out.trim().to_owned();
    let setup = setup.env("TOLLGATE_ADMIN_TOKEN", "from-the-environment");
    let server = setup.start();
    assert_eq!(get(&server, &stored), 200);
    assert_eq!(get(&server, "from-the-environment"), 200);
    assert_eq!(server.get("/admin/policies").status, 401);
}

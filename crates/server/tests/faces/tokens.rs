//! Making and keeping access tokens.

use serde_json::json;

use crate::support::command::alone;
use crate::support::{Call, DEADLINE, Server, Setup, eventually, members, tollgate};

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
    assert_eq!(members(&made), ["id", "name", "scope", "token"]);
    assert_eq!((&made["name"], &made["scope"]), (&json!("root"), &json!("admin")));
    let token = made["token"].as_str().unwrap();
    assert_eq!(get(&server, token), 200);
    let listed = server.send(Call::new("GET", "/admin/tokens").token(token)).ok();
    assert_eq!(listed["tokens"][0]["id"], made["id"], "what it is revoked by");
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
        (json!({ "scope": "admin", "name": "a\u{0}b" }), "name"),
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
fn the_first_token_in_a_store_may_be_for_checks_and_says_what_is_missing() {
    let setup = Setup::sqlite();
    let args = ["token", "create", "--scope", "check", "--store", &setup.store_url()];
    let made = alone(setup.home.path(), &args).expect(0);
    assert!(made.err.contains("no token of scope admin"), "{made:?}");
    let server = setup.env("TOLLGATE_ADMIN_TOKEN", "from-the-environment").start();
    assert_eq!(get(&server, "from-the-environment"), 200);
    assert_eq!(get(&server, made.out.trim()), 403);
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

/// A new token, and its id.
fn made(server: &Server, scope: &str, name: &str, by: Option<&str>) -> (String, String) {
    let call = Call::post("/admin/tokens", &json!({ "scope": scope, "name": name }));
    let reply = server.send(by.into_iter().fold(call, |call, token| call.token(token)));
    let token = reply.json()["token"].as_str().unwrap().to_owned();
    let listed = server.send(Call::new("GET", "/admin/tokens").token(by.unwrap_or(&token))).ok();
    assert!(!listed.to_string().contains(&token), "{listed}");
    let tokens = listed["tokens"].as_array().unwrap();
    let row = tokens.iter().find(|row| row["name"] == name).unwrap();
    assert_eq!(members(row), ["created_at", "id", "name", "scope"]);
    assert_eq!(row["scope"], scope);
    (token, row["id"].as_str().unwrap().to_owned())
}

fn revoke(server: &Server, id: &str, by: &str) -> crate::support::Reply {
    server.send(Call::new("DELETE", &format!("/admin/tokens/{id}")).token(by))
}

fn check(server: &Server, token: &str) -> u16 {
    let body = json!({ "policy": "default" });
    server.send(Call::post("/api/v1/check", &body).token(token)).status
}

#[test]
fn a_revoked_token_is_worthless_at_once_and_after_a_restart() {
    let setup = Setup::sqlite();
    let server = setup.start();
    let (root, root_id) = made(&server, "admin", "root", None);
    let (other, other_id) = made(&server, "admin", "other", Some(&root));
    let (worker, worker_id) = made(&server, "check", "worker", Some(&root));
    assert_eq!((check(&server, &worker), get(&server, &other)), (200, 200));
    revoke(&server, &worker_id, &worker).problem(403);
    revoke(&server, "000000000000", &root).problem(404);
    revoke(&server, &root_id[..4], &root).problem(404);
    let args = ["token", "revoke", &worker_id, "--token", &root];
    tollgate(&server, &args).expect(0);
    tollgate(&server, &args).expect(2);
    assert_eq!(check(&server, &worker), 401);
    // An admin may end itself, but not if it is the last.
    revoke(&server, &other_id, &other).ok();
    assert_eq!(get(&server, &other), 401);
    revoke(&server, &root_id, &root).problem(409);
    assert_eq!(get(&server, &root), 200);
    server.terminate();
    let server = setup.start();
    assert_eq!(
        (check(&server, &worker), get(&server, &other), get(&server, &root)),
        (401, 401, 200)
    );
    let listed = tollgate(&server, &["token", "list", "--token", &root]).expect(0);
    assert!(listed.out.contains(&root_id) && !listed.out.contains("worker"), "{listed:?}");
}

#[test]
fn a_token_revoked_on_one_server_is_worthless_on_all() {
    let schema = testkit::random::name("s").replace('-', "_");
    let postgres = testkit::servers::Postgres::shared().url();
    let url = format!("{postgres}?schema={schema}&deadline={}s", DEADLINE.as_secs());
    let (one, two) = (Setup::postgres(&url).into_server(), Setup::postgres(&url).into_server());
    let (root, root_id) = made(&one, "admin", "root", None);
    let (worker, worker_id) = made(&one, "check", "worker", Some(&root));
    let (other, other_id) = made(&two, "admin", "other", Some(&root));
    assert_eq!((check(&two, &worker), get(&one, &other)), (200, 200));
    revoke(&one, &worker_id, &root).ok();
    assert_eq!(check(&one, &worker), 401);
    // There it is known with the next decision, whoever asks for it.
    assert_eq!(check(&two, &root), 200);
    assert_eq!(check(&two, &worker), 401);
    // What needs an admin asks the store first.
    revoke(&one, &other_id, &root).ok();
    assert_eq!(get(&two, &other), 401);
    revoke(&two, &root_id, &root).problem(409);
}

#[test]
fn the_last_stored_admin_stays_although_the_environment_has_one_and_says_what_to_do() {
    let server = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", "sesame").into_server();
    let body = json!({ "scope": "admin", "name": "root" });
    assert_eq!(server.send(Call::post("/admin/tokens", &body).token("sesame")).status, 201);
    let listed = server.send(Call::new("GET", "/admin/tokens").token("sesame")).ok();
    let id = listed["tokens"][0]["id"].as_str().unwrap();
    let problem = revoke(&server, id, "sesame").problem(409);
    let detail = problem["detail"].as_str().unwrap();
    for part in ["TOLLGATE_ADMIN_TOKEN does not count", "tollgate token create --scope admin"] {
        assert!(detail.contains(part), "{detail}");
    }
}

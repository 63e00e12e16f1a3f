//! What a file keeps: through a stop, a kill, and other settings at the next start.

use serde_json::{Value, json};

use crate::support::{Call, FOREVER, Server, Setup};

fn limits(max: u64) -> Value {
    json!([{ "name": "all", "max": max, "per": FOREVER }])
}

fn in_file(max: u64) -> String {
    format!(
        "[policy.p]\nlimits = [{{ name = \"all\", max = {max}, per = \"{FOREVER}\" }}]\n\
         [policy.q]\nlimits = [{{ name = \"all\", max = 7, per = \"{FOREVER}\" }}]\n"
    )
}

fn max_of(server: &Server) -> Value {
    server.get("/admin/policies/p").ok()["limits"][0]["max"].clone()
}

fn version_of(server: &Server) -> Value {
    server.get("/admin/policies/p").ok()["version"].clone()
}

#[test]
fn kill_9_forgets_no_answered_check_of_a_sync_policy() {
    let setup = Setup::sqlite();
    let mut answered = 0;
    for round in 0..4 {
        let server = setup.start();
        let policy = json!({ "limits": limits(1_000), "durability": "sync" });
        server.put("/admin/policies/p", &policy);
        assert_eq!(server.used("p", &json!({})), [answered], "round {round}");
        for _ in 0..10 {
            server.spend("p", &json!({}));
            answered += 1;
        }
        server.kill();
    }
    assert_eq!(setup.start().used("p", &json!({})), [answered]);
}

#[test]
fn policies_versions_and_overrides_survive_kill_9() {
    let setup = Setup::sqlite();
    let server = setup.start();
    let by_user = |max: u64| json!([{ "name": "u", "max": max, "per": FOREVER, "by": ["user"] }]);
    server.policy("p", &by_user(5));
    server.policy("p", &by_user(6));
    let own = json!({ "policy": "p", "limit": "u", "subject": { "user": "ada" }, "max": 9 });
    server.put("/admin/overrides", &own).ok();
    server.delete("/admin/policies/default");
    let before =
        (server.get("/admin/policies").body, server.get("/admin/policies/p/versions").body);
    server.kill();
    let server = setup.start();
    let after = (server.get("/admin/policies").body, server.get("/admin/policies/p/versions").body);
    assert_eq!(before, after);
    assert_eq!(server.peek("p", &json!({ "user": "ada" }))["limits"][0]["max"], 9);
    assert_eq!(server.peek("p", &json!({ "user": "bob" }))["limits"][0]["max"], 6);
    server.get("/admin/policies/default").problem(404);
}

#[test]
fn a_refund_answered_before_kill_9_stays_done() {
    let setup = Setup::sqlite();
    let server = setup.start();
    server.policy("p", &limits(9));
    let receipt = server.spend("p", &json!({}))["receipt"].clone();
    let refund = json!({ "receipt": receipt });
    assert_eq!(server.post("/api/v1/refund", &refund).ok()["refunded"], true);
    server.kill();
    let server = setup.start();
    assert_eq!(server.post("/api/v1/refund", &refund).ok()["refunded"], false);
    assert_eq!(server.used("p", &json!({})), [0]);
}

#[test]
fn a_second_process_on_one_file_refuses_to_start_and_harms_nothing() {
    let setup = Setup::sqlite();
    let server = setup.start();
    server.policy("p", &limits(9));
    server.spend("p", &json!({}));
    let second = setup.start_in_vain().expect(3);
    assert!(second.err.contains("in use"), "{second:?}");
    assert!(second.err.contains("--store"), "it says what to do: {second:?}");
    assert!(second.err.contains(&setup.store_path().display().to_string()), "{second:?}");
    assert!(!second.out.contains("listens"), "{second:?}");
    assert_eq!(server.used("p", &json!({})), [1]);
    server.spend("p", &json!({}));
    server.terminate();
    assert_eq!(setup.start().used("p", &json!({})), [2]);
}

#[test]
fn a_change_through_the_api_survives_a_restart_with_the_same_file() {
    let setup = Setup::sqlite().config(&in_file(5));
    let server = setup.start();
    assert_eq!((max_of(&server), version_of(&server)), (json!(5), json!(1)));
    let versions = server.get("/admin/policies/p/versions").ok();
    assert_eq!(versions["versions"][0]["created_by"], "file");
    server.policy("p", &limits(6));
    server.terminate();
    let server = setup.start();
    assert_eq!((max_of(&server), version_of(&server)), (json!(6), json!(2)));
    server.terminate();
    // Another comment is not another policy.
    setup.write("tollgate.toml", &format!("# a comment\n{}", in_file(5)));
    let server = setup.start();
    assert_eq!((max_of(&server), version_of(&server)), (json!(6), json!(2)));
    server.terminate();
    setup.write("tollgate.toml", &in_file(8));
    let server = setup.start();
    assert_eq!((max_of(&server), version_of(&server)), (json!(8), json!(3)));
    assert_eq!(server.get("/admin/policies/q").ok()["version"], 1);
    server.terminate();
    let server = setup.start();
    assert_eq!(version_of(&server), 3);
}

#[test]
fn a_policy_deleted_through_the_api_stays_deleted_until_its_text_changes() {
    let setup = Setup::sqlite().config(&in_file(5));
    let server = setup.start();
    server.delete("/admin/policies/p");
    server.terminate();
    let server = setup.start();
    server.get("/admin/policies/p").problem(404);
    server.terminate();
    setup.write("tollgate.toml", &in_file(6));
    let server = setup.start();
    assert_eq!((max_of(&server), version_of(&server)), (json!(6), json!(3)));
}

#[test]
fn the_default_policy_is_made_once_and_a_file_may_define_it() {
    let text = "[policy.default]\nlimits = [{ name = \"mine\", max = 3, per = \"1h\" }]";
    let setup = Setup::sqlite().config(text);
    let server = setup.start();
    let default = server.get("/admin/policies/default").ok();
    assert_eq!((&default["version"], &default["limits"][0]["name"]), (&json!(1), &json!("mine")));
}

#[test]
fn memory_forgets_everything() {
    let setup = Setup::memory();
    let server = setup.start();
    server.policy("p", &limits(9));
    server.terminate();
    setup.start().get("/admin/policies/p").problem(404);
    assert_eq!(crate::support::server::files(setup.home.path()), [""; 0], "no file is made");
}

#[test]
fn private_values_are_not_in_the_file() {
    let setup = Setup::sqlite();
    let server = setup.start();
    let limits =
        json!([{ "name": "e", "max": 9, "per": FOREVER, "by": ["email"], "private": true }]);
    server.policy("p", &limits);
    let subject = json!({ "email": "ada@example.com" });
    server.spend("p", &subject);
    let key = Call::post("/api/v1/check", &json!({ "policy": "p", "subject": subject }));
    server.send(key.header("Idempotency-Key", "k")).ok();
    let own = json!({ "policy": "p", "limit": "e", "subject": subject, "max": 5 });
    server.put("/admin/overrides", &own).ok();
    server.terminate();
    let bytes = std::fs::read(setup.store_path()).unwrap();
    assert!(!bytes.windows(4).any(|window| window == b"ada@"), "an address is in the file");
    // Yet counts are found again: the secret is kept with them.
    assert_eq!(setup.start().used("p", &subject), [2]);
}

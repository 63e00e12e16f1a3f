//! `policy list|show|apply|history|delete` on the command line.

use serde_json::json;

use crate::support::{Server, Setup, tollgate};

const TWO: &str = r#"
[server]
listen = "127.0.0.1:1"

[policy.alpha]
limits = [{ name = "first", max = 11, per = "60s" }]

[policy.beta]
durability = "sync"
limits = [
  { name = "second", max = 22, per = "day", timezone = "Europe/Rome" },
  { name = "third", max = 33, per = "1h", algorithm = "sliding", by = ["user"] },
]
"#;

fn apply(setup: &Setup, server: &Server, text: &str) -> crate::support::Ended {
    let path = setup.write("policies.toml", text).display().to_string();
    tollgate(server, &["policy", "apply", &path])
}

#[test]
fn a_file_is_applied_whole_and_again_without_change() {
    let setup = Setup::memory();
    let server = setup.start();
    let applied = apply(&setup, &server, TWO).expect(0);
    for part in ["alpha: version 1", "beta: version 1"] {
        assert!(applied.out.contains(part), "{part}: {}", applied.out);
    }
    server.spend("alpha", &json!({}));
    let again = apply(&setup, &server, TWO).expect(0);
    assert!(again.out.contains("alpha: version 1, nothing changed"), "{}", again.out);
    let changed = apply(&setup, &server, &TWO.replace("11", "12")).expect(0);
    assert!(changed.out.contains("alpha: version 2"), "{}", changed.out);
    assert!(changed.out.contains("beta: version 1, nothing changed"), "{}", changed.out);
    let path = setup.home.path().join("policies.toml").display().to_string();
    let json = tollgate(&server, &["policy", "apply", &path, "--json"]).expect(0).json();
    assert_eq!(json.as_array().unwrap().len(), 2);
    assert_eq!((&json[0]["name"], &json[0]["changed"]), (&json!("alpha"), &json!(false)));
}

#[test]
fn a_file_with_faults_applies_nothing_and_lists_them_all() {
    let setup = Setup::memory();
    let server = setup.start();
    let bad = TWO.replace("22", "-22").replace("\"1h\"", "\"0s\"").replace("durability", "durable");
    let ended = apply(&setup, &server, &bad).expect(2);
    for part in [
        "policies.toml",
        "nothing was applied",
        "policy.beta.durable",
        "policy.beta.limits[0].max",
        "policy.beta.limits[1].per",
    ] {
        assert!(ended.err.contains(part), "{part}: {}", ended.err);
    }
    server.get("/admin/policies/alpha").problem(404);
    for (text, said) in
        [("[policy", "policies.toml"), ("", "[policy.NAME]"), ("policy = 1", "policy invalid type")]
    {
        let ended = apply(&setup, &server, text).expect(2);
        assert!(ended.err.contains(said), "{text}: {}", ended.err);
    }
    let secret = apply(&setup, &server, "[alerts]\nsecret = whsec-sesame").expect(2);
    assert!(secret.err.contains("line 2") && !secret.err.contains("sesame"), "{secret:?}");
    // As in the file of a server, of which this may be a part.
    let typo =
        "[policy.gamma]\nlimits = [{ name = \"a\", max = 1, per = \"1h\" }]\n[polcy.delta]\n";
    let ended = apply(&setup, &server, typo).expect(2);
    assert!(ended.err.contains("polcy"), "{ended:?}");
    let missing = tollgate(&server, &["policy", "apply", "missing.toml"]).expect(2);
    assert!(missing.err.contains("missing.toml"), "{missing:?}");
    assert_eq!(server.get("/admin/policies").ok()["policies"].as_array().unwrap().len(), 1);
}

#[test]
fn list_show_and_history_are_readable() {
    let setup = Setup::memory();
    let server = setup.start();
    apply(&setup, &server, TWO).expect(0);
    apply(&setup, &server, &TWO.replace("11", "12")).expect(0);
    let list = tollgate(&server, &["policy", "list"]).expect(0).out;
    for part in
        ["alpha", "beta", "default", "first 12 per 60s", "second 22 per day", "third 33 per 1h"]
    {
        assert!(list.contains(part), "{part}: {list}");
    }
    let show = tollgate(&server, &["policy", "show", "beta"]).expect(0);
    assert_eq!(show.json()["durability"], "sync");
    assert!(show.out.lines().count() > 5, "for people: {}", show.out);
    let history = tollgate(&server, &["policy", "history", "alpha"]).expect(0).out;
    let (newest, oldest) = (history.find("first 12"), history.find("first 11"));
    assert!(newest.unwrap() < oldest.unwrap(), "newest first: {history}");
    assert!(history.contains("anonymous"), "who: {history}");
    let when =
        server.get("/admin/policies/alpha").ok()["effective_from"].as_str().unwrap().to_owned();
    assert!(history.contains(&when), "when: {history}");
}

#[test]
fn json_is_one_document_for_each_of_them() {
    let setup = Setup::memory();
    let server = setup.start();
    apply(&setup, &server, TWO).expect(0);
    let run = |args: &[&str]| {
        let ended = tollgate(&server, &[&["policy"], args, &["--json"]].concat()).expect(0);
        assert_eq!(ended.out.lines().count(), 1, "{ended:?}");
        ended.json()
    };
    assert_eq!(run(&["list"]), server.get("/admin/policies").ok());
    assert_eq!(run(&["show", "beta"]), server.get("/admin/policies/beta").ok());
    assert_eq!(run(&["history", "beta"]), server.get("/admin/policies/beta/versions").ok());
    assert_eq!(run(&["delete", "beta"])["deleted"], true);
}

#[test]
fn delete_takes_a_policy_out_of_force_and_keeps_its_history() {
    let setup = Setup::memory();
    let server = setup.start();
    apply(&setup, &server, TWO).expect(0);
    let deleted = tollgate(&server, &["policy", "delete", "alpha"]).expect(0);
    assert!(deleted.out.contains("alpha"), "{deleted:?}");
    server.check("alpha", &json!({})).problem(404);
    let history = tollgate(&server, &["policy", "history", "alpha"]).expect(0).out;
    assert!(history.contains("(deleted)") && history.contains("first 11"), "{history}");
    for args in [["show", "alpha"], ["delete", "alpha"], ["show", "a/b c"], ["history", "never"]] {
        let ended = tollgate(&server, &[&["policy"][..], &args].concat()).expect(2);
        assert!(ended.err.contains("there is no policy"), "{args:?}: {}", ended.err);
    }
    tollgate(&server, &["policy"]).expect(2);
    tollgate(&server, &["policy", "burn"]).expect(2);
}

#[test]
fn a_policy_is_not_for_a_token_of_scope_check() {
    let admin = "an-admin-token";
    let setup = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", admin);
    let server = setup.start();
    let made =
        tollgate(&server, &["token", "create", "--scope", "check", "--token", admin, "--json"]);
    let check = made.expect(0).json()["token"].as_str().unwrap().to_owned();
    let path = setup.write("policies.toml", TWO).display().to_string();
    for args in
        [vec!["list"], vec!["show", "default"], vec!["apply", &path], vec!["delete", "default"]]
    {
        let args = [&["policy"], args.as_slice(), &["--token", &check]].concat();
        let ended = tollgate(&server, &args).expect(2);
        assert!(ended.err.contains("scope"), "{ended:?}");
    }
    tollgate(&server, &["policy", "apply", &path, "--token", admin]).expect(0);
}

#[test]
fn a_bad_scope_is_bad_usage() {
    let server = Server::memory();
    for args in [vec!["token", "create"], vec!["token", "create", "--scope", "root"], vec!["token"]]
    {
        tollgate(&server, &args).expect(2);
    }
    let named = ["token", "create", "--scope", "admin", "--name", "grace", "--json"];
    let made = tollgate(&server, &named).expect(0).json();
    assert_eq!((&made["name"], &made["scope"]), (&json!("grace"), &json!("admin")));
}

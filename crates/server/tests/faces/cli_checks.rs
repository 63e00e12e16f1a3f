//! `check`, `peek` and `refund` on the command line.

use serde_json::json;

use crate::support::command::clean;
use crate::support::{Call, Ended, FOREVER, Server, Setup, members, tollgate};

fn server(max: u64) -> Server {
    let server = Server::memory();
    server.policy(
        "p",
        &json!([
            { "name": "people", "max": max, "per": FOREVER, "by": ["user"] },
            { "name": "everybody", "max": 70, "per": FOREVER },
        ]),
    );
    server
}

#[test]
fn a_check_exits_0_when_allowed_and_1_when_refused() {
    let server = server(2);
    let check = |args: &[&str]| tollgate(&server, &[&["check", "p", "user=ada"], args].concat());
    let allowed = check(&[]).expect(0);
    let limits =
        allowed.out.lines().filter(|line| line.contains("people") || line.contains("everybody"));
    assert_eq!(limits.count(), 2, "a row for each limit: {}", allowed.out);
    for part in ["allowed", "p", "people", "everybody", "70", "69", "remaining", "receipt "] {
        assert!(allowed.out.contains(part), "{part}: {}", allowed.out);
    }
    check(&["--cost", "1"]).expect(0);
    let refused = check(&[]).expect(1);
    for part in ["refused", "people", "try again at ", "days"] {
        assert!(refused.out.contains(part), "{part}: {}", refused.out);
    }
    assert_eq!(server.used("p", &json!({ "user": "ada" })), [2, 2]);
}

#[test]
fn a_limit_that_lets_nothing_through_refuses_and_a_cost_above_all_limits_is_bad_input() {
    let server = server(2);
    server.policy("closed", &json!([{ "name": "z", "max": 0, "per": "1h" }]));
    let refused = tollgate(&server, &["check", "closed"]).expect(1);
    assert!(refused.out.contains("refused") && refused.out.contains("max is 0"), "{refused:?}");
    tollgate(&server, &["peek", "closed"]).expect(1);
    for (args, code) in
        [(&["check", "closed"][..], 1), (&["check", "p", "user=ada", "--cost", "3"], 2)]
    {
        let ended = tollgate(&server, &[args, &["--json"]].concat()).expect(code);
        let decision: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(decision["allowed"], false, "{decision}");
    }
}

#[test]
fn a_peek_tells_the_same_and_spends_nothing() {
    let server = server(1);
    let peek = |cost: &str| tollgate(&server, &["peek", "p", "user=ada", "--cost", cost]);
    let stands = peek("1").expect(0);
    assert!(stands.out.contains("allowed") && !stands.out.contains("receipt"), "{stands:?}");
    tollgate(&server, &["check", "p", "user=ada"]).expect(0);
    let refused = peek("1").expect(1);
    assert!(refused.out.contains("refused"), "{refused:?}");
    assert_eq!(server.used("p", &json!({ "user": "ada" })), [1, 1]);
}

#[test]
fn json_is_one_document_whatever_the_answer() {
    let server = server(1);
    let run = |args: &[&str]| tollgate(&server, &[args, &["--json"]].concat());
    let allowed = run(&["check", "p", "user=ada"]).expect(0).json();
    assert_eq!(members(&allowed), ["allowed", "cost", "decided_at", "limits", "policy", "receipt"]);
    let refused = run(&["check", "p", "user=ada"]).expect(1).json();
    assert_eq!((&refused["allowed"], &refused["status"]), (&json!(false), &json!(429)));
    assert_eq!(run(&["peek", "p", "user=ada"]).expect(1).json()["allowed"], false);
    let receipt = allowed["receipt"].as_str().unwrap();
    assert_eq!(run(&["refund", receipt]).expect(0).json(), json!({ "refunded": true }));
    assert_eq!(run(&["refund", receipt]).expect(1).json()["refunded"], false);
}

#[test]
fn a_refund_exits_0_once_then_1_and_2_for_a_forgery() {
    let server = server(5);
    let receipt = server.spend("p", &json!({ "user": "ada" }))["receipt"].clone();
    let receipt = receipt.as_str().unwrap();
    let refunded = tollgate(&server, &["refund", receipt]).expect(0);
    assert_eq!(refunded.out.trim(), "refunded");
    let again = tollgate(&server, &["refund", receipt]).expect(1);
    assert!(again.out.contains("already refunded"), "{again:?}");
    let forged = tollgate(&server, &["refund", "nonsense"]).expect(2);
    assert!(forged.err.contains("receipt"), "{forged:?}");
    assert_eq!(server.used("p", &json!({ "user": "ada" })), [0, 0]);
}

#[test]
fn values_may_hold_anything_also_an_equals_sign() {
    let server = server(5);
    for value in ["a=b", "=", "a b", "\u{1f600}", "--cost", "'\"$HOME"] {
        tollgate(&server, &["check", "p", &format!("user={value}")]).expect(0);
        assert_eq!(server.used("p", &json!({ "user": value }))[0], 1, "{value}");
    }
}

#[test]
fn bad_input_exits_2_and_says_what_is_wrong() {
    let server = server(5);
    for (args, said) in [
        (vec!["check", "p", "user"], "NAME=VALUE"),
        (vec!["check", "p", "user="], "subject.user"),
        (vec!["check", "p", "=ada"], "subject."),
        (vec!["check", "p"], "subject.user"),
        (vec!["check", "nope", "user=ada"], "nope"),
        (vec!["check", "p", "user=ada", "--cost", "0"], "cost"),
        (vec!["check", "p", "user=ada", "--cost", "-1"], "-1"),
        (vec!["check", "p", "user=ada", "--cost", "1.5"], "cost"),
        (vec!["check", "p", "user=ada", "--cost", "4294967296"], "cost"),
        (vec!["check", "p", "user=ada", "--cost", "6"], "never"),
        (vec!["check"], "POLICY"),
        (vec!["check", "p", "--nonsense"], "--nonsense"),
        (vec!["refund"], "RECEIPT"),
        (vec!["chekc", "p"], "check"),
        (vec![], "Usage"),
        (vec!["--log", "loud", "check", "p", "user=ada"], "loud"),
    ] {
        let ended = tollgate(&server, &args).expect(2);
        assert!(ended.err.contains(said), "{args:?}: {said} is not in {}", ended.err);
        assert_eq!(ended.out, "", "{args:?}");
    }
    assert_eq!(server.used("p", &json!({ "user": "ada" })), [0, 0]);
}

#[test]
fn an_attribute_given_twice_exits_2() {
    let server = server(5);
    let ended = tollgate(&server, &["check", "p", "user=ada", "user=bob"]).expect(2);
    assert!(ended.err.contains("user"), "{ended:?}");
    assert_eq!(server.used("p", &json!({ "user": "bob" })), [0, 0]);
}

#[test]
fn server_and_token_come_from_the_environment_or_from_flags() {
    let secret = "an-admin-token";
    let server = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", secret).into_server();
    let run = |env: &[(&str, &str)], args: &[&str]| {
        let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["check", "default"]).args(args).envs(env.iter().copied());
        Ended::of(command)
    };
    let url = &server.url("");
    run(&[("TOLLGATE_SERVER", url), ("TOLLGATE_TOKEN", secret)], &[]).expect(0);
    run(&[], &["--server", url, "--token", secret]).expect(0);
    run(
        &[("TOLLGATE_SERVER", "http://127.0.0.1:1"), ("TOLLGATE_TOKEN", "x")],
        &["--server", url, "--token", secret],
    )
    .expect(0);
    run(&[("TOLLGATE_TOKEN", secret)], &["--server", &format!("{url}/")]).expect(0);
    for refused in [
        run(&[("TOLLGATE_SERVER", url)], &[]).expect(2),
        run(&[("TOLLGATE_SERVER", url), ("TOLLGATE_TOKEN", "wrong")], &[]).expect(2),
    ] {
        assert!(refused.err.contains("TOLLGATE_TOKEN"), "{refused:?}");
        assert!(!refused.err.contains("wrong\""), "{refused:?}");
    }
    let make = Call::post("/admin/tokens", &json!({ "scope": "check" })).token(secret);
    let check = server.send(make).json()["token"].as_str().unwrap().to_owned();
    run(&[], &["--server", url, "--token", &check]).expect(0);
}

#[test]
fn help_does_not_show_the_token_of_the_environment() {
    let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["check", "--help"]).env("TOLLGATE_TOKEN", "hush-hush");
    let help = Ended::of(command).expect(0);
    assert!(help.out.contains("TOLLGATE_TOKEN") && !help.out.contains("hush-hush"), "{}", help.out);
}

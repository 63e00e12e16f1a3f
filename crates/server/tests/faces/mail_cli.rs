//! `tollgate mail …` against a running server.

use serde_json::{Value, json};

use crate::support::command::clean;
use crate::support::mail::{CLOSED_PORT, hasty, letter};
use crate::support::sink::{PASSWORD, Sink, USER};
use crate::support::{Ended, Server, eventually, tollgate};

fn mail(server: &Server, line: &str) -> Ended {
    let words: Vec<_> = ["mail"].into_iter().chain(line.split_whitespace()).collect();
    tollgate(server, &words)
}

fn json_of(server: &Server, line: &str) -> Value {
    mail(server, &format!("{line} --json")).expect(0).json()
}

#[test]
fn mail_tenants_accounts_and_keys_are_run_from_the_command_line() {
    let server = Server::memory();
    assert_eq!(mail(&server, "tenants list").expect(0).out, "no tenants yet\n");
    assert!(mail(&server, "tenants add acme --name Acme").expect(0).out.contains("made"));
    assert!(mail(&server, "tenants add acme").expect(0).out.contains("changed"));
    assert!(mail(&server, "tenants list").expect(0).out.contains("acme"));
    let add = "accounts add primary --tenant acme --host smtp.example.com --port 587 \
        --user ada@example.com --password a-secret --limit-minute 10 --limit-hour 100 \
        --limit-day 1000 --limit-behavior reject --limit-unit recipients";
    mail(&server, add).expect(0);
    let account = &json_of(&server, "accounts list --tenant acme")["accounts"][0];
    for (name, value) in [
        ("id", json!("primary")),
        ("limit_per_minute", json!(10)),
        ("limit_per_hour", json!(100)),
        ("limit_per_day", json!(1000)),
        ("limit_behavior", json!("reject")),
        ("limit_unit", json!("recipients")),
        ("tls", json!("starttls")),
        ("has_password", json!(true)),
    ] {
        assert_eq!(account[name], value, "{name}");
    }
    // Who names no id means the user, or the server.
    for (flags, id) in
        [("--host h.example.com --user bob@example.com", "bob@example.com"), ("--host h", "h")]
    {
        let added = mail(&server, &format!("accounts add --tenant acme {flags}")).expect(0);
        assert!(added.out.contains(&format!("account {id} is")), "{added:?}");
        mail(&server, &format!("accounts delete {id} --tenant acme")).expect(0);
    }
    let table = mail(&server, "accounts list").expect(0).out;
    assert!(table.contains("primary") && !table.contains("a-secret"), "{table}");
    let made =
        mail(&server, "keys create --tenant acme --account primary --daily-limit 7").expect(0);
    let secret = made.out.trim().to_owned();
    assert!(secret.starts_with("tgk_") && made.err.contains("shown once"), "{made:?}");
    let keys = json_of(&server, "keys list --tenant acme");
    let id = keys["keys"][0]["id"].as_str().unwrap().to_owned();
    mail(&server, &format!("keys disable {id}")).expect(0);
    server.send_mail(&secret, &letter(1)).problem(403);
    mail(&server, &format!("keys enable {id}")).expect(0);
    mail(&server, &format!("keys limit {id} 1")).expect(0);
    assert_eq!(server.usage(&secret)["daily_limit"], 1);
    mail(&server, &format!("keys delete {id}")).expect(0);
    let token = mail(&server, "tenants token acme").expect(0);
    assert!(token.out.starts_with("tgt_"), "{token:?}");
    mail(&server, "accounts delete primary --tenant acme").expect(0);
    mail(&server, "tenants delete acme").expect(0);
    assert_eq!(json_of(&server, "tenants list")["tenants"], json!([]));
}

#[test]
fn mail_commands_need_no_tenant_with_a_tenants_token() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    server.mail_tenant("globex", CLOSED_PORT);
    let token = mail(&server, "tenants token acme").expect(0).out.trim().to_owned();
    let own = json_of(&server, &format!("accounts list --token {token}"));
    assert_eq!(own["accounts"].as_array().unwrap().len(), 1);
    mail(&server, &format!("messages list --token {token}")).expect(0);
    let foreign =
        mail(&server, &format!("messages list --tenant globex --token {token}")).expect(2);
    assert!(foreign.err.contains("tenant"), "{foreign:?}");
}

#[test]
fn mail_passwords_come_from_the_environment_too() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
    command
        .args(["mail", "accounts", "add", "b", "--tenant", "acme", "--host", "h", "--user", "u"]);
    command.env("TOLLGATE_SERVER", server.url("")).env("TOLLGATE_SMTP_PASSWORD", "sesame");
    Ended::of(command).expect(0);
    let accounts = json_of(&server, "accounts list --tenant acme");
    let b = accounts["accounts"].as_array().unwrap().iter().find(|account| account["id"] == "b");
    assert_eq!(b.unwrap()["has_password"], true);
}

#[test]
fn mail_files_are_sent_and_followed() {
    let sink = Sink::start();
    let setup = hasty();
    let server = setup.start();
    mail(&server, "tenants add acme").expect(0);
    let port = sink.plain;
    mail(
        &server,
        &format!(
            "accounts add main --tenant acme --host 127.0.0.1 --port {port} \
        --tls none --limit-minute 50"
        ),
    )
    .expect(0);
    let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["mail", "accounts", "add", "main", "--tenant", "acme", "--host", "127.0.0.1"]);
    command.args(["--port", &port.to_string(), "--tls", "none", "--user", USER]);
    command.env("TOLLGATE_SERVER", server.url("")).env("TOLLGATE_SMTP_PASSWORD", PASSWORD);
    Ended::of(command).expect(0);
    let good = setup.write("good.eml", "From: Ada <ada@example.org>\r\nTo: bob@example.org\r\n\
        Bcc: eve@example.org\r\nSubject: a file\r\nMessage-ID: <f1@example.org>\r\nX-Tag: a\r\n\r\nhello\r\n");
    let bad =
        setup.write("bad.eml", "From: ada@example.org\r\nSubject: to nobody\r\n\r\nhello\r\n");
    let no_mail = setup.write("no.eml", "this is a diary");
    let [good, bad, no_mail] = [good, bad, no_mail].map(|path| path.display().to_string());
    let sent = mail(&server, &format!("send {good} {bad} {no_mail} --tenant acme --account main"))
        .expect(2);
    assert_eq!(sent.out.trim(), "1 queued, 2 rejected");
    assert!(sent.err.contains("bad.eml") && sent.err.contains("no.eml"), "{sent:?}");
    eventually("it arrives", || (sink.messages().len() == 1).then_some(()));
    let arrived = &sink.messages()[0];
    assert_eq!(arrived["recipients"], json!(["bob@example.org", "eve@example.org"]));
    assert_eq!((&arrived["headers"]["x-tag"], &arrived["user"]), (&json!("a"), &json!(USER)));
    assert!(!arrived["headers"].to_string().contains("eve@"), "{arrived}");
    // Once more is not twice.
    let again = format!("send {good} --tenant acme --account main");
    assert_eq!(mail(&server, &again).expect(0).out.trim(), "1 queued, 0 rejected");
    eventually("it is noted", || {
        let listed = json_of(&server, "messages list --tenant acme --status sent");
        (listed["messages"].as_array().unwrap().len() == 1).then_some(())
    });
    let table = mail(&server, "messages list --tenant acme").expect(0).out;
    assert!(table.contains("f1@example.org") && table.contains("sent"), "{table}");
    let attempts = mail(&server, "messages attempts f1@example.org --tenant acme").expect(0).out;
    assert!(attempts.contains("sent") && attempts.contains("250"), "{attempts}");
    assert_eq!(sink.messages().len(), 1);
}

#[test]
fn mail_queue_is_held_released_and_cleared() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    assert!(mail(&server, "queue suspend --tenant acme").expect(0).out.contains("0 messages"));
    let (_, key) = server.api_key("acme", json!({}));
    let id = server.send_mail(&key, &letter(1)).json()["id"].as_str().unwrap().to_owned();
    let status = mail(&server, "queue status").expect(0).out;
    assert!(status.contains("1 tenants, 1 accounts") && status.contains("suspended"), "{status}");
    assert_eq!(json_of(&server, "queue status --tenant acme")["suspended"], 1);
    assert_eq!(json_of(&server, "queue run-now --tenant acme")["ok"], true);
    mail(&server, "queue delete --tenant acme").expect(2);
    assert_eq!(json_of(&server, &format!("queue delete {id} --tenant acme"))["messages"], 1);
    mail(&server, "queue activate --tenant acme").expect(0);
    assert_eq!(json_of(&server, "queue cleanup --older-than 1s")["messages"], 0);
}

#[test]
fn mail_commands_exit_2_for_bad_input_and_3_for_no_server() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    for (line, said) in [
        ("", "Usage"),
        ("tenants add a/b", "id"),
        ("tenants delete nope", "nope"),
        ("accounts add x --tenant acme", "--host"),
        ("accounts add x --tenant nope --host h", "nope"),
        ("accounts add x --tenant acme --host h --limit-behavior drop", "drop"),
        ("messages list", "tenant_id"),
        ("messages list --tenant acme --status lost", "lost"),
        ("messages attempts nope --tenant acme", "nope"),
        ("keys create --tenant acme --account nope", "nope"),
        ("keys enable nope", "nope"),
        ("send --tenant acme --account main", "FILE"),
        ("send /no/such.eml --tenant acme --account main", "/no/such.eml"),
        ("queue cleanup --older-than soon", "older_than"),
    ] {
        let ended = mail(&server, line).expect(2);
        assert!(ended.err.contains(said), "{line}: {said} is not in {}", ended.err);
    }
    mail(&server, "tenants list --server http://127.0.0.1:1").expect(3);
}

#[test]
fn a_password_goes_only_when_it_is_told_to() {
    let server = Server::memory();
    mail(&server, "tenants add acme").expect(0);
    let add = |more: &[&str], from_environment: Option<&str>| {
        let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["mail", "accounts", "add", "main", "--tenant", "acme", "--host", "h"]);
        command.args(["--user", "u"]).args(more).env("TOLLGATE_SERVER", server.url(""));
        if let Some(password) = from_environment {
            command.env("TOLLGATE_SMTP_PASSWORD", password);
        }
        Ended::of(command)
    };
    let has_password = || {
        let accounts = json_of(&server, "accounts list --tenant acme");
        accounts["accounts"][0]["has_password"].as_bool().unwrap()
    };
    add(&["--password", "secret"], None).expect(0);
    // Standard input is empty.
    let ended = add(&["--password-stdin"], None).expect(2);
    assert!(ended.err.contains("no password"), "{ended:?}");
    assert!(has_password());
    add(&[], Some("")).expect(0);
    assert!(has_password());
    for from_environment in [None, Some("another")] {
        add(&["--password", "secret"], None).expect(0);
        add(&["--password", ""], from_environment).expect(0);
        assert!(!has_password(), "{from_environment:?}");
    }
}

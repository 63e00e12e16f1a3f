//! The relay on PostgreSQL: without a key everything but passwords works, and servers share it all.

use std::collections::BTreeSet;

use serde_json::json;
use testkit::random;
use testkit::servers::Postgres;

use crate::mail_send::storm;
use crate::support::command::alone;
use crate::support::mail::{CLOSED_PORT, FAR_TS, HASTY, letter, message_body, with};
use crate::support::sink::Sink;
use crate::support::{DEADLINE, Setup, eventually};

fn url() -> String {
    let schema = random::name("s").replace('-', "_");
    format!("{}?schema={schema}&deadline={}s", Postgres::shared().url(), DEADLINE.as_secs())
}

#[test]
fn mail_on_postgres_without_a_key_works_but_for_passwords() {
    let url = url();
    let server = Setup::postgres(&url).into_server();
    server.mail_tenant("acme", CLOSED_PORT);
    server.queue(&[with(message_body("acme", "m"), json!({ "deferred_ts": FAR_TS }))]);
    let body = json!({ "id": "b", "tenant_id": "acme", "host": "127.0.0.1", "port": 9,
        "user": "ada", "password": "sesame" });
    let problem = server.post("/account", &body).problem(503);
    assert!(problem["detail"].as_str().unwrap().contains("TOLLGATE_MAIL_KEY"), "{problem}");
    server.terminate();
    let key = "correct horse battery staple";
    let server = Setup::postgres(&url).env("TOLLGATE_MAIL_KEY", key).into_server();
    server.post("/account", &body).ok();
    server.terminate();
    // From now on it is asked for.
    for setup in
        [Setup::postgres(&url), Setup::postgres(&url).env("TOLLGATE_MAIL_KEY", "another long key")]
    {
        let ended = setup.start_in_vain();
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.err.contains("TOLLGATE_MAIL_KEY"), "{ended:?}");
    }
    let setup = Setup::memory();
    alone(setup.home.path(), &["migrate", "--store", &url]).expect(0);
}

#[test]
fn mail_is_shared_by_servers_on_one_database() {
    let sink = Sink::start();
    let url = url();
    let (one, other) = (
        Setup::postgres(&url).config(HASTY).into_server(),
        Setup::postgres(&url).config(HASTY).into_server(),
    );
    one.mail_tenant("acme", sink.plain);
    one.mail_account("acme", sink.plain, json!({ "concurrency": 4 }));
    let (_, key) = one.api_key("acme", json!({ "daily_limit": 10 }));
    assert_eq!(other.send_mail(&key, &letter(6)).status, 202);
    assert_eq!(one.send_mail(&key, &letter(4)).status, 202);
    other.send_mail(&key, &letter(1)).problem(429);
    let messages: Vec<_> = (0..40).map(|n| message_body("acme", &format!("m{n:02}"))).collect();
    let (first, second) = messages.split_at(20);
    one.queue(first);
    other.queue(second);
    eventually("all are sent", || (one.get("/status").ok()["sent"] == 42).then_some(()));
    assert_eq!(sink.messages().len(), 42, "no one twice");
    assert_eq!(one.mail("acme"), other.mail("acme"));
}

#[test]
fn mail_from_many_to_two_servers_never_exceeds_100() {
    let url = url();
    let (one, other) = (Setup::postgres(&url).into_server(), Setup::postgres(&url).into_server());
    one.mail_tenant("acme", CLOSED_PORT);
    one.post("/commands/suspend", &json!({ "tenant_id": "acme" })).ok();
    let (_, key) = one.api_key("acme", json!({ "daily_limit": 100 }));
    let accepted = storm(&[&one, &other], &key);
    let sum: usize = accepted.iter().sum();
    assert!(sum <= 100, "{sum}");
    assert_eq!(one.usage(&key)["emails_sent_today"], sum);
    assert_eq!(other.mail("acme").len(), accepted.len(), "one message for each 202");
    for _ in sum..100 {
        assert_eq!(other.send_mail(&key, &letter(1)).status, 202);
    }
    one.send_mail(&key, &letter(1)).problem(429);
}

#[test]
fn mail_of_a_server_that_was_killed_is_sent_by_the_other() {
    let sink = Sink::start();
    let url = url();
    let (one, other) = (
        Setup::postgres(&url).config(HASTY).into_server(),
        Setup::postgres(&url).config(HASTY).into_server(),
    );
    one.mail_tenant("acme", sink.plain);
    one.mail_account("acme", sink.plain, json!({ "concurrency": 4 }));
    let to = json!({ "to": ["late-100@example.org"] });
    let messages: Vec<_> =
        (0..40).map(|n| with(message_body("acme", &format!("m{n:02}")), to.clone())).collect();
    one.queue(&messages);
    eventually("some are sent", || (sink.messages().len() >= 5).then_some(()));
    one.kill();
    eventually("all are sent", || (other.get("/status").ok()["sent"] == 40).then_some(()));
    let subjects = sink.subjects();
    let arrived: BTreeSet<_> = subjects.iter().collect();
    assert_eq!(arrived.len(), 40, "nothing is lost");
    // Only what was on its way at that moment may come twice.
    assert!(subjects.len() <= 44, "{subjects:?}");
}

//! `kill -9` in the middle of sending: what was accepted is sent after a restart.

use std::collections::BTreeSet;

use serde_json::json;

use crate::support::mail::{hasty, letter, message_body, with};
use crate::support::sink::Sink;
use crate::support::{Setup, eventually};

#[test]
fn mail_accepted_before_a_kill_is_sent_after_a_restart_and_hardly_any_twice() {
    let sink = Sink::start();
    let setup = hasty();
    let server = setup.start();
    server.mail_tenant("acme", sink.plain);
    server.mail_account("acme", sink.plain, json!({ "concurrency": 4 }));
    let total = 60;
    // Each takes a while, so that some are on their way when it happens.
    let to = json!({ "to": ["late-50@example.org"] });
    let messages: Vec<_> =
        (0..total).map(|n| with(message_body("acme", &format!("m{n:02}")), to.clone())).collect();
    server.queue(&messages);
    eventually("some are sent", || (sink.messages().len() >= 10).then_some(()));
    server.kill();
    let before = sink.messages().len();
    assert!(before < total, "it was killed in the middle");
    let server = setup.start();
    eventually("all are sent", || {
        (server.get("/status").ok()["sent"].as_u64() >= Some(total as u64)).then_some(())
    });
    for (id, message) in server.mail("acme") {
        assert_eq!(message["status"], "sent", "{id}: {message}");
    }
    let subjects = sink.subjects();
    let arrived: BTreeSet<_> = subjects.iter().cloned().collect();
    assert_eq!(arrived.len(), total, "nothing is lost");
    // Only what was on its way may come twice: it was sent, and nobody lived to note it.
    assert!(subjects.len() <= total + 4, "{subjects:?}");
}

#[test]
fn mail_answered_with_202_is_there_after_a_kill_and_so_is_its_quota() {
    let setup = hasty();
    let server = setup.start();
    server.mail_tenant("acme", crate::support::mail::CLOSED_PORT);
    server.post("/commands/suspend", &json!({ "tenant_id": "acme" })).ok();
    let (_, key) = server.api_key("acme", json!({ "daily_limit": 1000 }));
    let mut ids = BTreeSet::new();
    for _ in 0..20 {
        let reply = server.send_mail(&key, &letter(2));
        assert_eq!(reply.status, 202);
        ids.insert(reply.json()["id"].as_str().unwrap().to_owned());
    }
    server.kill();
    let server = setup.start();
    let there: BTreeSet<_> = server.mail("acme").into_keys().collect();
    assert_eq!(there, ids);
    assert_eq!(server.usage(&key)["emails_sent_today"], 40);
}

#[test]
fn mail_being_sent_when_the_server_stops_is_finished_first() {
    let sink = Sink::start();
    let setup = hasty();
    let server = setup.start();
    server.mail_tenant("acme", sink.plain);
    server.queue(&[with(message_body("acme", "m"), json!({ "to": ["late-1000@example.org"] }))]);
    eventually("it is on its way", || (!sink.events("late").is_empty()).then_some(()));
    server.terminate();
    assert_eq!(sink.messages().len(), 1);
    let server = setup.start();
    assert_eq!(server.mail("acme")["m"]["status"], "sent");
    assert_eq!(sink.messages().len(), 1);
}

/// A lease says how long others wait for one who may have died. On a file there are no others.
#[test]
fn on_a_file_mail_that_a_killed_server_was_sending_is_tried_again_at_the_restart() {
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let setup = Setup::sqlite();
    let server = setup.start();
    server.mail_tenant("acme", mute.local_addr().unwrap().port());
    server.queue(&[message_body("acme", "m")]);
    let sending = mute.accept().unwrap();
    server.kill();
    drop(sending);
    let server = setup.start();
    mute.set_nonblocking(true).unwrap();
    eventually("it is tried again", || mute.accept().ok());
    assert_eq!(server.mail("acme")["m"]["attempts"], 2);
}

//! What becomes of a message when its server refuses, stalls, hangs up or is not there.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "support/stage.rs"]
mod stage;

use std::net::TcpListener;
use std::time::Duration;

use stage::{Stage, TENANT, message, message_to, secs, settings, until};
use tollgate::Clock;
use tollgate_mail::{MailSettings, NewApiKey, Secret, SendRequest, Status};

/// A delay in seconds, give or take a fifth.
fn about(wait_micros: i64, secs: i64) -> bool {
    (secs * 800_000..=secs * 1_200_000).contains(&wait_micros)
}

/// A port that nobody listens on.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn a_temporary_refusal_is_tried_again_later_and_then_delivered() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message_to("m0", "code-451-1"), message("m1")]).await;
    let row = stage.until_status("m0", Status::Deferred).await;
    let error = row.last_error.unwrap();
    assert!(error.contains("451") && error.contains("as the test asked"), "{error}");
    stage.until_status("m1", Status::Sent).await;
    let first = row.deferred_until.unwrap();
    assert!(about(first.micros_since(stage.clock.now()), 60));
    // A microsecond before it is due nothing happens.
    stage.look_at(first.plus_micros(-1)).await;
    assert_eq!(stage.message("m0").await.attempts, 1);
    stage.clock.set(first);
    let row = stage.until_status("m0", Status::Sent).await;
    assert_eq!(row.attempts, 2);
    let outcomes: Vec<String> =
        stage.attempts("m0").await.into_iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, ["retry", "sent"]);
    // The refusal did not cost the connection.
    assert_eq!(stage.sink.events("connect").len(), 2, "its own, and the witness's");
}

#[tokio::test]
async fn every_attempt_carries_the_same_message_id() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message_to("m0", "body-452-2"), message("m1")]).await;
    until("the end", async || {
        let row = stage.message("m0").await;
        if let Some(due) = row.deferred_until.filter(|due| *due > stage.clock.now()) {
            stage.clock.set(due);
        }
        row.status == Status::Sent
    })
    .await;
    let arrived = stage.sink.wait_for("message", 2).await;
    let (other, same) =
        (&arrived[0]["headers"]["message-id"], &arrived[1]["headers"]["message-id"]);
    assert_ne!(other, same);
    let refused = stage.sink.events("refused");
    assert_eq!(refused.len(), 2);
    assert!(refused.iter().all(|event| &event["message_id"] == same), "{refused:?} {same}");
}

#[tokio::test]
async fn delays_grow_and_end_with_the_age() {
    let given = MailSettings { max_age: Duration::from_secs(600), ..settings() };
    let stage = Stage::with(given).await;
    stage.account("main", |_| {}).await;
    let accepted = stage.clock.now();
    stage.add(vec![message_to("m0", "body-450-0")]).await;
    let mut delays = Vec::new();
    until("the end", async || {
        let row = stage.message("m0").await;
        if row.status == Status::Deferred && row.attempts as usize == delays.len() + 1 {
            let due = row.deferred_until.unwrap();
            delays.push(due.micros_since(stage.clock.now()));
            stage.clock.set(due);
        }
        row.status == Status::Error
    })
    .await;
    assert!(about(delays[0], 60) && about(delays[1], 120) && about(delays[2], 240), "{delays:?}");
    assert!(delays.len() <= 5, "{delays:?}");
    assert_eq!(stage.clock.now(), accepted.plus(secs(600)), "the last attempt is at the end");
    let error = stage.message("m0").await.last_error.unwrap();
    assert!(error.contains("given up after") && error.contains("450"), "{error}");
}

#[tokio::test]
async fn a_permanent_refusal_is_final_and_gives_the_keys_quota_back() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    let (_, secret) = stage
        .mail
        .create_key(NewApiKey {
            tenant_id: TENANT.into(),
            account_id: "main".into(),
            name: "shop".into(),
            daily_limit: 5,
            timezone: "UTC".into(),
        })
        .await
        .unwrap();
    let request = |to: &str| SendRequest {
        to: vec![format!("{to}@example.org"), "bob@example.org".into()],
        subject: "hello".into(),
        text: Some("hello".into()),
        from: Some("shop@example.org".into()),
        ..SendRequest::default()
    };
    let key = stage.mail.usable_key(&secret).await.unwrap();
    let sent = stage.mail.send(key.clone(), request("code-550-0"), None).await.unwrap();
    let row = stage.until_status(&sent.id, Status::Error).await;
    assert_eq!(row.attempts, 1);
    assert!(row.last_error.unwrap().contains("550"));
    until("the quota", async || stage.mail.usage(&secret).await.unwrap().emails_sent_today == 0)
        .await;
    let sent = stage.mail.send(key, request("ada"), None).await.unwrap();
    stage.until_status(&sent.id, Status::Sent).await;
    assert_eq!(stage.mail.usage(&secret).await.unwrap().emails_sent_today, 2);
    assert!(stage.sink.messages().iter().all(|message| message["recipients"][0] != "code-550-0"));
}

#[tokio::test]
async fn a_failed_attempt_gives_its_unit_back() {
    let stage = Stage::new().await;
    stage.account("main", |account| account.limit_per_day = Some(2)).await;
    stage
        .add(vec![
            message_to("m0", "code-550-0"),
            message("m1"),
            message_to("m2", "code-451-0"),
            message_to("m3", "drop"),
            message("m4"),
            message("m5"),
        ])
        .await;
    stage.until_paused("main").await;
    assert_eq!(stage.sink.arrived(2).await, ["m1", "m4"]);
    assert_eq!(stage.message("m5").await.attempts, 0);
    assert_eq!(stage.mail.counts().await.unwrap()[0].rate_limited, 1);
}

#[tokio::test]
async fn a_wrong_password_is_final_and_said_clearly() {
    let stage = Stage::new().await;
    stage
        .account("main", |account| {
            account.user = Some(stage::sink::USER.into());
            account.password = Some(Secret::new("wrong"));
        })
        .await;
    stage.add(vec![message("m0")]).await;
    let row = stage.until_status("m0", Status::Error).await;
    let error = row.last_error.unwrap();
    assert!(error.contains("logging in") && error.contains("535"), "{error}");
    assert!(!error.contains("wrong"), "{error}");
    assert_eq!(row.attempts, 1);
}

#[tokio::test]
async fn a_server_that_asks_for_a_pause_gets_one_and_nobody_else_does() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.account("other", |_| {}).await;
    // Also over a connection that carried mail before.
    stage.add(vec![message("first")]).await;
    stage.until_status("first", Status::Sent).await;
    stage.add(vec![message_to("m0", "code-421-1-slow"), message("m1")]).await;
    let until = stage.until_paused("main").await;
    assert!(about(until.micros_since(stage.clock.now()), 60));
    let row = stage.message("m0").await;
    let due = row.deferred_until.unwrap();
    assert!(row.status == Status::Deferred && about(due.micros_since(until), 60), "{row:?}");
    assert!(row.last_error.unwrap().contains("slow down"));
    let mut others = message("o0");
    others.account_id = "other".into();
    stage.add(vec![others]).await;
    stage.until_status("o0", Status::Sent).await;
    assert_eq!(stage.message("m1").await.attempts, 0, "the whole account waits");
    stage.look_at(until.plus_micros(-1)).await;
    assert_eq!(stage.message("m1").await.attempts, 0);
    stage.clock.set(until);
    stage.until_status("m1", Status::Sent).await;
    assert_eq!(stage.message("m0").await.attempts, 1, "another message finds out");
    stage.clock.set(due);
    stage.until_status("m0", Status::Sent).await;
    assert_eq!(stage.attempts("m0").await[0].outcome, "throttled");
}

#[tokio::test]
async fn what_is_said_about_one_recipient_stops_no_other_message() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message_to("m0", "code-450-0-busy"), message("m1")]).await;
    stage.until_status("m1", Status::Sent).await;
    let row = stage.until_status("m0", Status::Deferred).await;
    assert!(row.last_error.unwrap().contains("at a rate"));
    assert_eq!(stage.attempts("m0").await[0].outcome, "retry");
    assert_eq!(stage.read_account("main").await.resume_at, None);
}

#[tokio::test]
async fn one_message_that_is_always_throttled_stops_no_account_for_long() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message_to("m0", "code-451-0-slow")]).await;
    for probe in 1..5 {
        let until = stage.until_paused("main").await;
        assert!(about(until.micros_since(stage.clock.now()), 60), "the pause does not grow");
        let row = stage.until_status("m0", Status::Deferred).await;
        assert_eq!(row.attempts, probe);
        let (id, others) = (format!("m{probe}"), probe as usize);
        stage.add(vec![message(&id)]).await;
        stage.clock.set(until);
        stage.until_count(Status::Sent, others).await;
        stage.clock.set(row.deferred_until.unwrap());
    }
}

#[tokio::test]
async fn pauses_grow_while_the_server_asks_for_them_whatever_message_asks() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message_to("m0", "code-421-0-slow"), message_to("m1", "code-421-0-slow")]).await;
    for secs in [60, 120, 240, 480] {
        let until = stage.until_paused("main").await;
        assert!(about(until.micros_since(stage.clock.now()), secs), "{secs}");
        stage.clock.set(until);
    }
    assert!(stage.message("m1").await.attempts > 0);
}

#[tokio::test]
async fn pauses_end_with_the_age_of_the_message() {
    let given = MailSettings { max_age: Duration::from_secs(600), ..settings() };
    let stage = Stage::with(given).await;
    stage.account("main", |_| {}).await;
    let accepted = stage.clock.now();
    stage.add(vec![message_to("m0", "code-451-0-slow")]).await;
    until("the end", async || {
        let row = stage.message("m0").await;
        if let Some(due) = row.deferred_until.filter(|due| *due > stage.clock.now()) {
            stage.clock.set(due);
        }
        row.status == Status::Error
    })
    .await;
    assert_eq!(stage.clock.now(), accepted.plus(secs(600)), "the last attempt is at the end");
    let error = stage.message("m0").await.last_error.unwrap();
    assert!(error.contains("given up after") && error.contains("slow down"), "{error}");
    stage.until_paused("main").await;
}

#[tokio::test]
async fn a_stalled_server_delays_nobody_else() {
    let given =
        MailSettings { attempt_timeout: Duration::from_secs(300), concurrency: 2, ..settings() };
    let stage = Stage::with(given).await;
    stage.account("main", |_| {}).await;
    stage.account("other", |_| {}).await;
    stage.add(vec![message_to("m0", "stall")]).await;
    stage.sink.wait_for("stall", 1).await;
    let others = (0..20).map(|number| {
        let mut message = message(&format!("o{number}"));
        message.account_id = "other".into();
        message
    });
    stage.add(others.collect()).await;
    stage.until_count(Status::Sent, 20).await;
    assert_eq!(stage.attempts("m0").await, [], "still stalled");
}

#[tokio::test]
async fn a_stalled_server_is_given_up_in_time() {
    let given = MailSettings { attempt_timeout: Duration::from_secs(1), ..settings() };
    let stage = Stage::with(given).await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message_to("m0", "stall")]).await;
    let row = stage.until_status("m0", Status::Deferred).await;
    assert!(row.last_error.unwrap().contains("did not answer in time"));
}

#[tokio::test]
async fn servers_that_stall_in_every_place_are_not_waited_for() {
    let given =
        MailSettings { attempt_timeout: Duration::from_secs(300), concurrency: 1, ..settings() };
    let stage = Stage::with(given).await;
    stage.account("main", |_| {}).await;
    stage.account("other", |_| {}).await;
    stage.add(vec![message_to("m0", "stall")]).await;
    stage.sink.wait_for("stall", 1).await;
    let mut other = message("o0");
    other.account_id = "other".into();
    stage.add(vec![other]).await;
    stage.until_status("o0", Status::Sent).await;
    assert_eq!(stage.attempts("m0").await, [], "still stalled");
}

#[tokio::test]
async fn an_unreachable_server_is_tried_once_in_a_while_for_all_its_messages() {
    let stage = Stage::new().await;
    let port = closed_port();
    stage.account("main", |account| account.port = port).await;
    stage.account("other", |_| {}).await;
    let mut other = message("o0");
    other.account_id = "other".into();
    stage.add(vec![message("m0"), message("m1"), message("m2"), other]).await;
    stage.until_status("o0", Status::Sent).await;
    let until = stage.until_paused("main").await;
    assert!(about(until.micros_since(stage.clock.now()), 60));
    let error = stage.message("m0").await.last_error.unwrap();
    assert!(error.contains("connecting to 127.0.0.1") && error.contains("refused"), "{error}");
    assert_eq!(stage.message("m1").await.attempts, 0);
    // It is there again: everything arrives, in order.
    stage.account("main", |_| {}).await;
    stage.clock.advance(secs(120));
    stage.until_count(Status::Sent, 4).await;
    assert_eq!(stage.count(Status::Error).await, 0);
}

#[tokio::test]
async fn a_dropped_connection_is_tried_again() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    // Once with the first connection, once more at the next attempt.
    stage.add(vec![message_to("m0", "drop-1")]).await;
    let row = stage.until_status("m0", Status::Deferred).await;
    assert!(row.last_error.unwrap().contains("closed the connection"));
    stage.clock.set(row.deferred_until.unwrap());
    stage.until_status("m0", Status::Sent).await;
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_is_replaced_within_the_attempt() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message_to("m0", "bye")]).await;
    stage.until_status("m0", Status::Sent).await;
    stage.sink.wait_for("disconnect", 1).await;
    stage.add(vec![message("m1")]).await;
    let row = stage.until_status("m1", Status::Sent).await;
    assert_eq!(row.attempts, 1);
    assert_eq!(stage.sink.events("connect").len(), 2);
}

#[tokio::test]
async fn a_plea_on_a_kept_connection_is_about_that_one_unless_it_is_said_again() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message_to("m0", "full-1"), message("m1")]).await;
    assert_eq!(stage.until_status("m1", Status::Sent).await.attempts, 1);
    assert_eq!(stage.sink.events("connect").len(), 2);
    assert_eq!(stage.read_account("main").await.resume_at, None);
    stage.add(vec![message_to("m2", "full-2"), message("m3")]).await;
    stage.until_paused("main").await;
    let row = stage.until_status("m3", Status::Deferred).await;
    assert!(row.last_error.unwrap().contains("in this connection"));
    assert_eq!((row.attempts, stage.sink.events("connect").len()), (1, 3));
}

#[tokio::test]
async fn a_server_that_does_not_ask_for_the_message_was_not_given_it() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message_to("m0", "odd-1")]).await;
    let row = stage.until_status("m0", Status::Deferred).await;
    assert_eq!(row.last_error.as_deref(), Some("DATA: 250 2.0.0 fine (expected 354)"));
    stage.sink.wait_for("disconnect", 1).await;
    stage.clock.set(row.deferred_until.unwrap());
    assert_eq!(stage.until_status("m0", Status::Sent).await.attempts, 2);
    assert_eq!(stage.sink.arrived(1).await, ["m0"]);
}

#[tokio::test]
async fn stopping_lets_what_is_under_way_end_and_begins_nothing() {
    let mut stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    // However long an attempt takes, within its own time: a server that was given the message must
    // not be given it again after a restart.
    stage.add(vec![message_to("m0", "late-11000"), message("m1")]).await;
    stage.sink.wait_for("late", 1).await;
    stage.stop().await;
    assert_eq!(stage.message("m0").await.status, Status::Sent);
    assert_eq!(stage.message("m1").await.status, Status::Pending);
    // It said goodbye.
    stage.sink.wait_for("disconnect", 1).await;
    stage.start();
    stage.until_status("m1", Status::Sent).await;
}

#[tokio::test]
async fn messages_in_error_are_not_touched_again() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message_to("m0", "code-554-1")]).await;
    stage.until_status("m0", Status::Error).await;
    stage.look_at(stage.clock.now().plus_micros(86_400_000_000)).await;
    assert_eq!(stage.message("m0").await.attempts, 1);
}

#[tokio::test]
async fn behind_a_server_that_stays_silent_all_messages_age_together() {
    let given = MailSettings { max_age: Duration::from_secs(600), ..settings() };
    let stage = Stage::with(given).await;
    let port = closed_port();
    stage.account("main", |account| account.port = port).await;
    stage.add(vec![message("m0"), message("m1"), message("m2")]).await;
    let begun = stage.clock.now();
    until("the end", async || {
        let account = stage.read_account("main").await;
        if let Some(at) = account.resume_at.filter(|at| *at > stage.clock.now()) {
            stage.clock.set(at);
        }
        stage.count(Status::Error).await == 3
    })
    .await;
    assert_eq!(stage.clock.now(), begun.plus(secs(600)));
    assert!(stage.message("m0").await.attempts >= 3);
    assert_eq!(stage.message("m2").await.attempts, 1);
}

#[tokio::test]
async fn a_clock_set_ahead_does_not_take_what_is_being_sent_from_under_us() {
    let lease = Duration::from_secs(300);
    let stage = Stage::with(MailSettings { lease, ..settings() }).await;
    stage.account("main", |account| account.concurrency = 4).await;
    stage.add(vec![message_to("m0", "late-3000")]).await;
    stage.sink.wait_for("late", 1).await;
    stage.look_at(stage.clock.now().plus(secs(400))).await;
    let row = stage.until_status("m0", Status::Sent).await;
    assert_eq!((row.attempts, stage.attempts("m0").await.len()), (1, 1));
    assert_eq!(stage.sink.events("late").len(), 1, "the server was asked once");
}

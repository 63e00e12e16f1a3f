//! Sending, at the pace of each account, to a real SMTP server.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "support/stage.rs"]
mod stage;

use std::collections::BTreeSet;
use std::time::Duration;

use stage::{Stage, message, most_within, numbered, secs, until};
use tollgate::Clock;
use tollgate_mail::{LimitBehavior, LimitUnit, NewAccount, Status};

const DAY_MICROS: i64 = 24 * 3600 * 1_000_000;

#[tokio::test]
async fn a_message_arrives() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message("m0")]).await;
    let row = stage.until_status("m0", Status::Sent).await;
    assert_eq!((row.attempts, row.last_error), (1, None));
    let arrived = stage.sink.wait_for("message", 1).await;
    assert_eq!(arrived[0]["headers"]["subject"], "m0");
    assert_eq!(arrived[0]["recipients"][0], "bob@example.org");
    let attempts = stage.attempts("m0").await;
    assert_eq!(attempts.len(), 1);
    assert_eq!((attempts[0].smtp_code, attempts[0].outcome.as_str()), (Some(250), "sent"));
    assert!(attempts[0].smtp_text.contains("taken"), "{}", attempts[0].smtp_text);
}

#[tokio::test]
async fn ten_a_minute_lets_35_pass_in_order_over_one_connection() {
    let stage = Stage::new().await;
    stage.account("main", |account| account.limit_per_minute = Some(10)).await;
    stage.add(numbered(35)).await;
    // Fifty times as fast as ours.
    let clock = stage.clock.clone();
    let running = tokio::spawn(async move {
        loop {
            clock.advance(secs(1));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    stage.until_count(Status::Sent, 35).await;
    running.abort();
    let starts = stage.starts(35).await;
    assert_eq!(starts.len(), 35);
    assert!(most_within(&starts, secs(60)) <= 10, "{starts:?}");
    let wanted: Vec<String> = (0..35).map(|number| format!("m{number}")).collect();
    assert_eq!(stage.sink.arrived(35).await, wanted);
    assert_eq!(stage.sink.events("connect").len(), 1);
}

/// The clock waits for what fits, and then goes to the very instant that the account waits for.
#[tokio::test]
async fn ten_a_minute_lets_all_ten_pass_in_every_minute() {
    let stage = Stage::new().await;
    stage.account("main", |account| account.limit_per_minute = Some(10)).await;
    stage.add(numbered(35)).await;
    stage.play("main", 35).await;
    let starts = stage.starts(35).await;
    assert_eq!(most_within(&starts, secs(60)), 10);
    let minutes: Vec<usize> = starts.chunk_by(|one, other| one == other).map(<[_]>::len).collect();
    assert_eq!(minutes, [10, 10, 10, 5]);
}

#[tokio::test]
async fn a_hundred_a_day_sends_three_hundred_on_three_days() {
    let stage = Stage::new().await;
    // A quarter past six in the evening.
    let begin = tollgate::Instant::from_micros(1_772_714_096_789_012 / DAY_MICROS * DAY_MICROS)
        .plus(secs(18 * 3600 + 900));
    stage.clock.set(begin);
    stage.account("main", |account| account.limit_per_day = Some(100)).await;
    stage.add(numbered(300)).await;
    stage.play("main", 300).await;
    let starts = stage.starts(300).await;
    let days: Vec<i64> = starts.iter().map(|at| at.micros_since(begin) / DAY_MICROS).collect();
    for day in 0..3 {
        assert_eq!(days.iter().filter(|found| **found == day).count(), 100, "on day {day}");
    }
    assert_eq!(most_within(&starts, secs(24 * 3600)), 100);
    // One refusal for each day that had to be waited for: the backlog is asked about by nobody.
    let counts = stage.mail.counts().await.unwrap();
    assert_eq!(counts[0].rate_limited, 2);
}

#[tokio::test]
async fn a_paced_account_shows_its_instant_on_every_waiting_message() {
    let stage = Stage::new().await;
    stage.account("main", |account| account.limit_per_hour = Some(2)).await;
    stage.add(numbered(5)).await;
    let until = stage.until_paused("main").await;
    assert_eq!(stage.count(Status::Sent).await, 2);
    for id in ["m2", "m3", "m4"] {
        let row = stage.message(id).await;
        assert_eq!((row.status, row.deferred_until), (Status::Deferred, Some(until)));
        assert_eq!(row.attempts, 0, "nobody tried it");
    }
    // Not a microsecond too early, and not one later than needed.
    stage.look_at(until.plus_micros(-1)).await;
    assert_eq!(stage.count(Status::Sent).await, 2);
    stage.clock.set(until);
    stage.until_count(Status::Sent, 4).await;
}

#[tokio::test]
async fn changed_limits_are_in_force_at_the_next_send() {
    let stage = Stage::new().await;
    stage.account("main", |account| account.limit_per_day = Some(3)).await;
    stage.add(numbered(20)).await;
    stage.until_paused("main").await;
    assert_eq!(stage.count(Status::Sent).await, 3);
    // Raised: what was counted stays counted.
    stage.account("main", |account| account.limit_per_day = Some(5)).await;
    stage.until_count(Status::Sent, 5).await;
    stage.until_paused("main").await;
    assert_eq!(stage.count(Status::Sent).await, 5);
    // Lowered below what was sent: nothing more.
    stage.account("main", |account| account.limit_per_day = Some(1)).await;
    stage.until_paused("main").await;
    assert_eq!(stage.count(Status::Sent).await, 5);
    // Gone.
    stage.account("main", |_| {}).await;
    stage.until_count(Status::Sent, 20).await;
}

#[tokio::test]
async fn a_backlog_is_not_asked_about_again() {
    let mut stage = Stage::resting(stage::settings()).await;
    stage.account("main", |account| account.limit_per_day = Some(1)).await;
    for chunk in numbered(20_000).chunks(2000) {
        stage.add(chunk.to_vec()).await;
    }
    stage.start();
    let resumes_at = stage.until_paused("main").await;
    let refused = stage.mail.counts().await.unwrap()[0].rate_limited;
    assert_eq!(refused, 1);
    let checked = stage.gate.stats().decisions_batched;
    // Many looks, and most of a day.
    for micros in [-3_600_000_000, -1_000_000, -1000, -10, -1] {
        stage.look_at(resumes_at.plus_micros(micros)).await;
    }
    let counts = &stage.mail.counts().await.unwrap()[0];
    assert_eq!((counts.rate_limited, counts.sent, counts.deferred), (1, 1, 19_999));
    assert_eq!(stage.gate.stats().decisions_batched, checked);
    stage.clock.set(resumes_at);
    until("the next one", async || stage.mail.counts().await.unwrap()[0].sent == 2).await;
    stage.until_paused("main").await;
    assert_eq!(stage.mail.counts().await.unwrap()[0].rate_limited, 2);
}

#[tokio::test]
async fn higher_priorities_go_first_and_each_in_the_order_it_came() {
    let mut stage = Stage::resting(stage::settings()).await;
    stage.account("main", |_| {}).await;
    let mut messages = numbered(8);
    for (message, priority) in messages.iter_mut().zip([3, 2, 2, 1, 0, 3, 1, 0]) {
        message.priority = priority;
    }
    stage.add(messages).await;
    stage.start();
    stage.until_count(Status::Sent, 8).await;
    assert_eq!(stage.sink.arrived(8).await, ["m4", "m7", "m3", "m6", "m1", "m2", "m0", "m5"]);
}

#[tokio::test]
async fn a_share_of_the_limit_is_kept_for_priority_0() {
    let stage = Stage::new().await;
    stage
        .account("main", |account| {
            account.limit_per_hour = Some(10);
            account.priority0_share = 30;
        })
        .await;
    stage.add(numbered(20)).await;
    let ordinary_waits = async || {
        stage.read_account("main").await.resume_ordinary_at.is_some_and(|at| at > stage.clock.now())
    };
    until("ordinary mail to wait", ordinary_waits).await;
    assert_eq!(stage.count(Status::Sent).await, 7);
    let urgent = (0..5).map(|number| {
        let mut message = message(&format!("u{number}"));
        message.priority = 0;
        message
    });
    stage.add(urgent.collect()).await;
    stage.until_paused("main").await;
    assert_eq!(stage.count(Status::Sent).await, 10, "seven, and the share");
    assert_eq!(stage.message("u2").await.status, Status::Sent);
    assert_eq!(stage.message("u3").await.status, Status::Deferred);
}

#[tokio::test]
async fn a_level_that_is_set_later_counts_what_was_sent_before() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.add(numbered(3)).await;
    stage.until_count(Status::Sent, 3).await;
    stage.account("main", |account| account.limit_per_hour = Some(5)).await;
    stage.add((3..8).map(|number| message(&format!("m{number}"))).collect()).await;
    stage.until_paused("main").await;
    assert_eq!(stage.count(Status::Sent).await, 5, "three of them before there was a limit");
}

#[tokio::test]
async fn recipients_are_counted_where_the_account_says_so() {
    let stage = Stage::new().await;
    stage
        .account("main", |account| {
            account.limit_per_day = Some(5);
            account.limit_unit = LimitUnit::Recipients;
        })
        .await;
    let mut messages = numbered(4);
    for (message, recipients) in messages.iter_mut().zip([3, 6, 2, 1]) {
        message.content.bcc =
            (1..recipients).map(|number| format!("b{number}@example.org")).collect();
    }
    stage.add(messages).await;
    let never = stage.until_status("m1", Status::Error).await;
    let error = never.last_error.unwrap();
    assert!(error.contains("rate_limit_exceeded") && error.contains('6'), "{error}");
    stage.until_paused("main").await;
    assert_eq!(stage.sink.wait_for("message", 2).await.len(), 2);
    assert_eq!(stage.message("m2").await.status, Status::Sent);
    assert_eq!(stage.message("m3").await.status, Status::Deferred);
}

#[tokio::test]
async fn an_account_that_rejects_ends_what_is_over_its_limit() {
    let stage = Stage::new().await;
    stage
        .account("main", |account| {
            account.limit_per_minute = Some(2);
            account.limit_behavior = LimitBehavior::Reject;
        })
        .await;
    stage.add(numbered(5)).await;
    stage.until_count(Status::Error, 3).await;
    assert_eq!(stage.count(Status::Sent).await, 2);
    let row = stage.message("m4").await;
    assert_eq!(row.last_error.as_deref(), Some("rate_limit_exceeded"));
    assert!(stage.attempts("m4").await.is_empty(), "it was never tried");
    assert_eq!(stage.read_account("main").await.resume_at, None);
}

#[tokio::test]
async fn a_message_waits_for_its_own_instant() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    let mut later = message("later");
    later.deferred_until = Some(stage.clock.now().plus(secs(3600)));
    stage.add(vec![later, message("now")]).await;
    stage.until_status("now", Status::Sent).await;
    assert_eq!(stage.message("later").await.status, Status::Deferred);
    stage.clock.advance(secs(3600));
    stage.until_status("later", Status::Sent).await;
}

#[tokio::test]
async fn a_suspended_tenant_sends_nothing_until_it_is_activated() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.mail.suspend(stage::TENANT, None).await.unwrap();
    stage.add(numbered(3)).await;
    stage.look_at(stage.clock.now().plus_micros(1)).await;
    assert_eq!(stage.count(Status::Suspended).await, 3);
    stage.mail.activate(stage::TENANT, None).await.unwrap();
    stage.until_count(Status::Sent, 3).await;
}

#[tokio::test]
async fn concurrency_is_kept_per_account_and_overall() {
    let settings = tollgate_mail::MailSettings { concurrency: 6, ..stage::settings() };
    let stage = Stage::with(settings).await;
    stage.account("main", |account| account.concurrency = 3).await;
    stage.account("other", |account| account.concurrency = 100).await;
    let mut messages = Vec::new();
    for number in 0..40 {
        let mut message = stage::message_to(&format!("m{number}"), "late-50");
        if number % 2 == 1 {
            message.account_id = "other".into();
        }
        messages.push(message);
    }
    stage.add(messages).await;
    stage.until_count(Status::Sent, 40).await;
    let mut by_account = [BTreeSet::new(), BTreeSet::new()];
    let mut moments = Vec::new();
    for event in stage.sink.events("late") {
        moments.push((event["at"].as_f64().unwrap(), 1));
    }
    for event in stage.sink.wait_for("message", 40).await {
        moments.push((event["at"].as_f64().unwrap(), -1));
        let subject = event["headers"]["subject"].as_str().unwrap();
        let number: usize = subject[1..].parse().unwrap();
        by_account[number % 2].insert(event["connection"].as_u64().unwrap());
    }
    moments.sort_by(|one, other| one.partial_cmp(other).unwrap());
    let in_flight = moments.iter().scan(0, |now, (_, change)| {
        *now += change;
        Some(*now)
    });
    assert_eq!(in_flight.max(), Some(6), "overall");
    assert_eq!(by_account[0].len(), 3, "connections of the first account");
}

#[tokio::test]
async fn tenants_take_turns_however_much_one_of_them_sends() {
    let settings = tollgate_mail::MailSettings { concurrency: 1, ..stage::settings() };
    let mut stage = Stage::resting(settings).await;
    stage.account("main", |_| {}).await;
    stage.account("second", |_| {}).await;
    stage::put_tenant(&stage.mail, "small").await;
    let theirs = |account: &mut NewAccount| account.tenant_id = "small".into();
    stage::put_account(&stage.mail, "main", stage.sink.plain, theirs).await;
    let mut messages = numbered(205);
    for (number, message) in messages.iter_mut().enumerate() {
        match number {
            200.. => message.tenant_id = "small".into(),
            100.. => message.account_id = "second".into(),
            _ => {}
        }
    }
    stage.add(messages).await;
    stage.start();
    stage.until_count(Status::Sent, 200).await;
    let order = stage.sink.arrived(205).await;
    let place = |id: &str| order.iter().position(|subject| subject == id).unwrap();
    assert!(place("m204") < 20, "every other turn is the small tenant's: {}", place("m204"));
    assert!(place("m100") < 20, "and then the accounts take turns: {}", place("m100"));
}

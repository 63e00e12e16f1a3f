//! Mail with an API key: a daily quota that refuses.

use std::sync::Arc;

use crate::stage::{Stage, new_account, new_message, new_tenant, request, send};
use testkit::servers::Postgres;
use tollgate::{Clock, Instant, Policy, Span};
use tollgate_mail::{AccountKey, MailError, Refused, Selection, SendError, SendRequest, Sent};

pub(crate) async fn exactly_the_limit_passes_and_one_more_does_not(stage: Stage) {
    let key = stage.key(100).await;
    assert_eq!(stage.send(&key, request(95), None).await.unwrap().remaining, 5);
    let refused = stage.send(&key, request(6), None).await;
    let Err(SendError::Refused(Refused {
        current,
        requested,
        limit,
        retry_after_secs,
        retry_at,
        ..
    })) = refused
    else {
        panic!("not refused: {refused:?}")
    };
    assert_eq!((current, requested, limit), (95, 6, 100));
    let midnight = Instant::from_secs(1_772_755_200);
    assert_eq!(retry_at, midnight);
    assert_eq!(retry_after_secs, midnight.whole_secs_since(stage.clock.now()));
    // A refusal spends nothing, and what still fits passes.
    assert_eq!(stage.send(&key, request(5), None).await.unwrap().remaining, 0);
    assert_eq!(stage.pending().await, 2);
    stage.clock.set(retry_at);
    assert_eq!(stage.send(&key, request(6), None).await.unwrap().remaining, 94);
}

pub(crate) async fn a_stored_policy_of_the_same_name_does_not_spend_a_keys_quota(stage: Stage) {
    let (key, gate) = (stage.key(10).await, &stage.gate);
    let limits = r#"limits = [{ name = "day", max = 10, per = "day", by = ["api_key"] }]"#;
    gate.apply(&Policy::from_toml("mail-key", limits).unwrap(), "somebody").await.unwrap();
    let id = stage.mail.usable_key(&key).await.unwrap().id;
    let subject = [("api_key", id.as_str())];
    assert!(gate.check("mail-key", &subject, 7).await.unwrap().decision.allowed());
    assert_eq!(stage.used(&key).await, 0);
    let sent = stage.send(&key, request(4), None).await.unwrap();
    assert_eq!(sent.remaining, 6);
    let standing = gate.peek("mail-key", &subject, 1).await.unwrap().decision.limits[0].standing;
    assert_eq!(standing.used, 7);
}

pub(crate) async fn more_recipients_than_the_limit_can_never_pass(stage: Stage) {
    let key = stage.key(100).await;
    let never = stage.send(&key, request(500), None).await;
    assert!(matches!(never, Err(SendError::NeverFits { requested: 500, limit: 100 })), "{never:?}");
    assert_eq!((stage.used(&key).await, stage.pending().await), (0, 0));
}

pub(crate) async fn nothing_invalid_spends_quota(stage: Stage) {
    stage.mail.put_tenant(new_tenant("other")).await.unwrap();
    stage.mail.put_account(new_account("other", "theirs")).await.unwrap();
    let key = stage.key(100).await;
    let good = request(1);
    let mut bad = vec![
        SendRequest { to: vec![], ..good.clone() },
        SendRequest { to: vec!["bob".into()], ..good.clone() },
        SendRequest { subject: "x".repeat(257), ..good.clone() },
        SendRequest { subject: "a\r\nb".into(), ..good.clone() },
        SendRequest { text: None, ..good.clone() },
        SendRequest { account_id: Some("nobody".into()), ..good.clone() },
        SendRequest { account_id: Some("theirs".into()), ..good.clone() },
    ];
    let mut injected = good.clone();
    injected.headers.insert("X-A".into(), "b\r\nBcc: eve@example.org".into());
    bad.push(injected);
    for request in bad {
        let answer = stage.send(&key, request.clone(), None).await;
        assert!(matches!(answer, Err(SendError::Invalid(_))), "{request:?}: {answer:?}");
    }
    let large = SendRequest { text: Some("x".repeat(26 << 20)), ..good };
    let answer = stage.send(&key, large, None).await;
    assert!(matches!(answer, Err(SendError::TooLarge { .. })), "{answer:?}");
    assert_eq!((stage.used(&key).await, stage.pending().await), (0, 0));
}

pub(crate) async fn wrong_and_disabled_keys_are_told_apart(stage: Stage) {
    let secret = stage.key(10).await;
    assert!(secret.starts_with("tgk_"));
    let key = stage.mail.usable_key(&secret).await.unwrap();
    assert!(!format!("{key:?}").contains(&secret[4..]), "the secret is not kept");
    let wrong = stage.send("tgk_wrong", request(1), None).await;
    assert!(matches!(wrong, Err(SendError::UnknownKey)), "{wrong:?}");
    stage.mail.change_key(&key.id, Some(false), None).await.unwrap();
    let disabled = stage.send(&secret, request(1), None).await;
    assert!(matches!(disabled, Err(SendError::DisabledKey)), "{disabled:?}");
    assert!(matches!(stage.mail.usage(&secret).await, Err(SendError::DisabledKey)));
    stage.mail.change_key(&key.id, Some(true), None).await.unwrap();
    stage.send(&secret, request(1), None).await.unwrap();
    stage.mail.delete_key(&key.id).await.unwrap();
    let gone = stage.send(&secret, request(1), None).await;
    assert!(matches!(gone, Err(SendError::UnknownKey)), "{gone:?}");
}

pub(crate) async fn racing_sends_never_pass_the_limit_and_fill_it(stage: Stage) {
    let key: Arc<str> = stage.key(100).await.into();
    let mut tasks = Vec::new();
    for n in 0..40 {
        let (mail, key) = (stage.mail.clone(), key.clone());
        tasks.push(tokio::spawn(async move {
            let size = 1 + n % 9;
            send(&mail, &key, request(size), None).await.map(|_| size).unwrap_or(0)
        }));
    }
    let mut sent = 0;
    for task in tasks {
        sent += task.await.unwrap() as u64;
    }
    assert_eq!(stage.used(&key).await, sent);
    assert!(sent <= 100, "{sent} of 100");
    // 1 always fits until all is used.
    while stage.send(&key, request(1), None).await.is_ok() {}
    assert_eq!(stage.used(&key).await, 100);
}

pub(crate) async fn usage_adds_nothing_and_reads_above_a_lowered_limit(stage: Stage) {
    let secret = stage.key(10).await;
    stage.send(&secret, request(7), None).await.unwrap();
    for _ in 0..3 {
        let usage = stage.mail.usage(&secret).await.unwrap();
        assert_eq!((usage.emails_sent_today, usage.emails_remaining), (7, 3));
    }
    let id = stage.mail.usage(&secret).await.unwrap().api_key_id;
    stage.mail.change_key(&id, None, Some(5)).await.unwrap();
    let usage = stage.mail.usage(&secret).await.unwrap();
    assert_eq!(usage.daily_limit, 5);
    assert_eq!((usage.emails_sent_today, usage.emails_remaining), (7, 0));
    // Both at once, or neither.
    let bad = stage.mail.change_key(&id, Some(false), Some(u64::MAX)).await;
    assert!(matches!(&bad, Err(MailError::Invalid(it)) if it.field == "daily_limit"), "{bad:?}");
    assert_eq!(stage.mail.usage(&secret).await.unwrap().daily_limit, 5);
    let off = stage.mail.change_key(&id, Some(false), Some(8)).await.unwrap();
    assert_eq!((off.enabled, off.daily_limit), (false, 8));
    let on = stage.mail.change_key(&id, Some(true), None).await.unwrap();
    assert_eq!((on.enabled, on.daily_limit), (true, 8));
    assert_eq!(stage.send(&secret, request(1), None).await.unwrap().remaining, 0);
}

pub(crate) async fn the_day_begins_at_the_keys_own_midnight_also_across_a_change_of_clocks(
    stage: Stage,
) {
    // Clocks in Rome go forward on 2026-03-29: that day has 23 hours.
    let key = stage.key_in("Europe/Rome", 1).await;
    let noon_before = Instant::from_secs(1_774_695_600 + 12 * 3600 - 3600); // 28th, 12:00 in Rome
    stage.clock.set(noon_before);
    stage.send(&key, request(1), None).await.unwrap();
    let reset = stage.mail.usage(&key).await.unwrap().reset_time;
    assert_eq!(reset.to_string(), "2026-03-28T23:00:00.000000Z");
    stage.clock.set(reset.minus(Span::from_micros(1).unwrap()));
    assert!(stage.send(&key, request(1), None).await.is_err());
    stage.clock.set(reset);
    stage.send(&key, request(1), None).await.unwrap();
    let reset = stage.mail.usage(&key).await.unwrap().reset_time;
    assert_eq!(reset.to_string(), "2026-03-29T22:00:00.000000Z");
    stage.clock.set(reset.minus(Span::from_micros(1).unwrap()));
    assert!(stage.send(&key, request(1), None).await.is_err());
    stage.clock.set(reset);
    stage.send(&key, request(1), None).await.unwrap();
}

pub(crate) async fn an_idempotency_key_counts_and_queues_once(stage: Stage) {
    let key = stage.key(10).await;
    let first = stage.send(&key, request(3), Some("once")).await.unwrap();
    assert_eq!(first.remaining, 7);
    let again = stage.send(&key, request(3), Some("once")).await.unwrap();
    assert_eq!(again, Sent { replayed: true, ..first.clone() });
    let other = stage.send(&key, request(3), Some("twice")).await.unwrap();
    assert_ne!(other.id, first.id);
    assert_eq!((stage.used(&key).await, stage.pending().await), (6, 2));
    // Keys of two callers do not meet.
    let theirs = stage.key(10).await;
    let theirs = stage.send(&theirs, request(3), Some("once")).await.unwrap();
    assert_ne!(theirs.id, first.id);
}

pub(crate) async fn an_idempotency_key_is_forgotten_after_a_day(stage: Stage) {
    let key = stage.key(10).await;
    let first = stage.send(&key, request(3), Some("once")).await.unwrap();
    stage.clock.advance(Span::from_secs(25 * 3600));
    let later = stage.send(&key, request(3), Some("once")).await.unwrap();
    assert_ne!(later.id, first.id);
    assert_eq!((stage.used(&key).await, stage.pending().await), (3, 2));
}

pub(crate) async fn an_idempotency_key_with_another_message_is_refused(stage: Stage) {
    let key = stage.key(10).await;
    stage.send(&key, request(3), Some("once")).await.unwrap();
    let mut other = request(3);
    other.subject = "another".into();
    for other in [other, request(2)] {
        let answer = stage.send(&key, other, Some("once")).await;
        assert!(matches!(answer, Err(SendError::KeyReused)), "{answer:?}");
    }
    assert_eq!((stage.used(&key).await, stage.pending().await), (3, 1));
}

pub(crate) async fn a_retry_is_answered_the_same_whatever_became_of_the_account(stage: Stage) {
    let key = stage.key(10).await;
    stage.mail.put_account(new_account("acme", "other")).await.unwrap();
    let by_other = SendRequest { account_id: Some("other".into()), ..request(3) };
    let first = stage.send(&key, by_other.clone(), Some("once")).await.unwrap();
    let replayed = Sent { replayed: true, ..first };
    let again = async || stage.send(&key, by_other.clone(), Some("once")).await;
    let mut changed = new_account("acme", "other");
    changed.from_address = Some("another@example.org".into());
    stage.mail.put_account(changed).await.unwrap();
    assert_eq!(again().await.unwrap(), replayed);
    let all = Selection { tenant_id: "acme".into(), ..Selection::default() };
    stage.mail.delete_messages(&all).await.unwrap();
    stage.mail.delete_account(&AccountKey::new("acme", "other")).await.unwrap();
    assert_eq!(again().await.unwrap(), replayed);
    // Another message is another, and a key that was not used has nothing to tell.
    for other in [request(3), SendRequest { subject: "other".into(), ..by_other.clone() }] {
        let answer = stage.send(&key, other, Some("once")).await;
        assert!(matches!(answer, Err(SendError::KeyReused)), "{answer:?}");
    }
    let answer = stage.send(&key, by_other.clone(), Some("never used")).await;
    assert!(
        matches!(&answer, Err(SendError::Invalid(it)) if it.field == "account_id"),
        "{answer:?}"
    );
    assert_eq!((stage.used(&key).await, stage.pending().await), (0, 0));
}

pub(crate) async fn racing_retries_under_one_idempotency_key_are_one_message(stage: Stage) {
    let key: Arc<str> = stage.key(10).await.into();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (mail, key) = (stage.mail.clone(), key.clone());
            tokio::spawn(async move { send(&mail, &key, request(4), Some("once")).await.unwrap() })
        })
        .collect();
    let mut answers: Vec<Sent> = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    assert!(answers.iter().all(|answer| answer.id == answers[0].id), "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1, "{answers:?}");
    assert_eq!((stage.used(&key).await, stage.pending().await), (4, 1));
}

pub(crate) async fn deleting_an_unsent_message_gives_its_quota_back(stage: Stage) {
    let key = stage.key(10).await;
    let sent = stage.send(&key, request(4), None).await.unwrap();
    stage.mail.add_messages(vec![new_message("other")]).await.unwrap();
    assert_eq!(stage.used(&key).await, 4);
    let one = Selection {
        tenant_id: "acme".into(),
        ids: Some(vec![sent.id, "other".into()]),
        ..Selection::default()
    };
    assert_eq!(stage.mail.delete_messages(&one).await.unwrap(), 2);
    assert_eq!(stage.used(&key).await, 0);
    assert_eq!(stage.gate.now(), stage.clock.now());
}

pub(crate) async fn the_sender_is_the_accounts_unless_given(stage: Stage) {
    let key = stage.key(10).await;
    let mut plain = new_account("acme", "plain");
    (plain.user, plain.password) = (None, None);
    stage.mail.put_account(plain).await.unwrap();
    for account in ["main", "plain"] {
        let mut request = request(1);
        request.account_id = Some(account.into());
        let sent = stage.send(&key, request, None).await.unwrap();
        let row = stage.mail.message("acme", &sent.id).await.unwrap();
        assert_eq!(row.account_id, account);
    }
    let mut bad = request(1);
    bad.headers.insert("From".into(), "nobody".into());
    let answer = stage.send(&key, bad, None).await;
    assert!(matches!(&answer, Err(SendError::Invalid(it)) if it.field == "from"), "{answer:?}");
}

/// What PostgreSQL does with a new message instead of keeping it.
async fn trigger(stage: &Stage, when: &str, action: &str) {
    let schema = stage.schema.clone().unwrap();
    let sql = format!(
        "create or replace function {schema}.spoil() returns trigger language plpgsql as \
             $$ begin {action}; return new; end $$; \
         create {when} insert on {schema}.mail_message \
             {} for each row execute function {schema}.spoil()",
        if when.starts_with("constraint") { "deferrable initially deferred" } else { "" },
    );
    tokio::task::spawn_blocking(move || Postgres::shared().psql(&sql)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_never_to_be_kept_gives_its_quota_back() {
    let stage = Stage::postgres().await;
    let key = stage.key(10).await;
    trigger(&stage, "trigger spoil before", "raise exception 'no'").await;
    let answer = stage.send(&key, request(4), None).await;
    assert!(matches!(answer, Err(SendError::Store(_))), "{answer:?}");
    assert_eq!(stage.used(&key).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_may_have_been_kept_stays_counted() {
    let stage = Stage::postgres().await;
    let key = stage.key(10).await;
    // The connection ends in the middle of the commit: nobody can know what came of it.
    let action = "perform pg_terminate_backend(pg_backend_pid())";
    trigger(&stage, "constraint trigger spoil after", action).await;
    let answer = stage.send(&key, request(4), None).await;
    assert!(matches!(answer, Err(SendError::Store(_))), "{answer:?}");
    assert_eq!(stage.used(&key).await, 4);
}

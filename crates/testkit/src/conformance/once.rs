//! Requests under an idempotency key: one effect, one answer.

use tollgate::{Answer, Error, IdempotencyKey, OnceAnswer, Refunded, Span};

use crate::random;
use crate::stage::{Stage, Trial};

const LIMIT: &str = r#"limits = [{ name = "user", max = 3, per = "60s", by = ["user"] }]"#;
const ADA: crate::stage::Subject<'static> = &[("user", "ada")];
const DAY: Span = Span::from_secs(86_400);

/// Everything a caller could see of an answer.
fn render(answer: &Answer) -> Vec<u8> {
    format!("{:?} {:?}", answer.decision, answer.receipt).into_bytes()
}

fn render_refund(refunded: Refunded) -> Vec<u8> {
    format!("{refunded:?}").into_bytes()
}

async fn once(
    trial: &Trial,
    key: &str,
    subject: crate::stage::Subject<'_>,
    cost: u32,
) -> Result<OnceAnswer<Answer>, Error> {
    let key = IdempotencyKey { scope: b"testkit", key };
    trial.gate.check_once(key, &trial.name, subject, cost, render).await
}

async fn fresh(trial: &Trial, key: &str, cost: u32) -> Answer {
    match once(trial, key, ADA, cost).await.expect("the store answers") {
        OnceAnswer::Fresh(answer) => answer,
        OnceAnswer::Replay(_) => panic!("{key} was answered before"),
    }
}

async fn replay(trial: &Trial, key: &str, cost: u32) -> Vec<u8> {
    match once(trial, key, ADA, cost).await.expect("the store answers") {
        OnceAnswer::Fresh(answer) => panic!("{key} is decided afresh: {:?}", answer.decision),
        OnceAnswer::Replay(bytes) => bytes,
    }
}

pub async fn an_allowed_answer_is_replayed_and_counted_once(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    let key = random::name("key");
    let answer = fresh(&trial, &key, 2).await;
    assert!(answer.allowed());
    for _ in 0..3 {
        assert_eq!(replay(&trial, &key, 2).await, render(&answer));
    }
    assert_eq!(trial.used(ADA).await, [2]);
    // Also when the window it was decided in is long over.
    stage.clock.advance(Span::from_secs(7200));
    assert_eq!(replay(&trial, &key, 2).await, render(&answer));
    assert_eq!(trial.used(ADA).await, [0]);
    assert!(fresh(&trial, &random::name("key"), 2).await.allowed(), "another key is another");
}

pub async fn a_refusal_is_not_recorded(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    trial.pass(ADA, 3).await;
    let key = random::name("key");
    let refused = fresh(&trial, &key, 1).await;
    assert!(!refused.allowed());
    assert!(!fresh(&trial, &key, 1).await.allowed(), "decided afresh");
    stage.wait_until(refused.decision.retry_at().expect("it waits"));
    let allowed = fresh(&trial, &key, 1).await;
    assert!(allowed.allowed());
    assert_eq!(replay(&trial, &key, 1).await, render(&allowed));
    // A refusal binds the key to nothing.
    trial.pass(ADA, 2).await;
    let key = random::name("key");
    assert!(!fresh(&trial, &key, 2).await.allowed());
    assert!(!fresh(&trial, &key, 1).await.allowed(), "another request under the same key");
}

pub async fn a_cost_that_never_fits_is_not_recorded(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    let key = random::name("key");
    assert!(!fresh(&trial, &key, 4).await.allowed());
    assert!(matches!(once(&trial, &key, ADA, 0).await, Err(Error::ZeroCost)));
    assert!(matches!(once(&trial, &key, &[], 1).await, Err(Error::BadSubject(_))));
    assert!(fresh(&trial, &key, 3).await.allowed());
}

pub async fn the_order_of_attributes_makes_no_other_request(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    let key = random::name("key");
    let answer = once(&trial, &key, &[("user", "ada"), ("ip", "203.0.113.7")], 1).await;
    assert!(matches!(answer, Ok(OnceAnswer::Fresh(_))));
    let answer = once(&trial, &key, &[("ip", "203.0.113.7"), ("user", "ada")], 1).await;
    assert!(matches!(answer, Ok(OnceAnswer::Replay(_))));
}

pub async fn a_key_with_another_request_is_an_error(stage: Stage) {
    let (trial, other) = (stage.trial(LIMIT).await, stage.trial(LIMIT).await);
    let key = random::name("key");
    let receipt = fresh(&trial, &key, 1).await.receipt.expect("it is allowed");
    let reused = |answer: Result<_, Error>| matches!(answer, Err(Error::KeyReused));
    assert!(reused(once(&trial, &key, ADA, 2).await), "another cost");
    assert!(reused(once(&trial, &key, &[("user", "bob")], 1).await), "another subject");
    assert!(reused(once(&trial, &key, &[("user", "ada"), ("x", "y")], 1).await));
    assert!(reused(once(&other, &key, ADA, 1).await), "another policy");
    let key = IdempotencyKey { scope: b"testkit", key: &key };
    let refund = stage.gate.refund_once(key, &receipt, render_refund).await;
    assert!(matches!(refund, Err(Error::KeyReused)), "another call");
    assert_eq!(trial.used(ADA).await, [1]);
    assert_eq!(trial.used(&[("user", "bob")]).await, [0]);
    assert_eq!(other.used(ADA).await, [0]);
}

pub async fn keys_of_different_scopes_do_not_meet(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    let tag = random::name("");
    // The last two would be one if scope and key were simply written one after the other.
    for (scope, key) in [("a", "k"), ("b", "k"), ("a", "kk"), ("ak", "k")] {
        let scope = format!("{tag}{scope}");
        let key = IdempotencyKey { scope: scope.as_bytes(), key };
        let user = [("user", key.key), ("scope", scope.as_str())];
        let answer = stage.gate.check_once(key, &trial.name, &user, 1, render).await;
        assert!(matches!(answer, Ok(OnceAnswer::Fresh(_))), "{key:?}");
    }
}

pub async fn sixteen_duplicates_at_once_count_once_and_get_the_same_bytes(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    for _ in 0..8 {
        let key = random::name("key");
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let (trial, key) = (trial.clone(), key.clone());
                tokio::spawn(async move { once(&trial, &key, ADA, 3).await })
            })
            .collect();
        let mut fresh = Vec::new();
        let mut replayed = Vec::new();
        for task in tasks {
            match task.await.expect("the task ends").expect("the store answers") {
                OnceAnswer::Fresh(answer) => fresh.push(answer),
                OnceAnswer::Replay(bytes) => replayed.push(bytes),
            }
        }
        assert_eq!((fresh.len(), replayed.len()), (1, 15));
        assert!(fresh[0].allowed());
        assert!(replayed.iter().all(|bytes| *bytes == render(&fresh[0])));
        assert_eq!(trial.used(ADA).await, [3]);
        stage.clock.advance(Span::from_secs(60));
    }
}

pub async fn a_record_expires_after_24_hours(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    let key = random::name("key");
    let first = fresh(&trial, &key, 1).await;
    stage.wait_until(first.decision.decided_at.plus(DAY).plus_micros(-1));
    assert_eq!(replay(&trial, &key, 1).await, render(&first));
    stage.clock.advance(Span::from_micros(1).expect("one is enough"));
    // Swept or not, it is over; and the key may be used for something else.
    let second = fresh(&trial, &key, 2).await;
    assert!(second.allowed());
    assert_eq!(replay(&trial, &key, 2).await, render(&second));
}

pub async fn a_replay_outlives_a_change_of_policy(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    let key = random::name("key");
    let answer = fresh(&trial, &key, 1).await;
    trial.apply(r#"limits = [{ name = "user", max = 0, per = "60s", by = ["user"] }]"#).await;
    assert_eq!(replay(&trial, &key, 1).await, render(&answer));
}

pub async fn a_recorded_receipt_can_be_refunded(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    let key = random::name("key");
    let receipt = fresh(&trial, &key, 2).await.receipt.expect("it is allowed");
    let replayed = replay(&trial, &key, 2).await;
    let shown = String::from_utf8(replayed).expect("the rendering is text");
    assert!(shown.contains(&receipt), "the replay holds the same receipt");
    assert_eq!(stage.gate.refund(&receipt).await.expect("it answers"), Refunded::Done);
    assert_eq!(trial.used(ADA).await, [0]);
    // The replay stays what it was, and counts nothing.
    replay(&trial, &key, 2).await;
    assert_eq!(trial.used(ADA).await, [0]);
}

pub async fn a_refund_is_replayed_under_its_key(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    let (first, second) = (trial.pass(ADA, 1).await, trial.pass(ADA, 1).await);
    let name = random::name("key");
    let key = IdempotencyKey { scope: b"testkit", key: &name };
    let done = stage.gate.refund_once(key, &first, render_refund).await;
    assert!(matches!(done, Ok(OnceAnswer::Fresh(Refunded::Done))));
    for _ in 0..3 {
        match stage.gate.refund_once(key, &first, render_refund).await {
            Ok(OnceAnswer::Replay(bytes)) => assert_eq!(bytes, render_refund(Refunded::Done)),
            other => panic!("done under this key before, and now: {other:?}"),
        }
    }
    assert_eq!(trial.used(ADA).await, [1]);
    let other = stage.gate.refund_once(key, &second, render_refund).await;
    assert!(matches!(other, Err(Error::KeyReused)));
    assert_eq!(trial.used(ADA).await, [1]);
}

pub async fn a_refund_that_was_not_done_is_not_recorded(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    let (first, second) = (trial.pass(ADA, 1).await, trial.pass(ADA, 1).await);
    assert_eq!(stage.gate.refund(&first).await.expect("it answers"), Refunded::Done);
    let name = random::name("key");
    let key = IdempotencyKey { scope: b"testkit", key: &name };
    let already = stage.gate.refund_once(key, &first, render_refund).await;
    assert!(matches!(already, Ok(OnceAnswer::Fresh(Refunded::Already))));
    let forged = stage.gate.refund_once(key, "forged", render_refund).await;
    assert!(matches!(forged, Err(Error::BadReceipt)));
    let done = stage.gate.refund_once(key, &second, render_refund).await;
    assert!(matches!(done, Ok(OnceAnswer::Fresh(Refunded::Done))), "the key was still free");
}

pub async fn sixteen_refunds_at_once_give_back_once(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    trial.pass(ADA, 2).await;
    let receipt = trial.pass(ADA, 1).await;
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (gate, receipt) = (stage.gate.clone(), receipt.clone());
            tokio::spawn(async move { gate.refund(&receipt).await.expect("it answers") })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        match task.await.expect("the task ends") {
            Refunded::Done => done += 1,
            other => assert_eq!(other, Refunded::Already),
        }
    }
    assert_eq!(done, 1);
    assert_eq!(trial.used(ADA).await, [2]);
}

pub async fn an_answer_is_replayed_after_its_policy_is_gone(stage: Stage) {
    let trial = stage.trial(LIMIT).await;
    let key = random::name("key");
    let answer = fresh(&trial, &key, 2).await;
    trial.apply(r#"limits = [{ name = "team", max = 3, per = "60s", by = ["team"] }]"#).await;
    assert_eq!(replay(&trial, &key, 2).await, render(&answer), "though it lacks an attribute now");
    trial.gate.delete_policy(&trial.name, "me").await.expect("it is deleted");
    assert_eq!(replay(&trial, &key, 2).await, render(&answer));
    let another = once(&trial, &random::name("key"), ADA, 2).await;
    assert!(matches!(another, Err(Error::NoSuchPolicy(_))), "{another:?}");
}

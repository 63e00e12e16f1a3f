//! The embedded store closed and opened again: what comes back, what leaves, what is remembered.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "restart/home.rs"]
mod home;

use home::{Home, rows};
use testkit::{Stage, Trial};
use tollgate::{
    Clock, Error, IdempotencyKey, OnceAnswer, Policy, Refunded, Scope, Span, StoreErrorKind,
};

const ALL_KINDS: &str = r#"limits = [
    { name = "fixed",    max = 9, per = "1h", by = ["user"] },
    { name = "calendar", max = 9, per = "day", timezone = "Europe/Rome", by = ["user"] },
    { name = "sliding",  max = 9, per = "1h", by = ["user"], algorithm = "sliding", private = true },
    { name = "bucket",   max = 9, per = "1h", by = ["user"], algorithm = "bucket" },
]"#;
const ONE: &str = r#"limits = [{ name = "user", max = 5, per = "1h", by = ["user"] }]"#;
const ADA: &[(&str, &str)] = &[("user", "ada")];

fn on(stage: &Stage, trial: &Trial) -> Trial {
    Trial { gate: stage.gate.clone(), name: trial.name.clone() }
}

#[tokio::test]
async fn every_count_comes_back() {
    let home = Home::new();
    let stage = home.open().await;
    let trial = stage.trial(ALL_KINDS).await;
    let users: Vec<String> = (0..40).map(|number| format!("u{number}")).collect();
    for (number, user) in users.iter().enumerate() {
        stage.clock.advance(Span::from_secs(7));
        let receipt = trial.pass(&[("user", user)], 2).await;
        trial.pass(&[("user", user)], 1 + number as u32 % 5).await;
        // A refunded bucket remembers what was given back.
        if number % 3 == 0 {
            assert_eq!(stage.gate.refund(&receipt).await.unwrap(), Refunded::Done);
        }
    }
    let mut before = Vec::new();
    for user in &users {
        before.push(trial.peek(&[("user", user)], 3).await.decision);
    }
    let keys = stage.gate.stats().keys;
    drop((stage, trial.gate));
    let stage = home.open().await;
    let trial = Trial { gate: stage.gate.clone(), name: trial.name };
    for (user, before) in users.iter().zip(before) {
        assert_eq!(trial.peek(&[("user", user)], 3).await.decision, before);
    }
    assert_eq!(stage.gate.stats().keys, keys);
    stage.gate.close();
    assert_eq!(rows(&home.file(), "counter"), keys as u64);
}

#[tokio::test]
async fn receipts_are_given_back_after_a_restart_and_only_once() {
    let home = Home::new();
    let stage = home.open().await;
    let trial = stage.trial(ALL_KINDS).await;
    let used = trial.pass(ADA, 2).await;
    let unused = trial.pass(ADA, 3).await;
    assert_eq!(stage.gate.refund(&used).await.unwrap(), Refunded::Done);
    drop((stage, trial.gate));
    let stage = home.open().await;
    let trial = Trial { gate: stage.gate.clone(), name: trial.name };
    assert_eq!(stage.gate.refund(&used).await.unwrap(), Refunded::Already);
    assert_eq!(trial.used(ADA).await, [3; 4]);
    assert_eq!(stage.gate.refund(&unused).await.unwrap(), Refunded::Done);
    // What was given back of a bucket earlier weighs against it: it never gives too much.
    let left = trial.used(ADA).await;
    assert_eq!(left[..3], [0; 3]);
    drop((stage, trial.gate));
    let stage = home.open().await;
    assert_eq!(stage.gate.refund(&unused).await.unwrap(), Refunded::Already);
}

#[tokio::test]
async fn records_are_replayed_after_a_restart() {
    let home = Home::new();
    let stage = home.open().await;
    let trial = stage.trial(ONE).await;
    let key = IdempotencyKey { scope: b"me", key: "k1" };
    let render = |answer: &tollgate::Answer| answer.receipt.clone().unwrap().into_bytes();
    let first = stage.gate.check_once(key, &trial.name, ADA, 2, render).await.unwrap();
    let OnceAnswer::Fresh(first) = first else { panic!("nobody asked before") };
    drop((stage, trial.gate));
    let stage = home.open().await;
    let trial = Trial { gate: stage.gate.clone(), name: trial.name };
    let second = stage.gate.check_once(key, &trial.name, ADA, 2, render).await.unwrap();
    let OnceAnswer::Replay(bytes) = second else { panic!("it was decided before") };
    assert_eq!(bytes, first.receipt.unwrap().into_bytes());
    let reused = stage.gate.check_once(key, &trial.name, ADA, 3, render).await;
    assert!(matches!(reused, Err(Error::KeyReused)));
    assert_eq!(trial.used(ADA).await, [2]);
}

#[tokio::test]
async fn policies_overrides_and_tokens_come_back() {
    let home = Home::new();
    let stage = home.open().await;
    assert!(stage.gate.is_new());
    let trial = stage.trial(ONE).await;
    let deleted = stage.trial(ONE).await;
    stage.gate.delete_policy(&deleted.name, "me").await.unwrap();
    let file = Policy::from_toml("from-file", ONE).unwrap();
    stage.gate.apply_from_file(&file).await.unwrap();
    stage.gate.put_override(&trial.name, "user", ADA, 7, "me").await.unwrap();
    let token = stage.gate.create_token("laptop", Scope::Check).await.unwrap().token;
    let versions = stage.gate.policy_versions(&trial.name).await.unwrap();
    let overrides = stage.gate.overrides();
    drop((stage, trial.gate, deleted.gate));
    let stage = home.open().await;
    let gate = &stage.gate;
    assert!(!gate.is_new());
    assert_eq!(gate.policy_versions(&trial.name).await.unwrap(), versions);
    assert_eq!(gate.policy(&trial.name).unwrap().version(), 1);
    assert!(matches!(gate.policy(&deleted.name), Err(Error::NoSuchPolicy(_))));
    assert_eq!(gate.policy_versions(&deleted.name).await.unwrap().len(), 2);
    assert_eq!(gate.overrides(), overrides);
    let answer = gate.peek(&trial.name, ADA, 1).await.unwrap();
    assert_eq!(answer.decision.limits[0].standing.max, 7);
    let bearer = gate.bearer(&token).unwrap();
    assert_eq!((bearer.name.as_str(), bearer.scope), ("laptop", Scope::Check));
    assert!(gate.bearer("tg_other").is_none());
    let again = gate.apply_from_file(&file).await.unwrap();
    assert!(matches!(again, tollgate::FilePolicy::Unchanged));
}

#[tokio::test]
async fn private_values_and_tokens_are_not_in_the_file() {
    let home = Home::new();
    let stage = home.open().await;
    let trial = stage
        .trial(
            r#"limits = [
                { name = "email", max = 9, per = "1h", by = ["email"], private = true },
                { name = "user",  max = 9, per = "1h", by = ["user"] },
            ]"#,
        )
        .await;
    let email = ("email", "ada.lovelace@example.com");
    let subject = [email, ("user", "visible-user")];
    let receipt = trial.pass(&subject, 1).await;
    stage.gate.refund(&receipt).await.unwrap();
    stage.gate.put_override(&trial.name, "email", &[email], 7, "me").await.unwrap();
    let key = IdempotencyKey { scope: b"scope", key: "secret-key" };
    stage.gate.check_once(key, &trial.name, &subject, 1, |_| b"body".to_vec()).await.unwrap();
    let token = stage.gate.create_token("laptop", Scope::Admin).await.unwrap().token;
    let open = home.bytes();
    stage.gate.close();
    let closed = home.bytes();
    for bytes in [open, closed] {
        let holds = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(holds("visible-user"), "what is not private can be found: the search works");
        for hidden in ["lovelace", "Lovelace", &token, &token[3..], "secret-key", &receipt] {
            assert!(!holds(hidden), "{hidden} stands in the file");
        }
    }
}

#[tokio::test]
async fn an_answer_with_sync_is_in_the_file_when_it_is_given() {
    let home = Home::new();
    let stage = home.open().await;
    let trial = stage
        .trial(
            r#"durability = "sync"
            limits = [{ name = "user", max = 99, per = "1h", by = ["user"] }]"#,
        )
        .await;
    for count in 1..=5 {
        trial.pass(ADA, 1).await;
        let copy = home.copy();
        let copied = copy.open().await;
        assert_eq!(on(&copied, &trial).used(ADA).await, [count]);
    }
}

#[tokio::test]
async fn a_receipt_newer_than_the_file_gives_nothing_back() {
    let home = Home::new();
    let stage = home.open().await;
    let trial = stage.trial(ONE).await;
    let kept = trial.pass(ADA, 2).await;
    stage.gate.ping().await.unwrap();
    let copy = home.copy();
    let lost = trial.pass(ADA, 3).await;
    // The copy is what a crash just before the last check would have left.
    let copied = copy.open().await;
    let trial = on(&copied, &trial);
    assert_eq!(trial.used(ADA).await, [2]);
    trial.pass(ADA, 1).await;
    assert_eq!(copied.gate.refund(&lost).await.unwrap(), Refunded::Forgotten);
    assert_eq!(trial.used(ADA).await, [3]);
    assert_eq!(copied.gate.refund(&kept).await.unwrap(), Refunded::Done);
    assert_eq!(trial.used(ADA).await, [1]);
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let home = Home::new();
    let stage = home.open().await;
    let trial = stage.trial(ONE).await;
    let receipt = trial.pass(ADA, 1).await;
    stage.gate.close();
    stage.gate.close();
    let unavailable = |error: Error| match error {
        Error::Store(error) => error.kind() == StoreErrorKind::Unavailable,
        _ => false,
    };
    let gate = &stage.gate;
    assert!(unavailable(gate.check(&trial.name, ADA, 1).await.unwrap_err()));
    assert!(unavailable(gate.check_blocking(&trial.name, ADA, 1).unwrap_err()));
    assert!(unavailable(gate.peek(&trial.name, ADA, 1).await.unwrap_err()));
    assert!(unavailable(gate.refund(&receipt).await.unwrap_err()));
    assert!(unavailable(gate.ping().await.unwrap_err()));
    let policy = Policy::from_toml("late", ONE).unwrap();
    assert!(unavailable(gate.apply(&policy, "me").await.unwrap_err()));
    let again = home.open().await;
    assert_eq!(on(&again, &trial).used(ADA).await, [1]);
}

#[tokio::test]
async fn a_file_in_use_cannot_be_opened_again() {
    let home = Home::new();
    let stage = home.open().await;
    let trial = stage.trial(ONE).await;
    for _ in 0..2 {
        match home.try_open().await {
            Err(Error::Store(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::Contended);
                let message = error.to_string();
                assert!(message.contains("in use"), "{message}");
                assert!(message.contains(&*home.file().to_string_lossy()), "{message}");
            }
            other => panic!("the file is in use, and yet: {:?}", other.map(|_| ())),
        }
        // The first is not disturbed.
        trial.pass(ADA, 1).await;
        stage.gate.ping().await.unwrap();
    }
    let start = stage.clock.now();
    drop((stage, trial.gate));
    assert_eq!(home.open().await.clock.now(), start);
}

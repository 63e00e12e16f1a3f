//! Policies: versions, what a change keeps, what it starts anew.

use tollgate::{Applied, Clock, Error, FilePolicy, Policy, Refunded, Span};

use crate::stage::{Stage, Trial};

const ADA: crate::stage::Subject<'static> = &[("user", "ada"), ("team", "blue")];

/// A policy of one limit, `user`.
fn one(limit: &str) -> String {
    format!(r#"limits = [{{ name = "user", {limit} }}]"#)
}

pub async fn an_unchanged_policy_makes_no_new_version(stage: Stage) {
    let trial = stage.trial(&one(r#"max = 5, per = "60s", by = ["user"]"#)).await;
    let version = stage.gate.policy(&trial.name).expect("in force").version();
    trial.pass(ADA, 2).await;
    // The order of fields is no change.
    for same in [r#"max = 5, per = "60s", by = ["user"]"#, r#"by = ["user"], per = "60s", max = 5"#]
    {
        let applied = trial.apply(&one(same)).await;
        assert!(!applied.changed && !applied.created && applied.restarted.is_empty());
        assert_eq!(applied.policy.version(), version);
    }
    let versions = stage.gate.policy_versions(&trial.name).await.expect("there is one");
    assert_eq!(versions.len(), 1);
    assert_eq!(trial.used(ADA).await, [2]);
}

pub async fn a_changed_max_keeps_the_counts(stage: Stage) {
    for algorithm in ["fixed", "sliding", "bucket"] {
        let limit = |max: u32| {
            one(&format!(r#"max = {max}, per = "60s", algorithm = "{algorithm}", by = ["user"]"#))
        };
        let trial = stage.trial(&limit(4)).await;
        trial.pass(ADA, 4).await;
        let applied = trial.apply(&limit(6)).await;
        assert!(applied.changed && !applied.created, "{algorithm}");
        assert_eq!(applied.restarted, [""; 0], "{algorithm}");
        assert_eq!(applied.policy.version(), 2);
        // A bucket holds time: 60 s of it is all of the larger bucket too.
        let fits = if algorithm == "bucket" { 0 } else { 2 };
        trial.pass_times(ADA, fits).await;
        trial.refused_until(ADA, 1).await;
    }
}

pub async fn a_bucket_with_its_own_burst_keeps_its_units(stage: Stage) {
    let limit = |max: u32, burst: u32| {
        one(&format!(
            r#"max = {max}, per = "60s", algorithm = "bucket", burst = {burst}, by = ["user"], max_by = {{ role = {{ pro = 600 }} }}"#
        ))
    };
    let (clock, wait) = (&stage.clock, |micros| stage.clock.now().plus_micros(micros));
    // A lower rate: what is owed leaves by the rate it was spent by, until somebody spends.
    let trial = stage.trial(&limit(100, 10)).await;
    trial.pass(ADA, 10).await;
    assert_eq!(trial.apply(&limit(1, 10)).await.restarted, [""; 0]);
    assert_eq!(trial.used(ADA).await, [10]);
    assert_eq!(trial.refused_until(ADA, 1).await, wait(600_000));
    // A higher one by an override, and back: felt at once, and the wait is true.
    let trial = stage.trial(&limit(1, 10)).await;
    trial.pass(ADA, 4).await;
    let receipt = trial.pass(ADA, 6).await;
    let (gate, key) = (&stage.gate, [("user", "ada")]);
    gate.put_override(&trial.name, "user", &key, 100, "me").await.expect("an override is taken");
    assert_eq!(trial.used(ADA).await, [10]);
    let retry_at = trial.refused_until(ADA, 1).await;
    assert_eq!(retry_at, wait(600_000));
    stage.wait_until(retry_at);
    trial.pass(ADA, 1).await;
    gate.delete_override(&trial.name, "user", &key).await.expect("it is removed");
    assert_eq!(trial.used(ADA).await, [10]);
    trial.refused_until(ADA, 1).await;
    // Of what was spent by the old rate, the units come back; a changed burst keeps what is owed.
    assert_eq!(gate.refund(&receipt).await.expect("it answers"), Refunded::Done);
    assert_eq!(trial.used(ADA).await, [4]);
    trial.apply(&limit(1, 5)).await;
    trial.refused_until(ADA, 2).await;
    trial.pass(ADA, 1).await;
    // A role: ten as one are ten as the other.
    let trial = stage.trial(&limit(60, 10)).await;
    let pro = [("user", "ada"), ("role", "pro")];
    trial.pass(&pro, 10).await;
    trial.refused_until(ADA, 1).await;
    assert_eq!((trial.used(ADA).await, trial.used(&pro).await), (vec![10], vec![10]));
    let bob = [("user", "bob")];
    trial.pass(&bob, 10).await;
    trial.refused_until(&[("user", "bob"), ("role", "pro")], 1).await;
    assert!(clock.now() < trial.refused_until(&bob, 1).await);
}

async fn starts_anew(stage: &Stage, before: &str, after: &str) -> (Trial, Applied) {
    let trial = stage.trial(&one(before)).await;
    trial.pass(ADA, 2).await;
    let applied = trial.apply(&one(after)).await;
    assert!(applied.changed && !applied.created);
    assert_eq!(applied.restarted, ["user"], "{before} became {after}");
    assert_eq!(trial.used(ADA).await, [0]);
    trial.pass(ADA, 2).await;
    trial.refused_until(ADA, 1).await;
    // The old counts still stand under the old policy.
    trial.apply(&one(before)).await;
    trial.refused_until(ADA, 1).await;
    (trial, applied)
}

pub async fn a_changed_per_starts_new_counts_and_says_so(stage: Stage) {
    let limit = |per: &str| format!(r#"max = 2, per = "{per}", by = ["user"]"#);
    starts_anew(&stage, &limit("60s"), &limit("1h")).await;
    starts_anew(&stage, &limit("day"), &limit("1d")).await;
}

pub async fn a_changed_algorithm_starts_new_counts_and_says_so(stage: Stage) {
    let limit = |algorithm: &str| {
        format!(r#"max = 2, per = "60s", algorithm = "{algorithm}", by = ["user"]"#)
    };
    for (before, after) in [
        ("fixed", "sliding"),
        ("sliding", "bucket"),
        ("bucket", "fixed"),
        ("sliding", r#"sliding", resolution = "2s"#),
    ] {
        starts_anew(&stage, &limit(before), &limit(after)).await;
    }
}

pub async fn a_changed_by_starts_new_counts_and_says_so(stage: Stage) {
    let limit = |by: &str| format!(r#"max = 2, per = "60s", by = {by}"#);
    for (before, after) in [
        (r#"["user"]"#, r#"["team"]"#),
        (r#"["user"]"#, r#"["user", "team"]"#),
        (r#"["user", "team"]"#, r#"["team", "user"]"#),
        (r#"[]"#, r#"["user"]"#),
        (r#"["user"]"#, r#"["user"], private = true"#),
    ] {
        starts_anew(&stage, &limit(before), &limit(after)).await;
    }
}

pub async fn a_changed_timezone_starts_new_counts_and_says_so(stage: Stage) {
    let limit = |zone: &str| format!(r#"max = 2, per = "day", timezone = "{zone}", by = ["user"]"#);
    starts_anew(&stage, &limit("UTC"), &limit("Europe/Rome")).await;
    starts_anew(&stage, &limit("Europe/Rome"), &limit("Asia/Tokyo")).await;
}

pub async fn only_the_limits_that_changed_start_anew(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "minute", max = 9, per = "60s" },
                { name = "hour",   max = 9, per = "1h" },
                { name = "gone",   max = 9, per = "1h" },
            ]"#,
        )
        .await;
    trial.pass(&[], 2).await;
    let applied = trial
        .apply(
            r#"limits = [
                { name = "new",    max = 9, per = "1d" },
                { name = "hour",   max = 8, per = "1h" },
                { name = "minute", max = 9, per = "30s" },
            ]"#,
        )
        .await;
    assert_eq!(applied.restarted, ["minute"], "a new limit did not count before");
    assert_eq!(trial.used(&[]).await, [0, 2, 0]);
}

pub async fn a_deleted_policy_is_gone_and_its_versions_stay(stage: Stage) {
    let trial = stage.trial(&one(r#"max = 5, per = "60s""#)).await;
    trial.apply(&one(r#"max = 6, per = "60s""#)).await;
    let gate = &stage.gate;
    gate.delete_policy(&trial.name, "eve").await.expect("it is deleted");
    let check = gate.check(&trial.name, &[], 1).await;
    assert!(matches!(check, Err(Error::NoSuchPolicy(name)) if name == trial.name));
    assert!(!gate.policies().iter().any(|live| live.policy().name() == trial.name));
    let again = gate.delete_policy(&trial.name, "eve").await;
    assert!(matches!(again, Err(Error::NoSuchPolicy(_))));
    let versions = gate.policy_versions(&trial.name).await.expect("they are kept");
    let numbers: Vec<_> = versions.iter().map(|kept| kept.version).collect();
    assert_eq!(numbers, [3, 2, 1]);
    assert_eq!(versions[0].document, None);
    assert_eq!(versions[0].created_by, "eve");
    assert!(versions[1].document.as_ref().is_some_and(|document| document.contains('6')));
}

pub async fn a_deleted_policy_comes_back_with_its_counts(stage: Stage) {
    let limit = one(r#"max = 5, per = "60s""#);
    let trial = stage.trial(&limit).await;
    trial.pass(&[], 3).await;
    stage.gate.delete_policy(&trial.name, "me").await.expect("it is deleted");
    let applied = trial.apply(&limit).await;
    assert!(applied.created && applied.changed);
    assert_eq!(applied.policy.version(), 3);
    assert_eq!(trial.used(&[]).await, [3]);
}

pub async fn versions_say_who_and_when_and_what(stage: Stage) {
    let trial = stage.trial(&one(r#"max = 5, per = "60s""#)).await;
    let first = stage.clock.now();
    stage.clock.advance(Span::from_secs(7));
    let policy = Policy::from_toml(&trial.name, &one(r#"max = 6, per = "60s""#)).expect("valid");
    let applied = stage.gate.apply(&policy, "bob").await.expect("applied");
    assert_eq!(applied.policy.effective_from(), stage.clock.now());
    let versions = stage.gate.policy_versions(&trial.name).await.expect("there are two");
    let told: Vec<_> =
        versions.iter().map(|kept| (kept.created_by.as_str(), kept.created_at)).collect();
    assert_eq!(told, [("bob", stage.clock.now()), ("testkit", first)]);
    let document = versions[0].document.as_deref().expect("not deleted");
    let document: serde_json::Value = serde_json::from_str(document).expect("it is JSON");
    assert_eq!(&document, policy.document());
}

pub async fn a_max_below_what_is_used_leaves_nothing(stage: Stage) {
    for algorithm in ["fixed", "sliding"] {
        let limit =
            |max: u32| one(&format!(r#"max = {max}, per = "60s", algorithm = "{algorithm}""#));
        let trial = stage.trial(&limit(5)).await;
        trial.pass_times(&[], 5).await;
        trial.apply(&limit(2)).await;
        let answer = trial.check(&[], 1).await;
        assert!(!answer.allowed());
        let standing = answer.decision.limits[0].standing;
        assert_eq!((standing.max, standing.used, standing.remaining()), (2, 5, 0));
        stage.wait_until(answer.decision.retry_at().expect("it waits"));
        trial.pass_times(&[], 2).await;
        trial.refused_until(&[], 1).await;
    }
}

pub async fn a_policy_value_is_stored_nowhere(stage: Stage) {
    let name = crate::random::name("value");
    let policy = |max: u32| {
        Policy::from_toml(&name, &one(&format!(r#"max = {max}, per = "60s", by = ["user"]"#)))
            .expect("valid")
    };
    let limiter = stage.gate.limiter(policy(2));
    for _ in 0..2 {
        assert!(limiter.check(ADA, 1).await.expect("the store answers").allowed());
    }
    assert!(!limiter.check(ADA, 1).await.expect("the store answers").allowed());
    assert!(matches!(stage.gate.check(&name, ADA, 1).await, Err(Error::NoSuchPolicy(_))));
    // Another value of the same name counts on.
    let wider = stage.gate.limiter(policy(3));
    assert!(wider.check(ADA, 1).await.expect("the store answers").allowed());
    assert!(!wider.check(ADA, 1).await.expect("the store answers").allowed());
}

pub async fn a_file_policy_is_applied_once(stage: Stage) {
    let name = crate::random::name("file");
    let policy = |max: u32| {
        Policy::from_toml(&name, &one(&format!(r#"max = {max}, per = "60s""#))).expect("valid")
    };
    let gate = &stage.gate;
    let apply = async |max| gate.apply_from_file(&policy(max)).await.expect("the store answers");
    assert!(matches!(apply(5).await, FilePolicy::Applied(applied) if applied.created));
    assert!(matches!(apply(5).await, FilePolicy::Unchanged));
    gate.apply(&policy(9), "api").await.expect("applied");
    assert!(matches!(apply(5).await, FilePolicy::Unchanged), "the later change stays");
    assert_eq!(gate.policy(&name).expect("in force").policy().limits()[0].max, 9);
    assert!(matches!(apply(6).await, FilePolicy::Applied(_)), "the file says something new");
    assert_eq!(gate.policy(&name).expect("in force").policy().limits()[0].max, 6);
}

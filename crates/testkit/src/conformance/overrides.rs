//! Overrides whose limit counts in another way than when they were made.

use tollgate::Error;

use crate::stage::{Stage, Subject, Trial};

const HERE: Subject<'_> = &[("ip", "2001:db8::1"), ("user", "ada")];
const ELSEWHERE: Subject<'_> = &[("ip", "2001:db9::1"), ("user", "ada")];

/// A limit called `who`, with whatever else is said about it.
fn who(more: &str) -> String {
    format!(r#"limits = [{{ name = "who", max = 2, per = "60s", {more} }}]"#)
}

async fn max(trial: &Trial, subject: Subject<'_>) -> u64 {
    trial.peek(subject, 1).await.decision.limits[0].standing.max
}

fn listed(trial: &Trial) -> Vec<String> {
    let all = trial.gate.overrides().into_iter();
    all.filter(|kept| kept.policy == trial.name).map(|kept| kept.subject).collect()
}

async fn put(trial: &Trial, subject: Subject<'_>, max: u64) {
    trial.gate.put_override(&trial.name, "who", subject, max, "me").await.expect("it is taken");
}

async fn delete(trial: &Trial, subject: Subject<'_>) -> Result<bool, Error> {
    trial.gate.delete_override(&trial.name, "who", subject).await
}

pub async fn an_override_stays_in_force_however_its_limit_counts_the_subject(stage: Stage) {
    let trial = stage.trial(&who(r#"by = ["ip", "user"]"#)).await;
    put(&trial, HERE, 7).await;
    for more in [
        r#"by = ["ip", "user"], ipv6_prefix = 56"#,
        r#"by = ["user", "ip"]"#,
        r#"by = ["user", "ip"], private = true"#,
    ] {
        trial.apply(&who(more)).await;
        assert_eq!((max(&trial, HERE).await, max(&trial, ELSEWHERE).await), (7, 2), "{more}");
    }
    // Put again it replaces the old one, and is as private as the limit is now.
    put(&trial, HERE, 8).await;
    assert_eq!(max(&trial, HERE).await, 8);
    assert_eq!(listed(&trial), [r#"{"ip":"(private)","user":"(private)"}"#]);
    assert!(delete(&trial, HERE).await.expect("it is there"));
    assert_eq!((max(&trial, HERE).await, listed(&trial).len()), (2, 0));
}

pub async fn an_override_can_be_taken_away_however_its_limit_counts(stage: Stage) {
    let trial = stage.trial(&who(r#"by = ["user"]"#)).await;
    put(&trial, &[("user", "ada")], 7).await;
    put(&trial, &[("user", "bob")], 7).await;
    trial.apply(&who(r#"by = ["team"]"#)).await;
    assert_eq!(max(&trial, &[("team", "ada")]).await, 2);
    assert!(delete(&trial, &[("user", "ada")]).await.expect("it is listed so"));
    assert_eq!(listed(&trial), [r#"{"user":"bob"}"#]);
    let again = delete(&trial, &[("user", "ada")]).await;
    assert!(matches!(again, Err(Error::BadOverride(_))), "teams are counted now: {again:?}");
    stage.gate.delete_policy(&trial.name, "me").await.expect("it is deleted");
    assert!(delete(&trial, &[("user", "bob")]).await.expect("it is listed so"));
    let again = delete(&trial, &[("user", "bob")]).await;
    assert!(matches!(again, Err(Error::NoSuchPolicy(_))), "{again:?}");
}

pub async fn a_private_override_can_be_taken_away_however_its_limit_counts(stage: Stage) {
    let trial = stage.trial(&who(r#"by = ["ip", "user"], private = true"#)).await;
    for subject in [HERE, ELSEWHERE] {
        put(&trial, subject, 7).await;
    }
    // Nobody knows any more whose they are, but for who names them.
    trial.apply(&who(r#"by = ["user", "ip"], ipv6_prefix = 48"#)).await;
    assert_eq!((max(&trial, HERE).await, listed(&trial).len()), (2, 2));
    assert!(!delete(&trial, &[("ip", "2001:db8::1"), ("user", "bob")]).await.expect("none of his"));
    let hidden = [("ip", "(private)"), ("user", "(private)")];
    let both = delete(&trial, &hidden).await;
    assert!(matches!(both, Err(Error::BadOverride(_))), "two are listed so: {both:?}");
    assert!(delete(&trial, HERE).await.expect("it is theirs"));
    assert!(delete(&trial, &hidden).await.expect("only one is listed so"));
    assert!(listed(&trial).is_empty());
}

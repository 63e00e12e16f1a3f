//! What a newer version stored, and this one cannot read; and how long reading takes.

use std::time::{Duration, Instant as Stopwatch};

use tollgate_core::Instant;
use tollgate_core::store::{Base, Catalogue, Override, PolicyVersion, StoreErrorKind};

use crate::error::Error;
use crate::gate::{Live, Tollgate};
use crate::policy::Policy;
use crate::secret::Keyed;

const NEWER: &str = r#"{"colour":"red","routes":["/new/*"],
    "limits":[{"name":"all","max":9,"per":"60s"}]}"#;

fn one(name: &str) -> Policy {
    Policy::from_toml(name, r#"limits = [{ name = "all", max = 1, per = "1d" }]"#).expect("valid")
}

/// A file with a policy, and one more that a newer version stored.
async fn open(folder: &tempfile::TempDir) -> Tollgate {
    let url = format!("sqlite:{}", folder.path().join("t.db").display());
    let gate = Tollgate::open(&url).await.expect("it opens");
    gate.apply(&one("old"), "me").await.expect("applied");
    let newer = Some(NEWER.to_owned());
    gate.shared
        .store
        .put_policy("new".into(), newer, "newer".into(), Base::Any)
        .await
        .expect("stored");
    gate.close();
    drop(gate);
    Tollgate::open(&url).await.expect("one unreadable policy does not keep it from opening")
}

fn is_corrupt(error: &Error) -> bool {
    let is_corrupt = |kind| kind == StoreErrorKind::Corrupt;
    let next = "apply it again";
    matches!(error, Error::Store(store) if is_corrupt(store.kind()) && store.to_string().contains(next))
}

#[tokio::test]
async fn only_the_checks_of_an_unreadable_policy_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = open(&folder).await;
    gate.reload().await.expect("what is readable is read");
    for error in [
        gate.check("new", &[], 1).await.expect_err("unreadable"),
        gate.check_blocking("new", &[], 1).expect_err("unreadable"),
        gate.policy("new").expect_err("unreadable"),
        gate.set_window("new", 5, "60s", "me").await.expect_err("its schedule is not known"),
    ] {
        assert!(is_corrupt(&error), "{error}");
    }
    assert!(gate.check("old", &[], 1).await.expect("it answers").allowed());
    gate.apply(&one("other"), "me").await.expect("others can be changed");
    let names: Vec<_> = gate.policies().iter().map(|p| p.policy().name().to_owned()).collect();
    assert_eq!(names, ["old", "other"]);
    let versions = gate.policy_versions("new").await.expect("what was stored can be seen");
    assert_eq!(versions[0].document.as_deref(), Some(NEWER));
    let matched =
        gate.route("GET", "/new/1").expect("a request does not pass for want of a policy");
    assert_eq!(matched.policy().policy().name(), "new");
}

#[tokio::test]
async fn an_unreadable_policy_is_mended_by_applying_or_deleting_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = open(&folder).await;
    let applied = gate.apply(&one("new"), "me").await.expect("applied");
    assert_eq!((applied.created, applied.changed, applied.policy.version()), (false, true, 2));
    assert!(gate.check("new", &[], 1).await.expect("it answers").allowed());
    assert!(gate.route("GET", "/new/1").is_none());

    let folder = tempfile::tempdir().expect("a folder");
    let gate = open(&folder).await;
    gate.delete_policy("new", "me").await.expect("deleted");
    let gone = gate.check("new", &[], 1).await.expect_err("it is gone");
    assert!(matches!(gone, Error::NoSuchPolicy(_)), "{gone}");
}

fn policies(count: usize) -> Vec<PolicyVersion> {
    let limit = |name| format!(r#"{{"name":"{name}","max":9,"per":"60s","by":["user"]}}"#);
    let document = format!(r#"{{"limits":[{},{}]}}"#, limit("one"), limit("two"));
    let policy = |number| PolicyVersion {
        name: format!("policy-{number}"),
        version: 1,
        document: Some(document.clone()),
        created_by: String::new(),
        created_at: Instant::MIN,
    };
    (0..count).map(policy).collect()
}

/// Of policies that are gone: what is left is the search for those of the others.
fn overrides(count: usize) -> Vec<Override> {
    let kept = |number| Override {
        policy: format!("policy-gone-{}", number % 100),
        limit: "one".into(),
        values: Vec::new(),
        subject: String::new(),
        max: 1,
        created_by: String::new(),
        created_at: Instant::MIN,
    };
    (0..count).map(kept).collect()
}

fn time_to_read(policies: Vec<PolicyVersion>, overrides: Vec<Override>) -> Duration {
    let catalogue = Catalogue { epoch: 1, policies, overrides, tokens: vec![], secret: vec![] };
    let started = Stopwatch::now();
    let live = Live::from_catalogue(catalogue, &Live::default(), &Keyed::derive(b"", "test"));
    let took = started.elapsed();
    assert!(live.unreadable.is_empty());
    took
}

#[test]
fn overrides_are_looked_through_once_however_many_policies_there_are() {
    let best = |policies: usize, overrides: usize| {
        let times =
            (0..3).map(|_| time_to_read(self::policies(policies), self::overrides(overrides)));
        times.min().expect("three")
    };
    let (policies, overrides) = (1_000, 50_000);
    let apart = best(policies, 0) + best(1, overrides);
    let together = best(policies, overrides);
    assert!(together < 10 * apart, "{together:?} together, {apart:?} one after the other");
}

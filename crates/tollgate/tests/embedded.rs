//! The library on a file, where it is easy to get wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tollgate::{Clock, Decision, Instant, Policy, Span, Tollgate};

#[derive(Debug)]
struct Ticking(AtomicI64);

impl Clock for Ticking {
    /// A millisecond later every time.
    fn now(&self) -> Instant {
        Instant::from_micros(self.0.fetch_add(1_000, Ordering::Relaxed))
    }
}

async fn open(folder: &tempfile::TempDir) -> Tollgate {
    let url = format!("sqlite:{}", folder.path().join("t.db").display());
    let clock = Arc::new(Ticking(AtomicI64::new(1_800_000_000_000_000)));
    Tollgate::open_with_clock(&url, clock).await.expect("a new file opens")
}

#[tokio::test]
async fn a_blocking_check_can_wait_for_the_disk_inside_a_runtime() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = open(&folder).await;
    let policy = r#"durability = "sync"
limits = [{ name = "all", max = 5, per = "60s" }]"#;
    let limiter = gate.limiter(Policy::from_toml("p", policy).expect("valid"));
    let decision = limiter.check_blocking(&[], 1).expect("it waits, and does not panic");
    assert!(decision.allowed());
}

/// The finest sliding window there is, with a unit in every part of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_state_is_kept_in_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = open(&folder).await;
    let limit = |per: &str| {
        format!(
            r#"limits = [{{ name = "x", max = 100000, per = "{per}", algorithm = "sliding", resolution = "1ms" }}]"#
        )
    };
    assert!(Policy::from_toml("p", &limit("3600.5ms")).is_err(), "one part too many");
    let limiter = gate.limiter(Policy::from_toml("p", &limit("3600ms")).expect("valid"));
    for _ in 0..8_000 {
        assert!(limiter.check(&[], 1).await.expect("the store lives").allowed());
    }
    gate.ping().await.expect("the keeper lives");
    let used = limiter.peek(&[], 1).await.expect("it answers").decision.limits[0].standing.used;
    gate.close();
    drop((gate, limiter));
    let gate = open(&folder).await;
    let limiter = gate.limiter(Policy::from_toml("p", &limit("3600ms")).expect("valid"));
    let again = limiter.peek(&[], 1).await.expect("it answers").decision.limits[0].standing.used;
    assert!((3_590..=3_602).contains(&used) && again.abs_diff(used) <= 3, "{used}, then {again}");
}

#[tokio::test]
async fn a_blocking_check_without_a_store_is_as_the_policy_says_and_watched() {
    let gate = Tollgate::open("memory:").await.expect("memory opens");
    let policy = |on_store_error: &str| {
        let limits = r#"limits = [{ name = "user", max = 2, per = "1d", by = ["user"] }]"#;
        let toml = format!("on_store_error = {on_store_error:?}\n{limits}");
        Policy::from_toml(on_store_error, &toml).expect("valid")
    };
    for on_store_error in ["refuse", "allow", "local"] {
        gate.apply(&policy(on_store_error), "test").await.expect("applied");
    }
    assert!(gate.watch_refusals(Vec::new(), |_| {}));
    gate.close();
    for (on_store_error, expected) in [
        ("refuse", [None, None, None]),
        ("allow", [Some(true), Some(true), Some(true)]),
        ("local", [Some(true), Some(true), Some(false)]),
    ] {
        for allowed in expected {
            let asked = gate.check_blocking(on_store_error, &[("user", "ada")], 1);
            assert_eq!(asked.ok().map(|decision| decision.allowed()), allowed, "{on_store_error}");
        }
    }
    let list = gate.offenders(Span::from_secs(3600), 10).await.expect("a list");
    let refused: Vec<_> =
        list.offenders.iter().map(|one| (one.policy.as_str(), one.refused)).collect();
    assert_eq!(refused, [("local", 1)], "what this instance refuses by itself counts too");
}

/// One decision for all of them, so that whatever is left of the one before would be seen.
#[tokio::test]
async fn a_check_into_a_decision_leaves_nothing_of_the_one_before() {
    let (into, new) = (Tollgate::open("memory:").await, Tollgate::open("memory:").await);
    let (into, new) = (into.expect("memory opens"), new.expect("memory opens"));
    let one =
        r#"limits = [{ name = "user", max = 3, per = "1h", algorithm = "bucket", by = ["user"] }]"#;
    let two = r#"limits = [{ name = "all", max = 3, per = "month" }, { name = "user", max = 2, per = "month", by = ["user"] }]"#;
    let shadow =
        r#"limits = [{ name = "user", max = 1, per = "month", by = ["user"], shadow = true }]"#;
    let mut decision = Decision::blank();
    for (policy, user, cost) in
        [one, two, shadow, one, two, shadow, two, one].into_iter().flat_map(|policy| {
            [("ada", 1), ("ada", 2), ("", 1), ("bob", 9)].map(|(user, cost)| (policy, user, cost))
        })
    {
        let policy = || Policy::from_toml("p", policy).expect("valid");
        let written = into.limiter(policy()).check_into(&[("user", user)], cost, &mut decision);
        match new.limiter(policy()).check_blocking(&[("user", user)], cost) {
            Ok(made) => {
                assert!(written.is_ok());
                let seen = |decision: &Decision| {
                    let limits = decision.limits.iter();
                    let limits = limits.map(|one| {
                        (one.standing.max, one.standing.used, one.refuses(), one.shadow)
                    });
                    (decision.allowed(), decision.cost, limits.collect::<Vec<_>>())
                };
                assert_eq!(seen(&decision), seen(&made), "{user} {cost}");
            }
            Err(_) => {
                assert!(written.is_err() && user.is_empty());
                assert!(!decision.allowed() && decision.limits.is_empty());
            }
        }
    }
}

#[tokio::test]
async fn an_override_is_answered_as_it_is_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = open(&folder).await;
    let policy = r#"limits = [{ name = "user", max = 5, per = "60s", by = ["user"] }]"#;
    gate.apply(&Policy::from_toml("p", policy).expect("valid"), "me").await.expect("applied");
    let put = gate.put_override("p", "user", &[("user", "ada")], 9, "me").await.expect("taken");
    assert_eq!(gate.overrides(), [put]);
}

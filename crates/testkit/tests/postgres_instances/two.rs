//! Two instances in one process, each with connections of its own: what one does, the other knows.

use std::sync::Arc;

use testkit::servers::Postgres;
use testkit::{ManualClock, random};
use tollgate::{
    Clock, Error, IdempotencyKey, OnceAnswer, Policy, Refunded, Scope, Span, StoreErrorKind,
    Tollgate,
};

const POLICY: &str = "shared";
const ADA: &[(&str, &str)] = &[("user", "ada")];

struct Two {
    a: Tollgate,
    b: Tollgate,
    schema: String,
    clock: ManualClock,
}

async fn two() -> Two {
    let schema = random::name("s").replace('-', "_");
    let url = format!("{}?schema={schema}&deadline=10s", Postgres::shared().url());
    let clock = ManualClock::start();
    let open = || Tollgate::open_with_clock(&url, clock.shared());
    let (a, b) = (open().await.unwrap(), open().await.unwrap());
    Two { a, b, schema, clock }
}

fn limit(max: u64) -> Policy {
    let toml = format!(r#"limits = [{{ name = "user", max = {max}, per = "1h", by = ["user"] }}]"#);
    Policy::from_toml(POLICY, &toml).unwrap()
}

async fn max_seen_by(gate: &Tollgate) -> u64 {
    gate.check(POLICY, ADA, 1).await.unwrap().decision.limits[0].standing.max
}

async fn used(gate: &Tollgate) -> u64 {
    gate.peek(POLICY, ADA, 1).await.unwrap().decision.limits[0].standing.used
}

#[tokio::test]
async fn a_policy_changed_on_one_instance_decides_the_very_next_check_on_the_other() {
    let Two { a, b, .. } = two().await;
    a.apply(&limit(100), "test").await.unwrap();
    assert_eq!(max_seen_by(&b).await, 100, "one made on the other is known");
    for max in [200, 50, 300, 90, 91] {
        a.apply(&limit(max), "test").await.unwrap();
        assert_eq!(max_seen_by(&b).await, max);
        b.apply(&limit(max + 1000), "test").await.unwrap();
        assert_eq!(max_seen_by(&a).await, max + 1000);
    }
    // Lowered below what is used, it refuses at once; raised, it lets through after a second at
    // most, because a refusal may be repeated from memory: here from the database, by an instance
    // that has not refused yet.
    let used = used(&a).await;
    a.apply(&limit(used), "test").await.unwrap();
    assert!(!b.check(POLICY, ADA, 1).await.unwrap().allowed());
    b.apply(&limit(used + 1), "test").await.unwrap();
    assert!(a.check(POLICY, ADA, 1).await.unwrap().allowed());
    assert!(!a.check(POLICY, ADA, 1).await.unwrap().allowed());
}

/// As during an upgrade, where a newer instance knows more fields.
#[tokio::test]
async fn a_policy_that_only_a_newer_instance_can_read_fails_alone_until_it_is_mended() {
    let Two { a, b, schema, .. } = two().await;
    a.apply(&limit(10), "test").await.unwrap();
    let limits = r#"limits = [{ name = "all", max = 1000, per = "1h" }]"#;
    a.apply(&Policy::from_toml("other", limits).unwrap(), "test").await.unwrap();
    assert_eq!((max_seen_by(&a).await, max_seen_by(&b).await), (10, 10));
    let document = r#"{"colour":"red","limits":[{"name":"user","max":9,"per":"1h"}]}"#;
    Postgres::shared().psql(&format!(
        "insert into {schema}.policy_version values ('{POLICY}', 2, '{document}', 'newer', 0); \
         update {schema}.gate set epoch = epoch + 1"
    ));
    for gate in [&a, &b] {
        for _ in 0..2 {
            let Err(Error::Store(error)) = gate.check(POLICY, ADA, 1).await else {
                panic!("nobody knows what it says");
            };
            assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
            assert!(gate.check("other", &[], 1).await.unwrap().degraded.is_none());
        }
    }
    b.apply(&limit(20), "test").await.unwrap();
    assert_eq!(max_seen_by(&a).await, 20);
}

#[tokio::test]
async fn a_policy_deleted_on_one_instance_is_gone_for_the_next_check_on_the_other() {
    let Two { a, b, .. } = two().await;
    a.apply(&limit(10), "test").await.unwrap();
    assert_eq!(max_seen_by(&b).await, 10);
    a.delete_policy(POLICY, "test").await.unwrap();
    let gone = b.check(POLICY, ADA, 1).await.unwrap_err();
    assert!(matches!(gone, Error::NoSuchPolicy(_)), "{gone}");
}

#[tokio::test]
async fn an_override_made_or_removed_on_one_instance_decides_the_next_check_on_the_other() {
    let Two { a, b, .. } = two().await;
    a.apply(&limit(10), "test").await.unwrap();
    assert_eq!(max_seen_by(&b).await, 10);
    for max in [500, 20] {
        a.put_override(POLICY, "user", ADA, max, "test").await.unwrap();
        assert_eq!(max_seen_by(&b).await, max);
    }
    let bob = b.check(POLICY, &[("user", "bob")], 1).await.unwrap();
    assert_eq!(bob.decision.limits[0].standing.max, 10, "nobody else's");
    assert!(b.delete_override(POLICY, "user", ADA).await.unwrap());
    assert_eq!(max_seen_by(&a).await, 10);
}

#[tokio::test]
async fn a_token_made_on_one_instance_is_known_to_the_other_when_it_asks_or_decides() {
    let Two { a, b, .. } = two().await;
    a.apply(&limit(10), "test").await.unwrap();
    let first = a.create_token("first", Scope::Check).await.unwrap().token;
    b.refresh().await.unwrap();
    assert_eq!(b.bearer(&first).unwrap().name, "first");
    let second = a.create_token("second", Scope::Admin).await.unwrap().token;
    b.check(POLICY, ADA, 1).await.unwrap();
    assert_eq!(b.bearer(&second).unwrap().scope, Scope::Admin);
    assert!(b.bearer("tg_nobody").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_idempotency_key_on_two_instances_at_once_counts_once_and_gives_both_the_same_bytes() {
    const KEYS: u64 = 20;
    const ASKING: usize = 6;
    let Two { a, b, .. } = two().await;
    a.apply(&limit(1000), "test").await.unwrap();
    for number in 0..KEYS {
        let barrier = Arc::new(tokio::sync::Barrier::new(ASKING));
        let asking: Vec<_> = (0..ASKING)
            .map(|caller| {
                let gate = if caller % 2 == 0 { a.clone() } else { b.clone() };
                let barrier = barrier.clone();
                tokio::spawn(async move {
                    let key = format!("key-{number}");
                    let key = IdempotencyKey { scope: b"test", key: &key };
                    // What is recorded tells who recorded it.
                    let render = move |answer: &tollgate::Answer| {
                        format!("{caller} {:?}", answer.decision).into_bytes()
                    };
                    barrier.wait().await;
                    let once = gate.check_once(key, POLICY, ADA, 1, render).await.unwrap();
                    match once {
                        OnceAnswer::Fresh(answer) => {
                            assert!(answer.allowed());
                            (true, format!("{caller} {:?}", answer.decision).into_bytes())
                        }
                        OnceAnswer::Replay(body) => (false, body),
                    }
                })
            })
            .collect();
        let mut answers = Vec::new();
        for asked in asking {
            answers.push(asked.await.unwrap());
        }
        assert_eq!(answers.iter().filter(|(fresh, _)| *fresh).count(), 1, "decided once");
        assert!(answers.iter().all(|(_, body)| *body == answers[0].1), "{answers:?}");
        assert_eq!(used(&b).await, number + 1, "counted once");
    }
}

#[tokio::test]
async fn a_refund_on_one_instance_is_honoured_by_the_other_and_twice_gives_once() {
    let Two { a, b, .. } = two().await;
    a.apply(&limit(5), "test").await.unwrap();
    let kept = a.check(POLICY, ADA, 2).await.unwrap();
    let given = a.check(POLICY, ADA, 3).await.unwrap().receipt.unwrap();
    assert!(!a.peek(POLICY, ADA, 1).await.unwrap().allowed(), "it is full");
    assert_eq!(b.refund(&given).await.unwrap(), Refunded::Done);
    assert_eq!(used(&a).await, 2);
    assert_eq!(a.refund(&given).await.unwrap(), Refunded::Already);
    assert_eq!(b.refund(&given).await.unwrap(), Refunded::Already);
    assert_eq!((used(&a).await, used(&b).await), (2, 2));
    assert!(a.check(POLICY, ADA, 3).await.unwrap().allowed(), "what came back can be spent");
    assert!(!b.check(POLICY, ADA, 1).await.unwrap().allowed(), "once");
    assert_eq!(b.refund(&kept.receipt.unwrap()).await.unwrap(), Refunded::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_receipt_given_back_on_both_instances_at_once_gives_once() {
    let Two { a, b, .. } = two().await;
    a.apply(&limit(100), "test").await.unwrap();
    for round in 0..20 {
        let receipt = a.check(POLICY, ADA, 2).await.unwrap().receipt.unwrap();
        let (on_a, on_b) = tokio::join!(a.refund(&receipt), b.refund(&receipt));
        let both = [on_a.unwrap(), on_b.unwrap()];
        assert!(both.contains(&Refunded::Done) && both.contains(&Refunded::Already), "{both:?}");
        // One that stays, so that giving back twice would show.
        assert!(b.check(POLICY, ADA, 1).await.unwrap().allowed());
        assert_eq!(used(&a).await, round + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_that_sweep_together_lose_nothing_and_old_rows_go() {
    const OLD: usize = 2500;
    let Two { a, b, schema, clock } = two().await;
    a.apply(&limit(1_000_000), "test").await.unwrap();
    let rows = |of: &str| {
        let sql = format!("select count(*) from {schema}.counter where {of}");
        Postgres::shared().psql(&sql).parse::<usize>().unwrap()
    };
    let mut old = Vec::new();
    for number in 0..OLD {
        let gate = if number % 2 == 0 { a.clone() } else { b.clone() };
        old.push(tokio::spawn(async move {
            let user = format!("old-{number}");
            gate.check(POLICY, &[("user", &user)], 1).await.unwrap().receipt.unwrap()
        }));
    }
    let mut receipts = Vec::new();
    for check in old {
        receipts.push(check.await.unwrap());
    }
    assert_eq!(a.refund(&receipts[0]).await.unwrap(), Refunded::Done);
    assert_eq!(rows("state <> ''"), OLD);

    clock.set(clock.now().plus(Span::from_secs(7200)));
    let busy: Vec<_> = [a.clone(), b.clone()]
        .map(|gate| {
            tokio::spawn(async move {
                for number in 0..200 {
                    let user = format!("new-{}", number % 5);
                    assert!(gate.check(POLICY, &[("user", &user)], 1).await.unwrap().allowed());
                }
            })
        })
        .into();
    let sweeping: Vec<_> = [a.clone(), b.clone(), a.clone(), b.clone()]
        .map(|gate| tokio::spawn(async move { gate.sweep().await.unwrap() }))
        .into();
    for sweep in sweeping {
        sweep.await.unwrap();
    }
    for checks in busy {
        checks.await.unwrap();
    }
    for number in 0..5 {
        let user = format!("new-{number}");
        let peeked = b.peek(POLICY, &[("user", &user)], 1).await.unwrap();
        assert_eq!(peeked.decision.limits[0].standing.used, 80, "{user}: nothing is lost");
    }
    assert_eq!(rows("true"), 5, "the old ones are gone");
    let refunds = Postgres::shared().psql(&format!("select count(*) from {schema}.refund"));
    assert_eq!(refunds, "0", "and what was given back of them");
    assert_eq!(b.refund(&receipts[1]).await.unwrap(), Refunded::Expired);
}

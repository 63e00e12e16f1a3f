//! Who is refused most and alerts, through the library on the store of one process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use allocation_counter::measure;
use tollgate::{
    Alert, AlertRule, AlertScope, Clock, IdempotencyKey, Instant, Offender, Policy, Span, Tollgate,
};

const START_SECS: i64 = 1_800_000_000;
const HOUR: Span = Span::from_secs(3600);

/// Time by hand.
#[derive(Debug)]
struct Hands(AtomicI64);

impl Clock for Hands {
    fn now(&self) -> Instant {
        Instant::from_secs(self.0.load(SeqCst))
    }
}

struct Scene {
    gate: Tollgate,
    hands: Arc<Hands>,
    heard: Arc<Mutex<Vec<Alert>>>,
}

impl Scene {
    async fn new(limits: &str) -> Self {
        let hands = Arc::new(Hands(AtomicI64::new(START_SECS)));
        let gate = Tollgate::open_with_clock("memory:", hands.clone()).await.unwrap();
        let policy = Policy::from_toml("p", &format!("limits = [{limits}]")).unwrap();
        gate.apply(&policy, "test").await.unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let rule = AlertRule {
            name: "five".into(),
            refusals: 5,
            within: Span::from_secs(600),
            per: AlertScope::Subject,
            policies: Vec::new(),
        };
        let ears = heard.clone();
        assert!(gate.watch_refusals(vec![rule], move |alert| {
            ears.lock().unwrap().push(alert.clone());
        }));
        Self { gate, hands, heard }
    }

    async fn check(&self, user: &str) -> bool {
        self.gate.check("p", &[("user", user)], 1).await.unwrap().allowed()
    }

    async fn top(&self, limit: u32) -> Vec<Offender> {
        self.gate.offenders(HOUR, limit).await.unwrap().offenders
    }

    fn heard(&self) -> usize {
        self.heard.lock().unwrap().len()
    }
}

const USER: &str = r#"{ name = "user", max = 2, per = "3650d", by = ["user"] }"#;
const NOBODY: &str = r#"{ name = "nobody", max = 0, per = "1h", by = ["user"] }"#;

#[tokio::test]
async fn refusals_are_counted_by_subject_and_allowed_checks_are_not() {
    let scene = Scene::new(USER).await;
    for (user, checks) in [("ada", 5), ("bob", 3), ("eve", 2)] {
        for _ in 0..checks {
            scene.check(user).await;
        }
    }
    let top = scene.top(10).await;
    let found: Vec<_> = top.iter().map(|one| (&*one.subject, one.refused, one.error)).collect();
    assert_eq!(found, [(r#"{"user":"ada"}"#, 3, 0), (r#"{"user":"bob"}"#, 1, 0)]);
    assert_eq!((&*top[0].policy, &*top[0].limit), ("p", "user"));
    assert_eq!(top[0].first_seen, Instant::from_secs(START_SECS));
    assert_eq!(scene.top(1).await.len(), 1);
    assert_eq!(scene.gate.unrecorded_refusals(), 0);
}

#[tokio::test]
async fn each_way_to_check_is_recorded_once_and_peeks_are_not() {
    let scene = Scene::new(USER).await;
    for _ in 0..2 {
        assert!(scene.check("ada").await);
    }
    let ada: &[(&str, &str)] = &[("user", "ada")];
    assert!(!scene.gate.peek("p", ada, 1).await.unwrap().allowed());
    assert!(scene.top(10).await.is_empty());
    assert!(!scene.check("ada").await);
    assert!(!scene.gate.check_blocking("p", ada, 1).unwrap().allowed());
    let key = IdempotencyKey { scope: b"s", key: "k" };
    scene.gate.check_once(key, "p", ada, 1, |_| Vec::new()).await.unwrap();
    assert_eq!(scene.top(10).await[0].refused, 3);
}

#[tokio::test]
async fn a_policy_stored_nowhere_leaves_no_trace() {
    let scene = Scene::new(USER).await;
    let policy = Policy::from_toml("account-7", &format!("limits = [{USER}]")).unwrap();
    let limiter = scene.gate.limiter(policy);
    for _ in 0..9 {
        limiter.check(&[("user", "ada")], 1).await.unwrap();
    }
    assert!(scene.top(10).await.is_empty());
}

#[tokio::test]
async fn what_is_older_than_asked_for_does_not_count() {
    let scene = Scene::new(USER).await;
    for _ in 0..4 {
        scene.check("ada").await;
    }
    scene.gate.collect_refusals().await.unwrap();
    scene.hands.0.fetch_add(2 * 3600, SeqCst);
    scene.check("ada").await;
    assert_eq!(scene.top(10).await[0].refused, 1);
    let day = scene.gate.offenders(Span::from_secs(86_400), 10).await.unwrap();
    assert_eq!(day.offenders[0].refused, 3);
    assert_eq!(day.since.as_micros() % 300_000_000, 0);
    scene.hands.0.fetch_add(25 * 3600, SeqCst);
    let day = scene.gate.offenders(Span::from_secs(86_400), 10).await.unwrap();
    assert!(day.offenders.is_empty(), "{day:?}");
}

#[tokio::test]
async fn refusals_of_a_moment_in_which_the_clock_was_ahead_count_when_it_comes() {
    let scene = Scene::new(NOBODY).await;
    scene.hands.0.fetch_add(3 * 3600, SeqCst);
    for _ in 0..4 {
        scene.check("ada").await;
    }
    scene.gate.collect_refusals().await.unwrap();
    scene.hands.0.fetch_sub(3 * 3600, SeqCst);
    assert_eq!(scene.top(10).await, []);
    // With the four to come it would be the fifth.
    scene.check("ada").await;
    assert_eq!((scene.top(10).await[0].refused, scene.heard()), (1, 0));
    scene.hands.0.fetch_add(3 * 3600, SeqCst);
    assert_eq!(scene.top(10).await[0].refused, 4);
}

#[tokio::test]
async fn who_was_let_through_by_a_clock_ahead_is_listed_when_refused_by_one_set_back() {
    let bucket = r#"{ name = "user", algorithm = "bucket", max = 2, per = "300d", by = ["user"] }"#;
    let scene = Scene::new(bucket).await;
    scene.hands.0.fetch_add(3 * 3600, SeqCst);
    assert!(scene.check("ada").await && scene.check("ada").await);
    scene.hands.0.fetch_sub(3 * 3600, SeqCst);
    // No key's time goes back: these are decided three hours ahead.
    for _ in 0..5 {
        assert!(!scene.check("ada").await);
    }
    let top = scene.top(10).await;
    assert_eq!((top[0].refused, scene.heard()), (5, 1));
    assert_eq!(top[0].last_seen, Instant::from_secs(START_SECS));
}

#[tokio::test]
async fn an_alert_is_raised_once_per_episode_and_listed() {
    let scene = Scene::new(USER).await;
    for _ in 0..20 {
        scene.check("ada").await;
        scene.gate.collect_refusals().await.unwrap();
    }
    assert_eq!(scene.heard(), 1);
    let first = scene.heard.lock().unwrap()[0].clone();
    assert_eq!((first.refused, first.subject.as_deref()), (5, Some(r#"{"user":"ada"}"#)));
    scene.hands.0.fetch_add(1201, SeqCst);
    for _ in 0..7 {
        scene.check("ada").await;
    }
    let alerts = scene.gate.alerts(None, 10).await.unwrap();
    assert_eq!((alerts.len(), scene.heard()), (2, 2));
    assert!(alerts[0].id > alerts[1].id && alerts[1] == first);
    assert_eq!(scene.gate.alerts(Some(alerts[0].id), 10).await.unwrap(), [first]);
}

#[tokio::test]
async fn many_threads_lose_nothing_that_is_not_said() {
    let scene = Scene::new(NOBODY).await;
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let gate = scene.gate.clone();
            std::thread::spawn(move || {
                for number in 0..2_000 {
                    let user = if number % 2 == 0 { "all".to_owned() } else { thread.to_string() };
                    assert!(!gate.check_blocking("p", &[("user", &user)], 1).unwrap().allowed());
                }
            })
        })
        .collect();
    while threads.iter().any(|thread| !thread.is_finished()) {
        scene.gate.collect_refusals().await.unwrap();
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let top = scene.top(100).await;
    let recorded: u64 = top.iter().map(|one| one.refused).sum();
    assert_eq!(recorded + scene.gate.unrecorded_refusals(), 16_000);
    assert_eq!(&*top[0].subject, r#"{"user":"all"}"#);
}

/// In a minute, collected every second: what the heap holds stays where it is.
#[tokio::test]
async fn a_million_subjects_take_bounded_memory() {
    let scene = Scene::new(NOBODY).await;
    let Scene { gate, hands, .. } = &scene;
    let (mut held, mut most) = (0_i64, 0);
    for second in 0..60_u64 {
        let measured = measure(|| {
            let refused = |user: &str| {
                let decision = gate.check_blocking("p", &[("user", user)], 1).unwrap();
                assert!(!decision.allowed());
            };
            for number in 0..16_667 {
                refused(&format!("subject-{}", second * 16_667 + number));
                if number % 10 == 0 {
                    refused("often");
                }
            }
        });
        held += measured.bytes_current;
        most = most.max(held.unsigned_abs() + measured.bytes_max);
        held += collect(gate);
        hands.0.fetch_add(1, SeqCst);
    }
    println!("a million subjects: {} KiB held, at most {} KiB", held >> 10, most >> 10);
    // About 400 and 800 KiB: it rises and falls by a fifth.
    assert!(held < 600 << 10, "{held} bytes");
    assert!(most < 1200 << 10, "{most} bytes");
    let top = scene.top(1).await;
    let (counted, error) = (top[0].refused, top[0].error);
    assert_eq!(&*top[0].subject, r#"{"user":"often"}"#);
    let truth = 60 * 1_667;
    assert!(counted <= truth && truth <= counted + error, "{counted} + {error} of {truth}");
    // Three bounds in a row: intake, collection, slice.
    assert!(error <= 1_100_022 / 200, "{error}");
}

fn collect(gate: &Tollgate) -> i64 {
    // In this store nothing is waited for, so a poll is all it takes.
    measure(|| {
        let collected = std::pin::pin!(gate.collect_refusals());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(collected.poll(&mut context).is_ready());
    })
    .bytes_current
}

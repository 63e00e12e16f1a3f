//! Refusals and alerts of several instances on one PostgreSQL: sums, one alert for all, and bounds.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use testkit::servers::Postgres;
use testkit::{ManualClock, random};
use tollgate::{AlertRule, AlertScope, Clock, Policy, Span, Tollgate};

const HOUR: Span = Span::from_secs(3600);
const TEN_MINUTES: Span = Span::from_secs(600);

struct Ground {
    schema: String,
    url: String,
    clock: ManualClock,
    gates: Vec<Tollgate>,
    raised: Arc<AtomicUsize>,
}

impl Ground {
    /// Two instances, a policy that refuses everybody, and a rule of five in ten minutes.
    async fn new() -> Self {
        let schema = random::name("s").replace('-', "_");
        let url = format!("{}?schema={schema}&deadline=20s", Postgres::shared().url());
        let (clock, raised) = (ManualClock::start(), Arc::new(AtomicUsize::new(0)));
        let mut gates = Vec::new();
        for _ in 0..2 {
            let gate = Tollgate::open_with_clock(&url, clock.shared()).await.unwrap();
            let rule = AlertRule {
                name: "five".into(),
                refusals: 5,
                within: TEN_MINUTES,
                per: AlertScope::Subject,
                policies: Vec::new(),
            };
            let counter = raised.clone();
            gate.watch_refusals(vec![rule], move |_| {
                counter.fetch_add(1, SeqCst);
            });
            gates.push(gate);
        }
        let nobody = r#"limits = [{ name = "user", max = 0, per = "1h", by = ["user"] }]"#;
        gates[0].apply(&Policy::from_toml("p", nobody).unwrap(), "test").await.unwrap();
        Self { schema, url, clock, gates, raised }
    }

    async fn refuse(&self, instance: usize, user: &str) {
        let gate = &self.gates[instance];
        assert!(!gate.check("p", &[("user", user)], 1).await.unwrap().allowed());
    }

    async fn collect(&self, instance: usize) {
        self.gates[instance].collect_refusals().await.unwrap();
    }

    fn rows(&self, table: &str) -> i64 {
        let sql = format!("select count(*) from {}.{table}", self.schema);
        Postgres::shared().psql(&sql).parse().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_episode_is_one_for_all_instances_and_ends() {
    let ground = Ground::new().await;
    let burst = async || {
        for number in 0..10 {
            ground.refuse(number % 2, "ada").await;
            ground.collect(number % 2).await;
        }
    };
    burst().await;
    assert_eq!(ground.raised.load(SeqCst), 1);
    ground.clock.advance(Span::from_secs(590));
    burst().await;
    assert_eq!(ground.raised.load(SeqCst), 1, "ten minutes have not passed without it");
    ground.clock.advance(Span::from_secs(1201));
    burst().await;
    assert_eq!(ground.raised.load(SeqCst), 2);
    let listed = ground.gates[1].alerts(None, 10).await.unwrap();
    assert_eq!(listed, ground.gates[0].alerts(None, 10).await.unwrap());
    assert_eq!((listed.len(), listed[0].refused, &*listed[0].rule), (2, 5, "five"));
    assert_eq!(listed[0].raised_at, ground.clock.now());
    assert_eq!(ground.gates[0].alerts(Some(listed[0].id), 10).await.unwrap(), listed[1..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_merge_at_once_miss_nothing_and_raise_once() {
    let ground = Ground::new().await;
    for round in 0..5 {
        let user = format!("user {round}");
        // In slices of their own, so that they share no row.
        for instance in [0, 1] {
            for _ in 0..3 {
                ground.refuse(instance, &user).await;
            }
            if instance == 0 {
                ground.clock.advance(Span::from_secs(301));
            }
        }
        tokio::join!(ground.collect(0), ground.collect(1));
        assert_eq!(ground.raised.load(SeqCst), round + 1);
    }
    let list = ground.gates[0].offenders(HOUR, 100).await.unwrap();
    assert!(list.offenders.iter().all(|one| one.refused == 6 && one.error == 0), "{list:?}");
    assert_eq!(list.offenders.len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tables_are_bounded_and_the_error_says_what_is_missing() {
    let ground = Ground::new().await;
    let (mut total, mut often) = (0_u64, 0_u64);
    for round in 0..6 {
        for number in 0..900 {
            let instance = number % 2;
            ground.refuse(instance, &format!("subject {round} {number}")).await;
            total += 1;
            if number % 9 == 0 {
                ground.refuse(instance, "often").await;
                total += 1;
                often += 1;
            }
        }
        ground.collect(0).await;
        ground.collect(1).await;
    }
    let offenders = ground.rows("refusal where ledger = 'offenders'");
    assert!(offenders <= 256, "{offenders} rows");
    let of_rule = ground.rows("refusal where ledger <> 'offenders'");
    assert!(of_rule <= 4096, "{of_rule} rows");
    let list = ground.gates[0].offenders(HOUR, 1).await.unwrap();
    let top = &list.offenders[0];
    assert_eq!(&*top.subject, r#"{"user":"often"}"#);
    assert!(top.refused <= often && often <= top.refused + top.error, "{top:?}, truly {often}");
    assert!(top.error > 0 && top.error <= total / 200, "{top:?} of {total}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_longer_kept_is_removed() {
    let ground = Ground::new().await;
    for number in 0..5 {
        ground.refuse(0, &format!("subject {number}")).await;
        ground.refuse(0, "often").await;
    }
    ground.collect(0).await;
    assert_eq!((ground.rows("refusal"), ground.rows("alert_episode")), (12, 1));
    ground.clock.advance(Span::from_secs(86_400 + 301));
    ground.refuse(1, "late").await;
    ground.collect(1).await;
    assert_eq!((ground.rows("refusal"), ground.rows("alert_episode")), (2, 0));
    assert_eq!(ground.rows("alert"), 1, "alerts stay");
}

/// Without taking from those who stay, each of these would add to the error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newcomers_to_a_full_table_do_not_add_up_to_a_large_error() {
    let ground = Ground::new().await;
    for number in 0..256 {
        for _ in 0..3 {
            ground.refuse(0, &format!("subject {number}")).await;
        }
    }
    ground.collect(0).await;
    for number in 0..20 {
        for _ in 0..2 {
            ground.refuse(1, &format!("newcomer {number}")).await;
        }
        ground.collect(1).await;
    }
    let list = ground.gates[0].offenders(HOUR, 1000).await.unwrap();
    assert!(list.offenders.len() <= 256, "{}", list.offenders.len());
    let error = list.offenders[0].error;
    assert!((1..=(3 * 256 + 2 * 20) / 257).contains(&error), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_took_a_later_step_first_gets_this_one_too() {
    let ground = Ground::new().await;
    let schema = &ground.schema;
    Postgres::shared().psql(&format!(
        "drop table {schema}.refusal, {schema}.refusal_missed, {schema}.alert, \
         {schema}.alert_episode; delete from {schema}.migration where version = 5"
    ));
    let again = Tollgate::open_with_clock(&ground.url, ground.clock.shared()).await.unwrap();
    assert!(again.watch_refusals(Vec::new(), |_| {}));
    again.check("p", &[("user", "ada")], 1).await.unwrap();
    assert_eq!(again.offenders(HOUR, 10).await.unwrap().offenders.len(), 1);
}

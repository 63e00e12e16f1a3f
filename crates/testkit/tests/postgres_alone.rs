//! Whoever is alone goes without the lane: as exact, as safe, and in nobody's way.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant as Stopwatch};

use testkit::random;
use testkit::servers::{Moment, Postgres, Proxy};
use tokio::runtime::{Builder, Runtime};
use tollgate::{Policy, Tollgate};

const DEADLINE: Duration = Duration::from_secs(10);

struct Ground {
    schema: String,
    gate: Tollgate,
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn open(server: &str, max: u64) -> Ground {
    let schema = random::name("s").replace('-', "_");
    let url = format!("{server}?schema={schema}&deadline=10s&lanes=1&shield=off");
    let gate = Tollgate::open(&url).await.unwrap();
    let limits =
        format!(r#"limits = [{{ name = "user", max = {max}, per = "30d", by = ["user"] }}]"#);
    gate.apply(&Policy::from_toml("p", &limits).unwrap(), "test").await.unwrap();
    Ground { schema, gate }
}

struct Settled {
    /// So many it took.
    checks: u64,
    /// The lane's session began before this, and that of the lone caller after it.
    since: String,
}

impl Ground {
    async fn check(&self) -> bool {
        self.gate.check("p", &[("user", "ada")], 1).await.unwrap().allowed()
    }

    async fn used(&self) -> u64 {
        let answer = self.gate.peek("p", &[("user", "ada")], 1).await.unwrap();
        answer.limits().next().unwrap().1.standing.used
    }

    /// When a single key was last written by one of the sessions that `which` are.
    fn last_written(&self, which: &str) -> String {
        Postgres::shared().psql(&format!(
            "select max(query_start) from pg_stat_activity where {which} \
             and query like '%What write_known does%{}%' and query not like '%pg_stat%'",
            self.schema
        ))
    }

    /// Checks alone until it is not the lane that does it.
    async fn settle(&self) -> Settled {
        let since = Postgres::shared().psql("select clock_timestamp()");
        let own = format!("backend_start > '{since}'");
        let started = Stopwatch::now();
        for checks in 1.. {
            let before = self.last_written(&own);
            assert!(self.check().await);
            // It has written something, and not only prepared to.
            if !before.is_empty() && before != self.last_written(&own) {
                return Settled { checks, since };
            }
            assert!(started.elapsed() < DEADLINE, "the lane does it all");
        }
        unreachable!("the loop ends by itself")
    }
}

#[test]
fn a_lone_check_goes_over_a_connection_of_its_callers_runtime() {
    let runtime = runtime();
    runtime.block_on(async {
        let ground = open(&Postgres::shared().url(), 1000).await;
        let Settled { checks, since } = ground.settle().await;
        let by_the_lane = format!("backend_start <= '{since}'");
        let before = ground.last_written(&by_the_lane);
        for _ in 0..20 {
            assert!(ground.check().await);
        }
        assert_eq!(ground.last_written(&by_the_lane), before, "the lane's session rests");
        assert_eq!(ground.used().await, checks + 20);
    });
}

#[test]
fn callers_of_several_runtimes_get_exactly_what_there_is() {
    let (runtimes, most) = (3, 500);
    let ground = Arc::new(runtime().block_on(open(&Postgres::shared().url(), most)));
    let allowed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..runtimes {
            scope.spawn(|| {
                runtime().block_on(async {
                    for _ in 0..most {
                        allowed.fetch_add(u64::from(ground.check().await), Relaxed);
                    }
                });
            });
        }
    });
    assert_eq!(allowed.into_inner(), most);
    assert_eq!(runtime().block_on(ground.used()), most);
}

#[test]
fn a_runtime_that_is_kept_busy_holds_up_no_other_caller() {
    let (busy, other) = (runtime(), runtime());
    let ground = busy.block_on(open(&Postgres::shared().url(), 1000));
    let before = busy.block_on(ground.settle()).checks;
    busy.block_on(async {
        let mut check = pin!(ground.check());
        let begun = poll_fn(|context| Poll::Ready(check.as_mut().poll(context))).await;
        assert!(begun.is_pending());
        // Nothing else runs here now: what was begun has the memory of the lane.
        let ground = &ground;
        let took = std::thread::scope(|scope| {
            let answered = scope.spawn(move || {
                let started = Stopwatch::now();
                assert!(other.block_on(ground.check()));
                started.elapsed()
            });
            answered.join().unwrap()
        });
        assert!(took < DEADLINE / 10, "{took:?}");
        assert!(check.await, "it is decided anew by what the other has counted");
    });
    assert_eq!(busy.block_on(ground.used()), before + 2);
}

#[test]
fn whoever_stops_waiting_before_anything_was_sent_is_not_counted() {
    let runtime = runtime();
    runtime.block_on(async {
        let ground = open(&Postgres::shared().url(), 1000).await;
        let before = ground.settle().await.checks;
        for _ in 0..10 {
            let mut check = Box::pin(ground.check());
            let begun = poll_fn(|context| Poll::Ready(check.as_mut().poll(context))).await;
            assert!(begun.is_pending());
            drop(check);
            tokio::task::yield_now().await;
        }
        assert_eq!(ground.used().await, before);
        assert!(ground.check().await);
        assert_eq!(ground.used().await, before + 1);
    });
}

#[test]
fn runtimes_that_have_ended_leave_no_connections_behind() {
    let ground = runtime().block_on(open(&Postgres::shared().url(), 1000));
    for _ in 0..6 {
        let short_lived = runtime();
        // The one before may still be on its way out.
        let used = short_lived.block_on(ground.used());
        let checks = short_lived.block_on(ground.settle()).checks;
        assert_eq!(short_lived.block_on(ground.used()), used + checks);
    }
}

#[test]
fn a_lone_answer_that_is_lost_counts_and_a_lone_check_that_never_arrives_does_not() {
    let postgres = Postgres::shared();
    for (moment, counted) in [(Moment::AtTheAnswer, 1), (Moment::BeforeTheServer, 0)] {
        let runtime = runtime();
        runtime.block_on(async {
            let proxy = Proxy::start(postgres.port());
            let ground = open(&proxy.through(&postgres.url()), 1000).await;
            let before = ground.settle().await.checks;
            proxy.cut_at(b"ada", moment);
            ground.gate.check("p", &[("user", "ada")], 1).await.unwrap_err();
            assert!(!proxy.is_armed(), "what was sent was cut");
            // From now on everything is as before.
            let started = Stopwatch::now();
            while ground.gate.peek("p", &[("user", "ada")], 1).await.is_err() {
                assert!(started.elapsed() < DEADLINE);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(ground.used().await, before + counted, "{moment:?}");
            for _ in 0..20 {
                assert!(ground.check().await);
            }
            assert_eq!(ground.used().await, before + counted + 20);
        });
    }
}

//! Whoever is alone goes without the lane: as exact, as safe, and in nobody's way.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant as Stopwatch};

use testkit::random;
use testkit::servers::{Moment, Postgres, Proxy};
use tokio::runtime::{Builder, Handle, Runtime};
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
    open_with(server, max, DEADLINE).await
}

async fn open_with(server: &str, max: u64, deadline: Duration) -> Ground {
    let schema = random::name("s").replace('-', "_");
    let deadline = deadline.as_millis();
    let url = format!("{server}?schema={schema}&deadline={deadline}ms&lanes=1&shield=off");
    let gate = Tollgate::open(&url).await.unwrap();
    let limits =
        format!(r#"limits = [{{ name = "user", max = {max}, per = "30d", by = ["user"] }}]"#);
    gate.apply(&Policy::from_toml("p", &limits).unwrap(), "test").await.unwrap();
    Ground { schema, gate }
}

struct Settled {
    /// So many it took.
    checks: u64,
    /// Which sessions began before anybody went alone, the lane's among them, and which later.
    before: String,
    own: String,
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

    /// Checks alone on this runtime until it is not the lane that does it.
    async fn settle(&self) -> Settled {
        assert!(self.check().await);
        let now = Postgres::shared().psql("select clock_timestamp()");
        let (before, own) =
            (format!("backend_start <= '{now}'"), format!("backend_start > '{now}'"));
        self.gate.adopt_runtime(&Handle::current());
        let checks = 1 + self.check_until_written(&own).await;
        Settled { checks, before, own }
    }

    /// Checks until it is done by a session that `which` are; so many it took.
    async fn check_until_written(&self, which: &str) -> u64 {
        let started = Stopwatch::now();
        for checks in 1.. {
            let written = self.last_written(which);
            assert!(self.check().await);
            // It has written something, and not only prepared to.
            if !written.is_empty() && written != self.last_written(which) {
                return checks;
            }
            assert!(started.elapsed() < DEADLINE, "the lane does it all");
        }
        unreachable!("the loop ends by itself")
    }

    /// As many checks as there may be doubts.
    async fn check_often(&self) {
        for _ in 0..20 {
            assert!(self.check().await);
        }
    }
}

#[test]
fn a_lone_check_goes_over_a_connection_of_its_callers_runtime() {
    runtime().block_on(async {
        let ground = open(&Postgres::shared().url(), 1000).await;
        let Settled { mut checks, before, own } = ground.settle().await;
        let started = Stopwatch::now();
        loop {
            let written = [&before, &own].map(|which| ground.last_written(which));
            ground.check_often().await;
            checks += 20;
            let [by_the_lane, by_itself] = [&before, &own].map(|which| ground.last_written(which));
            if by_the_lane == written[0] && by_itself != written[1] {
                break;
            }
            // A machine that is busy elsewhere may have one wait for longer than memory is good for.
            assert!(started.elapsed() < DEADLINE, "the lane's session never rests");
        }
        assert_eq!(ground.used().await, checks);
    });
}

#[test]
fn only_so_many_runtimes_are_adopted_and_none_unasked() {
    let ground = runtime().block_on(open(&Postgres::shared().url(), 1000));
    let (first, second, third) = (runtime(), runtime(), runtime());
    for unasked in [&first, &third] {
        unasked.block_on(ground.check_often());
    }
    first.block_on(ground.settle());
    second.block_on(ground.settle());
    ground.gate.adopt_runtime(third.handle());
    let now = Postgres::shared().psql("select clock_timestamp()");
    third.block_on(ground.check_often());
    assert_eq!(ground.last_written(&format!("backend_start > '{now}'")), "");
}

#[test]
fn callers_of_several_runtimes_get_exactly_what_there_is() {
    let (runtimes, most) = (2, 500);
    let ground = runtime().block_on(open(&Postgres::shared().url(), most));
    let (allowed, alone) = (AtomicU64::new(0), tokio::sync::Mutex::new(()));
    std::thread::scope(|scope| {
        for _ in 0..runtimes {
            scope.spawn(|| {
                runtime().block_on(async {
                    {
                        let _alone = alone.lock().await;
                        allowed.fetch_add(ground.settle().await.checks, Relaxed);
                    }
                    for number in 0..most {
                        // Now alone, then both at once.
                        let alone = match number / 10 % 2 {
                            0 => Some(alone.lock().await),
                            _ => None,
                        };
                        allowed.fetch_add(u64::from(ground.check().await), Relaxed);
                        drop(alone);
                    }
                });
            });
        }
    });
    assert_eq!(allowed.into_inner(), most);
    assert_eq!(runtime().block_on(ground.used()), most);
}

#[test]
fn a_runtime_that_is_kept_busy_all_the_same_holds_up_no_other_caller() {
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
        assert!(took > Duration::from_millis(50), "{took:?}: nobody had the memory");
        assert!(took < DEADLINE / 2, "{took:?}");
        assert!(check.await, "it is decided anew by what the other has counted");
    });
    assert_eq!(busy.block_on(ground.used()), before + 2);
}

#[test]
fn a_lone_callers_connection_that_the_server_ends_is_replaced() {
    let postgres = Postgres::shared();
    runtime().block_on(async {
        let ground = open(&postgres.url(), 1000).await;
        let Settled { mut checks, own, .. } = ground.settle().await;
        for is_noticed in [false, true] {
            postgres.psql(&format!(
                "select pg_terminate_backend(pid) from pg_stat_activity where {own} \
                 and query like '%What write_known does%{}%' and query not like '%pg_stat%'",
                ground.schema
            ));
            if is_noticed {
                // Over the lane, while this runtime reads what the server said last.
                assert_eq!(ground.used().await, checks);
            }
            checks += ground.check_until_written(&own).await;
            assert_eq!(ground.used().await, checks);
        }
    });
}

#[test]
fn whoever_stops_waiting_before_anything_was_sent_is_not_counted() {
    runtime().block_on(async {
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
fn a_lone_answer_that_is_lost_counts_and_a_lone_check_that_never_arrives_does_not() {
    let postgres = Postgres::shared();
    for (moment, counted) in [(Moment::AtTheAnswer, 1), (Moment::BeforeTheServer, 0)] {
        runtime().block_on(async {
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
            ground.check_often().await;
            assert_eq!(ground.used().await, before + counted + 20);
        });
    }
}

#[test]
fn a_database_that_hangs_in_mid_statement_is_answered_for_and_used_again() {
    let postgres = Postgres::shared();
    let deadline = Duration::from_millis(500);
    runtime().block_on(async {
        let proxy = Proxy::start(postgres.port());
        let ground = open_with(&proxy.through(&postgres.url()), 1000, deadline).await;
        ground.settle().await;
        proxy.stall();
        for _ in 0..3 {
            let started = Stopwatch::now();
            ground.gate.check("p", &[("user", "ada")], 1).await.unwrap_err();
            let took = started.elapsed();
            assert!(took < deadline * 4, "{took:?}");
        }
        proxy.pass();
        let started = Stopwatch::now();
        while ground.gate.check("p", &[("user", "ada")], 1).await.is_err() {
            assert!(started.elapsed() < DEADLINE, "it is not used again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ground.check_often().await;
    });
}

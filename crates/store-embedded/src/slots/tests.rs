//! Slots and schedules in use, on the store itself.

mod changes;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant as Stopwatch};

use tollgate_core::schedule::Plan;
use tollgate_core::store::{Clock, Drift, Recount, SlotAsk, count_again};

use super::recount::recount_page;
use super::*;
use crate::error::stopped;
use crate::file::{Home, open};

#[test]
fn a_sweep_walks_through_nothing_but_the_policies() {
    let connection = open(&Home::Memory).unwrap();
    for sql in [REMOVE_SLOTS, REMOVE_WINDOWS] {
        let steps: Vec<String> = connection
            .prepare(&format!("explain query plan {sql}"))
            .unwrap()
            .query_map(params![0, 1], |row| row.get("detail"))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        let walks: Vec<_> = steps.iter().filter(|step| step.contains("SCAN")).collect();
        assert_eq!(walks, ["SCAN k"], "{steps:?}");
    }
}

#[test]
fn a_look_up_is_planned_once() {
    let connection = open(&Home::Memory).unwrap();
    let look_up =
        || connection.prepare_cached(&format!("select {SLOT} where s.event_id = ?1")).unwrap();
    for event_id in ["a", "b", "c"] {
        assert!(!look_up().exists(params![event_id]).unwrap());
    }
    assert_eq!(look_up().get_status(rusqlite::StatementStatus::RePrepare), 0);
}

#[derive(Debug)]
struct Noon;

impl Clock for Noon {
    fn now(&self) -> Instant {
        Instant::from_micros(43_200_000_000)
    }
}

fn store() -> Embedded {
    Embedded::memory(Arc::new(Noon)).unwrap()
}

/// Seconds after noon.
fn at(secs: i64) -> Instant {
    Noon.now().plus_micros(secs * 1_000_000)
}

/// For one slot of `max` in every window of `per` seconds, at these seconds after noon.
fn ask(per: i64, max: u64, prefix: &str, secs: impl IntoIterator<Item = i64>) -> ScheduleAsk {
    let events = secs
        .into_iter()
        .map(|secs| SlotAsk { event_id: format!("{prefix} {secs}"), requested_at: Some(at(secs)) });
    ScheduleAsk {
        policy: "p".into(),
        version: 1,
        epoch: None,
        plan: Plan::new(Span::from_secs(per), max).unwrap(),
        retention: Span::from_secs(3600),
        events: events.collect(),
    }
}

fn given(answers: &[SlotAnswer]) -> Vec<Instant> {
    let slot = |answer: &SlotAnswer| match answer {
        SlotAnswer::Given(slot) | SlotAnswer::Repeated(slot) => slot.scheduled_at,
        other => panic!("{other:?}"),
    };
    answers.iter().map(slot).collect()
}

/// One slot in every second from noon on.
async fn assign(store: &Embedded, count: i64) {
    given(&store.assign_slots(ask(1, 1, "event", 0..count)).await.unwrap());
}

/// Changes the file behind the store's back.
async fn execute(store: &Embedded, sql: &'static str) {
    let run = store.run(move |txn| {
        txn.read().execute_batch(sql).map_err(|error| txn.fail(error))?;
        Ok(())
    });
    run.await.unwrap();
}

async fn count_of(store: &Embedded, sql: &'static str) -> i64 {
    let run = store.run(move |txn| {
        txn.read().query_row(sql, [], |row| row.get(0)).map_err(|error| txn.fail(error))
    });
    run.await.unwrap()
}

async fn counts(store: &Embedded, per: i64, limit: u32) -> Vec<(i64, u64)> {
    let per = Span::from_secs(per);
    let fills = store.slot_windows("p".into(), per, i64::MIN, i64::MAX, limit).await.unwrap();
    fills.into_iter().map(|fill| (fill.number, fill.count)).collect()
}

#[tokio::test]
async fn windows_of_another_length_are_counted_page_by_page() {
    let store = store();
    assign(&store, 10).await;
    store.cancel_slot("event 4".into()).await.unwrap().unwrap();
    assert_eq!(counts(&store, 3, 100).await, [(14_400, 3), (14_401, 2), (14_402, 3), (14_403, 1)]);
    assert_eq!(counts(&store, 3, 2).await, [(14_400, 3), (14_401, 2)]);
    assert_eq!(counts(&store, 3600, 2).await, [(12, 9)]);
    assert_eq!(counts(&store, 3, 0).await, []);
    let none = store.slot_windows("q".into(), Span::from_secs(3), 0, 9, 5).await.unwrap();
    assert_eq!(none, []);
}

/// Whether those who ask behind the first jobs of `work`, of which there may be two, are answered
/// before its last.
async fn is_served_between<T>(store: &Embedded, work: impl Future<Output = T>) -> bool {
    let (release, released) = std::sync::mpsc::channel();
    let mut held = pin!(store.run(move |_| released.recv().map_err(|_| stopped())));
    let (mut work, mut ping) = (pin!(work), pin!(store.ping()));
    poll_fn(|context| {
        // In this order they reach the keeper, which goes no further than the first.
        let is_held = held.as_mut().poll(context).is_pending();
        let asked = (work.as_mut().poll(context), ping.as_mut().poll(context));
        assert!(is_held && asked.0.is_pending() && asked.1.is_pending());
        Poll::Ready(())
    })
    .await;
    release.send(()).unwrap();
    held.await.unwrap();
    ping.await.unwrap();
    // However soon each job is done, the runtime lets no task wait for more than 128 before others.
    let goes_on = poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_pending())).await;
    store.ping().await.unwrap();
    goes_on && poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_pending())).await
}

/// More than two times 128 jobs, if each reads two.
const MANY: i64 = 600;

#[tokio::test]
async fn others_are_served_while_windows_are_counted() {
    let store = store();
    assign(&store, MANY).await;
    assert!(is_served_between(&store, counts(&store, 60, 100)).await);
}

async fn schedules_in_use(store: &Embedded) -> usize {
    store.run(|txn| Ok(txn.books.schedules.len())).await.unwrap()
}

#[tokio::test]
async fn after_a_failure_no_schedule_is_in_use() {
    let store = store();
    assign(&store, 3).await;
    assert_eq!(schedules_in_use(&store).await, 1);
    store.run(|_| -> Result<(), _> { panic!("as a test of it") }).await.unwrap_err();
    assert_eq!(schedules_in_use(&store).await, 0);
    assign(&store, 3).await;
    assert_eq!(schedules_in_use(&store).await, 1);
    let fails = store.run(|txn| {
        txn.write("insert into nowhere values (1)", Vec::new());
        Ok(())
    });
    fails.await.unwrap_err();
    // The keeper is back with the next commit.
    let asked = Stopwatch::now();
    while store.ping().await.is_err() {
        assert!(asked.elapsed() < Duration::from_secs(20), "it does not come back");
    }
    assert_eq!(schedules_in_use(&store).await, 0);
}

/// What a job wrote before it failed would be committed with the others' writes.
#[tokio::test]
async fn a_job_that_fails_leaves_the_windows_as_they_are() {
    let store = store();
    assign(&store, 1).await;
    for damage in ["per = 0", "per = x'00'", "position = 'none'"] {
        let spoil: &'static str = format!("update slot set {damage}").leak();
        execute(&store, spoil).await;
        store.assign_slots(ask(3, 3, "late", [0])).await.unwrap_err();
        assert_eq!(count_of(&store, "select count(*) from slot_window").await, 1, "{damage}");
        assert_eq!(count_of(&store, "select per from schedule").await, 1_000_000, "{damage}");
        execute(&store, "update slot set per = 1000000, position = 0").await;
    }
    // As before the change: that second is taken.
    let answers = store.assign_slots(ask(1, 1, "again", [0])).await.unwrap();
    assert_eq!(given(&answers), [at(1)]);
}

/// The same where the job that fails is not the first of its ask.
#[tokio::test]
async fn what_failed_between_two_parts_gives_no_place_again() {
    let store = store();
    assign(&store, 10).await;
    execute(&store, "update slot set per = 0 where event_id = 'event 4'").await;
    store.assign_slots(ask(3, 3, "late", [0])).await.unwrap_err();
    store.assign_slots(ask(1, 1, "again", [0])).await.unwrap_err();
    execute(&store, "update slot set per = 1000000").await;
    let answers = store.assign_slots(ask(1, 1, "again", [0, 4])).await.unwrap();
    assert_eq!(given(&answers), [at(10), at(11)]);
}

#[tokio::test]
async fn others_are_served_while_slots_are_verified() {
    let store = store();
    assign(&store, MANY).await;
    // As many in one window.
    let mut many = ask(3600, MANY as u64, "event", 0..MANY);
    many.policy = "q".into();
    many.events.iter_mut().for_each(|event| event.event_id.push('q'));
    store.assign_slots(many).await.unwrap();
    for policy in ["p", "q"] {
        assert!(is_served_between(&store, store.recount_slots(policy.into())).await, "{policy}");
        let found = store.recount_slots(policy.into()).await.unwrap();
        assert_eq!((found.slots as i64, found.drifts), (MANY, vec![]));
    }
}

#[tokio::test]
async fn a_verify_finds_what_is_wrong_in_each_window() {
    let store = store();
    assign(&store, 11).await;
    let sound = store.recount_slots("p".into()).await.unwrap();
    assert_eq!((sound.windows, sound.slots, sound.drifts), (11, 11, vec![]));
    // Windows without slots, more than fit a page, and slots without a window.
    execute(&store, "delete from slot where event_id in ('event 2', 'event 3', 'event 4')").await;
    execute(&store, "delete from slot_window where number in (43200, 43210)").await;
    execute(&store, "insert into slot_window select policy, 43215, state from slot_window limit 1")
        .await;
    let found = store.recount_slots("p".into()).await.unwrap();
    assert_eq!((found.windows, found.slots), (10, 8));
    let wrong = found.drifts.iter().map(|drift| (drift.starts_at, drift.counted, drift.slots));
    let counted_only = |secs| (at(secs), 1, 0);
    let mut expected = vec![(at(0), 0, 1)];
    expected.extend([2, 3, 4].map(counted_only));
    expected.extend([(at(10), 0, 1), counted_only(15)]);
    assert_eq!(wrong.collect::<Vec<_>>(), expected);
}

/// There is one count at a time to be kept right: two would undo each other's.
#[tokio::test]
async fn who_verifies_waits_for_who_does_already() {
    let store = store();
    given(&store.assign_slots(ask(3600, MANY as u64, "event", 0..MANY)).await.unwrap());
    let verify = || store.recount_slots("p".into());
    let (mut first, mut second) = (pin!(verify()), pin!(verify()));
    assert!(poll_fn(|context| Poll::Ready(first.as_mut().poll(context).is_pending())).await);
    // More often than it has pages.
    for _ in 0..MANY {
        assert!(poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending())).await);
        store.ping().await.unwrap();
    }
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.slots as i64, first.drifts), (MANY, vec![]));
    assert_eq!((second.slots as i64, second.drifts), (MANY, vec![]));
}

async fn page(store: &Embedded, next: &mut Option<i64>, per: i64) -> Recount {
    let reached = next.map(|number| (Span::from_secs(per), number));
    let page = store.run(move |txn| recount_page(txn, "p", reached)).await.unwrap().unwrap();
    *next = page.next;
    page.recount
}

/// Each slot in order of their instants.
async fn slots_from(store: &Embedded, from: i64, to: i64) -> Vec<Slot> {
    let (from, to) = (at(from), at(to));
    let query = SlotQuery { policy: "p".into(), from, to, after: None, limit: 1000 };
    store.slots(query).await.unwrap()
}

/// What may happen while a window is counted.
#[derive(Clone, Copy, Debug)]
enum Change {
    Give(i64),
    CancelRead,
    CancelUnread,
    CancelBefore,
}

async fn change(store: &Embedded, change: Change) {
    let within = slots_from(store, 60, 120).await;
    let event_id = match change {
        Change::Give(second) => {
            let mut ask = ask(60, 60, "new", [second; 6]);
            for (number, event) in ask.events.iter_mut().enumerate() {
                event.event_id = format!("new {number}");
            }
            drop(store.assign_slots(ask).await.unwrap());
            return;
        }
        Change::CancelRead => within[0].event_id.clone(),
        Change::CancelUnread => within[within.len() - 1].event_id.clone(),
        Change::CancelBefore => "event 0".into(),
    };
    store.cancel_slot(event_id).await.unwrap().unwrap();
}

#[tokio::test]
async fn what_changes_while_a_large_window_is_verified_is_no_drift() {
    let changes = [
        Change::Give(0),
        Change::Give(60),
        Change::Give(110),
        Change::Give(130),
        Change::CancelRead,
        Change::CancelUnread,
        Change::CancelBefore,
    ];
    for (changed, is_spoilt) in changes.iter().flat_map(|one| [(one, false), (one, true)]) {
        let store = store();
        store.assign_slots(ask(60, 60, "event", [0].into_iter().chain(60..90))).await.unwrap();
        if is_spoilt {
            execute(&store, "delete from slot where event_id = 'event 79'").await;
        }
        let mut next = None;
        let mut all = page(&store, &mut next, 60).await;
        for _ in 0..5 {
            assert_eq!(page(&store, &mut next, 60).await, Recount::default());
        }
        // Ten or so of the thirty are counted.
        change(&store, *changed).await;
        while next.is_some() {
            let found = page(&store, &mut next, 60).await;
            all.slots += found.slots;
            all.drifts.extend(found.drifts);
        }
        let count = slots_from(&store, 60, 120).await;
        let count = count.iter().filter(|slot| slot.cancelled_at.is_none()).count() as u64;
        let spoilt = Drift { starts_at: at(60), counted: count + 1, slots: count };
        let expected = Vec::from_iter(is_spoilt.then_some(spoilt));
        assert_eq!(all.drifts, expected, "{changed:?}, {} slots", all.slots);
    }
}

#[tokio::test]
async fn what_is_over_leaves_without_a_second_for_each_page() {
    let clock = Arc::new(Moving(AtomicI64::new(Noon.now().as_micros())));
    let store = Embedded::memory(clock.clone()).unwrap();
    assign(&store, 60).await;
    for number in 0..60 {
        if number % 2 == 0 {
            store.cancel_slot(format!("event {number}")).await.unwrap().unwrap();
        }
        execute(
            &store,
            format!(
                "insert into record values (x'{number:02}', x'', x'', 0); \
                 insert into refund values (1, {number}, 0)"
            )
            .leak(),
        )
        .await;
    }
    clock.0.fetch_add(2 * 3_600_000_000, Ordering::Relaxed);
    let begun = Stopwatch::now();
    for table in ["slot", "slot_cancel", "slot_window", "record", "refund"] {
        let sql: &'static str = format!("select count(*) from {table}").leak();
        while count_of(&store, sql).await > 0 {
            assert!(begun.elapsed() < Duration::from_secs(10), "{table} is not empty");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[derive(Debug)]
struct Moving(AtomicI64);

impl Clock for Moving {
    fn now(&self) -> Instant {
        Instant::from_micros(self.0.load(Ordering::Relaxed))
    }
}

//! Slots and schedules in use, on the store itself.

use std::sync::Arc;
use std::time::{Duration, Instant as Stopwatch};

use tollgate_core::schedule::Plan;
use tollgate_core::store::{Clock, SlotAsk};

use super::*;
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

/// One slot in every second from noon on.
async fn assign(store: &Embedded, count: i64) {
    let events = (0..count).map(|number| SlotAsk {
        event_id: format!("event {number}"),
        requested_at: Some(Noon.now().plus_micros(number * 1_000_000)),
    });
    let ask = ScheduleAsk {
        policy: "p".into(),
        version: 1,
        epoch: None,
        plan: Plan::new(Span::from_secs(1), 1).unwrap(),
        retention: Span::from_secs(3600),
        events: events.collect(),
    };
    let answers = store.assign_slots(ask).await.unwrap();
    let is_slot = |answer| matches!(answer, &SlotAnswer::Given(_) | &SlotAnswer::Repeated(_));
    assert!(answers.iter().all(is_slot), "{answers:?}");
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

#[tokio::test]
async fn others_are_served_while_windows_are_counted() {
    let store = store();
    assign(&store, 40).await;
    // Each waits for the one before: more jobs than there are without pages, fewer than with.
    let pings = async {
        for _ in 0..5 {
            store.ping().await.unwrap();
        }
    };
    tokio::select! {
        biased;
        counted = counts(&store, 60, 100) => panic!("{counted:?} in one go"),
        () = pings => {}
    }
}

async fn schedules_in_use(store: &Embedded) -> usize {
    store.run(|txn| Ok(txn.books.len())).await.unwrap()
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

//! Slots: assigned on the keeper, one group after the other, durable before they are answered.
//!
//! A policy's schedule is kept in memory while it is in use. If a commit fails, memory would be
//! ahead of the file, so the keeper drops it and it is read again.

mod book;

use std::collections::{BTreeMap, HashMap};

use rusqlite::{Connection, OptionalExtension, Row, params};
use tollgate_core::store::{
    Recount, ScheduleAsk, Slot, SlotAnswer, SlotQuery, StoreError, WindowFill, assign_all,
};
use tollgate_core::{Instant, Span};

use crate::Embedded;
use crate::keeper::Txn;
pub(crate) use book::Books;
use book::{Kept, book, kept, put_window, windows};

/// Slots removed in one sweep.
const SLOTS_PER_SWEEP: i64 = 5_000;
/// Slots read by one job that counts many. Tests have few slots, and pages all the same.
const SLOTS_PER_PAGE: u32 = if cfg!(test) { 2 } else { 5_000 };

const SLOT: &str = "s.event_id, s.policy, s.version, s.requested_at, s.by_caller, s.scheduled_at, \
                    s.per, s.position, s.created_at, c.cancelled_at \
                    from slot s left join slot_cancel c on c.event_id = s.event_id";

impl Embedded {
    /// Gives every event its slot, in order.
    pub async fn assign_slots(&self, ask: ScheduleAsk) -> Result<Vec<SlotAnswer>, StoreError> {
        self.run(move |txn| {
            let now = txn.inner.now();
            // Put back when all went well: a job that fails half way leaves none that is ahead.
            let mut books = std::mem::take(txn.books);
            let schedule = book(txn, &mut books, &ask, now)?;
            let mut known = HashMap::new();
            for event in &ask.events {
                if let Some(slot) = find(txn, &event.event_id)? {
                    known.insert(event.event_id.clone(), slot);
                }
            }
            let assigned = assign_all(&ask, known, schedule, now);
            for slot in &assigned.slots {
                txn.write(
                    "insert into slot (event_id, policy, version, requested_at, by_caller, \
                     scheduled_at, per, position, created_at) \
                     values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                    vec![
                        slot.event_id.clone().into(),
                        slot.policy.clone().into(),
                        slot.version.cast_signed().into(),
                        slot.requested_at.as_micros().into(),
                        slot.is_requested_by_caller.into(),
                        slot.scheduled_at.as_micros().into(),
                        slot.per.as_micros().into(),
                        slot.position.cast_signed().into(),
                        slot.created_at.as_micros().into(),
                    ],
                );
            }
            for number in assigned.windows {
                put_window(txn, &ask.policy, number, schedule.window(number));
            }
            *txn.books = books;
            Ok(assigned.answers)
        })
        .await
    }

    pub async fn slot(&self, event_id: String) -> Result<Option<Slot>, StoreError> {
        self.run(move |txn| find(txn, &event_id)).await
    }

    /// Frees the place of a slot; the slot as it is then. Again changes nothing.
    pub async fn cancel_slot(&self, event_id: String) -> Result<Option<Slot>, StoreError> {
        self.run(move |txn| {
            let Some(mut slot) = find(txn, &event_id)? else { return Ok(None) };
            if slot.cancelled_at.is_some() {
                return Ok(Some(slot));
            }
            // Everything is read before anything is written: what fails has changed nothing.
            let per = kept(txn, &slot.policy)?.map_or(slot.per, |kept| kept.per);
            let number = slot.scheduled_at.as_micros().div_euclid(per.as_micros());
            // None where it is not counted.
            let window = windows(txn, &slot.policy, number, number, 1)?.pop();
            let now = txn.inner.now();
            slot.cancelled_at = Some(now);
            txn.write(
                "insert into slot_cancel (event_id, cancelled_at) values (?1, ?2)",
                vec![event_id.into(), now.as_micros().into()],
            );
            if let Some((_, mut state)) = window {
                slot.leave(&mut state, per);
                put_window(
                    txn,
                    &slot.policy,
                    number,
                    Some(&state).filter(|state| state.count() > 0),
                );
                if let Some(schedule) = txn.books.get_mut(&slot.policy) {
                    schedule.put_window(number, state);
                }
            }
            Ok(Some(slot))
        })
        .await
    }

    /// Slots in order of their instants, cancelled ones included.
    pub async fn slots(&self, query: SlotQuery) -> Result<Vec<Slot>, StoreError> {
        self.run(move |txn| {
            let SlotQuery { policy, from, to, after, limit } = query;
            let (after_at, after_id) = after.unwrap_or((Instant::MIN, String::new()));
            let sql = format!(
                "select {SLOT} where s.policy = ?1 and s.scheduled_at >= ?2 and s.scheduled_at < ?3 \
                 and (s.scheduled_at, s.event_id) > (?4, ?5) \
                 order by s.scheduled_at, s.event_id limit ?6"
            );
            let read = || {
                txn.read()
                    .prepare_cached(&sql)?
                    .query_map(
                        params![
                            policy,
                            from.as_micros(),
                            to.as_micros(),
                            after_at.as_micros(),
                            after_id,
                            limit
                        ],
                        slot_row,
                    )?
                    .collect::<Result<Vec<_>, _>>()
            };
            read().map_err(|error| txn.fail(error))
        })
        .await
    }

    /// The windows of a policy in which something is given, from number to number, both included.
    pub async fn slot_windows(
        &self,
        policy: String,
        per: Span,
        first: i64,
        last: i64,
        limit: u32,
    ) -> Result<Vec<WindowFill>, StoreError> {
        let named = policy.clone();
        let stored = self.run(move |txn| {
            let counts = |kept: &Kept| kept.per == per && first >= kept.first_counted();
            if !kept(txn, &named)?.as_ref().is_some_and(counts) {
                return Ok(None);
            }
            windows(txn, &named, first, last, i64::from(limit)).map(Some)
        });
        let counts = match stored.await? {
            Some(stored) => {
                stored.into_iter().map(|(number, state)| (number, state.count())).collect()
            }
            // Nothing was given under this plan yet, or long ago under another.
            None => self.count_windows(policy, per, first, last, limit).await?,
        };
        Ok(counts.into_iter().map(|(number, count)| WindowFill { number, count }).collect())
    }

    /// The same from the slots themselves, a few in a job: nothing commits while one runs. What is
    /// given meanwhile may be missing.
    async fn count_windows(
        &self,
        policy: String,
        per: Span,
        first: i64,
        last: i64,
        limit: u32,
    ) -> Result<Vec<(i64, u64)>, StoreError> {
        let (from, to) = interval(per, first, last);
        let mut query = SlotQuery { policy, from, to, after: None, limit: SLOTS_PER_PAGE };
        let mut counts: Vec<(i64, u64)> = Vec::new();
        loop {
            let page = self.slots(query.clone()).await?;
            for slot in page.iter().filter(|slot| slot.cancelled_at.is_none()) {
                let number = slot.scheduled_at.as_micros().div_euclid(per.as_micros());
                match counts.last_mut() {
                    Some((last, count)) if *last == number => *count += 1,
                    _ => counts.push((number, 1)),
                }
            }
            let is_last = page.len() < SLOTS_PER_PAGE as usize;
            // A window is counted whole once there is another behind it.
            if is_last || counts.len() > limit as usize {
                counts.truncate(limit as usize);
                return Ok(counts);
            }
            query.after =
                page.into_iter().next_back().map(|last| (last.scheduled_at, last.event_id));
        }
    }

    /// Counts the slots of a policy again, and says where a window's count is another.
    pub async fn recount_slots(&self, policy: String) -> Result<Recount, StoreError> {
        self.run(move |txn| {
            let Some(kept) = kept(txn, &policy)? else {
                return Ok(Recount::default());
            };
            // Older ones may be half removed.
            let per = kept.per;
            let oldest = txn.inner.now().minus(kept.retention).as_micros();
            let first = (oldest.div_euclid(per.as_micros()) + 1).max(kept.first_counted());
            let slots = count_slots(txn, &policy, per, first)?;
            let states = windows(txn, &policy, first, i64::MAX, i64::MAX)?;
            let counted: BTreeMap<i64, u64> =
                states.into_iter().map(|(number, state)| (number, state.count())).collect();
            Ok(Recount::of(per, &slots, &counted))
        })
        .await
    }
}

/// How many slots lie in each window of `per` from number `first` on.
fn count_slots(
    txn: &Txn<'_>,
    policy: &str,
    per: Span,
    first: i64,
) -> Result<BTreeMap<i64, u64>, StoreError> {
    let (from, to) = interval(per, first, i64::MAX);
    let mut counts = BTreeMap::new();
    let mut read = || {
        txn.read()
            .prepare_cached(
                "select s.scheduled_at from slot s \
                 where s.policy = ?1 and s.scheduled_at >= ?2 and s.scheduled_at < ?3 \
                 and not exists (select 1 from slot_cancel c where c.event_id = s.event_id)",
            )?
            .query_map(params![policy, from.as_micros(), to.as_micros()], |row| {
                row.get::<_, i64>(0)
            })?
            .try_for_each(|at| {
                *counts.entry(at?.div_euclid(per.as_micros())).or_default() += 1;
                Ok(())
            })
    };
    read().map_err(|error: rusqlite::Error| txn.fail(error))?;
    Ok(counts)
}

/// From the start of one window to the end of another.
fn interval(per: Span, first: i64, last: i64) -> (Instant, Instant) {
    let start_of = |number: i64| Instant::from_micros(number.saturating_mul(per.as_micros()));
    (start_of(first), start_of(last.saturating_add(1)))
}

fn find(txn: &Txn<'_>, event_id: &str) -> Result<Option<Slot>, StoreError> {
    txn.read()
        .prepare_cached(&format!("select {SLOT} where s.event_id = ?1"))
        .and_then(|mut statement| statement.query_row(params![event_id], slot_row).optional())
        .map_err(|error| txn.fail(error))
}

fn slot_row(row: &Row<'_>) -> rusqlite::Result<Slot> {
    Ok(Slot {
        event_id: row.get(0)?,
        policy: row.get(1)?,
        version: row.get::<_, i64>(2)?.cast_unsigned(),
        requested_at: Instant::from_micros(row.get(3)?),
        is_requested_by_caller: row.get(4)?,
        scheduled_at: Instant::from_micros(row.get(5)?),
        per: Span::from_micros(row.get(6)?).unwrap_or(Span::from_secs(1)),
        position: row.get::<_, i64>(7)?.cast_unsigned(),
        created_at: Instant::from_micros(row.get(8)?),
        cancelled_at: row.get::<_, Option<i64>>(9)?.map(Instant::from_micros),
    })
}

/// Removes slots whose policy's retention is over, their cancels and their windows: a few at a
/// time, found by their keys, so that it costs no more however many there are to keep.
pub(crate) fn remove_old(connection: &Connection, now: Instant) -> rusqlite::Result<()> {
    let few = params![now.as_micros(), SLOTS_PER_SWEEP];
    let removed: Vec<String> = connection
        .prepare_cached(REMOVE_SLOTS)?
        .query_map(few, |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let mut remove_cancel =
        connection.prepare_cached("delete from slot_cancel where event_id = ?1")?;
    for event_id in removed {
        remove_cancel.execute(params![event_id])?;
    }
    connection.prepare_cached(REMOVE_WINDOWS)?.execute(few).map(drop)
}

// `cross join` keeps the order: policies are few, and lead to the others by key.
const REMOVE_SLOTS: &str = "delete from slot where event_id in (select s.event_id from schedule k \
     cross join slot s on s.policy = k.policy and s.scheduled_at < ?1 - k.retention limit ?2) \
     returning event_id";
const REMOVE_WINDOWS: &str = "delete from slot_window where (policy, number) in \
     (select w.policy, w.number from schedule k cross join slot_window w on w.policy = k.policy \
     and w.number < (?1 - k.retention) / k.per limit ?2)";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
        assert_eq!(
            counts(&store, 3, 100).await,
            [(14_400, 3), (14_401, 2), (14_402, 3), (14_403, 1)]
        );
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
        while store.ping().await.is_err() {}
        assert_eq!(schedules_in_use(&store).await, 0);
    }
}

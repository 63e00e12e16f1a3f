//! Slots: assigned on the keeper, one group after the other, durable before they are answered.
//!
//! A policy's schedule is kept in memory while it is in use. If a commit fails, memory would be
//! ahead of the file, so the keeper drops it and it is read again.

mod book;
mod recount;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use tollgate_core::store::{
    ScheduleAsk, Slot, SlotAnswer, SlotQuery, StoreError, WindowFill, assign_all,
};
use tollgate_core::{Instant, Span};

use crate::Embedded;
use crate::keeper::Txn;
pub(crate) use book::Books;
use book::{Kept, Patience, book, kept, put_window, windows};

/// Slots removed at once. Tests have few slots, and pages all the same.
const SLOTS_PER_SWEEP: i64 = if cfg!(test) { 2 } else { 5_000 };
/// Slots, or windows, read by one job that counts many.
const SLOTS_PER_PAGE: u32 = if cfg!(test) { 2 } else { 5_000 };

const SLOT: &str = "s.event_id, s.policy, s.version, s.requested_at, s.by_caller, s.scheduled_at, \
                    s.per, s.position, s.created_at, c.cancelled_at \
                    from slot s left join slot_cancel c on c.event_id = s.event_id";

impl Embedded {
    /// Gives every event its slot, in order. Where many windows must be read or counted before,
    /// that takes several jobs, and others are served between them.
    pub async fn assign_slots(&self, ask: ScheduleAsk) -> Result<Vec<SlotAnswer>, StoreError> {
        let ask = Arc::new(ask);
        let mut patience = Patience::Fresh;
        loop {
            let asked = ask.clone();
            let answers = self.run(move |txn| assign_or_prepare(txn, &asked, patience)).await?;
            if let Some(answers) = answers {
                return Ok(answers);
            }
            patience = Patience::OneWait;
        }
    }

    /// Those of these events that have one, in no order.
    pub async fn slots_of(&self, event_ids: Vec<String>) -> Result<Vec<Slot>, StoreError> {
        self.run(move |txn| {
            event_ids.iter().filter_map(|event_id| find(txn, event_id).transpose()).collect()
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
            txn.books.recounts.cancelled(&slot);
            if let Some((_, mut state)) = window {
                slot.leave(&mut state, per);
                put_window(
                    txn,
                    &slot.policy,
                    number,
                    Some(&state).filter(|state| state.count() > 0),
                );
                if let Some(schedule) = txn.books.schedules.get_mut(&slot.policy) {
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
                            // What was read before is not walked over again.
                            from.max(after_at).as_micros(),
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
}

/// `None`: the schedule is not ready; ask again.
fn assign_or_prepare(
    txn: &mut Txn<'_>,
    ask: &ScheduleAsk,
    patience: Patience,
) -> Result<Option<Vec<SlotAnswer>>, StoreError> {
    let now = txn.inner.now();
    // Put back when all went well: a job that fails half way leaves none that is ahead.
    let mut books = std::mem::take(txn.books);
    let Some(schedule) = book(txn, &mut books, ask, now, patience)? else {
        *txn.books = books;
        return Ok(None);
    };
    let mut known = HashMap::new();
    for event in &ask.events {
        if let Some(slot) = find(txn, &event.event_id)? {
            known.insert(event.event_id.clone(), slot);
        }
    }
    let assigned = assign_all(ask, known, schedule, now);
    for number in assigned.windows {
        put_window(txn, &ask.policy, number, schedule.window(number));
    }
    for slot in &assigned.slots {
        put_slot(txn, slot);
        books.recounts.given(slot);
    }
    *txn.books = books;
    Ok(Some(assigned.answers))
}

fn put_slot(txn: &mut Txn<'_>, slot: &Slot) {
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
/// Whether there may be more.
pub(crate) fn remove_old(connection: &Connection, now: Instant) -> rusqlite::Result<bool> {
    let few = params![now.as_micros(), SLOTS_PER_SWEEP];
    let removed: Vec<String> = connection
        .prepare_cached(REMOVE_SLOTS)?
        .query_map(few, |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let mut remove_cancel =
        connection.prepare_cached("delete from slot_cancel where event_id = ?1")?;
    for event_id in &removed {
        remove_cancel.execute(params![event_id])?;
    }
    let windows = connection.prepare_cached(REMOVE_WINDOWS)?.execute(few)?;
    Ok(removed.len().max(windows) as i64 == SLOTS_PER_SWEEP)
}

// `cross join` keeps the order: policies are few, and lead to the others by key.
const REMOVE_SLOTS: &str = "delete from slot where event_id in (select s.event_id from schedule k \
     cross join slot s on s.policy = k.policy and s.scheduled_at < ?1 - k.retention limit ?2) \
     returning event_id";
const REMOVE_WINDOWS: &str = "delete from slot_window where (policy, number) in \
     (select w.policy, w.number from schedule k cross join slot_window w on w.policy = k.policy \
     and w.number < (?1 - k.retention) / k.per limit ?2)";

//! A policy's schedule: read as far back as somebody asks, counted again when its windows change.

use std::collections::HashMap;

use rusqlite::{OptionalExtension, Params, params};
use tollgate_core::schedule::{Schedule, WindowState};
use tollgate_core::store::{ScheduleAsk, StoreError, count_again, first_window};
use tollgate_core::{Instant, Span};

use super::SLOTS_PER_PAGE;
use super::recount::Recounts;
use crate::error::damaged;
use crate::keeper::Txn;

/// What the keeper remembers of slots. It forgets all of it when a commit fails.
pub(crate) struct Books {
    /// Schedules in use, by policy.
    pub(super) schedules: HashMap<String, Schedule>,
    pub(super) recounts: Recounts,
    /// How many more slots and windows the jobs of this commit may read to make schedules ready.
    left: u32,
}

impl Default for Books {
    fn default() -> Self {
        Self { schedules: HashMap::new(), recounts: Recounts::default(), left: SLOTS_PER_PAGE }
    }
}

impl Books {
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Another group of jobs begins, with another commit.
    pub(crate) fn begin_group(&mut self) {
        self.left = SLOTS_PER_PAGE;
    }
}

/// What an ask for slots has been through.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    Fresh,
    /// It has waited for a part of the work at least once. If somebody who asks with other windows
    /// undid that since, the two would go on so for ever: it then does all of it at once.
    OneWait,
}

/// What `counted_from` says when no slot is counted in any window yet: what stands in windows then
/// is from before their length was changed.
const NOTHING_COUNTED: Instant = Instant::MAX;

/// What is kept of a policy's schedule beside its windows.
#[derive(PartialEq)]
pub(super) struct Kept {
    /// The length of its windows.
    pub(super) per: Span,
    /// How long its slots are kept.
    pub(super) retention: Span,
    /// Slots before this are counted in no window.
    counted_from: Instant,
}

impl Kept {
    pub(super) fn first_counted(&self) -> i64 {
        if self.counted_from == NOTHING_COUNTED {
            return i64::MAX;
        }
        self.counted_from.as_micros().div_euclid(self.per.as_micros())
    }
}

/// The schedule of a policy, following the plan that is in force now, and known as far back as
/// `ask` needs it. `None`: that is more work than fits this commit; a part of it is done, and
/// whoever asks next goes on from there, after a restart too.
pub(super) fn book<'b>(
    txn: &mut Txn<'_>,
    books: &'b mut Books,
    ask: &ScheduleAsk,
    now: Instant,
    patience: Patience,
) -> Result<Option<&'b mut Schedule>, StoreError> {
    let ScheduleAsk { policy, plan, retention, .. } = ask;
    let Books { schedules, left, .. } = books;
    let kept = kept(txn, policy)?;
    let is_other = kept.as_ref().is_some_and(|kept| kept.per != plan.per());
    if is_other && patience == Patience::OneWait {
        *left = u32::MAX;
    }
    let mut first_counted = match &kept {
        None => i64::MIN,
        Some(kept) if !is_other => kept.first_counted(),
        // Windows of another length: what is in them is counted again.
        Some(_) => {
            schedules.remove(policy);
            i64::MAX
        }
    };
    if first_counted == i64::MAX {
        clear(txn, policy, left)?;
    }
    let schedule =
        schedules.entry(policy.clone()).or_insert_with(|| Schedule::unknown(plan.clone()));
    if schedule.plan() != plan {
        schedule.set_plan(plan.clone());
    }
    let first = first_window(ask, now);
    schedule.tidy(now, first);
    while first < schedule.first() && *left > 0 {
        if first_counted < schedule.first() {
            load_back(txn, schedule, policy, first.max(first_counted), left)?;
        } else {
            count_back(txn, schedule, policy, first, left)?;
            first_counted = schedule.first();
        }
    }
    let counted_from = plan.starts_at(first_counted);
    let keeps = Kept { per: plan.per(), retention: *retention, counted_from };
    if kept.as_ref() != Some(&keeps) {
        put_kept(txn, policy, &keeps);
    }
    Ok(Some(schedule).filter(|schedule| first >= schedule.first()))
}

/// Removes the windows of a policy, which are of another length than those now counted. If more
/// may be read beyond that, none of them is left.
fn clear(txn: &mut Txn<'_>, policy: &str, left: &mut u32) -> Result<(), StoreError> {
    let most: u32 = txn
        .read()
        .prepare_cached(
            "select count(*) from (select 1 from slot_window where policy = ?1 limit ?2)",
        )
        .and_then(|mut statement| statement.query_row(params![policy, *left], |row| row.get(0)))
        .map_err(|error| txn.fail(error))?;
    txn.write(
        "delete from slot_window where (policy, number) in \
         (select policy, number from slot_window where policy = ?1 limit ?2)",
        vec![policy.to_owned().into(), most.into()],
    );
    *left -= most;
    Ok(())
}

/// Reads stored windows, the last ones before those that the schedule knows, back to `first`.
fn load_back(
    txn: &Txn<'_>,
    schedule: &mut Schedule,
    policy: &str,
    first: i64,
    left: &mut u32,
) -> Result<(), StoreError> {
    let stored = last_windows(txn, policy, first, schedule.first(), *left)?;
    let read = stored.len() as u32;
    let oldest = stored.last().filter(|_| read == *left).map(|(number, _)| *number);
    schedule.extend_back(oldest.unwrap_or(first), stored);
    *left -= read;
    Ok(())
}

/// Counts slots in windows again, the last ones before those that the schedule knows, back to
/// `first` or as far as there are whole windows of them.
fn count_back(
    txn: &mut Txn<'_>,
    schedule: &mut Schedule,
    policy: &str,
    first: i64,
    left: &mut u32,
) -> Result<(), StoreError> {
    let plan = schedule.plan().clone();
    let to = plan.starts_at(schedule.first());
    let mut slots = last_slots(txn, policy, plan.starts_at(first), to, *left)?;
    let is_all = (slots.len() as u32) < *left;
    let mut from = first;
    if let Some(oldest) = slots.last().filter(|_| !is_all).map(|slot| plan.index_of(slot.at)) {
        // What is left of that one comes before.
        from = oldest + 1;
        if slots.iter().all(|slot| plan.index_of(slot.at) == oldest) {
            // One window is never counted in parts.
            from = oldest;
            slots = last_slots(txn, policy, plan.starts_at(from), to, u32::MAX)?;
        }
    }
    *left = left.saturating_sub(slots.len() as u32);
    let from_at = plan.starts_at(from);
    let whole = slots.into_iter().filter(|slot| slot.at >= from_at && !slot.is_cancelled);
    let counted =
        count_again(plan.per(), whole.map(|Given { at, per, position, .. }| (at, per, position)));
    for (number, state) in &counted {
        put_window(txn, policy, *number, Some(state));
    }
    schedule.extend_back(from, counted);
    Ok(())
}

fn put_kept(txn: &mut Txn<'_>, policy: &str, kept: &Kept) {
    txn.write(
        "insert or replace into schedule (policy, per, retention, counted_from) \
         values (?1, ?2, ?3, ?4)",
        vec![
            policy.to_owned().into(),
            kept.per.as_micros().into(),
            kept.retention.as_micros().into(),
            kept.counted_from.as_micros().into(),
        ],
    );
}

/// What a recount reads of a slot.
struct Given {
    at: Instant,
    /// The length of the windows it was given in.
    per: Span,
    position: u64,
    is_cancelled: bool,
}

/// The last slots of an interval, the latest first.
fn last_slots(
    txn: &Txn<'_>,
    policy: &str,
    from: Instant,
    to: Instant,
    limit: u32,
) -> Result<Vec<Given>, StoreError> {
    let read = || {
        txn.read()
            .prepare_cached(
                "select s.scheduled_at, s.per, s.position, \
                 exists (select 1 from slot_cancel c where c.event_id = s.event_id) from slot s \
                 where s.policy = ?1 and s.scheduled_at >= ?2 and s.scheduled_at < ?3 \
                 order by s.scheduled_at desc limit ?4",
            )?
            .query_map(params![policy, from.as_micros(), to.as_micros(), limit], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?
            .collect::<Result<Vec<(i64, i64, i64, bool)>, _>>()
    };
    let read = read().map_err(|error| txn.fail(error))?.into_iter();
    let slots = read.map(|(at, per, position, is_cancelled)| {
        let (at, per) = (Instant::from_micros(at), Span::from_micros(per)?);
        Some(Given { at, per, position: position.cast_unsigned(), is_cancelled })
    });
    slots.collect::<Option<_>>().ok_or_else(|| damaged(txn.inner.home.path(), "a slot"))
}

/// Windows in which something is given, from number to number, both included.
pub(super) fn windows(
    txn: &Txn<'_>,
    policy: &str,
    first: i64,
    last: i64,
    limit: i64,
) -> Result<Vec<(i64, WindowState)>, StoreError> {
    let sql = "select number, state from slot_window \
               where policy = ?1 and number between ?2 and ?3 order by number limit ?4";
    read_windows(txn, sql, params![policy, first, last, limit])
}

/// The last ones from number `first` on and before number `end`, the latest first.
fn last_windows(
    txn: &Txn<'_>,
    policy: &str,
    first: i64,
    end: i64,
    limit: u32,
) -> Result<Vec<(i64, WindowState)>, StoreError> {
    let sql = "select number, state from slot_window \
               where policy = ?1 and number >= ?2 and number < ?3 order by number desc limit ?4";
    read_windows(txn, sql, params![policy, first, end, limit])
}

fn read_windows(
    txn: &Txn<'_>,
    sql: &'static str,
    params: impl Params,
) -> Result<Vec<(i64, WindowState)>, StoreError> {
    let read = || {
        txn.read()
            .prepare_cached(sql)?
            .query_map(params, |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?)))?
            .collect::<Result<Vec<(i64, Vec<u8>)>, _>>()
    };
    let decoded = read().map_err(|error| txn.fail(error))?.into_iter().map(|(number, bytes)| {
        let state = WindowState::decode(&bytes);
        state.map(|state| (number, state)).map_err(|_| damaged(txn.inner.home.path(), "a window"))
    });
    decoded.collect()
}

pub(super) fn put_window(
    txn: &mut Txn<'_>,
    policy: &str,
    number: i64,
    state: Option<&WindowState>,
) {
    match state {
        Some(state) => txn.write(
            "insert or replace into slot_window (policy, number, state) values (?1, ?2, ?3)",
            vec![policy.to_owned().into(), number.into(), state.encode().into()],
        ),
        None => txn.write(
            "delete from slot_window where policy = ?1 and number = ?2",
            vec![policy.to_owned().into(), number.into()],
        ),
    }
}

pub(super) fn kept(txn: &Txn<'_>, policy: &str) -> Result<Option<Kept>, StoreError> {
    let kept: Option<(i64, i64, i64)> = txn
        .read()
        .prepare_cached("select per, retention, counted_from from schedule where policy = ?1")
        .and_then(|mut statement| {
            let row = statement
                .query_row(params![policy], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
            row.optional()
        })
        .map_err(|error| txn.fail(error))?;
    let Some((per, retention, counted_from)) = kept else { return Ok(None) };
    let kept = Span::from_micros(per).zip(Span::from_micros(retention)).map(|(per, retention)| {
        Kept { per, retention, counted_from: Instant::from_micros(counted_from) }
    });
    kept.map(Some).ok_or_else(|| damaged(txn.inner.home.path(), "a schedule"))
}

//! A policy's schedule: read as far back as somebody asks, counted again when its windows change.

use std::collections::HashMap;

use rusqlite::{OptionalExtension, params};
use tollgate_core::schedule::{Schedule, WindowState};
use tollgate_core::store::{ScheduleAsk, StoreError, count_again, first_window};
use tollgate_core::{Instant, Span};

use crate::error::damaged;
use crate::keeper::Txn;

/// Schedules in use, by policy.
pub(crate) type Books = HashMap<String, Schedule>;

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
        self.counted_from.as_micros().div_euclid(self.per.as_micros())
    }
}

/// The schedule of a policy, following the plan that is in force now, and known as far back as `ask`
/// needs it.
pub(super) fn book<'b>(
    txn: &mut Txn<'_>,
    books: &'b mut Books,
    ask: &ScheduleAsk,
    now: Instant,
) -> Result<&'b mut Schedule, StoreError> {
    let ScheduleAsk { policy, plan, retention, .. } = ask;
    let kept = kept(txn, policy)?;
    let mut first_counted = match &kept {
        None => i64::MIN,
        Some(kept) if kept.per == plan.per() => kept.first_counted(),
        // Windows of another length: what is in them is counted again.
        Some(_) => {
            txn.write("delete from slot_window where policy = ?1", vec![policy.clone().into()]);
            books.remove(policy);
            i64::MAX
        }
    };
    let schedule = books.entry(policy.clone()).or_insert_with(|| Schedule::unknown(plan.clone()));
    if schedule.plan() != plan {
        schedule.set_plan(plan.clone());
    }
    let first = first_window(ask, now);
    schedule.tidy(now, first);
    if first < schedule.first() {
        let stored_from = first.max(first_counted);
        if stored_from < schedule.first() {
            let stored = windows(txn, policy, stored_from, schedule.first(), i64::MAX)?;
            schedule.extend_back(stored_from, stored);
        }
        if first < first_counted {
            let counted = slots(txn, policy, plan.starts_at(first), plan.starts_at(first_counted))?;
            let counted = count_again(plan.per(), counted);
            for (number, state) in &counted {
                put_window(txn, policy, *number, Some(state));
            }
            schedule.extend_back(first, counted);
            first_counted = first;
        }
    }
    let keeps = Kept {
        per: plan.per(),
        retention: *retention,
        counted_from: plan.starts_at(first_counted),
    };
    if kept != Some(keeps) {
        txn.write(
            "insert or replace into schedule (policy, per, retention, counted_from) \
             values (?1, ?2, ?3, ?4)",
            vec![
                policy.clone().into(),
                plan.per().as_micros().into(),
                retention.as_micros().into(),
                plan.starts_at(first_counted).as_micros().into(),
            ],
        );
    }
    Ok(schedule)
}

/// The slots of an interval that were not cancelled: instant, `per` and position of each.
fn slots(
    txn: &Txn<'_>,
    policy: &str,
    from: Instant,
    to: Instant,
) -> Result<Vec<(Instant, Span, u64)>, StoreError> {
    let read = || {
        txn.read()
            .prepare_cached(
                "select s.scheduled_at, s.per, s.position from slot s \
                 where s.policy = ?1 and s.scheduled_at >= ?2 and s.scheduled_at < ?3 \
                 and not exists (select 1 from slot_cancel c where c.event_id = s.event_id)",
            )?
            .query_map(params![policy, from.as_micros(), to.as_micros()], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?
            .collect::<Result<Vec<(i64, i64, i64)>, _>>()
    };
    let read = read().map_err(|error| txn.fail(error))?.into_iter();
    let slots = read.map(|(at, per, position)| {
        let per = Span::from_micros(per)?;
        Some((Instant::from_micros(at), per, position.cast_unsigned()))
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
    let read = || {
        txn.read()
            .prepare_cached(
                "select number, state from slot_window \
                 where policy = ?1 and number between ?2 and ?3 order by number limit ?4",
            )?
            .query_map(params![policy, first, last, limit], |row| {
                Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?))
            })?
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

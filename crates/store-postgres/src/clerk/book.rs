//! A policy's schedule behind its lock: read and counted again as far back as somebody asks, and
//! written.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant as Stopwatch;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tollgate_core::schedule::{Schedule, WindowState};
use tollgate_core::store::{Assigned, ScheduleAsk, Slot, StoreError, count_again, first_window};
use tollgate_core::{Instant, Span};

use super::{Book, Failure};
use crate::Inner;
use crate::error::corrupt;
use crate::known::Trust;
use crate::slots::{SLOT, slot_row};

/// What stands behind a policy's lock.
pub(super) struct Found {
    per: i64,
    pub(super) revision: i64,
    counted_from: i64,
    rebuilt: i64,
    pub(super) epoch: u64,
    pub(super) now: Instant,
    /// Those that changed since the book was last open; if it never was, from `first` on.
    windows: Vec<(i64, WindowState)>,
    first: i64,
    pub(super) known: HashMap<String, Slot>,
}

/// What is to be written of a book besides what is assigned.
#[derive(Default)]
pub(super) struct Recounted {
    /// All windows were of another length, and go.
    pub(super) all: bool,
    pub(super) numbers: BTreeSet<i64>,
    /// From when on windows are counted now.
    pub(super) counted_from: i64,
    rebuilt: i64,
    /// Whether anything of this is new.
    pub(super) is_new: bool,
    /// There is more to count before anything can be assigned.
    pub(super) is_partial: bool,
}

/// Slots that are counted again at once. Besides, an instance must not be silent for so long in its
/// transaction that the server ends it.
const COUNTED_AT_ONCE: i64 = 20_000;
/// After so long what was counted is kept, so that a policy of very many slots gets on, whatever happens, and
/// whoever waits to cancel one has a turn.
const TURN: Duration = Duration::from_millis(50);

impl Inner {
    /// Locks the policy's schedule and reads what is behind the lock, in one round trip.
    pub(super) async fn open_book(
        &self,
        client: &Client,
        ask: &ScheduleAsk,
        book: Option<&Book>,
    ) -> Result<Found, Failure> {
        let seen = book.map_or(-1, |book| book.revision);
        let ids: Vec<&str> = ask.events.iter().map(|event| &*event.event_id).collect();
        let (per, retention) = (ask.plan.per().as_micros(), ask.retention.as_micros());
        let make: [(&(dyn ToSql + Sync), Type); 3] =
            [(&ask.policy, Type::TEXT), (&per, Type::INT8), (&retention, Type::INT8)];
        let policy: [(&(dyn ToSql + Sync), Type); 1] = [(&ask.policy, Type::TEXT)];
        // Of an open book everything is read that changed, also what is of another `per`.
        let first = match book {
            Some(_) => i64::MIN,
            None => first_window(ask, self.time.now()),
        };
        let since: [(&(dyn ToSql + Sync), Type); 3] =
            [(&ask.policy, Type::TEXT), (&seen, Type::INT8), (&first, Type::INT8)];
        let events: [(&(dyn ToSql + Sync), Type); 1] = [(&ids, Type::TEXT_ARRAY)];
        let find = format!("select {SLOT} where s.event_id = any ($1)");
        let (begun, made, locked, windows, known, reading) = tokio::join!(
            biased;
            client.batch_execute(
                "begin isolation level read committed; set local lock_timeout = 4000; \
                 set local idle_in_transaction_session_timeout = 5000"
            ),
            async {
                if book.is_some() {
                    return Ok(Vec::new());
                }
                let sql = "insert into tollgate.schedule (policy, per, retention, revision) \
                           values ($1, $2, $3, 0) on conflict (policy) do nothing";
                self.query(client, sql, &make).await
            },
            self.query(
                client,
                "select per, revision, counted_from, rebuilt from tollgate.schedule \
                 where policy = $1 for update",
                &policy
            ),
            self.query(
                client,
                "select number, state from tollgate.slot_window \
                 where policy = $1 and revision > $2 and number >= $3",
                &since
            ),
            self.query(client, &find, &events),
            self.query(
                client,
                "select tollgate.clock_micros(), epoch, swept_at from tollgate.gate",
                &[]
            ),
        );
        begun?;
        made?;
        let (locked, reading) = (locked?, reading?);
        let (Some(locked), Some(reading)) = (locked.first(), reading.first()) else {
            return Err(Failure::Store(corrupt("the policy's schedule is missing")));
        };
        let (known, windows) = (known?, windows?);
        let known = known.iter().map(slot_row).map(|slot| (slot.event_id.clone(), slot));
        Ok(Found {
            per: locked.get(0),
            revision: locked.get(1),
            counted_from: locked.get(2),
            rebuilt: locked.get(3),
            epoch: reading.get::<_, i64>(1).cast_unsigned(),
            now: self.time.not_before(self.time.read(reading.get(0)), reading.get(2)),
            windows: windows.iter().map(window_row).collect::<Result<_, _>>()?,
            first,
            known: known.collect(),
        })
    }

    /// The schedule as it is behind the lock, following the plan that is in force now, and known as
    /// far back as `ask` needs it.
    pub(super) async fn bring_up_to_date(
        &self,
        client: &Client,
        ask: &ScheduleAsk,
        book: Option<Book>,
        found: &mut Found,
    ) -> Result<(Book, Recounted), Failure> {
        let per = ask.plan.per().as_micros();
        let windows = std::mem::take(&mut found.windows);
        let mut recounted = Recounted { rebuilt: found.rebuilt, ..Recounted::default() };
        let mut first_counted = found.counted_from.div_euclid(found.per);
        let is_same = |book: &Book| {
            book.revision >= found.rebuilt && book.schedule.plan().per().as_micros() == found.per
        };
        let mut book = match book.filter(is_same) {
            Some(mut book) => {
                for (number, state) in windows {
                    book.schedule.put_window(number, state);
                }
                book
            }
            None => {
                let mut schedule = Schedule::unknown(ask.plan.clone());
                if found.per == per {
                    schedule.extend_back(found.first.max(first_counted), windows);
                }
                Book { schedule, revision: found.revision, trust: Trust::default() }
            }
        };
        if found.per != per {
            book.schedule = Schedule::unknown(ask.plan.clone());
            (recounted.all, recounted.is_new) = (true, true);
            recounted.rebuilt = found.revision + 1;
            first_counted = i64::MAX;
        } else if book.schedule.plan() != &ask.plan {
            book.schedule.set_plan(ask.plan.clone());
        }
        let first = first_window(ask, found.now);
        book.schedule.tidy(found.now, first);
        if first < book.schedule.first() {
            let stored_from = first.max(first_counted);
            if stored_from < book.schedule.first() {
                let last = book.schedule.first();
                let stored = self.stored(client, &ask.policy, stored_from, last).await?;
                book.schedule.extend_back(stored_from, stored);
            }
            let began = Stopwatch::now();
            while first < first_counted && began.elapsed() < TURN {
                let part = self.part_to_count(client, ask, first, first_counted).await?;
                let (from, to) = (ask.plan.starts_at(part), ask.plan.starts_at(first_counted));
                let counted = self.count_again(client, ask, from, to).await?;
                recounted.numbers.extend(counted.keys());
                recounted.is_new = true;
                book.schedule.extend_back(part, counted);
                first_counted = part;
            }
        }
        recounted.is_partial = first < book.schedule.first();
        recounted.counted_from = ask.plan.starts_at(first_counted).as_micros();
        Ok((book, recounted))
    }

    /// The windows from number to number, both included.
    async fn stored(
        &self,
        client: &Client,
        policy: &str,
        first: i64,
        last: i64,
    ) -> Result<Vec<(i64, WindowState)>, Failure> {
        let sql = "select number, state from tollgate.slot_window \
                   where policy = $1 and number between $2 and $3";
        let range: [(&(dyn ToSql + Sync), Type); 3] =
            [(&policy, Type::TEXT), (&first, Type::INT8), (&last, Type::INT8)];
        self.query(client, sql, &range).await?.iter().map(window_row).collect()
    }

    /// Where the last part of the windows from `first` to before `end` begins that holds no more slots
    /// than are counted at once, or is one window.
    async fn part_to_count(
        &self,
        client: &Client,
        ask: &ScheduleAsk,
        first: i64,
        end: i64,
    ) -> Result<i64, Failure> {
        let sql = "select scheduled_at from tollgate.slot \
                   where policy = $1 and scheduled_at >= $2 and scheduled_at < $3 \
                   order by scheduled_at desc offset $4 limit 1";
        let (from, to) = (ask.plan.starts_at(first), ask.plan.starts_at(end));
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&ask.policy, Type::TEXT),
            (&from.as_micros(), Type::INT8),
            (&to.as_micros(), Type::INT8),
            (&COUNTED_AT_ONCE, Type::INT8),
        ];
        let beyond = self.query(client, sql, &parameters).await?;
        let beyond = beyond.first().map(|row| Instant::from_micros(row.get(0)));
        Ok(beyond.map_or(first, |at| (ask.plan.index_of(at) + 1).min(end - 1)))
    }

    /// Slots count where they now fall.
    async fn count_again(
        &self,
        client: &Client,
        ask: &ScheduleAsk,
        from: Instant,
        to: Instant,
    ) -> Result<BTreeMap<i64, WindowState>, Failure> {
        let sql = "select s.scheduled_at, s.per, s.position from tollgate.slot s \
                   where s.policy = $1 and s.scheduled_at >= $2 and s.scheduled_at < $3 \
                   and not exists \
                   (select from tollgate.slot_cancel c where c.event_id = s.event_id)";
        let range: [(&(dyn ToSql + Sync), Type); 3] = [
            (&ask.policy, Type::TEXT),
            (&from.as_micros(), Type::INT8),
            (&to.as_micros(), Type::INT8),
        ];
        let slot = |row: Row| {
            let per = Span::from_micros(row.get(1)).unwrap_or(Span::from_secs(1));
            (Instant::from_micros(row.get(0)), per, row.get::<_, i64>(2).cast_unsigned())
        };
        let slots = self.query(client, sql, &range).await?.into_iter().map(slot);
        Ok(count_again(ask.plan.per(), slots))
    }

    pub(super) async fn write_book(
        &self,
        client: &Client,
        ask: &ScheduleAsk,
        assigned: &Assigned,
        book: &Book,
        recounted: &Recounted,
    ) -> Result<(), Failure> {
        if recounted.all {
            let all = "delete from tollgate.slot_window where policy = $1";
            self.query(client, all, &[(&ask.policy, Type::TEXT)]).await?;
        }
        let numbers: Vec<i64> = assigned.windows.union(&recounted.numbers).copied().collect();
        let state = |number: &i64| {
            book.schedule.window(*number).map(WindowState::encode).unwrap_or_default()
        };
        let states: Vec<Vec<u8>> = numbers.iter().map(state).collect();
        let Columns { ids, requested, by_caller, scheduled, positions } = Columns::of(assigned);
        let created: Vec<i64> =
            assigned.slots.iter().map(|slot| slot.created_at.as_micros()).collect();
        let (version, per) = (ask.version.cast_signed(), ask.plan.per().as_micros());
        let retention = ask.retention.as_micros();
        let put_slots: [(&(dyn ToSql + Sync), Type); 9] = [
            (&ids, Type::TEXT_ARRAY),
            (&ask.policy, Type::TEXT),
            (&version, Type::INT8),
            (&requested, Type::INT8_ARRAY),
            (&by_caller, Type::BOOL_ARRAY),
            (&scheduled, Type::INT8_ARRAY),
            (&per, Type::INT8),
            (&positions, Type::INT8_ARRAY),
            (&created, Type::INT8_ARRAY),
        ];
        let put_windows: [(&(dyn ToSql + Sync), Type); 4] = [
            (&ask.policy, Type::TEXT),
            (&numbers, Type::INT8_ARRAY),
            (&states, Type::BYTEA_ARRAY),
            (&book.revision, Type::INT8),
        ];
        let put_schedule: [(&(dyn ToSql + Sync), Type); 6] = [
            (&ask.policy, Type::TEXT),
            (&per, Type::INT8),
            (&retention, Type::INT8),
            (&book.revision, Type::INT8),
            (&recounted.counted_from, Type::INT8),
            (&recounted.rebuilt, Type::INT8),
        ];
        let (inserted, windows, schedule) = tokio::join!(
            biased;
            self.query(client, include_str!("../../queries/put_slots.sql"), &put_slots),
            self.query(client, include_str!("../../queries/put_slot_windows.sql"), &put_windows),
            self.query(
                client,
                "update tollgate.schedule set per = $2, retention = $3, revision = $4, \
                 counted_from = $5, rebuilt = $6 where policy = $1",
                &put_schedule
            ),
        );
        windows?;
        schedule?;
        if inserted?.len() < assigned.slots.len() {
            return Err(Failure::Taken);
        }
        client.batch_execute("commit").await?;
        Ok(())
    }
}

/// New slots as columns, sorted by id, as everybody does who writes ids.
pub(super) struct Columns<'a> {
    pub(super) ids: Vec<&'a str>,
    pub(super) requested: Vec<i64>,
    pub(super) by_caller: Vec<bool>,
    pub(super) scheduled: Vec<i64>,
    pub(super) positions: Vec<i64>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(assigned: &'a Assigned) -> Self {
        let mut slots: Vec<&Slot> = assigned.slots.iter().collect();
        slots.sort_unstable_by(|a, b| a.event_id.cmp(&b.event_id));
        let column =
            |of: fn(&Slot) -> i64| -> Vec<i64> { slots.iter().map(|slot| of(slot)).collect() };
        Self {
            ids: slots.iter().map(|slot| &*slot.event_id).collect(),
            requested: column(|slot| slot.requested_at.as_micros()),
            by_caller: slots.iter().map(|slot| slot.is_requested_by_caller).collect(),
            scheduled: column(|slot| slot.scheduled_at.as_micros()),
            positions: column(|slot| slot.position.cast_signed()),
        }
    }
}

fn window_row(row: &Row) -> Result<(i64, WindowState), Failure> {
    let state = decode(row.get(1)).map_err(Failure::Store)?;
    Ok((row.get(0), state))
}

pub(crate) fn decode(bytes: &[u8]) -> Result<WindowState, StoreError> {
    if bytes.is_empty() {
        return Ok(WindowState::default());
    }
    WindowState::decode(bytes).map_err(|_| corrupt("a stored window cannot be read"))
}

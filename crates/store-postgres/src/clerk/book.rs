//! A policy's schedule behind its lock: read, counted again, written.

use std::collections::{BTreeMap, HashMap};

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tollgate_core::schedule::WindowState;
use tollgate_core::store::{Assigned, ScheduleAsk, Slot, StoreError};

use super::{Book, Failure};
use crate::Inner;
use crate::error::corrupt;
use crate::slots::{SLOT, slot_row};

/// What stands behind a policy's lock.
pub(super) struct Found {
    pub(super) per: i64,
    pub(super) revision: i64,
    pub(super) epoch: u64,
    pub(super) now: tollgate_core::Instant,
    /// Those that changed since the book was last open.
    pub(super) windows: Vec<(i64, WindowState)>,
    pub(super) known: HashMap<String, Slot>,
}

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
        let since: [(&(dyn ToSql + Sync), Type); 2] =
            [(&ask.policy, Type::TEXT), (&seen, Type::INT8)];
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
                "select per, revision from tollgate.schedule where policy = $1 for update",
                &policy
            ),
            self.query(
                client,
                "select number, state from tollgate.slot_window \
                 where policy = $1 and revision > $2",
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
            epoch: reading.get::<_, i64>(1).cast_unsigned(),
            now: self.time.not_before(self.time.read(reading.get(0)), reading.get(2)),
            windows: windows.iter().map(window_row).collect::<Result<_, _>>()?,
            known: known.collect(),
        })
    }

    /// After `per` changed: every slot counts where it now falls.
    pub(super) async fn rebuild(
        &self,
        client: &Client,
        ask: &ScheduleAsk,
    ) -> Result<BTreeMap<i64, WindowState>, Failure> {
        let per = ask.plan.per().as_micros();
        let sql = "select s.scheduled_at, s.per, s.position from tollgate.slot s \
                   where s.policy = $1 and not exists \
                   (select from tollgate.slot_cancel c where c.event_id = s.event_id)";
        let mut states: BTreeMap<i64, WindowState> = BTreeMap::new();
        for row in self.query(client, sql, &[(&ask.policy, Type::TEXT)]).await? {
            let state = states.entry(row.get::<_, i64>(0).div_euclid(per)).or_default();
            if row.get::<_, i64>(1) == per {
                state.taken.insert(row.get::<_, i64>(2).cast_unsigned());
            } else {
                state.guests += 1;
            }
        }
        Ok(states)
    }

    pub(super) async fn write_book(
        &self,
        client: &Client,
        ask: &ScheduleAsk,
        assigned: &Assigned,
        book: &Book,
        rebuilt: bool,
    ) -> Result<(), Failure> {
        let numbers: Vec<i64> = if rebuilt {
            let all = "delete from tollgate.slot_window where policy = $1";
            self.query(client, all, &[(&ask.policy, Type::TEXT)]).await?;
            book.schedule.windows().map(|(number, _)| number).collect()
        } else {
            assigned.windows.iter().copied().collect()
        };
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
        let put_schedule: [(&(dyn ToSql + Sync), Type); 4] = [
            (&ask.policy, Type::TEXT),
            (&per, Type::INT8),
            (&retention, Type::INT8),
            (&book.revision, Type::INT8),
        ];
        let (inserted, windows, schedule) = tokio::join!(
            biased;
            self.query(client, include_str!("../../queries/put_slots.sql"), &put_slots),
            self.query(client, include_str!("../../queries/put_slot_windows.sql"), &put_windows),
            self.query(
                client,
                "update tollgate.schedule set per = $2, retention = $3, revision = $4 \
                 where policy = $1",
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

//! Slots given on the schedule in memory and kept in one round trip.
//!
//! As with counts (see `known.rs` of the crate), memory decides nothing by itself: the database
//! compares the schedule's revision and writes nothing if it is another.

use std::collections::HashMap;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tollgate_core::schedule::WindowState;
use tollgate_core::store::{
    Assigned, ScheduleAsk, SlotAnswer, assign_all, first_window, give_back,
};

use super::book::Columns;
use super::{Book, Failure};
use crate::Inner;
use crate::attempt::is_contention;
use crate::error::caught;
use crate::session::{Call, Session};

impl Inner {
    /// The answers, if all events were new and the schedule was as remembered. `None`: nothing
    /// happened, and the group has to go the long way.
    pub(super) async fn assign_known(
        &self,
        session: &Session,
        ask: &ScheduleAsk,
        book: &mut Book,
    ) -> Result<Option<Vec<SlotAnswer>>, Failure> {
        if book.schedule.plan() != &ask.plan || !book.trust.is_trusted() {
            return Ok(None);
        }
        let now = self.time.now();
        let first = first_window(ask, now);
        if first < book.schedule.first() {
            return Ok(None);
        }
        book.schedule.tidy(now, first);
        let assigned = caught(|| assign_all(ask, HashMap::new(), &mut book.schedule, now));
        let assigned = assigned.map_err(Failure::Store)?;
        // What is refused may be an event that has its slot already: only the database knows.
        let is_given = |answer: &SlotAnswer| matches!(answer, SlotAnswer::Given(_));
        let kept = if !assigned.slots.is_empty() && assigned.answers.iter().all(is_given) {
            self.give_new_slots(session, ask, &assigned, book).await?
        } else {
            None
        };
        match kept {
            Some(database_micros) => {
                self.time.read(database_micros);
                book.revision += 1;
                book.trust.was_right();
                Ok(Some(assigned.answers))
            }
            None => {
                for slot in assigned.slots.iter().rev() {
                    give_back(&mut book.schedule, slot);
                }
                book.trust.was_wrong();
                Ok(None)
            }
        }
    }

    async fn give_new_slots(
        &self,
        session: &Session,
        ask: &ScheduleAsk,
        assigned: &Assigned,
        book: &Book,
    ) -> Result<Option<i64>, Failure> {
        let numbers: Vec<i64> = assigned.windows.iter().copied().collect();
        let state = |number: &i64| {
            book.schedule.window(*number).map(WindowState::encode).unwrap_or_default()
        };
        let states: Vec<Vec<u8>> = numbers.iter().map(state).collect();
        let now = assigned.slots.first().map(|slot| slot.created_at.as_micros());
        let columns = Columns::of(assigned);
        let (version, per) = (ask.version.cast_signed(), ask.plan.per().as_micros());
        let (retention, epoch) = (ask.retention.as_micros(), ask.epoch.map(u64::cast_signed));
        let behind = self.time.tolerance_micros();
        let parameters: [(&(dyn ToSql + Sync), Type); 15] = [
            (&ask.policy, Type::TEXT),
            (&book.revision, Type::INT8),
            (&per, Type::INT8),
            (&retention, Type::INT8),
            (&version, Type::INT8),
            (&epoch, Type::INT8),
            (&now, Type::INT8),
            (&behind, Type::INT8),
            (&columns.ids, Type::TEXT_ARRAY),
            (&columns.requested, Type::INT8_ARRAY),
            (&columns.by_caller, Type::BOOL_ARRAY),
            (&columns.scheduled, Type::INT8_ARRAY),
            (&columns.positions, Type::INT8_ARRAY),
            (&numbers, Type::INT8_ARRAY),
            (&states, Type::BYTEA_ARRAY),
        ];
        match self.statements.call(session, Call::GiveSlots, &parameters).await {
            Ok(row) => Ok(row.get(0)),
            // An event has its slot already.
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => Ok(None),
            Err(error) if is_contention(&error) => Ok(None),
            Err(error) => Err(Failure::Database(error)),
        }
    }
}

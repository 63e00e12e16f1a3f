//! Slots: what the clerk assigns, looked up, listed, cancelled and counted again.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tollgate_core::schedule::WindowState;
use tollgate_core::store::{Recount, ScheduleAsk, Slot, SlotQuery, StoreError, WindowFill};
use tollgate_core::{Instant, Span};

use crate::clerk::{Answers, Errand, decode};
use crate::desk::{Purpose, Sql, WITHIN};
use crate::error::{closed, timed_out};
use crate::{Inner, Postgres};

pub(crate) const SLOT: &str = "s.event_id, s.policy, s.version, s.requested_at, s.by_caller, s.scheduled_at, \
     s.per, s.position, s.created_at, c.cancelled_at \
     from tollgate.slot s left join tollgate.slot_cancel c on c.event_id = s.event_id";

/// One slot has the deadline of a check; each further one of a batch adds this.
const PER_FURTHER_SLOT: Duration = Duration::from_millis(4);

impl Postgres {
    /// Gives every event its slot, in order. One that comes too late may have been given: asking again finds it.
    pub async fn assign_slots(&self, ask: ScheduleAsk) -> Result<Answers, StoreError> {
        self.inner.still_open()?;
        let deadline = self.inner.settings.deadline;
        let further = u32::try_from(ask.events.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let within = deadline.saturating_add(PER_FURTHER_SLOT.saturating_mul(further));
        let within = within.min(WITHIN.max(deadline));
        let (reply, answer) = oneshot::channel();
        let answered = async {
            self.clerks
                .of(&ask.policy, &self.inner)
                .send(Errand { ask, reply })
                .await
                .map_err(|_| closed())?;
            answer.await.map_err(|_| closed())?
        };
        tokio::time::timeout(within, answered).await.unwrap_or_else(|_| Err(timed_out()))
    }

    /// Those of these events that have one, in no order.
    pub async fn slots_of(&self, event_ids: Vec<String>) -> Result<Vec<Slot>, StoreError> {
        let inner = &*self.inner;
        let sql = format!("select {SLOT} where s.event_id = any ($1)");
        let look_up = async |client: &Client| {
            let rows = inner.query(client, &sql, &[(&event_ids, Type::TEXT_ARRAY)]).await?;
            Ok(rows.iter().map(slot_row).collect())
        };
        inner.at_desk(Purpose::List, look_up).await
    }

    pub async fn slot(&self, event_id: String) -> Result<Option<Slot>, StoreError> {
        let inner = &*self.inner;
        inner.at_desk(Purpose::List, async |client| inner.find_slot(client, &event_id).await).await
    }

    /// Frees the place of a slot; the slot as it is then. Again changes nothing.
    pub async fn cancel_slot(&self, event_id: String) -> Result<Option<Slot>, StoreError> {
        let inner = &*self.inner;
        let cancelled = inner.at_desk(Purpose::Work, async |client| {
            let Some(found) = inner.find_slot(client, &event_id).await? else {
                return Ok(Ok(None));
            };
            let lock = "select per, revision from tollgate.schedule where policy = $1 for update";
            let locked = inner.query(client, lock, &[(&found.policy, Type::TEXT)]).await?;
            // Again, behind the lock.
            let found = inner.find_slot(client, &event_id).await?;
            match (found, locked.first()) {
                (Some(slot), Some(row)) if slot.cancelled_at.is_none() => {
                    inner.cancel_locked(client, slot, row.get(0), row.get(1)).await
                }
                (found, _) => Ok(Ok(found)),
            }
        });
        cancelled.await?
    }

    /// Slots in order of their instants, cancelled ones included.
    pub async fn slots(&self, query: SlotQuery) -> Result<Vec<Slot>, StoreError> {
        let inner = &*self.inner;
        inner
            .at_desk(Purpose::List, async |client| {
                let SlotQuery { policy, from, to, after, limit } = &query;
                let (after_at, after_id) = match after {
                    Some((at, id)) => (at.as_micros(), &**id),
                    None => (i64::MIN, ""),
                };
                let sql = format!(
                    "select {SLOT} where s.policy = $1 and s.scheduled_at >= $2 \
                     and s.scheduled_at < $3 and (s.scheduled_at, s.event_id) > ($4, $5) \
                     order by s.scheduled_at, s.event_id limit $6"
                );
                let parameters: [(&(dyn ToSql + Sync), Type); 6] = [
                    (policy, Type::TEXT),
                    (&from.as_micros(), Type::INT8),
                    (&to.as_micros(), Type::INT8),
                    (&after_at, Type::INT8),
                    (&after_id, Type::TEXT),
                    (&i64::from(*limit), Type::INT8),
                ];
                let rows = inner.query(client, &sql, &parameters).await?;
                Ok(rows.iter().map(slot_row).collect())
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
        let inner = &*self.inner;
        let counts = inner.at_desk(Purpose::List, async |client| {
            match inner.kept(client, &policy).await? {
                Some(kept) if kept.per == per && first >= kept.first_counted => {
                    inner.counted(client, &policy, first, last, i64::from(limit)).await
                }
                // Nothing was given under this plan yet, or long ago under another.
                _ => {
                    let most = i64::from(limit);
                    inner.count_slots(client, &policy, per, first, last, most).await.map(Ok)
                }
            }
        });
        let fills = counts.await??.into_iter();
        let fills = fills.map(|(number, count)| WindowFill { number, count });
        Ok(fills.filter(|fill| fill.count > 0).take(limit as usize).collect())
    }

    /// Counts the slots of a policy again, and says where a window's count is another.
    pub async fn recount_slots(&self, policy: String) -> Result<Recount, StoreError> {
        let inner = &*self.inner;
        let counts = inner.at_desk(Purpose::Recount, async |client| {
            let Some(Kept { per, retention, first_counted }) = inner.kept(client, &policy).await?
            else {
                return Ok(None);
            };
            // Older ones may be half removed.
            let oldest = inner.time.now().minus(retention).as_micros();
            let first = (oldest.div_euclid(per.as_micros()) + 1).max(first_counted);
            let slots = inner.count_slots(client, &policy, per, first, i64::MAX, i64::MAX).await?;
            let counted = inner.counted(client, &policy, first, i64::MAX, i64::MAX).await?;
            Ok(Some((per, slots, counted)))
        });
        let Some((per, slots, counted)) = counts.await? else { return Ok(Recount::default()) };
        Ok(Recount::of(per, &slots, &counted?))
    }
}

/// What is kept of a policy's schedule beside its windows.
struct Kept {
    /// The length of its windows.
    per: Span,
    /// How long its slots are kept.
    retention: Span,
    /// Slots before this window are counted in none.
    first_counted: i64,
}

impl Inner {
    async fn find_slot(&self, client: &Client, event_id: &str) -> Sql<Option<Slot>> {
        let sql = format!("select {SLOT} where s.event_id = $1");
        let rows = self.query(client, &sql, &[(&event_id, Type::TEXT)]).await?;
        Ok(rows.first().map(slot_row))
    }

    /// With the policy's lock held.
    async fn cancel_locked(
        &self,
        client: &Client,
        mut slot: Slot,
        per: i64,
        revision: i64,
    ) -> Sql<Result<Option<Slot>, StoreError>> {
        let per = Span::from_micros(per).unwrap_or(slot.per);
        let number = slot.scheduled_at.as_micros().div_euclid(per.as_micros());
        let at: [(&(dyn ToSql + Sync), Type); 2] =
            [(&slot.policy, Type::TEXT), (&number, Type::INT8)];
        let sql = "select state, tollgate.clock_micros(), (select swept_at from tollgate.gate) \
                   from tollgate.slot_window where policy = $1 and number = $2";
        let rows = self.query(client, sql, &at).await?;
        let mut now = self.time.now();
        // None where it is not counted.
        if let Some(row) = rows.first() {
            now = self.time.not_before(self.time.read(row.get(1)), row.get(2));
            let mut state = match decode(row.get(0)) {
                Ok(state) => state,
                Err(error) => return Ok(Err(error)),
            };
            slot.leave(&mut state, per);
            let revision = revision + 1;
            let put: [(&(dyn ToSql + Sync), Type); 4] = [
                (&slot.policy, Type::TEXT),
                (&vec![number], Type::INT8_ARRAY),
                (&vec![state.encode()], Type::BYTEA_ARRAY),
                (&revision, Type::INT8),
            ];
            self.query(client, include_str!("../queries/put_slot_windows.sql"), &put).await?;
            let raise: [(&(dyn ToSql + Sync), Type); 2] =
                [(&slot.policy, Type::TEXT), (&revision, Type::INT8)];
            let sql = "update tollgate.schedule set revision = $2 where policy = $1";
            self.query(client, sql, &raise).await?;
        }
        let cancel: [(&(dyn ToSql + Sync), Type); 2] =
            [(&slot.event_id, Type::TEXT), (&now.as_micros(), Type::INT8)];
        let sql = "insert into tollgate.slot_cancel (event_id, cancelled_at) values ($1, $2)";
        self.query(client, sql, &cancel).await?;
        slot.cancelled_at = Some(now);
        Ok(Ok(Some(slot)))
    }

    async fn kept(&self, client: &Client, policy: &str) -> Sql<Option<Kept>> {
        let sql = "select per, retention, counted_from from tollgate.schedule where policy = $1";
        let rows = self.query(client, sql, &[(&policy, Type::TEXT)]).await?;
        let kept = |row: &Row| {
            let (per, retention) =
                Span::from_micros(row.get(0)).zip(Span::from_micros(row.get(1)))?;
            let first_counted = row.get::<_, i64>(2).div_euclid(per.as_micros());
            Some(Kept { per, retention, first_counted })
        };
        Ok(rows.first().and_then(kept))
    }

    async fn counted(
        &self,
        client: &Client,
        policy: &str,
        first: i64,
        last: i64,
        limit: i64,
    ) -> Sql<Result<BTreeMap<i64, u64>, StoreError>> {
        let sql = "select number, state from tollgate.slot_window \
                   where policy = $1 and number between $2 and $3 \
                   and state not in ('', $5) order by number limit $4";
        // A window that was emptied by cancels keeps its row, for other instances to see.
        let empty = WindowState::default().encode();
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&policy, Type::TEXT),
            (&first, Type::INT8),
            (&last, Type::INT8),
            (&limit, Type::INT8),
            (&empty, Type::BYTEA),
        ];
        let rows = self.query(client, sql, &parameters).await?;
        let count = |row: &Row| decode(row.get(1)).map(|state| (row.get(0), state.count()));
        Ok(rows.iter().map(count).collect())
    }

    async fn count_slots(
        &self,
        client: &Client,
        policy: &str,
        per: Span,
        first: i64,
        last: i64,
        limit: i64,
    ) -> Sql<BTreeMap<i64, u64>> {
        let from = first.saturating_mul(per.as_micros());
        let to = last.saturating_add(1).saturating_mul(per.as_micros());
        // Integer division rounds towards zero, and times before the epoch are none we give.
        let sql = "select s.scheduled_at / $2, count(*) from tollgate.slot s \
                   where s.policy = $1 and s.scheduled_at >= $3 and s.scheduled_at < $4 \
                   and not exists \
                   (select from tollgate.slot_cancel c where c.event_id = s.event_id) \
                   group by 1 order by 1 limit $5";
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&policy, Type::TEXT),
            (&per.as_micros(), Type::INT8),
            (&from, Type::INT8),
            (&to, Type::INT8),
            (&limit, Type::INT8),
        ];
        let rows = self.query(client, sql, &parameters).await?;
        let count = |row: &Row| (row.get(0), row.get::<_, i64>(1).cast_unsigned());
        Ok(rows.iter().map(count).collect())
    }
}

pub(crate) fn slot_row(row: &Row) -> Slot {
    Slot {
        event_id: row.get(0),
        policy: row.get(1),
        version: row.get::<_, i64>(2).cast_unsigned(),
        requested_at: Instant::from_micros(row.get(3)),
        is_requested_by_caller: row.get(4),
        scheduled_at: Instant::from_micros(row.get(5)),
        per: Span::from_micros(row.get(6)).unwrap_or(Span::from_secs(1)),
        position: row.get::<_, i64>(7).cast_unsigned(),
        created_at: Instant::from_micros(row.get(8)),
        cancelled_at: row.get::<_, Option<i64>>(9).map(Instant::from_micros),
    }
}

//! Holds the slots of a policy against its windows, a few in a job: nothing commits while one runs.

use std::collections::BTreeMap;

use rusqlite::params;
use tollgate_core::store::{Recount, Slot, StoreError};
use tollgate_core::{Instant, Span};

use super::book::{kept, windows};
use super::{SLOTS_PER_PAGE, interval};
use crate::Embedded;
use crate::keeper::Txn;

impl Embedded {
    /// Counts the slots of a policy again, and says where a window's count is another. The answer is
    /// not of one moment: each window is held against its slots at one, between the call and the
    /// answer, the earlier window first. What is given or cancelled meanwhile is never a drift.
    pub async fn recount_slots(&self, policy: String) -> Result<Recount, StoreError> {
        // One after the other: see `Recounts`.
        let _turn = self.recounting.lock().await;
        let mut sum = Recount::default();
        let mut reached = None;
        loop {
            let policy = policy.clone();
            let page = self.run(move |txn| recount_page(txn, &policy, reached)).await?;
            let Some(Page { per, recount, next }) = page else { return Ok(sum) };
            // Other windows: they are counted from the beginning.
            if reached.is_some_and(|(before, _)| before != per) {
                sum = Recount::default();
            }
            sum.windows += recount.windows;
            sum.slots += recount.slots;
            sum.drifts.extend(recount.drifts);
            let Some(next) = next else { return Ok(sum) };
            reached = Some((per, next));
        }
    }
}

/// What one job found.
pub(super) struct Page {
    per: Span,
    pub(super) recount: Recount,
    /// The window to go on with.
    pub(super) next: Option<i64>,
}

/// A window of more slots than one job reads, counted from its start up to a slot. Whoever gives or
/// cancels one before that says so here, so that the count is never behind.
#[derive(Default)]
pub(crate) struct Recounts(Option<Part>);

struct Part {
    policy: String,
    per: Span,
    number: i64,
    /// The last slot that was read.
    upto: (Instant, String),
    slots: u64,
}

impl Recounts {
    pub(super) fn given(&mut self, slot: &Slot) {
        if let Some(part) = self.counted(slot) {
            part.slots += 1;
        }
    }

    pub(super) fn cancelled(&mut self, slot: &Slot) {
        if let Some(part) = self.counted(slot) {
            part.slots = part.slots.saturating_sub(1);
        }
    }

    /// The count that has this slot behind it.
    fn counted(&mut self, slot: &Slot) -> Option<&mut Part> {
        let part = self.0.as_mut().filter(|part| part.policy == slot.policy)?;
        let starts_at = interval(part.per, part.number, part.number).0;
        let (at, event_id) = &part.upto;
        let is_behind = (slot.scheduled_at, &slot.event_id) <= (*at, event_id);
        (slot.scheduled_at >= starts_at && is_behind).then_some(part)
    }
}

/// Goes on with the windows from where `reached` says, if they still have that length, and holds
/// those that it could count to their end against what is stored. `None` for a policy without any.
pub(super) fn recount_page(
    txn: &mut Txn<'_>,
    policy: &str,
    reached: Option<(Span, i64)>,
) -> Result<Option<Page>, StoreError> {
    let Some(kept) = kept(txn, policy)? else { return Ok(None) };
    // Older ones may be half removed.
    let per = kept.per;
    let oldest = txn.inner.now().minus(kept.retention).as_micros();
    let first = (oldest.div_euclid(per.as_micros()) + 1).max(kept.first_counted());
    let number = match reached {
        Some((before, number)) if before == per => number.max(first),
        _ => first,
    };
    let is_it = |part: &Part| part.policy == policy && part.per == per && part.number == number;
    let part = txn.books.recounts.0.take().filter(is_it);
    let mut counts = BTreeMap::new();
    let mut after = (interval(per, number, number).0, String::new());
    if let Some(part) = part {
        counts.insert(number, part.slots);
        after = part.upto;
    }
    let slots = slots_after(txn, policy, &after)?;
    for (at, _, is_cancelled) in &slots {
        let count: &mut u64 = counts.entry(at.as_micros().div_euclid(per.as_micros())).or_default();
        *count += u64::from(!is_cancelled);
    }
    let next = if slots.len() < SLOTS_PER_PAGE as usize {
        None
    } else {
        // More slots of the last window may follow.
        slots.last().map(|(at, _, _)| at.as_micros().div_euclid(per.as_micros()))
    };
    if next == Some(number) {
        let upto = slots.into_iter().next_back().map_or(after, |(at, id, _)| (at, id));
        let slots = counts.get(&number).copied().unwrap_or(0);
        let policy = policy.to_owned();
        txn.books.recounts.0 = Some(Part { policy, per, number, upto, slots });
        return Ok(Some(Page { per, recount: Recount::default(), next }));
    }
    let last = next.map_or(i64::MAX, |next| next - 1);
    let states = windows(txn, policy, number, last, i64::from(SLOTS_PER_PAGE))?;
    // More windows may follow, even ones without a slot.
    let full = states.len() == SLOTS_PER_PAGE as usize;
    let next = states.last().filter(|_| full).map(|(number, _)| number + 1).or(next);
    let counted: BTreeMap<i64, u64> =
        states.into_iter().map(|(number, state)| (number, state.count())).collect();
    if let Some(next) = next {
        drop(counts.split_off(&next));
    }
    Ok(Some(Page { per, recount: Recount::of(per, &counts, &counted), next }))
}

/// The next slots of a policy in order of their instants, and whether they were cancelled.
fn slots_after(
    txn: &Txn<'_>,
    policy: &str,
    (at, event_id): &(Instant, String),
) -> Result<Vec<(Instant, String, bool)>, StoreError> {
    let read = || {
        txn.read()
            .prepare_cached(
                "select s.scheduled_at, s.event_id, \
                 exists (select 1 from slot_cancel c where c.event_id = s.event_id) \
                 from slot s where s.policy = ?1 and (s.scheduled_at, s.event_id) > (?2, ?3) \
                 order by s.scheduled_at, s.event_id limit ?4",
            )?
            .query_map(params![policy, at.as_micros(), event_id, SLOTS_PER_PAGE], |row| {
                Ok((Instant::from_micros(row.get(0)?), row.get(1)?, row.get(2)?))
            })?
            .collect::<Result<_, _>>()
    };
    read().map_err(|error| txn.fail(error))
}

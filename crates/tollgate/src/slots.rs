//! Schedules: a slot for every event.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_core::schedule::Plan;
use tollgate_core::store::{
    Base, Recount, ScheduleAsk, Slot, SlotAnswer, SlotAsk, SlotQuery, repeat,
};
use tollgate_core::{Instant, Span};

use crate::catalogue::possible_name;
use crate::compiled::Compiled;
use crate::error::{BadSubject, Error};
use crate::gate::Tollgate;
use crate::policy::Policy;
use crate::refresh::{Call, changing_too_fast};

/// An event id is at most this many characters long.
const MAX_EVENT_ID_CHARS: usize = 255;

/// What the one limit is called where nobody gave it a name.
const WINDOW: &str = "window";

/// Other instances can change a policy in between for so long.
const MAX_TRIES: u32 = 32;

/// A window of a schedule and how full it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotWindow {
    pub starts_at: Instant,
    pub ends_at: Instant,
    pub count: u64,
    /// As it is now; a window filled before it was lowered may hold more.
    pub max: u64,
}

impl Compiled {
    /// How this policy schedules, if it can.
    pub fn plan(&self) -> Result<Plan, Error> {
        self.policy()
            .plan()
            .map_err(|why| Error::NotASchedule { policy: self.policy().name().to_owned(), why })
    }
}

impl Tollgate {
    /// Gives every event its slot, in order. The same id and inputs get the same slot for ever.
    pub async fn assign_slots(
        &self,
        policy: &str,
        events: Vec<SlotAsk>,
    ) -> Result<Vec<SlotAnswer>, Error> {
        for event in &events {
            Self::check_event_id(&event.event_id)?;
        }
        let mut call = Call::of(self, policy);
        loop {
            let schedule =
                call.policy().await.and_then(|compiled| Ok((compiled.plan()?, compiled)));
            let (plan, compiled) = match schedule {
                Ok(schedule) => schedule,
                Err(why) => {
                    let repeated = pin!(self.repeat_slots(policy, &events, why));
                    return call.within_deadline(repeated).await;
                }
            };
            let ask = ScheduleAsk {
                policy: policy.to_owned(),
                version: compiled.version(),
                epoch: compiled.epoch(),
                plan,
                retention: compiled.policy().retention(),
                events: events.clone(),
            };
            // The store gives many events more time than a check has.
            if let Some(answers) = call.decided(self.shared.store.assign_slots(ask).await?)? {
                return Ok(answers);
            }
        }
    }

    /// A policy that is gone, or gives no more slots, has given those it gave. `why` it gives none,
    /// unless every event has one of it.
    async fn repeat_slots(
        &self,
        policy: &str,
        events: &[SlotAsk],
        why: Error,
    ) -> Result<Vec<SlotAnswer>, Error> {
        let (Error::NoSuchPolicy(_) | Error::NotASchedule { .. }) = why else { return Err(why) };
        let ids = events.iter().map(|event| event.event_id.clone()).collect();
        let slots = self.shared.store.slots_of(ids).await?;
        let of_policy = slots.iter().filter(|slot| slot.policy == policy);
        let given: HashMap<&str, &Slot> =
            of_policy.map(|slot| (slot.event_id.as_str(), slot)).collect();
        let repeated = events.iter().map(|event| {
            given.get(event.event_id.as_str()).map(|slot| repeat(slot, policy, event))
        });
        match repeated.collect::<Option<Vec<_>>>() {
            Some(answers) if !answers.is_empty() => Ok(answers),
            _ => Err(why),
        }
    }

    /// The slot of an event, cancelled or not.
    pub async fn slot(&self, event_id: &str) -> Result<Option<Slot>, Error> {
        Self::check_event_id(event_id)?;
        Ok(self.shared.store.slot(event_id.to_owned()).await?)
    }

    /// Frees the place of an event; the slot as it is then. Again changes nothing.
    pub async fn cancel_slot(&self, event_id: &str) -> Result<Option<Slot>, Error> {
        Self::check_event_id(event_id)?;
        Ok(self.shared.store.cancel_slot(event_id.to_owned()).await?)
    }

    /// Slots in order of their instants, cancelled ones included.
    pub async fn slots(&self, query: SlotQuery) -> Result<Vec<Slot>, Error> {
        let policy = query.policy.clone();
        possible_name(&policy)?;
        let slots = self.shared.store.slots(query).await?;
        if slots.is_empty() {
            // A policy that was deleted still has its slots; one that never was has nothing.
            self.find_policy(&policy).await?;
        }
        Ok(slots)
    }

    /// The windows that share an instant with `from..to` and in which something is given.
    pub async fn slot_windows(
        &self,
        policy: &str,
        from: Instant,
        to: Instant,
        limit: u32,
    ) -> Result<Vec<SlotWindow>, Error> {
        let plan = self.find_policy(policy).await?.plan()?;
        if from >= to {
            return Ok(Vec::new());
        }
        let (first, last) = (plan.index_of(from), plan.index_of(to.plus_micros(-1)));
        let fills =
            self.shared.store.slot_windows(policy.to_owned(), plan.per(), first, last, limit);
        let window = |number: i64, count| {
            let starts_at = plan.starts_at(number);
            let max = plan.max();
            SlotWindow { starts_at, ends_at: starts_at.plus(plan.per()), count, max }
        };
        Ok(fills.await?.into_iter().map(|fill| window(fill.number, fill.count)).collect())
    }

    /// Counts the slots of a policy again; what its windows say must be the same.
    pub async fn verify_slots(&self, policy: &str) -> Result<Recount, Error> {
        self.find_policy(policy).await?;
        Ok(self.shared.store.recount_slots(policy.to_owned()).await?)
    }

    /// Sets how many a policy lets through in a window: its limits become one, and everything else
    /// stays as it is. Makes the policy if there is none.
    pub async fn set_window(
        &self,
        policy: &str,
        max: u64,
        per: &str,
        by: &str,
    ) -> Result<Arc<Compiled>, Error> {
        let _changing = self.shared.changing.lock().await;
        for _ in 0..MAX_TRIES {
            self.reload_if_shared().await?;
            let before = match self.policy(policy) {
                Err(Error::NoSuchPolicy(_)) => None,
                before => Some(before?),
            };
            let changed = with_window(policy, before.as_deref(), max, per)?;
            if let Some(before) = &before
                && before.policy().is_same(&changed)
            {
                return Ok(before.clone());
            }
            let base = Base::InForce(before.map(|before| before.version()));
            if let Some(applied) = self.put_in_force(&changed, by, base).await? {
                return Ok(applied.policy);
            }
        }
        Err(changing_too_fast())
    }

    /// Whether an event of this id can have a slot; if not, why.
    pub fn check_event_id(event_id: &str) -> Result<(), Error> {
        let message = match event_id.chars().count() {
            0 => "is empty: it says which event this is".to_owned(),
            // PostgreSQL keeps none, and an id is the same on every store.
            _ if event_id.contains('\0') => "holds a NUL character, which no id may".to_owned(),
            1..=MAX_EVENT_ID_CHARS => return Ok(()),
            length => format!("is {length} characters long; {MAX_EVENT_ID_CHARS} are possible"),
        };
        Err(Error::BadEvent(BadSubject { field: "eventId".into(), message }))
    }
}

/// The policy as it is, with one limit of this window.
fn with_window(
    name: &str,
    before: Option<&Compiled>,
    max: u64,
    per: &str,
) -> Result<Policy, Error> {
    let before = before.map(Compiled::policy);
    let limit = match before.map(Policy::limits) {
        Some([only]) => only.name.as_str(),
        _ => WINDOW,
    };
    let document = before.map(Policy::document);
    let mut document =
        document.and_then(|document| document.as_object().cloned()).unwrap_or_default();
    document.insert("limits".into(), json!([{ "name": limit, "max": max, "per": per }]));
    Ok(Policy::from_json(name, Value::Object(document))?)
}

/// How long a policy keeps its slots, and how it schedules.
impl Policy {
    pub(crate) fn retention(&self) -> Span {
        self.schedule().retention
    }

    fn plan(&self) -> Result<Plan, String> {
        self.schedule().plan(self.limits())
    }
}

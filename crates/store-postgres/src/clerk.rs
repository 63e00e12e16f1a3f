//! Assigns slots: one group of events per policy and transaction, in order of arrival.
//!
//! The clerk keeps each policy's schedule in memory and, behind the policy's lock, reads what other
//! instances changed since: so memory never decides anything that the database does not hold.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tollgate_core::schedule::{Schedule, WindowState};
use tollgate_core::store::{
    Assigned, Checked, ScheduleAsk, Slot, SlotAnswer, StoreError, assign_all,
};

use crate::Inner;
use crate::catalogue::WITHIN;
use crate::error::{corrupt, failed, timed_out};
use crate::slots::{SLOT, slot_row};

/// Another policy can take the same event id at the same moment; not again and again.
const MAX_ATTEMPTS: u32 = 4;
/// Events in one transaction, at most.
const MAX_EVENTS: usize = 4000;

pub(crate) type Answers = Checked<Vec<SlotAnswer>>;

pub(crate) struct Errand {
    pub(crate) ask: ScheduleAsk,
    pub(crate) reply: oneshot::Sender<Result<Answers, StoreError>>,
}

pub(crate) struct Clerk {
    inner: Arc<Inner>,
    client: Option<Client>,
    books: HashMap<String, Book>,
}

/// A policy's schedule as it was at a revision.
struct Book {
    schedule: Schedule,
    revision: i64,
}

/// Why a group has no answers.
enum Failure {
    Database(tokio_postgres::Error),
    Store(StoreError),
    /// An id was taken by another policy meanwhile.
    Taken,
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl Clerk {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner, client: None, books: HashMap::new() }
    }

    pub(crate) async fn run(mut self, mut queue: mpsc::Receiver<Errand>) {
        let mut errands = Vec::new();
        while queue.recv_many(&mut errands, 1024).await > 0 {
            errands.retain(|errand| !errand.reply.is_closed());
            for group in groups(std::mem::take(&mut errands)) {
                self.answer(group).await;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Answers errands of one policy and plan, in one transaction.
    async fn answer(&mut self, errands: Vec<Errand>) {
        let (mut ask, mut replies) = (None::<ScheduleAsk>, Vec::with_capacity(errands.len()));
        for Errand { ask: next, reply } in errands {
            replies.push((reply, next.events.len()));
            match &mut ask {
                None => ask = Some(next),
                Some(ask) => ask.events.extend(next.events),
            }
        }
        let Some(ask) = ask else { return };
        let answered = tokio::time::timeout(WITHIN, self.assign(&ask)).await;
        let answered = answered.unwrap_or_else(|_| Err(timed_out()));
        if answered.is_err() {
            // It may have happened: memory knows nothing for sure any more.
            self.books.remove(&ask.policy);
            self.client = None;
        }
        match answered {
            Ok(Checked::Decided(answers)) => {
                let mut answers = answers.into_iter();
                for (reply, count) in replies {
                    let own = answers.by_ref().take(count).collect();
                    let _ = reply.send(Ok(Checked::Decided(own)));
                }
            }
            Ok(Checked::Stale(epoch)) => {
                for (reply, _) in replies {
                    let _ = reply.send(Ok(Checked::Stale(epoch)));
                }
            }
            Err(error) => {
                for (reply, _) in replies {
                    let _ = reply.send(Err(error.clone()));
                }
            }
        }
    }

    async fn assign(&mut self, ask: &ScheduleAsk) -> Result<Answers, StoreError> {
        for _ in 0..MAX_ATTEMPTS {
            let client = match self.client.take().filter(|client| !client.is_closed()) {
                Some(client) => client,
                None => self.inner.connector.connect(self.inner.settings.deadline).await?,
            };
            let result = self.assign_once(&client, ask).await;
            match result {
                Ok(answers) => {
                    self.client = Some(client);
                    return Ok(answers);
                }
                Err(Failure::Taken) => {
                    self.books.remove(&ask.policy);
                    let rolled_back = client.batch_execute("rollback").await;
                    rolled_back.map_err(|error| failed("PostgreSQL did not roll back", error))?;
                    self.client = Some(client);
                }
                Err(Failure::Store(error)) => return Err(error),
                Err(Failure::Database(error)) => {
                    return Err(failed("PostgreSQL gave no slots", error));
                }
            }
        }
        Err(crate::error::contended())
    }

    async fn assign_once(
        &mut self,
        client: &Client,
        ask: &ScheduleAsk,
    ) -> Result<Answers, Failure> {
        let inner = self.inner.clone();
        let found = inner.open_book(client, ask, self.books.get(&ask.policy)).await?;
        if ask.epoch.is_some_and(|epoch| epoch != found.epoch) {
            client.batch_execute("rollback").await?;
            return Ok(Checked::Stale(found.epoch));
        }
        let mut rebuilt = false;
        let was_open = self.books.contains_key(&ask.policy);
        let mut book = match self.books.remove(&ask.policy) {
            Some(mut book) if book.schedule.plan().per().as_micros() == found.per => {
                for (number, state) in found.windows {
                    book.schedule.put_window(number, state);
                }
                book
            }
            _ if found.per == ask.plan.per().as_micros() => {
                let schedule = Schedule::load(ask.plan.clone(), found.windows);
                Book { schedule, revision: found.revision }
            }
            _ => {
                rebuilt = true;
                let states = inner.rebuild(client, ask).await?;
                let schedule = Schedule::load(ask.plan.clone(), states);
                Book { schedule, revision: found.revision }
            }
        };
        if book.schedule.plan() != &ask.plan && book.schedule.set_plan(ask.plan.clone()).is_err() {
            rebuilt = true;
            let states = inner.rebuild(client, ask).await?;
            book.schedule = Schedule::load(ask.plan.clone(), states);
        }
        let assigned = assign_all(ask, found.known, &mut book.schedule, found.now);
        book.revision = found.revision + 1;
        if assigned.slots.is_empty() && !rebuilt {
            client.batch_execute("rollback").await?;
            if !was_open {
                // Its row may have been made in vain.
                return Ok(Checked::Decided(assigned.answers));
            }
            // Reading left memory as the database is.
            book.revision = found.revision;
        } else {
            inner.write_book(client, ask, &assigned, &book, rebuilt).await?;
        }
        self.books.insert(ask.policy.clone(), book);
        Ok(Checked::Decided(assigned.answers))
    }
}

/// Errands that can share a transaction, in order of arrival.
fn groups(errands: Vec<Errand>) -> Vec<Vec<Errand>> {
    let mut groups: Vec<Vec<Errand>> = Vec::new();
    for errand in errands {
        let events = errand.ask.events.len();
        let fits = |group: &&mut Vec<Errand>| {
            let (first, size) = (&group[0].ask, group.iter().map(|one| one.ask.events.len()));
            first.policy == errand.ask.policy
                && first.version == errand.ask.version
                && first.epoch == errand.ask.epoch
                && first.plan == errand.ask.plan
                && size.sum::<usize>() + events <= MAX_EVENTS
        };
        match groups.iter_mut().rev().find(fits) {
            Some(group) => group.push(errand),
            None => groups.push(vec![errand]),
        }
    }
    groups
}

/// What stands behind a policy's lock.
struct Found {
    per: i64,
    revision: i64,
    epoch: u64,
    now: tollgate_core::Instant,
    /// Those that changed since the book was last open.
    windows: Vec<(i64, WindowState)>,
    known: HashMap<String, Slot>,
}

impl Inner {
    /// Locks the policy's schedule and reads what is behind the lock, in one round trip.
    async fn open_book(
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
            now: self.time.read(reading.get(0), reading.get(2)),
            windows: windows.iter().map(window_row).collect::<Result<_, _>>()?,
            known: known.collect(),
        })
    }

    /// After `per` changed: every slot counts where it now falls.
    async fn rebuild(
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

    async fn write_book(
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
        // Sorted, as everybody does who writes ids.
        let mut slots: Vec<&Slot> = assigned.slots.iter().collect();
        slots.sort_unstable_by(|a, b| a.event_id.cmp(&b.event_id));
        let column =
            |of: fn(&Slot) -> i64| -> Vec<i64> { slots.iter().map(|slot| of(slot)).collect() };
        let ids: Vec<&str> = slots.iter().map(|slot| &*slot.event_id).collect();
        let by_caller: Vec<bool> = slots.iter().map(|slot| slot.is_requested_by_caller).collect();
        let requested = column(|slot| slot.requested_at.as_micros());
        let scheduled = column(|slot| slot.scheduled_at.as_micros());
        let positions = column(|slot| slot.position.cast_signed());
        let created = column(|slot| slot.created_at.as_micros());
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
            self.query(client, include_str!("../queries/put_slots.sql"), &put_slots),
            self.query(client, include_str!("../queries/put_slot_windows.sql"), &put_windows),
            self.query(
                client,
                "update tollgate.schedule set per = $2, retention = $3, revision = $4 \
                 where policy = $1",
                &put_schedule
            ),
        );
        windows?;
        schedule?;
        if inserted?.len() < slots.len() {
            return Err(Failure::Taken);
        }
        client.batch_execute("commit").await?;
        Ok(())
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

//! Assigns slots: one clerk per policy, one group of events per transaction, in order of arrival.
//!
//! A clerk keeps its policy's schedule in memory and, behind the policy's lock, reads what other
//! instances changed since: so memory never decides anything that the database does not hold. A
//! policy whose lock somebody else holds, or which is being counted again, takes one of a few connections
//! and holds up no other.

mod book;
mod known;
mod returning;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tollgate_core::schedule::Schedule;
use tollgate_core::store::{Assigned, Checked, ScheduleAsk, SlotAnswer, StoreError, assign_all};

use crate::Inner;
use crate::desk::WITHIN;
use crate::error::{caught, failed, timed_out};
use crate::known::Trust;
use crate::pool::Pool;
use crate::session::Session;

use returning::Returning;

pub(crate) use book::decode;

/// Another policy can take the same event id at the same moment; not again and again.
const MAX_ATTEMPTS: u32 = 4;
/// Events in one transaction, at most.
const MAX_EVENTS: usize = 4000;
/// Policies that are given slots at the same time, at most.
const MAX_CONNECTIONS: usize = 4;

pub(crate) type Answers = Checked<Vec<SlotAnswer>>;

pub(crate) struct Errand {
    pub(crate) ask: ScheduleAsk,
    pub(crate) reply: oneshot::Sender<Result<Answers, StoreError>>,
}

/// The clerks of all policies that anybody asked slots of, and the connections they share.
pub(crate) struct Clerks {
    by_policy: Mutex<HashMap<String, mpsc::Sender<Errand>>>,
    connections: Arc<Pool<Session>>,
}

struct Clerk {
    inner: Arc<Inner>,
    connections: Arc<Pool<Session>>,
    book: Option<Book>,
}

/// A policy's schedule as it was at a revision.
struct Book {
    schedule: Schedule,
    revision: i64,
    trust: Trust,
}

/// Why a group has no answers.
enum Failure {
    Database(tokio_postgres::Error),
    Store(StoreError),
    /// An id was taken by another policy meanwhile.
    Taken,
    /// Slots are being counted again, and what was counted so far is kept.
    Unfinished,
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl Default for Clerks {
    fn default() -> Self {
        Self { by_policy: Mutex::default(), connections: Arc::new(Pool::of(MAX_CONNECTIONS)) }
    }
}

impl Clerks {
    /// The queue before a policy's clerk, who begins to work when first asked for.
    pub(crate) fn of(&self, policy: &str, inner: &Arc<Inner>) -> mpsc::Sender<Errand> {
        let mut by_policy = self.by_policy.lock();
        if let Some(queue) = by_policy.get(policy) {
            return queue.clone();
        }
        let (sender, queue) = mpsc::channel(inner.settings.queue);
        let connections = self.connections.clone();
        let clerk = Clerk { inner: inner.clone(), connections, book: None };
        inner.engine.spawn(clerk.run(queue));
        by_policy.insert(policy.to_owned(), sender.clone());
        sender
    }
}

impl Clerk {
    async fn run(mut self, mut queue: mpsc::Receiver<Errand>) {
        let (mut errands, mut returning) = (Vec::new(), Returning::default());
        while queue.recv_many(&mut errands, 1024).await > 0 {
            errands.retain(|errand| !errand.reply.is_closed());
            let answered = errands.len();
            for group in groups(std::mem::take(&mut errands)) {
                self.answer(group).await;
            }
            returning.wait(answered, &queue).await;
        }
    }

    /// Answers errands of one plan, in one transaction.
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
            // It may have happened: memory knows nothing for sure any more. And what went wrong with
            // one connection may be wrong with those that wait.
            self.book = None;
            self.connections.forget();
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
        let connections = self.connections.clone();
        let _turn = connections.turn().await?;
        let mut attempts = 0;
        while attempts < MAX_ATTEMPTS {
            let kept = connections.take();
            let session = match kept.filter(|session| !session.is_closed()) {
                Some(session) => session,
                None => self.inner.connect_session(self.inner.settings.deadline).await?,
            };
            let inner = self.inner.clone();
            let at_work = inner.at_work(&session);
            let result = self.assign_once(&session, ask).await;
            at_work.done();
            match result {
                Ok(answers) => {
                    connections.put(session);
                    return Ok(answers);
                }
                Err(Failure::Unfinished) => connections.put(session),
                Err(Failure::Taken) => {
                    attempts += 1;
                    self.book = None;
                    let rolled_back = session.batch_execute("rollback").await;
                    rolled_back.map_err(|error| failed("PostgreSQL did not roll back", error))?;
                    connections.put(session);
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
        session: &Session,
        ask: &ScheduleAsk,
    ) -> Result<Answers, Failure> {
        let inner = self.inner.clone();
        if let Some(book) = &mut self.book
            && let Some(answers) = inner.assign_known(session, ask, book).await?
        {
            return Ok(Checked::Decided(answers));
        }
        let mut found = inner.open_book(session, ask, self.book.as_ref()).await?;
        if let Some(asked_by) = ask.epoch.filter(|epoch| *epoch != found.epoch) {
            session.batch_execute("rollback").await?;
            return Ok(Checked::Stale(asked_by));
        }
        let book = self.book.take();
        let was_open = book.is_some();
        let (mut book, recounted) = inner.bring_up_to_date(session, ask, book, &mut found).await?;
        if recounted.is_partial {
            book.revision = found.revision + 1;
            inner.write_book(session, ask, &Assigned::default(), &book, &recounted).await?;
            self.book = Some(book);
            return Err(Failure::Unfinished);
        }
        let assigned = caught(|| assign_all(ask, found.known, &mut book.schedule, found.now));
        let assigned = assigned.map_err(Failure::Store)?;
        book.revision = found.revision + 1;
        if assigned.slots.is_empty() && !recounted.is_new {
            session.batch_execute("rollback").await?;
            if !was_open {
                // Its row may have been made in vain.
                return Ok(Checked::Decided(assigned.answers));
            }
            // Reading left memory as the database is.
            book.revision = found.revision;
        } else {
            inner.write_book(session, ask, &assigned, &book, &recounted).await?;
        }
        self.book = Some(book);
        Ok(Checked::Decided(assigned.answers))
    }
}

/// Errands of one policy that can share a transaction, in order of arrival.
fn groups(errands: Vec<Errand>) -> Vec<Vec<Errand>> {
    let mut groups: Vec<Vec<Errand>> = Vec::new();
    for errand in errands {
        let events = errand.ask.events.len();
        let fits = |group: &&mut Vec<Errand>| {
            let (first, size) = (&group[0].ask, group.iter().map(|one| one.ask.events.len()));
            first.version == errand.ask.version
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

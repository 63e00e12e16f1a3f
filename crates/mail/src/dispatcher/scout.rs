//! Finds work that nobody announced: messages that fall due, accounts whose pause ends, what a
//! dead instance left, and mail that came in through another instance.
//!
//! Accounts this instance paused itself are woken at their instant and cost no query. All else
//! takes a handful of indexed queries, once per poll and at the next instant storage knows of.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant as Deadline;
use tollgate::Instant;

use super::claim_watch::ClaimWatch;
use super::under_way::UnderWay;
use crate::chunks::in_chunks;
use crate::error::MailError;
use crate::mail::Inner;
use crate::model::AccountKey;
use crate::queue::{Moved, PauseScope};

/// Messages moved per transaction.
const CHUNK: u32 = 500;
/// While something is due later, the gate's clock is read this often at least: it need not run at
/// the pace of ours.
const CLOCK_INTERVAL: Duration = Duration::from_millis(50);
/// Between two looks that were not asked for.
const REST: Duration = Duration::from_millis(20);
/// Polls between two searches for refunds that a crash left, and for what can be forgotten.
const POLLS_PER_UPKEEP: u32 = 30;

/// When something is to be looked at next. Shared by all who learn of such an instant.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Accounts paused by this instance, at most one instant for each scope.
    accounts: HashMap<(AccountKey, bool), Instant>,
    order: BTreeSet<(Instant, AccountKey, bool)>,
    /// When storage is to be looked at.
    look_at: Option<Instant>,
    look_now: bool,
}

impl Alarms {
    /// Wakes an account when its pause ends.
    pub(super) fn wake(&self, key: &AccountKey, scope: PauseScope, at: Instant) {
        let mut state = self.state.lock();
        let all = scope == PauseScope::All;
        if let Some(before) = state.accounts.insert((key.clone(), all), at) {
            state.order.remove(&(before, key.clone(), all));
        }
        state.order.insert((at, key.clone(), all));
        drop(state);
        self.changed.notify_one();
    }

    /// Looks into storage at an instant.
    pub(super) fn look_at(&self, at: Instant) {
        let mut state = self.state.lock();
        state.look_at = Some(state.look_at.map_or(at, |before| before.min(at)));
        drop(state);
        self.changed.notify_one();
    }

    /// Looks into storage now.
    pub(super) fn look_now(&self) {
        self.state.lock().look_now = true;
        self.changed.notify_one();
    }

    /// Accounts whose pause has ended.
    fn take_woken(&self, now: Instant) -> Vec<AccountKey> {
        let mut state = self.state.lock();
        let mut woken = Vec::new();
        while state.order.first().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, key, all)) = state.order.pop_first() else { break };
            state.accounts.remove(&(key.clone(), all));
            woken.push(key);
        }
        woken
    }

    /// Whether storage is to be looked at by now; if so, that is what happens.
    fn take_look(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let due = state.look_now || state.look_at.is_some_and(|at| at <= now);
        if due {
            state.look_now = false;
            state.look_at = None;
        }
        due
    }

    /// The next instant to do something at; possibly in the past.
    fn next(&self) -> Option<Instant> {
        let state = self.state.lock();
        let woken = state.order.first().map(|(at, ..)| *at);
        let now = state.look_now.then_some(Instant::from_micros(0));
        [now, woken, state.look_at].into_iter().flatten().min()
    }
}

pub(super) struct Scout {
    pub(super) inner: Arc<Inner>,
    pub(super) alarms: Arc<Alarms>,
    pub(super) under_way: Arc<UnderWay>,
    pub(super) claim_watch: ClaimWatch,
    pub(super) stop: watch::Receiver<bool>,
}

impl Scout {
    pub(super) async fn run(mut self) {
        let mut polls = 0_u32;
        loop {
            if polls.is_multiple_of(POLLS_PER_UPKEEP) {
                self.upkeep().await;
            }
            polls = polls.wrapping_add(1);
            if let Err(error) = self.look().await {
                tracing::warn!(%error, "the mail queue cannot be read; trying again");
            }
            let poll_at = Deadline::now() + self.inner.settings.poll_interval;
            if self.rest(poll_at).await.is_break() {
                return;
            }
        }
    }

    async fn upkeep(&self) {
        if let Err(error) = self.inner.settle_refunds().await {
            tracing::warn!(%error, "quota of failed messages is given back later");
        }
        let (queue, now) = (&self.inner.queue, self.inner.gate.now());
        if let Err(error) = in_chunks(|limit| queue.forget_removed(now, limit)).await {
            tracing::warn!(%error, "removed messages are forgotten later");
        }
    }

    /// Takes over what a dead instance left. What is to be watched for longer is looked at again at
    /// the next poll.
    async fn take_over(&mut self, now: Instant) -> Result<Moved, MailError> {
        let (instance, queue) = (&self.inner.instance, &self.inner.queue);
        // Read after the clock: see `Context::take`.
        let under_way = self.under_way.seqs();
        let open = queue.open_claims(now, instance, &under_way, CHUNK).await?;
        let ended = self.claim_watch.ended(open, instance, now, Deadline::now());
        if ended.is_empty() {
            return Ok(Moved::default());
        }
        let left = queue.take_over(&ended, now).await?;
        if left.messages > 0 {
            tracing::warn!(messages = left.messages, "claims of a dead instance were taken over");
        }
        Ok(left)
    }

    /// One look at everything, and a note of when the next one is due.
    async fn look(&mut self) -> Result<(), MailError> {
        let now = self.inner.gate.now();
        let left = self.take_over(now).await?;
        let (inner, queue) = (&self.inner, &self.inner.queue);
        let due = queue.promote_due(now, CHUNK).await?;
        let mut accounts = left.accounts;
        accounts.extend(due.accounts);
        accounts.extend(queue.accounts_with_work(now).await?);
        if !accounts.is_empty() {
            inner.nudges.nudge(accounts);
        }
        if due.messages.max(left.messages) >= u64::from(CHUNK) {
            self.alarms.look_now();
        } else if let Some(next) = queue.next_due(now).await?
            && next > now
        {
            self.alarms.look_at(next);
        }
        Ok(())
    }

    /// Wakes accounts until storage must be looked at, or it is time to stop.
    async fn rest(&mut self, poll_at: Deadline) -> std::ops::ControlFlow<()> {
        let rested_at = Deadline::now() + REST;
        loop {
            let now = self.inner.gate.now();
            let woken = self.alarms.take_woken(now);
            if !woken.is_empty() {
                self.inner.nudges.nudge(woken);
            }
            let at = Deadline::now();
            if at >= poll_at || (at >= rested_at && self.alarms.take_look(now)) {
                return std::ops::ControlFlow::Continue(());
            }
            let until = self.alarms.next().map_or(poll_at, |due| poll_at.min(at + wait(now, due)));
            tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return std::ops::ControlFlow::Break(()),
                () = self.alarms.changed.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }
}

/// How long to sleep at most: timers are no finer than a millisecond.
fn wait(now: Instant, due: Instant) -> Duration {
    let micros = u64::try_from(due.micros_since(now)).unwrap_or(0);
    Duration::from_micros(micros).clamp(Duration::from_millis(1), CLOCK_INTERVAL)
}

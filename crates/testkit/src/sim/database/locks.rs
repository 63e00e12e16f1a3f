//! Row locks and advisory locks: who holds what, and who waits for whom.

use tokio::sync::oneshot;
use tokio::time::Instant as Stopwatch;

use super::{Database, State, Transaction};
use crate::sim::history::Key;

/// What can be locked.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::sim) enum Lock {
    Advisory(i64),
    Counter(Key),
    Gate,
    Named(String),
    Record(Vec<u8>),
    Refund(i64, i64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    by: u64,
    /// There is an uncommitted change under it.
    changes: bool,
}

/// Why a lock was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::sim) struct LockTimeout;

impl Database {
    /// Takes it unless somebody else holds it.
    pub(in crate::sim) fn try_lock(&self, transaction: &Transaction, lock: &Lock) -> bool {
        let mut state = self.state();
        let held = state.locks.entry(lock.clone());
        held.or_insert(Held { by: transaction.id, changes: false }).by == transaction.id
    }

    /// Takes it, and waits for it as long as the transaction says.
    pub(in crate::sim) async fn lock(
        &self,
        transaction: &Transaction,
        lock: &Lock,
    ) -> Result<(), LockTimeout> {
        let patience = transaction.patience();
        while !self.try_lock(transaction, lock) {
            self.wait_for(transaction, lock, patience).await?;
        }
        Ok(())
    }

    /// Marks what is locked as changed.
    pub(in crate::sim) fn changes(&self, transaction: &Transaction, lock: &Lock) {
        if let Some(held) = self.state().locks.get_mut(lock) {
            assert_eq!(held.by, transaction.id, "only what is locked is changed");
            held.changes = true;
        }
    }

    /// Whether somebody else has an uncommitted change under it.
    pub(in crate::sim) fn is_changing(&self, transaction: &Transaction, lock: &Lock) -> bool {
        let state = self.state();
        state.locks.get(lock).is_some_and(|held| held.by != transaction.id && held.changes)
    }

    /// Until any transaction ends.
    pub(in crate::sim) async fn wait_for(
        &self,
        transaction: &Transaction,
        lock: &Lock,
        patience: Option<Stopwatch>,
    ) -> Result<(), LockTimeout> {
        let ended = {
            let mut state = self.state();
            let Some(held) = state.locks.get(lock).copied() else { return Ok(()) };
            state.waits.insert(transaction.id, held.by);
            state.look_for_deadlock(transaction.id);
            let (sender, ended) = oneshot::channel();
            state.waiting.push(sender);
            ended
        };
        let woken = match patience {
            Some(until) => tokio::time::timeout_at(until, ended).await.is_ok(),
            None => {
                // Only ever woken, or dropped with the whole simulation.
                let _ = ended.await;
                true
            }
        };
        self.state().waits.remove(&transaction.id);
        if woken { Ok(()) } else { Err(LockTimeout) }
    }

    /// What it waited for, it was told not to.
    pub(in crate::sim) fn stop_waiting(&self, transaction: &Transaction) {
        self.state().waits.remove(&transaction.id);
    }

    pub(super) fn release(&self, state: &mut State, id: u64) {
        state.locks.retain(|_, held| held.by != id);
        state.waits.remove(&id);
        let mut waiting = std::mem::take(&mut state.waiting);
        while !waiting.is_empty() {
            let next = state.dice.below(waiting.len() as u64);
            let waiter = waiting.swap_remove(usize::try_from(next).expect("less than a length"));
            // Whoever stopped waiting needs no wake-up.
            let _ = waiter.send(());
        }
    }
}

impl Transaction {
    /// Until when it waits for a lock that it asks for now.
    pub(in crate::sim) fn patience(&self) -> Option<Stopwatch> {
        self.lock_timeout.map(|timeout| Stopwatch::now() + timeout)
    }
}

impl State {
    /// The lock order makes sure that there is none.
    fn look_for_deadlock(&mut self, from: u64) {
        let mut at = from;
        for _ in 0..self.waits.len() {
            match self.waits.get(&at) {
                Some(next) if *next == from => {
                    let waits: Vec<_> = self.waits.iter().collect();
                    let locks = &self.locks;
                    let what = format!("transactions wait for each other: {waits:?} for {locks:?}");
                    self.is_impossible(what);
                    return;
                }
                Some(next) => at = *next,
                None => return,
            }
        }
    }
}

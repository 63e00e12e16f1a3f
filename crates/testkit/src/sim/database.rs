//! The simulated database: its tables, its row locks, its clock and its transactions.
//!
//! Read committed: a statement sees what was committed when it began, and its own transaction's
//! changes. Every change locks its row until the end of the transaction; whoever needs the row
//! waits, and may be passed by another who waits as long. Deliberately absent: anything the store
//! does not use, and any logic of decisions.

mod locks;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant as Stopwatch;

use super::history::{Change, Commit, Event, History, Key, Step, Terms};
use super::weather::Weather;
use crate::dice::Dice;

use locks::Held;
pub(super) use locks::{Lock, LockTimeout};

/// When every simulation begins, by the database's clock: in 2026.
const BEGINNING_MICROS: i64 = 1_780_000_000_000_000;

#[derive(Debug)]
pub(super) struct Database {
    state: Mutex<State>,
    started: Stopwatch,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) dice: Dice,
    pub(super) weather: Weather,
    pub(super) history: History,
    pub(super) tables: Tables,
    /// The clock is so far ahead of the steady one.
    offset_micros: i64,
    /// How often the clock was set.
    pub(super) settings: u64,
    /// The latest the clock ever showed.
    pub(super) latest_clock: i64,
    locks: BTreeMap<Lock, Held>,
    waits: BTreeMap<u64, u64>,
    waiting: Vec<oneshot::Sender<()>>,
    last_transaction: u64,
    last_row: u64,
    last_process: i32,
    /// How each is told to stop what it does.
    sessions: BTreeMap<i32, Arc<Notify>>,
    /// What cannot be, and after which step: reported at the end.
    pub(super) impossible: Option<(usize, String)>,
}

/// What is committed.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) counters: BTreeMap<Key, Counter>,
    pub(super) refunds: BTreeMap<(i64, i64), i64>,
    pub(super) records: BTreeMap<Vec<u8>, Record>,
    pub(super) gate: Gate,
    pub(super) policies: BTreeMap<(String, i64), PolicyRow>,
    pub(super) overrides: BTreeMap<OverrideId, OverrideRow>,
    pub(super) secret: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Counter {
    /// The same for all versions of a row; one made again after it was removed is another.
    pub(super) row: u64,
    pub(super) state: Vec<u8>,
    pub(super) expires_at: i64,
}

#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) fingerprint: Vec<u8>,
    pub(super) body: Vec<u8>,
    pub(super) expires_at: i64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Gate {
    pub(super) epoch: i64,
    pub(super) swept_at: i64,
}

#[derive(Clone, Debug)]
pub(super) struct PolicyRow {
    pub(super) document: Option<String>,
    pub(super) created_by: String,
    pub(super) created_at: i64,
}

/// Policy, limit and the values counted by.
pub(super) type OverrideId = (String, String, Vec<u8>);

#[derive(Clone, Debug)]
pub(super) struct OverrideRow {
    pub(super) subject: String,
    pub(super) max: i64,
    pub(super) created_by: String,
    pub(super) created_at: i64,
}

/// A transaction under way: what it holds, and what it would change.
#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) id: u64,
    pub(super) counters: BTreeMap<Key, Option<Counter>>,
    pub(super) refunds: BTreeMap<(i64, i64), Option<i64>>,
    pub(super) records: BTreeMap<Vec<u8>, Option<Record>>,
    pub(super) gate: Option<Gate>,
    pub(super) policies: Vec<((String, i64), PolicyRow)>,
    pub(super) overrides: Vec<(OverrideId, Option<OverrideRow>)>,
    pub(super) basis: Option<super::history::Basis>,
    /// How long it waits for a lock.
    pub(super) lock_timeout: Option<Duration>,
    /// How long it may be left alone.
    pub(super) idle_timeout: Option<Duration>,
    /// What it sees if it sees one moment only.
    pub(super) snapshot: Option<Box<Tables>>,
}

impl Database {
    pub(super) fn new(seed: u64, weather: Weather) -> Arc<Self> {
        let tables = Tables {
            counters: BTreeMap::new(),
            refunds: BTreeMap::new(),
            records: BTreeMap::new(),
            gate: Gate { epoch: 1, swept_at: i64::MIN },
            policies: BTreeMap::new(),
            overrides: BTreeMap::new(),
            secret: vec![7; 32],
        };
        let state = State {
            dice: Dice::of(&[seed, 2]),
            weather,
            history: History::default(),
            tables,
            offset_micros: BEGINNING_MICROS,
            settings: 0,
            latest_clock: BEGINNING_MICROS,
            locks: BTreeMap::new(),
            waits: BTreeMap::new(),
            waiting: Vec::new(),
            last_transaction: 0,
            last_row: 0,
            last_process: 0,
            sessions: BTreeMap::new(),
            impossible: None,
        };
        Arc::new(Self { state: Mutex::new(state), started: Stopwatch::now() })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn steady_micros(&self) -> i64 {
        i64::try_from(self.elapsed().as_micros()).expect("a simulation is short")
    }

    /// What the clock shows.
    pub(super) fn clock(&self) -> i64 {
        self.clock_of(&mut self.state())
    }

    pub(super) fn clock_of(&self, state: &mut State) -> i64 {
        let now = self.steady_micros() + state.offset_micros;
        state.latest_clock = state.latest_clock.max(now);
        now
    }

    /// Time passes between two steps of a statement, less than timers can measure.
    pub(super) fn tick(&self) {
        let mut state = self.state();
        if !state.weather.ticks {
            return;
        }
        let micros = state.dice.below(40);
        state.offset_micros += i64::try_from(micros).expect("a few");
    }

    pub(super) fn set_clock(&self, micros: i64) {
        let mut state = self.state();
        state.offset_micros = micros - self.steady_micros();
        state.settings += 1;
        self.note_in(&mut state, Event::ClockSet);
    }

    pub(super) fn note(&self, event: Event) -> usize {
        self.note_in(&mut self.state(), event)
    }

    /// The number of the step.
    pub(super) fn note_in(&self, state: &mut State, event: Event) -> usize {
        let clock = self.clock_of(state);
        let at_millis = u64::try_from(self.elapsed().as_millis()).expect("a simulation is short");
        let latest_clock = state.latest_clock;
        state.history.steps.push(Step { at_millis, clock, latest_clock, event });
        state.history.steps.len() - 1
    }

    pub(super) fn log(&self, text: impl FnOnce() -> String) {
        self.note(Event::Note(text()));
    }

    pub(super) fn begin(&self) -> Transaction {
        let mut state = self.state();
        state.last_transaction += 1;
        Transaction {
            id: state.last_transaction,
            counters: BTreeMap::new(),
            refunds: BTreeMap::new(),
            records: BTreeMap::new(),
            gate: None,
            policies: Vec::new(),
            overrides: Vec::new(),
            basis: None,
            lock_timeout: None,
            idle_timeout: None,
            snapshot: None,
        }
    }

    pub(super) fn new_row(&self) -> u64 {
        let mut state = self.state();
        state.last_row += 1;
        state.last_row
    }

    pub(super) fn enter(&self) -> (i32, Arc<Notify>) {
        let mut state = self.state();
        state.last_process += 1;
        let process = state.last_process;
        let cancelled = Arc::new(Notify::new());
        state.sessions.insert(process, cancelled.clone());
        (process, cancelled)
    }

    pub(super) fn leave(&self, process: i32) {
        self.state().sessions.remove(&process);
    }

    pub(super) fn cancel(&self, process: i32) {
        if let Some(cancelled) = self.state().sessions.get(&process) {
            cancelled.notify_waiters();
        }
    }

    pub(super) fn roll_back(&self, transaction: &Transaction) {
        self.release(&mut self.state(), transaction.id);
    }

    /// Makes everything it changed visible, and lets go of its locks.
    pub(super) fn commit(&self, transaction: Transaction, instance: Option<usize>) {
        let mut state = self.state();
        let Transaction {
            id, counters, refunds, records, gate, policies, overrides, basis, ..
        } = transaction;
        if counters.is_empty() && refunds.is_empty() && records.is_empty() && gate.is_none() {
            return self.release(&mut state, id);
        }
        let mut commit = Commit {
            instance,
            basis,
            counters: Vec::new(),
            refunds: Vec::new(),
            records: Vec::new(),
            terms: None,
        };
        let tables = &mut state.tables;
        for (key, after) in counters {
            let before = match after.clone() {
                Some(after) => tables.counters.insert(key.clone(), after),
                None => tables.counters.remove(&key),
            };
            let (before, after) = (before.map(|row| row.state), after.map(|row| row.state));
            commit.counters.push(Change { key, before, after });
        }
        for (id, after) in refunds {
            match after {
                Some(expires_at) => {
                    tables.refunds.insert(id, expires_at);
                    commit.refunds.push(id);
                }
                None => drop(tables.refunds.remove(&id)),
            }
        }
        for (id, after) in records {
            match after {
                Some(record) => {
                    commit.records.push(record.body.clone());
                    tables.records.insert(id, record);
                }
                None => drop(tables.records.remove(&id)),
            }
        }
        let changes_terms = !policies.is_empty() || !overrides.is_empty();
        tables.policies.extend(policies);
        for (key, row) in overrides {
            match row {
                Some(row) => drop(tables.overrides.insert(key, row)),
                None => drop(tables.overrides.remove(&key)),
            }
        }
        if let Some(gate) = gate {
            tables.gate = gate;
        }
        if changes_terms {
            commit.terms = Some(Box::new(Terms::read(tables)));
        }
        self.note_in(&mut state, Event::Committed(commit));
        self.release(&mut state, id);
    }
}

impl State {
    pub(super) fn is_impossible(&mut self, what: String) {
        let step = self.history.steps.len();
        self.impossible.get_or_insert((step, what));
    }
}

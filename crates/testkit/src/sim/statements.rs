//! What the store asks of the database, done as PostgreSQL does it.
//!
//! The four functions are mirrors of `store-postgres/migrations`, statement by statement, each seeing
//! what was committed when it began; time may pass between any two. A migration that is not
//! mirrored here is refused, and so is any other statement: then teach it.

use std::time::Duration;

use super::database::{Counter, Database, Gate, Lock, Record, Transaction};
use super::history::{Basis, Key};
use super::session::{Session, Sql, millis, pause};
use super::wire::{Kind, Parameters, Rows, SqlError, Value};

/// A row made for a key that counts nothing yet is not swept before this.
const NEW_ROW_MICROS: i64 = 60_000_000;
/// The migrations mirrored here.
const MIGRATIONS: i64 = 11;

impl Session {
    fn open(&mut self) -> &mut Transaction {
        self.transaction.as_mut().expect("the store begins a transaction first")
    }

    /// Statements without parameters, several at once.
    pub(super) async fn script(&mut self, sql: &str) -> Sql<Rows> {
        if let Some((_, set)) = sql.split_once("idle_in_transaction_session_timeout = ") {
            let until = set.find(';').unwrap_or(set.len());
            self.open().idle_timeout = millis(&set[..until]);
        }
        if sql.contains("gate for update") {
            self.lock(Lock::Gate).await?;
        } else if sql.contains("'tollgate migrate ") {
            self.lock(Lock::Named("migrate".into())).await?;
        } else if sql.contains("repeatable read") {
            let tables = self.database.state().tables.clone();
            self.open().snapshot = Some(Box::new(tables));
        } else if sql.contains("set local lock_timeout = 1000") {
            self.open().lock_timeout = Some(Duration::from_secs(1));
        } else if sql.starts_with("select 1 from pg_namespace") {
            return Ok(Rows::one(vec![("there", Value::Int(1))]));
        } else if sql.starts_with("select version, breaking from migration") {
            let rows =
                (1..=MIGRATIONS).map(|version| vec![Value::Int(version), Value::Bool(false)]);
            return Ok(Rows { columns: vec!["version", "breaking"], rows: rows.collect() });
        } else if sql.starts_with("select attname from pg_attribute") {
            return Ok(Rows::one(vec![("attname", Value::Text("breaking".into()))]));
        } else if sql != "begin isolation level read committed" {
            return Err(self.unknown(sql));
        }
        Ok(Rows::none())
    }

    pub(super) async fn typed(&mut self, sql: &str, parameters: Parameters) -> Sql<Rows> {
        let has = |part: &str| sql.contains(part);
        if has(".lock_batch(") {
            self.lock_batch(parameters).await
        } else if has(".write_batch(") {
            self.write_batch(parameters).await
        } else if has(".write_known(") {
            self.write_known(parameters).await
        } else if has(".sweep_step(") {
            self.sweep_step(parameters).await
        } else if has("pg_backend_pid()") {
            // It speaks as a pooler does, so nothing is prepared: the same statements, unnamed.
            Ok(Rows::one(vec![("pg_backend_pid", Value::Int(0))]))
        } else if has("pg_try_advisory_xact_lock") {
            let lock = Lock::Named("sweep".into());
            let database = self.database.clone();
            let ours = database.try_lock(self.open(), &lock);
            let clock = Value::Int(database.clock());
            Ok(Rows::one(vec![("ours", Value::Bool(ours)), ("clock_micros", clock)]))
        } else if has(".slot ") || has(".slot_cancel ") || has(".slot_window ") {
            // Slots are not simulated, so there are none to remove.
            Ok(Rows::none())
        } else if has("all_keys.reltuples") {
            let keys = self.database.state().tables.counters.len();
            Ok(Rows::one(vec![("keys", Value::Int(i64::try_from(keys).unwrap_or(i64::MAX)))]))
        } else {
            self.catalogue(sql, parameters).await
        }
    }

    pub(super) fn unknown(&self, sql: &str) -> SqlError {
        let what = format!("the simulated database must be taught this statement: {sql}");
        self.database.state().is_impossible(what);
        SqlError { code: "0A000", message: "the simulated database does not know this statement" }
    }

    pub(super) async fn lock(&mut self, lock: Lock) -> Sql<()> {
        let database = self.database.clone();
        Ok(database.lock(self.open(), &lock).await?)
    }

    /// Mirrors `lock_batch`.
    async fn lock_batch(&mut self, mut parameters: Parameters) -> Sql<Rows> {
        let database = self.database.clone();
        let begun = database.state().history.steps.len();
        let (lock, read) = (parameters.byte_arrays(), parameters.byte_arrays());
        let impatient = parameters.bool();
        let (advisory, ids) = (parameters.ints(), parameters.byte_arrays());
        let receipts: Vec<(i64, i64)> =
            parameters.ints().into_iter().zip(parameters.ints()).collect();
        self.open().lock_timeout = millis(&parameters.text());
        self.open().idle_timeout = millis(&parameters.text());
        for advisory in advisory {
            self.lock(Lock::Advisory(advisory)).await?;
        }
        pause(&database).await;
        self.make_rows(&lock).await?;
        let held = self.lock_rows(&lock, impatient).await?;
        let held_from = database.clock();
        let settings = database.state().settings;
        pause(&database).await;
        let found = |session: &Self, key: &Key| session.counter(key).map(|row| row.state);
        let read: Vec<(Key, Vec<u8>)> =
            read.into_iter().filter_map(|key| Some((key.clone(), found(self, &key)?))).collect();
        pause(&database).await;
        let records: Vec<(Vec<u8>, Record)> = {
            let records = &database.state().tables.records;
            ids.into_iter().filter_map(|id| Some((id.clone(), records.get(&id)?.clone()))).collect()
        };
        let refunded: Vec<(i64, i64)> = {
            let refunds = &database.state().tables.refunds;
            receipts.into_iter().filter(|id| refunds.contains_key(id)).collect()
        };
        let now = database.clock();
        pause(&database).await;
        let Gate { epoch, swept_at } = database.state().tables.gate;
        let unset = database.state().settings == settings;
        self.open().basis = Some(Basis {
            begun,
            now,
            swept_at,
            epoch,
            held_from: unset.then_some(held_from),
            known: false,
        });
        let (keys, states) = held.into_iter().unzip();
        let (read_keys, read_states) = read.into_iter().unzip();
        let expiries = records.iter().map(|(_, record)| record.expires_at).collect();
        let bodies = records.iter().map(|(_, record)| record.body.clone()).collect();
        let (ids, fingerprints) =
            records.into_iter().map(|(id, record)| (id, record.fingerprint)).unzip();
        let (runs, sequences) = refunded.into_iter().unzip();
        Ok(Rows::one(vec![
            ("keys", Value::aggregate(keys)),
            ("states", Value::aggregate(states)),
            ("read_keys", Value::aggregate(read_keys)),
            ("read_states", Value::aggregate(read_states)),
            ("ids", Value::aggregate(ids)),
            ("fingerprints", Value::aggregate(fingerprints)),
            ("bodies", Value::aggregate(bodies)),
            ("expiries", Value::aggregate_ints(expiries)),
            ("runs", Value::aggregate_ints(runs)),
            ("sequences", Value::aggregate_ints(sequences)),
            ("epoch", Value::Int(epoch)),
            ("swept_at", Value::Int(swept_at)),
            ("now_micros", Value::Int(now)),
        ]))
    }

    /// `insert … on conflict do nothing`, if one is missing.
    async fn make_rows(&mut self, keys: &[Key]) -> Sql<()> {
        let database = self.database.clone();
        if keys.iter().all(|key| self.counter(key).is_some()) {
            return Ok(());
        }
        pause(&database).await;
        let expires_at = database.clock() + NEW_ROW_MICROS;
        for key in keys {
            let lock = Lock::Counter(key.clone());
            let patience = self.open().patience();
            // A row that somebody is changing or making decides only when they are done.
            while database.is_changing(self.open(), &lock) {
                database.wait_for(self.open(), &lock, patience).await?;
            }
            if self.counter(key).is_none() {
                self.lock(lock).await?;
                if self.counter(key).is_none() {
                    self.put(key.clone(), Vec::new(), expires_at);
                }
            }
        }
        Ok(())
    }

    /// `select … order by key for update`, or with `skip locked`.
    async fn lock_rows(&mut self, keys: &[Key], impatient: bool) -> Sql<Vec<(Key, Vec<u8>)>> {
        let database = self.database.clone();
        pause(&database).await;
        let seen: Vec<(&Key, u64)> =
            keys.iter().filter_map(|key| Some((key, self.counter(key)?.row))).collect();
        let mut rows = Vec::new();
        for (key, seen) in seen {
            let lock = Lock::Counter(key.clone());
            let patience = self.open().patience();
            // A row that is gone is not waited for, even if there is another of its key by now.
            while let Some(Counter { row, state, .. }) = self.counter(key)
                && row == seen
            {
                if database.try_lock(self.open(), &lock) {
                    rows.push((key.clone(), state));
                    break;
                }
                if impatient {
                    break;
                }
                database.wait_for(self.open(), &lock, patience).await?;
            }
        }
        Ok(rows)
    }

    /// Mirrors `write_batch`.
    async fn write_batch(&mut self, mut parameters: Parameters) -> Sql<Rows> {
        let (keys, states) = (parameters.byte_arrays(), parameters.byte_arrays());
        let expiries = parameters.ints();
        self.put_all(keys, states, expiries).await?;
        let (ids, fingerprints) = (parameters.byte_arrays(), parameters.byte_arrays());
        let (bodies, expiries) = (parameters.byte_arrays(), parameters.ints());
        for (((id, fingerprint), body), expires_at) in
            ids.into_iter().zip(fingerprints).zip(bodies).zip(expiries)
        {
            self.lock(Lock::Record(id.clone())).await?;
            self.open().records.insert(id, Some(Record { fingerprint, body, expires_at }));
        }
        let (runs, sequences) = (parameters.ints(), parameters.ints());
        for ((run, sequence), expires_at) in runs.into_iter().zip(sequences).zip(parameters.ints())
        {
            self.lock(Lock::Refund(run, sequence)).await?;
            if self.database.state().tables.refunds.contains_key(&(run, sequence)) {
                return Err(SqlError { code: "23505", message: "duplicate key: refund_pkey" });
            }
            self.open().refunds.insert((run, sequence), Some(expires_at));
        }
        Ok(Rows::one(vec![("write_batch", Value::Void)]))
    }

    async fn put_all(
        &mut self,
        keys: Vec<Key>,
        states: Vec<Vec<u8>>,
        expiries: Vec<i64>,
    ) -> Sql<()> {
        for ((key, state), expires_at) in keys.into_iter().zip(states).zip(expiries) {
            self.lock(Lock::Counter(key.clone())).await?;
            self.put(key, state, expires_at);
        }
        Ok(())
    }

    /// Mirrors `write_known`, which is a transaction of its own.
    async fn write_known(&mut self, mut parameters: Parameters) -> Sql<Rows> {
        let written = self.write_if_known(&mut parameters).await?;
        let now = written.map_or(Value::Null(Kind::Int), Value::Int);
        Ok(Rows::one(vec![("write_known", now)]))
    }

    async fn write_if_known(&mut self, parameters: &mut Parameters) -> Sql<Option<i64>> {
        let database = self.database.clone();
        let begun = database.state().history.steps.len();
        let (keys, known) = (parameters.byte_arrays(), parameters.byte_arrays());
        let (states, expiries) = (parameters.byte_arrays(), parameters.ints());
        let (epoch, now, behind) = (parameters.int(), parameters.int(), parameters.optional_int());
        let clock = database.clock();
        if behind.is_some_and(|behind| clock < now || clock - now > behind) {
            return Ok(None);
        }
        let gate = database.state().tables.gate;
        if gate.epoch != epoch || gate.swept_at > now {
            return Ok(None);
        }
        self.open().lock_timeout = Some(Duration::from_millis(1));
        pause(&database).await;
        let mut found = Vec::new();
        for (key, known) in keys.iter().zip(&known) {
            // Only what is as it is known to be is waited for and written.
            if self.counter(key).is_some_and(|row| row.state == *known) {
                self.lock(Lock::Counter(key.clone())).await?;
                found.extend(self.counter(key).map(|row| row.state));
            }
        }
        if found != known {
            return match *keys {
                [_] => Ok(None),
                _ => Err(SqlError { code: "TG412", message: "a remembered state differs" }),
            };
        }
        self.open().basis = Some(Basis {
            begun,
            now,
            swept_at: gate.swept_at,
            epoch,
            held_from: None,
            known: true,
        });
        self.put_all(keys, states, expiries).await?;
        Ok(Some(clock))
    }

    /// Mirrors `sweep_step`; all rows fit into one step.
    async fn sweep_step(&mut self, mut parameters: Parameters) -> Sql<Rows> {
        let database = self.database.clone();
        let (after, _rows, by) = (parameters.bytes(), parameters.int(), parameters.optional_int());
        let now = by.unwrap_or_else(|| database.clock());
        pause(&database).await;
        let mut latest: Option<i64> = None;
        let keys: Vec<Key> = database.state().tables.counters.keys().cloned().collect();
        for key in keys.into_iter().filter(|key| *key > after) {
            let expired = |row: &Counter| row.expires_at <= now;
            if !self.counter(&key).as_ref().is_some_and(expired)
                || !database.try_lock(self.open(), &Lock::Counter(key.clone()))
            {
                continue;
            }
            if let Some(row) = self.counter(&key).filter(expired) {
                if !row.state.is_empty() {
                    latest = latest.max(Some(row.expires_at));
                }
                self.remove(key);
            }
        }
        pause(&database).await;
        latest = latest.max(self.sweep_refunds(now)).max(self.sweep_records(now));
        pause(&database).await;
        let swept_at = database.state().tables.gate.swept_at;
        if let Some(latest) = latest.filter(|latest| swept_at < *latest) {
            self.lock(Lock::Gate).await?;
            let gate = database.state().tables.gate;
            if gate.swept_at < latest {
                self.open().gate = Some(Gate { swept_at: latest, ..gate });
            }
        }
        let committed = database.state().tables.gate;
        let swept_at = self.open().gate.unwrap_or(committed).swept_at;
        Ok(Rows::one(vec![
            ("last_key", Value::Null(Kind::Bytes)),
            ("swept_at", Value::Int(swept_at)),
            ("is_behind", Value::Bool(false)),
        ]))
    }

    fn sweep_refunds(&mut self, now: i64) -> Option<i64> {
        let database = self.database.clone();
        let refunds = database.state().tables.refunds.clone();
        let mut latest = None;
        for (id, expires_at) in refunds {
            if expires_at <= now && database.try_lock(self.open(), &Lock::Refund(id.0, id.1)) {
                latest = latest.max(Some(expires_at));
                self.open().refunds.insert(id, None);
            }
        }
        latest
    }

    fn sweep_records(&mut self, now: i64) -> Option<i64> {
        let database = self.database.clone();
        let records = database.state().tables.records.clone();
        let expired = records.into_iter().filter(|(_, record)| record.expires_at <= now);
        let mut latest = None;
        for (id, Record { expires_at, .. }) in expired {
            if database.try_lock(self.open(), &Lock::Record(id.clone())) {
                latest = latest.max(Some(expires_at));
                self.open().records.insert(id, None);
            }
        }
        latest
    }

    /// A row as this transaction sees it now.
    fn counter(&self, key: &Key) -> Option<Counter> {
        let own = self.transaction.as_ref().and_then(|own| own.counters.get(key));
        match own {
            Some(row) => row.clone(),
            None => self.database.state().tables.counters.get(key).cloned(),
        }
    }

    fn put(&mut self, key: Key, state: Vec<u8>, expires_at: i64) {
        let database = self.database.clone();
        database.changes(self.open(), &Lock::Counter(key.clone()));
        let row = self.counter(&key).map_or_else(|| database.new_row(), |before| before.row);
        self.open().counters.insert(key, Some(Counter { row, state, expires_at }));
    }

    fn remove(&mut self, key: Key) {
        let database = self.database.clone();
        database.changes(self.open(), &Lock::Counter(key.clone()));
        self.open().counters.insert(key, None);
    }
}

/// Somebody who is no instance holds a row for a while.
pub(super) async fn hold(database: &Database, key: Key, held_for: Duration) {
    let mut stranger = database.begin();
    stranger.lock_timeout = Some(Duration::from_secs(1));
    if database.lock(&stranger, &Lock::Counter(key)).await.is_ok() {
        database.log(|| format!("a stranger holds a key for {} ms", held_for.as_millis()));
        tokio::time::sleep(held_for).await;
    }
    database.roll_back(&stranger);
}

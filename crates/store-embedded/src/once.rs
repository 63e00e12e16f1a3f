//! What happens once: refunds, and requests under an idempotency key.
//!
//! Both run on the keeper, one after the other, so a duplicate always finds what the first left.

#[cfg(test)]
mod tests;

use rusqlite::{OptionalExtension, params};
use tollgate_core::store::{
    Ask, Decided, Durability, Key, Once, OnceKey, OwnedAsk, Receipt, Record, Refunded, StoreError,
};
use tollgate_core::{Decision, Instant, Intent, Refund, State, States, decide_into, refund};

use crate::Embedded;
use crate::error::caught;
use crate::keeper::Txn;

impl Embedded {
    /// Decides unless `once` has an answer already. What is allowed is recorded with `body`, in
    /// the transaction that counts it. If `body` panics, the same transaction takes the spend back.
    pub async fn check_once(
        &self,
        once: OnceKey,
        ask: OwnedAsk,
        body: impl FnOnce(&Decided) -> Vec<u8> + Send + 'static,
    ) -> Result<Once<Decided>, StoreError> {
        self.run(move |txn| {
            if let Some(record) = find_record(txn, &once)? {
                return Ok(Once::Replay(record));
            }
            let before = copies_of(txn, &ask);
            let decided = check_now(txn, &ask)?;
            if decided.decision.allowed() {
                // With no shard locked: it may take long, and may ask this store.
                match caught(|| body(&decided)) {
                    Ok(body) => put_record(txn, once, body),
                    Err(error) => {
                        undo(txn, &ask, before, decided)?;
                        return Err(error);
                    }
                }
            }
            Ok(Once::Fresh(decided))
        })
        .await
    }

    /// The answer recorded under `once`, if there is one.
    pub async fn find_once(&self, once: OnceKey) -> Result<Option<Record>, StoreError> {
        self.run(move |txn| find_record(txn, &once)).await
    }

    /// Gives a receipt's spend back, the first time it is asked.
    pub async fn refund(&self, receipt: Receipt) -> Result<Refunded, StoreError> {
        self.run(move |txn| refund_now(txn, &receipt)).await
    }

    /// The same under an idempotency key: a refund that was done is replayed.
    pub async fn refund_once(
        &self,
        once: OnceKey,
        receipt: Receipt,
        body: impl FnOnce(Refunded) -> Vec<u8> + Send + 'static,
    ) -> Result<Once<Refunded>, StoreError> {
        self.run(move |txn| {
            if let Some(record) = find_record(txn, &once)? {
                return Ok(Once::Replay(record));
            }
            if let Some(refused) = refuse_refund(txn, &receipt)? {
                return Ok(Once::Fresh(refused));
            }
            if !would_give(txn, &receipt) {
                return Ok(Once::Fresh(Refunded::Expired));
            }
            // Before anything is given back: if it panics nothing is.
            let body = caught(|| body(Refunded::Done))?;
            let refunded = give_back(txn, &receipt);
            if refunded == Refunded::Done {
                put_record(txn, once, body);
            }
            Ok(Once::Fresh(refunded))
        })
        .await
    }
}

/// The commit that makes it durable is the one this job runs in.
fn check_now(txn: &mut Txn<'_>, ask: &OwnedAsk) -> Result<Decided, StoreError> {
    let ask = Ask {
        intent: Intent::Spend,
        cost: ask.cost,
        durability: Durability::Interval,
        epoch: ask.epoch,
        crux: ask.crux,
        claims: &ask.claims(),
    };
    let (decided, _) = txn.inner.check(&ask)?;
    Ok(decided)
}

/// The states of a request, each if there is one.
struct Copies(Vec<Option<State>>);

impl States for Copies {
    fn get(&self, position: usize) -> Option<&State> {
        self.0[position].as_ref()
    }

    fn get_or_insert_with(&mut self, position: usize, fresh: impl FnOnce() -> State) -> &mut State {
        self.0[position].get_or_insert_with(fresh)
    }
}

fn copies_of(txn: &Txn<'_>, ask: &OwnedAsk) -> Copies {
    let keys = ask.claims().into_iter().map(|keyed| keyed.key);
    txn.inner.shards.with_locked(keys, |locked| {
        Copies((0..ask.claims.len()).map(|position| locked.get(position).cloned()).collect())
    })
}

/// Takes back what this job just decided, and uses up its receipt: the caller's code has seen it.
fn undo(
    txn: &mut Txn<'_>,
    ask: &OwnedAsk,
    before: Copies,
    decided: Decided,
) -> Result<(), StoreError> {
    let decided_at = decided.decision.decided_at;
    let spent = decided.spent.expect("what is allowed was spent");
    let keys = ask.claims.iter().map(|claim| claim.key.clone());
    let receipt =
        Receipt { id: spent.id, cost: ask.cost, spends: keys.zip(spent.spends).collect() };
    if put_back(txn, ask, before, decided_at) {
        put_refund(txn, &receipt);
        return Ok(());
    }
    // Others were decided behind it. As everywhere, a bucket's earlier receipts may give back less
    // then, and never more.
    refund_now(txn, &receipt).map(drop)
}

/// Makes the states what they were, if all that became of them is this spend.
fn put_back(txn: &Txn<'_>, ask: &OwnedAsk, before: Copies, decided_at: Instant) -> bool {
    let inner = txn.inner;
    let claims = ask.claims();
    let mut after = Copies(before.0.clone());
    decide_into(&mut Decision::blank(), &claims, &mut after, Intent::Spend, ask.cost, decided_at);
    inner.shards.with_locked(claims.iter().map(|keyed| keyed.key), |locked| {
        let mut states = after.0.iter().enumerate();
        let is_untouched = states.all(|(position, state)| locked.get(position) == state.as_ref());
        if is_untouched {
            for ((position, state), keyed) in before.0.into_iter().enumerate().zip(&claims) {
                if let Some(place) = locked.get_mut(position) {
                    *place = state.unwrap_or_else(|| State::fresh(keyed.claim.rule, decided_at));
                }
            }
            let _ = inner.journal.append(&locked.states(), Durability::Interval);
        }
        is_untouched
    })
}

fn refund_now(txn: &mut Txn<'_>, receipt: &Receipt) -> Result<Refunded, StoreError> {
    Ok(match refuse_refund(txn, receipt)? {
        Some(refused) => refused,
        None => give_back(txn, receipt),
    })
}

/// Why nothing is given back, if that is known without the states. Changes nothing.
fn refuse_refund(txn: &Txn<'_>, receipt: &Receipt) -> Result<Option<Refunded>, StoreError> {
    if txn.inner.now() >= receipt.expires_at() {
        return Ok(Some(Refunded::Expired));
    }
    if !is_remembered(txn, receipt)? {
        return Ok(Some(Refunded::Forgotten));
    }
    Ok(is_refunded(txn, receipt)?.then_some(Refunded::Already))
}

/// Whether there is something left to give back.
fn would_give(txn: &Txn<'_>, receipt: &Receipt) -> bool {
    let now = txn.inner.now();
    txn.inner.shards.with_locked(keys_of(receipt), |locked| {
        receipt.spends.iter().enumerate().any(|(position, (_, spend))| {
            let state = locked.get_mut(position).cloned();
            state.is_some_and(|mut state| {
                refund(&mut state, spend, receipt.cost, now) == Refund::Done
            })
        })
    })
}

fn give_back(txn: &mut Txn<'_>, receipt: &Receipt) -> Refunded {
    let inner = txn.inner;
    let given = inner.shards.with_locked(keys_of(receipt), |locked| {
        let now = inner.now();
        let mut given = false;
        for (position, (_, spend)) in receipt.spends.iter().enumerate() {
            if let Some(state) = locked.get_mut(position) {
                given |= refund(state, spend, receipt.cost, now) == Refund::Done;
            }
        }
        if given {
            let _ = inner.journal.append(&locked.states(), Durability::Interval);
        }
        given
    });
    if !given {
        return Refunded::Expired;
    }
    put_refund(txn, receipt);
    Refunded::Done
}

/// Whoever comes with this receipt is told that it was given back.
fn put_refund(txn: &mut Txn<'_>, receipt: &Receipt) {
    txn.write_with_counts(
        "insert or ignore into refund (run, sequence, expires_at) values (?1, ?2, ?3)",
        vec![
            receipt.id.run.cast_signed().into(),
            receipt.id.sequence.cast_signed().into(),
            receipt.expires_at().as_micros().into(),
        ],
    );
}

fn keys_of(receipt: &Receipt) -> impl Iterator<Item = Key<'_>> {
    let parse = |key| Key::parse(key).expect("a receipt names the keys of a decision");
    receipt.spends.iter().map(move |(key, _)| parse(key))
}

/// A spend of an earlier run counts only if that run got it into the file before it ended.
fn is_remembered(txn: &Txn<'_>, receipt: &Receipt) -> Result<bool, StoreError> {
    if receipt.id.run == txn.inner.run {
        return Ok(true);
    }
    let committed: Option<i64> = txn
        .read()
        .prepare_cached("select committed_sequence from run where id = ?1")
        .and_then(|mut statement| {
            statement.query_row(params![receipt.id.run.cast_signed()], |row| row.get(0)).optional()
        })
        .map_err(|error| txn.fail(error))?;
    Ok(committed.is_some_and(|committed| receipt.id.sequence <= committed.cast_unsigned()))
}

fn is_refunded(txn: &Txn<'_>, receipt: &Receipt) -> Result<bool, StoreError> {
    txn.read()
        .prepare_cached("select 1 from refund where run = ?1 and sequence = ?2")
        .and_then(|mut statement| {
            let (run, sequence) = (receipt.id.run, receipt.id.sequence);
            statement.exists(params![run.cast_signed(), sequence.cast_signed()])
        })
        .map_err(|error| txn.fail(error))
}

fn find_record(txn: &Txn<'_>, once: &OnceKey) -> Result<Option<Record>, StoreError> {
    let now = txn.inner.now().as_micros();
    txn.read()
        .prepare_cached("select fingerprint, body from record where id = ?1 and expires_at > ?2")
        .and_then(|mut statement| {
            statement
                .query_row(params![once.id, now], |row| {
                    Ok(Record { fingerprint: row.get(0)?, body: row.get(1)? })
                })
                .optional()
        })
        .map_err(|error| txn.fail(error))
}

fn put_record(txn: &mut Txn<'_>, once: OnceKey, body: Vec<u8>) {
    txn.write_with_counts(
        "insert or replace into record (id, fingerprint, body, expires_at) \
         values (?1, ?2, ?3, ?4)",
        vec![
            once.id.into(),
            once.fingerprint.into(),
            body.into(),
            once.expires_at.as_micros().into(),
        ],
    );
}

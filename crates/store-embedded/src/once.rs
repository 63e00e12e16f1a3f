//! What happens once: refunds, and requests under an idempotency key.
//!
//! Both run on the keeper, one after the other, so a duplicate always finds what the first left.

use rusqlite::{OptionalExtension, params};
use tollgate_core::store::{
    Ask, Decided, Durability, Key, Once, OnceKey, OwnedAsk, Receipt, Record, Refunded, StoreError,
};
use tollgate_core::{Intent, Refund, refund};

use crate::Embedded;
use crate::keeper::Txn;

impl Embedded {
    /// Decides unless `once` has an answer already. What is allowed is recorded with `body`, in
    /// the transaction that counts it.
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
            let decided = check_now(txn, &ask)?;
            if decided.decision.allowed() {
                put_record(txn, once, body(&decided));
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
            let refunded = refund_now(txn, &receipt)?;
            if refunded == Refunded::Done {
                put_record(txn, once, body(refunded));
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

fn refund_now(txn: &mut Txn<'_>, receipt: &Receipt) -> Result<Refunded, StoreError> {
    let inner = txn.inner;
    if inner.now() >= receipt.expires_at() {
        return Ok(Refunded::Expired);
    }
    if !is_remembered(txn, receipt)? {
        return Ok(Refunded::Forgotten);
    }
    if is_refunded(txn, receipt)? {
        return Ok(Refunded::Already);
    }
    let keys = receipt
        .spends
        .iter()
        .map(|(key, _)| Key::parse(key).expect("a receipt names the keys of a decision"));
    let given = inner.shards.with_locked(keys, |locked| {
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
        return Ok(Refunded::Expired);
    }
    txn.write_with_counts(
        "insert or ignore into refund (run, sequence, expires_at) values (?1, ?2, ?3)",
        vec![
            receipt.id.run.cast_signed().into(),
            receipt.id.sequence.cast_signed().into(),
            receipt.expires_at().as_micros().into(),
        ],
    );
    Ok(Refunded::Done)
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

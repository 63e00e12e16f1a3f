//! Removes what no longer matters: in small steps, off the hot path, one instance at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant as Stopwatch;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use tollgate_core::store::StoreError;

use crate::desk::ABANDONED;
use crate::error::failed;
use crate::{Inner, Postgres};

/// Rows looked at in one transaction.
const ROWS_PER_STEP: i32 = 1000;
/// Between steps while a walk through the keys is under way, and little is over.
const BETWEEN_STEPS: Duration = Duration::from_millis(50);
/// Between walks, and between tries to be the one who sweeps.
const BETWEEN_WALKS: Duration = Duration::from_secs(5);

/// Exact while there are few; of many, what the database believes since it last analysed them.
const COUNT_KEYS: &str = "select case when few.keys < $1 then few.keys \
         else greatest(few.keys, all_keys.reltuples::bigint) end \
     from (select count(*) as keys from (select from tollgate.counter limit $1) as k) as few, \
         pg_class all_keys \
     where all_keys.oid = 'tollgate.counter'::regclass";
const FEW_KEYS: i64 = 10_000;

/// Slots whose policy's retention is over, their cancels and their windows; says how many went.
const REMOVE_OLD_SLOTS: [&str; 2] = [
    "with gone as ( \
         delete from tollgate.slot where event_id in ( \
             select s.event_id from tollgate.schedule k join tollgate.slot s on s.policy = k.policy \
             and s.scheduled_at < $1 - k.retention \
             limit $2 for update of s skip locked) \
         returning event_id), \
     cancels as ( \
         delete from tollgate.slot_cancel where event_id in (select event_id from gone)) \
     select count(*) from gone",
    "with gone as ( \
         delete from tollgate.slot_window where (policy, number) in ( \
             select w.policy, w.number from tollgate.schedule k \
             join tollgate.slot_window w on w.policy = k.policy \
             and w.number < ($1 - k.retention) / k.per \
             limit $2 for update of w skip locked) \
         returning number) \
     select count(*) from gone",
];

/// What a step did.
enum Step {
    Swept {
        /// Where the walk through the keys goes on; nothing when it is over.
        after: Vec<u8>,
        /// More is over than one step removes.
        is_behind: bool,
    },
    /// Another instance sweeps.
    NotOurs,
}

/// Sweeps for as long as the store is open.
pub(crate) async fn run(inner: Arc<Inner>) {
    if inner.time.is_injected() {
        // Tests say what time it is, and when to sweep: a sweep at a moment of its own would be felt
        // by those that step the clock back.
        return;
    }
    let mut client: Option<Client> = None;
    let (mut key, mut pause) = (Vec::new(), BETWEEN_WALKS);
    loop {
        tokio::time::sleep(pause).await;
        let begun = Stopwatch::now();
        (key, pause) = match inner.sweep_step(&mut client, &key, inner.settings.keep_idle).await {
            // At most half of the time of one connection, however much there is.
            Ok(Step::Swept { after, is_behind: true }) => (after, begun.elapsed()),
            Ok(Step::Swept { after, .. }) if !after.is_empty() => (after, BETWEEN_STEPS),
            Ok(Step::Swept { .. } | Step::NotOurs) => (Vec::new(), BETWEEN_WALKS),
            Err(error) => {
                tracing::debug!(%error, "sweeping waits");
                client = None;
                (Vec::new(), BETWEEN_WALKS)
            }
        };
    }
}

impl Postgres {
    /// Removes every key that is idle now, instead of in passing.
    pub async fn sweep(&self) -> Result<(), StoreError> {
        self.inner.still_open()?;
        let mut client = None;
        let mut key = Vec::new();
        loop {
            match self.inner.sweep_step(&mut client, &key, Duration::ZERO).await? {
                Step::Swept { after, is_behind: false } if after.is_empty() => return Ok(()),
                Step::Swept { after, .. } => key = after,
                Step::NotOurs => tokio::time::sleep(BETWEEN_STEPS).await,
            }
        }
    }
}

impl Inner {
    async fn sweep_step(
        &self,
        client: &mut Option<Client>,
        after: &[u8],
        keep_idle: Duration,
    ) -> Result<Step, StoreError> {
        let client = match client {
            Some(client) if !client.is_closed() => client,
            _ => client.insert(self.connector.connect(self.settings.deadline).await?),
        };
        let swept = self.sweep_rows(client, after, keep_idle).await;
        swept.map_err(|error| failed("sweeping failed", error))
    }

    async fn sweep_rows(
        &self,
        client: &Client,
        after: &[u8],
        keep_idle: Duration,
    ) -> Result<Step, tokio_postgres::Error> {
        let begin = format!(
            "begin isolation level read committed; {ABANDONED} \
             set local lock_timeout = 1000; set local statement_timeout = 5000"
        );
        client.batch_execute(&begin).await?;
        let one_at_a_time =
            "select pg_try_advisory_xact_lock(hashtextextended($1, 0)), tollgate.clock_micros()";
        let name = format!("tollgate sweep {}", self.settings.schema);
        let ours = self.query(client, one_at_a_time, &[(&name, Type::TEXT)]).await?;
        let Some(ours) = ours.first().filter(|row| row.get(0)) else {
            // Who does not sweep is asked for its metrics all the same.
            self.count_keys(client).await?;
            client.batch_execute("rollback").await?;
            return Ok(Step::NotOurs);
        };
        // Just read: what an instance that was idle carries forward may be from before the clock was set back,
        // and would take away what still counts.
        let now = self.time.read(ours.get(1)).as_micros();
        let keep_idle = i64::try_from(keep_idle.as_micros()).unwrap_or(i64::MAX);
        let by = now.saturating_sub(keep_idle);
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&after, Type::BYTEA), (&ROWS_PER_STEP, Type::INT4), (&by, Type::INT8)];
        let sql = "select last_key, swept_at, is_behind from tollgate.sweep_step($1, $2, $3)";
        let rows = self.query(client, sql, &parameters).await?;
        let old: [(&(dyn ToSql + Sync), Type); 2] =
            [(&now, Type::INT8), (&ROWS_PER_STEP, Type::INT4)];
        let mut is_behind = rows.first().is_some_and(|row| row.get(2));
        for sql in REMOVE_OLD_SLOTS {
            let gone = self.query(client, sql, &old).await?;
            let gone = gone.first().map_or(0, |row| row.get::<_, i64>(0));
            is_behind |= gone >= i64::from(ROWS_PER_STEP);
        }
        let after: Vec<u8> = rows.first().and_then(|row| row.get(0)).unwrap_or_default();
        if after.is_empty() {
            self.count_keys(client).await?;
        }
        client.batch_execute("commit").await?;
        if let Some(row) = rows.first() {
            self.time.raise_swept_at(row.get(1));
        }
        Ok(Step::Swept { after, is_behind })
    }

    async fn count_keys(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let rows = self.query(client, COUNT_KEYS, &[(&FEW_KEYS, Type::INT8)]).await?;
        let keys = rows.first().map_or(0, |row| row.get::<_, i64>(0));
        self.keys.store(keys.max(0).cast_unsigned(), Relaxed);
        Ok(())
    }
}

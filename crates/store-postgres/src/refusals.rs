//! Refusals of all instances, added up; alerts, raised once for all of them.
//!
//! An instance merges what it counted every few seconds, in one transaction, one instance at a time.
//! If it cannot, it keeps what it has and comes again; if only the answer was lost, that much is
//! counted twice.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tollgate_core::store::{StoreError, StoreErrorKind};
use tollgate_core::{Instant, Span};

use crate::desk::{Purpose, Sql};
use crate::{Inner, Postgres};

/// Alerts kept for listing.
const MAX_ALERTS: i64 = 10_000;
/// Rows of each table that one merge removes at most.
const FORGOTTEN_AT_ONCE: i64 = 5_000;

/// How often one subject was refused by one limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    pub policy: String,
    /// Empty, as `subject` then is, for all of the policy's checks together.
    pub limit: String,
    pub subject: String,
    pub refused: u64,
    /// So many more at most.
    pub missed: u64,
    pub first_seen: Instant,
    pub last_seen: Instant,
}

/// One way of slicing time, with what is new in it.
#[derive(Clone, Debug)]
pub struct Ledger {
    pub name: String,
    /// The length of a slice.
    pub grain: Span,
    pub kept: Span,
    /// Subjects of each limit in each slice.
    pub capacity: u32,
    /// Each subject of each limit once.
    pub refused: Vec<Refused>,
    /// By policy and limit: what the counts are short of at most.
    pub missed: Vec<(String, String, u64)>,
    /// The rule it is for.
    pub rule: Option<Rule>,
}

/// Raise an alert for whoever has so many refusals within so long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    pub name: String,
    pub refusals: u64,
    pub within: Span,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Raised {
    pub id: u64,
    pub rule: String,
    pub policy: String,
    pub limit: Option<String>,
    pub subject: Option<String>,
    pub refused: u64,
    pub within: Span,
    pub first_seen: Instant,
    pub raised_at: Instant,
}

impl Ledger {
    /// Where the slice begins that `at` lies in.
    fn slice(&self, at: Instant) -> i64 {
        at.floor_to(self.grain).as_micros()
    }

    /// From the start of a slice.
    fn kept_micros(&self) -> i64 {
        self.kept.as_micros().saturating_add(self.grain.as_micros())
    }
}

impl Postgres {
    /// Adds to the ledgers, and looks at their rules. The alerts raised by this call.
    pub async fn merge_refusals(
        &self,
        ledgers: &[Ledger],
        now: Instant,
    ) -> Result<Vec<Raised>, StoreError> {
        let inner = &*self.inner;
        let number = getrandom::u64().map_err(|error| {
            StoreError::new(StoreErrorKind::Unavailable, "the system gave no random bytes")
                .with_source(error)
        })?;
        inner
            .at_desk(Purpose::Work, async |client| {
                client
                    .batch_execute(
                        "set local lock_timeout = 2000; set local statement_timeout = 4000; \
                         set local idle_in_transaction_session_timeout = 4000",
                    )
                    .await?;
                let lock = "select pg_advisory_xact_lock(hashtextextended($1, 0))";
                let name = format!("tollgate refusals {}", inner.settings.schema);
                inner.query(client, lock, &[(&name, Type::TEXT)]).await?;
                let mut raised = Vec::new();
                for ledger in ledgers {
                    inner.add_to_ledger(client, ledger, now).await?;
                    if let Some(rule) = &ledger.rule {
                        raised.extend(inner.raise(client, ledger, rule, now, number).await?);
                    }
                }
                let forget = include_str!("../queries/forget_refusals.sql");
                let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
                    (&now.as_micros(), Type::INT8),
                    (&FORGOTTEN_AT_ONCE, Type::INT8),
                    (&MAX_ALERTS, Type::INT8),
                ];
                inner.query(client, forget, &parameters).await?;
                Ok(raised)
            })
            .await
    }

    /// Who was refused most in a ledger, from the slice on that begins at `from`.
    pub async fn top_refused(
        &self,
        ledger: &str,
        from: Instant,
        limit: u32,
    ) -> Result<Vec<Refused>, StoreError> {
        let inner = &*self.inner;
        inner
            .at_desk(Purpose::List, async |client| {
                let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
                    (&ledger, Type::TEXT),
                    (&from.as_micros(), Type::INT8),
                    (&i64::from(limit), Type::INT8),
                ];
                let sql = include_str!("../queries/top_refused.sql");
                Ok(inner.query(client, sql, &parameters).await?.iter().map(refused).collect())
            })
            .await
    }

    /// Alerts of all instances, newest first; those before an id if one is given.
    pub async fn alerts(&self, before: Option<u64>, limit: u32) -> Result<Vec<Raised>, StoreError> {
        let inner = &*self.inner;
        let before = before.map_or(i64::MAX, |id| i64::try_from(id).unwrap_or(i64::MAX));
        inner
            .at_desk(Purpose::List, async |client| {
                let parameters: [(&(dyn ToSql + Sync), Type); 2] =
                    [(&before, Type::INT8), (&i64::from(limit), Type::INT8)];
                let sql = include_str!("../queries/list_alerts.sql");
                Ok(inner.query(client, sql, &parameters).await?.iter().map(raised).collect())
            })
            .await
    }
}

impl Inner {
    async fn add_to_ledger(&self, client: &Client, ledger: &Ledger, now: Instant) -> Sql<()> {
        let (rows, kept) = (&ledger.refused, ledger.kept_micros());
        let mut slices: Vec<i64> = rows.iter().map(|row| ledger.slice(row.last_seen)).collect();
        let policies: Vec<&str> = rows.iter().map(|row| &*row.policy).collect();
        let limits: Vec<&str> = rows.iter().map(|row| &*row.limit).collect();
        let subjects: Vec<&str> = rows.iter().map(|row| &*row.subject).collect();
        let counts: Vec<i64> = rows.iter().map(|row| row.refused.cast_signed()).collect();
        let firsts: Vec<i64> = rows.iter().map(|row| row.first_seen.as_micros()).collect();
        let lasts: Vec<i64> = rows.iter().map(|row| row.last_seen.as_micros()).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 9] = [
            (&ledger.name, Type::TEXT),
            (&kept, Type::INT8),
            (&slices, Type::INT8_ARRAY),
            (&policies, Type::TEXT_ARRAY),
            (&limits, Type::TEXT_ARRAY),
            (&subjects, Type::TEXT_ARRAY),
            (&counts, Type::INT8_ARRAY),
            (&firsts, Type::INT8_ARRAY),
            (&lasts, Type::INT8_ARRAY),
        ];
        self.query(client, include_str!("../queries/add_refusals.sql"), &parameters).await?;
        self.add_missed(client, ledger, now).await?;
        slices.sort_unstable();
        slices.dedup();
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&ledger.name, Type::TEXT),
            (&i64::from(ledger.capacity), Type::INT8),
            (&kept, Type::INT8),
            (&slices, Type::INT8_ARRAY),
        ];
        self.query(client, include_str!("../queries/trim_refusals.sql"), &parameters).await?;
        Ok(())
    }

    async fn add_missed(&self, client: &Client, ledger: &Ledger, now: Instant) -> Sql<()> {
        if ledger.missed.is_empty() {
            return Ok(());
        }
        let rows = &ledger.missed;
        let kept = ledger.kept_micros();
        let slices = vec![ledger.slice(now); rows.len()];
        let policies: Vec<&str> = rows.iter().map(|(policy, ..)| &**policy).collect();
        let limits: Vec<&str> = rows.iter().map(|(_, limit, _)| &**limit).collect();
        let counts: Vec<i64> = rows.iter().map(|(.., missed)| missed.cast_signed()).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 6] = [
            (&ledger.name, Type::TEXT),
            (&kept, Type::INT8),
            (&slices, Type::INT8_ARRAY),
            (&policies, Type::TEXT_ARRAY),
            (&limits, Type::TEXT_ARRAY),
            (&counts, Type::INT8_ARRAY),
        ];
        self.query(client, include_str!("../queries/add_missed.sql"), &parameters).await?;
        Ok(())
    }

    async fn raise(
        &self,
        client: &Client,
        ledger: &Ledger,
        rule: &Rule,
        now: Instant,
        number: u64,
    ) -> Sql<Vec<Raised>> {
        let rows = &ledger.refused;
        let policies: Vec<&str> = rows.iter().map(|row| &*row.policy).collect();
        let limits: Vec<&str> = rows.iter().map(|row| &*row.limit).collect();
        let subjects: Vec<&str> = rows.iter().map(|row| &*row.subject).collect();
        let oldest = now.minus(rule.within).floor_to(ledger.grain);
        let parameters: [(&(dyn ToSql + Sync), Type); 10] = [
            (&ledger.name, Type::TEXT),
            (&rule.name, Type::TEXT),
            (&rule.refusals.cast_signed(), Type::INT8),
            (&rule.within.as_micros(), Type::INT8),
            (&now.as_micros(), Type::INT8),
            (&oldest.as_micros(), Type::INT8),
            (&number.cast_signed(), Type::INT8),
            (&policies, Type::TEXT_ARRAY),
            (&limits, Type::TEXT_ARRAY),
            (&subjects, Type::TEXT_ARRAY),
        ];
        let sql = include_str!("../queries/raise_alerts.sql");
        Ok(self.query(client, sql, &parameters).await?.iter().map(raised).collect())
    }
}

fn refused(row: &Row) -> Refused {
    Refused {
        policy: row.get(0),
        limit: row.get(1),
        subject: row.get(2),
        refused: row.get::<_, i64>(3).cast_unsigned(),
        first_seen: Instant::from_micros(row.get(4)),
        last_seen: Instant::from_micros(row.get(5)),
        missed: row.get::<_, i64>(6).cast_unsigned(),
    }
}

fn raised(row: &Row) -> Raised {
    Raised {
        id: row.get::<_, i64>(0).cast_unsigned(),
        rule: row.get(1),
        policy: row.get(2),
        limit: row.get(3),
        subject: row.get(4),
        refused: row.get::<_, i64>(5).cast_unsigned(),
        within: Span::from_micros(row.get(6)).unwrap_or(Span::from_secs(1)),
        first_seen: Instant::from_micros(row.get(7)),
        raised_at: Instant::from_micros(row.get(8)),
    }
}

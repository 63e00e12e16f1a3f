//! Refusals on a shared store: told to its tables every few seconds, read from them.

use tollgate_core::Instant;
use tollgate_store_postgres::{Ledger, Postgres, Raised, Refused, Rule};

use crate::error::Error;
use crate::offenders::history::{Refusals, Series};
use crate::offenders::rules::{Alert, AlertRule, SUBJECTS_PER_SLICE as SUBJECTS_PER_RULE_SLICE};
use crate::offenders::{OFFENDER_SLICE, OFFENDERS_KEPT, Offender, SUBJECTS_PER_SLICE};

const OFFENDERS: &str = "offenders";

/// Adds what this instance refused to what all did; the alerts that this raised.
pub(super) async fn merge(
    store: &Postgres,
    refusals: &Refusals,
    rules: &[AlertRule],
    now: Instant,
) -> Result<Vec<Alert>, Error> {
    if refusals.is_empty() {
        return Ok(Vec::new());
    }
    let is_of_limit = |series: &Series| !series.limit.is_empty();
    let (refused, missed) = rows(refusals, is_of_limit);
    let mut ledgers = vec![Ledger {
        name: OFFENDERS.into(),
        grain: OFFENDER_SLICE,
        kept: OFFENDERS_KEPT,
        capacity: capacity(SUBJECTS_PER_SLICE),
        refused,
        missed,
        rule: None,
    }];
    for rule in rules {
        let (refused, missed) = rows(&rule.select(refusals), |_| true);
        if refused.is_empty() && missed.is_empty() {
            continue;
        }
        let AlertRule { name, refusals, within, .. } = rule;
        ledgers.push(Ledger {
            // Another time is another way of slicing.
            name: format!("rule {name} {}", within.as_micros()),
            grain: rule.grain(),
            kept: *within,
            capacity: capacity(SUBJECTS_PER_RULE_SLICE),
            refused,
            missed,
            rule: Some(Rule { name: name.clone(), refusals: *refusals, within: *within }),
        });
    }
    let raised = store.merge_refusals(&ledgers, now).await?;
    Ok(raised.into_iter().map(Alert::from).collect())
}

type Missed = Vec<(String, String, u64)>;

fn rows(refusals: &Refusals, is_meant: impl Fn(&Series) -> bool) -> (Vec<Refused>, Missed) {
    let mut refused = Vec::new();
    let mut missed = Vec::new();
    for (series, sketch) in refusals.iter().filter(|(series, _)| is_meant(series)) {
        let (policy, limit) = (series.policy.to_string(), series.limit.to_string());
        refused.extend(sketch.iter().map(|(subject, tally)| Refused {
            policy: policy.clone(),
            limit: limit.clone(),
            subject: subject.to_string(),
            refused: tally.refused,
            missed: 0,
            first_seen: tally.first_seen,
            last_seen: tally.last_seen,
        }));
        if sketch.missed() > 0 {
            missed.push((policy, limit, sketch.missed()));
        }
    }
    (refused, missed)
}

fn capacity(subjects: usize) -> u32 {
    u32::try_from(subjects).unwrap_or(u32::MAX)
}

pub(super) async fn offenders(
    store: &Postgres,
    since: Instant,
    limit: u32,
) -> Result<Vec<Offender>, Error> {
    let top = store.top_refused(OFFENDERS, since, limit).await?;
    let offender = |row: Refused| Offender {
        policy: row.policy,
        limit: row.limit,
        subject: row.subject,
        refused: row.refused,
        error: row.missed,
        first_seen: row.first_seen,
        last_seen: row.last_seen,
    };
    Ok(top.into_iter().map(offender).collect())
}

pub(super) async fn alerts(
    store: &Postgres,
    before: Option<u64>,
    limit: u32,
) -> Result<Vec<Alert>, Error> {
    let raised = store.alerts(before, limit).await?;
    Ok(raised.into_iter().map(Alert::from).collect())
}

impl From<Raised> for Alert {
    fn from(raised: Raised) -> Self {
        let Raised { id, rule, policy, limit, subject, refused, within, first_seen, raised_at } =
            raised;
        Self { id, rule, policy, limit, subject, refused, within, first_seen, raised_at }
    }
}

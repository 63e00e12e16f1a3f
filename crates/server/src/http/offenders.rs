//! Who is refused most, and the alerts about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Serialize;
use tollgate::{Alert, OFFENDERS_KEPT, Offender, Span, parse_duration};
use utoipa::ToSchema;

use crate::http::{query, schema};
use crate::problem::Problem;
use crate::state::App;

const DEFAULT_SINCE: Span = Span::from_secs(3600);
const DEFAULT_OFFENDERS: u32 = 20;
const DEFAULT_ALERTS: u32 = 100;

#[derive(Serialize, ToSchema)]
pub(crate) struct OffenderList {
    /// From when on refusals count: where a slice of five minutes begins.
    #[schema(format = DateTime)]
    since: String,
    /// Most refused first.
    offenders: Vec<OffenderDocument>,
}

/// A subject that a limit refused.
#[derive(Serialize, ToSchema)]
pub(crate) struct OffenderDocument {
    policy: String,
    limit: String,
    /// What the limit counts by. Private values are short keyed hashes (`hmac:…`).
    subject: BTreeMap<String, String>,
    /// At least so often.
    refused: u64,
    /// And at most so many times more: 0 unless very many subjects are refused.
    error: u64,
    #[schema(format = DateTime)]
    first_seen: String,
    #[schema(format = DateTime)]
    last_seen: String,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct AlertList {
    /// Newest first.
    alerts: Vec<AlertDocument>,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// A rule was met; also what the webhook is sent.
#[derive(Serialize, ToSchema)]
pub(crate) struct AlertDocument {
    id: u64,
    /// The rule's name.
    rule: String,
    policy: String,
    /// Not there if the rule is about policies; nor is `subject` then.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<BTreeMap<String, String>>,
    /// Refusals within the rule's time when it was raised.
    refused: u64,
    /// The rule's time.
    within: String,
    #[schema(format = DateTime)]
    first_seen: String,
    #[schema(format = DateTime)]
    raised_at: String,
}

impl OffenderDocument {
    fn of(offender: Offender) -> Self {
        Self {
            subject: members(&offender.subject),
            policy: offender.policy,
            limit: offender.limit,
            refused: offender.refused,
            error: offender.error,
            first_seen: offender.first_seen.to_string(),
            last_seen: offender.last_seen.to_string(),
        }
    }
}

impl AlertDocument {
    pub(crate) fn of(alert: &Alert) -> Self {
        Self {
            id: alert.id,
            rule: alert.rule.clone(),
            policy: alert.policy.clone(),
            limit: alert.limit.clone(),
            subject: alert.subject.as_deref().map(members),
            refused: alert.refused,
            within: jiff::SignedDuration::from_micros(alert.within.as_micros()).to_string(),
            first_seen: alert.first_seen.to_string(),
            raised_at: alert.raised_at.to_string(),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

fn members(subject: &str) -> BTreeMap<String, String> {
    serde_json::from_str(subject).unwrap_or_default()
}

/// Who was refused most, by policy and limit.
///
/// Counts are never too high. They are exact while few subjects are refused; with very many, a
/// count may be short by `error`, which is at most about a 170th of the limit's refusals.
#[utoipa::path(get, path = "/admin/offenders", tag = "offenders", params(query::OffenderQuery),
    responses((status = 200, body = OffenderList), schema::BadInput, schema::StoreDown,
        schema::NoAccess))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    query: Result<Query<query::OffenderQuery>, QueryRejection>,
) -> Result<Json<OffenderList>, Problem> {
    let query::OffenderQuery { since, limit } = query::read(query)?;
    let since = since.map_or(Ok(DEFAULT_SINCE), |text| read_since(&text))?;
    let limit = limit.map_or(Ok(DEFAULT_OFFENDERS), |text| query::limit(&text))?;
    let list = app.gate.offenders(since, limit).await.map_err(|error| app.failed(error))?;
    Ok(Json(OffenderList {
        since: list.since.to_string(),
        offenders: list.offenders.into_iter().map(OffenderDocument::of).collect(),
    }))
}

/// The alerts raised, newest first. On a shared store those of all instances.
#[utoipa::path(get, path = "/admin/alerts", tag = "offenders", params(query::AlertQuery),
    responses((status = 200, body = AlertList), schema::BadInput, schema::StoreDown,
        schema::NoAccess))]
pub(crate) async fn alerts(
    State(app): State<Arc<App>>,
    query: Result<Query<query::AlertQuery>, QueryRejection>,
) -> Result<Json<AlertList>, Problem> {
    let query::AlertQuery { cursor, limit } = query::read(query)?;
    let before = cursor.map(|text| read_cursor(&text)).transpose()?;
    let limit = limit.map_or(Ok(DEFAULT_ALERTS), |text| query::limit(&text))?;
    // One more than is shown says whether there is a next page.
    let listed = app.gate.alerts(before, limit + 1).await.map_err(|error| app.failed(error))?;
    let shown = &listed[..listed.len().min(limit as usize)];
    let is_more = listed.len() > shown.len();
    Ok(Json(AlertList {
        alerts: shown.iter().map(AlertDocument::of).collect(),
        next_cursor: shown.last().filter(|_| is_more).map(|last| last.id.to_string()),
    }))
}

pub(super) fn read_since(text: &str) -> Result<Span, Problem> {
    let since = parse_duration(text).map_err(|why| Problem::bad_field("since", why))?;
    if since > OFFENDERS_KEPT {
        let detail = format!("since {text:?} is too far back: refusals are kept for 24h");
        return Err(Problem::bad_field("since", detail));
    }
    Ok(since)
}

fn read_cursor(text: &str) -> Result<u64, Problem> {
    text.parse().map_err(|_| {
        Problem::bad_field("cursor", "cursor is not one that an answer gave as next_cursor")
    })
}

//! What became of messages: listing them, and the attempts to send one.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use serde::Serialize;
use tollgate_mail::{Attempt, MessageQuery, MessageRow, Status};
use utoipa::ToSchema;

use super::queries::{ListQuery, TenantQuery};
use super::reach::Reach;
use super::{future_ts, past_ts};
use crate::http::{query, schema};
use crate::problem::Problem;
use crate::state::App;

#[derive(Serialize, ToSchema)]
pub(crate) struct MessageList {
    /// In the order they came.
    messages: Vec<Listed>,
    /// Null: that was all.
    next_cursor: Option<String>,
}

/// A message without its content. Times are Unix seconds.
#[derive(Serialize, ToSchema)]
pub(crate) struct Listed {
    id: String,
    tenant_id: String,
    account_id: String,
    /// `pending` (next in line, or being sent), `deferred`, `suspended`, `sent` or `error`.
    status: String,
    priority: u8,
    /// What it waits for while it is deferred: its own time, a retry's, or its account's.
    deferred_ts: Option<i64>,
    batch_code: Option<String>,
    recipients: u32,
    attempts: u32,
    last_error: Option<String>,
    created_ts: i64,
    sent_ts: Option<i64>,
    /// When it ended in error.
    error_ts: Option<i64>,
}

impl Listed {
    fn of(row: MessageRow) -> Self {
        Self {
            id: row.id,
            tenant_id: row.tenant_id,
            account_id: row.account_id,
            status: row.status.as_str().into(),
            priority: row.priority,
            deferred_ts: row.deferred_until.map(future_ts),
            batch_code: row.batch_code,
            recipients: row.recipients,
            attempts: row.attempts,
            last_error: row.last_error,
            created_ts: past_ts(row.created_at),
            sent_ts: row.sent_at.map(past_ts),
            error_ts: row.failed_at.map(past_ts),
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct AttemptList {
    /// In the order they were made.
    attempts: Vec<Attempted>,
}

/// One attempt to send a message.
#[derive(Serialize, ToSchema)]
pub(crate) struct Attempted {
    message_id: String,
    account_id: String,
    /// The instant at which the account's limits let it begin.
    #[schema(format = DateTime)]
    started_at: String,
    #[schema(format = DateTime)]
    finished_at: String,
    /// Which server of several made it.
    instance: String,
    smtp_code: Option<u16>,
    smtp_text: String,
    /// `sent`, `retry`, `throttled`, `error`, or `unknown`: its server died meanwhile.
    outcome: String,
}

impl Attempted {
    fn of(attempt: Attempt) -> Self {
        Self {
            started_at: attempt.started_at.to_string(),
            finished_at: attempt.finished_at.to_string(),
            message_id: attempt.message_id,
            account_id: attempt.account_id,
            instance: attempt.instance,
            smtp_code: attempt.smtp_code,
            smtp_text: attempt.smtp_text,
            outcome: attempt.outcome,
        }
    }
}

/// A tenant's messages, in the order they came.
#[utoipa::path(get, path = "/messages", tag = "mail",
    params(ListQuery),
    responses((status = 200, body = MessageList), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<MessageList>, Problem> {
    let given = query::read(query)?;
    let mut query = MessageQuery::of_tenant(reach.one_tenant(given.tenant_id)?);
    if let Some(status) = given.status.filter(|status| !status.is_empty()) {
        query.status = Some(Status::parse(&status).ok_or_else(|| no_status(&status))?);
    }
    if let Some(limit) = given.limit {
        query.limit = query::limit(&limit)?;
    }
    query.account_id = given.account_id;
    query.batch_code = given.batch_code;
    query.id = given.id;
    query.cursor = given.cursor.filter(|cursor| !cursor.is_empty());
    let (rows, next_cursor) =
        app.mail.messages(&query).await.map_err(|error| app.mail_failed(error))?;
    Ok(Json(MessageList { messages: rows.into_iter().map(Listed::of).collect(), next_cursor }))
}

fn no_status(given: &str) -> Problem {
    let known: Vec<_> = Status::ALL.iter().map(|status| status.as_str()).collect();
    let detail = format!("status {given:?} is none of {}", known.join(", "));
    Problem::bad_field("status", detail)
}

/// Every attempt to send one message.
#[utoipa::path(get, path = "/messages/{id}/attempts", tag = "mail",
    params(("id" = String, Path), TenantQuery),
    responses((status = 200, body = AttemptList), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn attempts(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    Path(id): Path<String>,
    query: Result<Query<TenantQuery>, QueryRejection>,
) -> Result<Json<AttemptList>, Problem> {
    let tenant_id = reach.one_tenant(query::read(query)?.tenant_id)?;
    app.mail.message(&tenant_id, &id).await.map_err(|error| app.mail_failed(error))?;
    let attempts = app.mail.attempts(&tenant_id, &id).await;
    let attempts = attempts.map_err(|error| app.mail_failed(error))?;
    Ok(Json(AttemptList { attempts: attempts.into_iter().map(Attempted::of).collect() }))
}

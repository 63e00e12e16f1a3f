//! API keys for `/api/v1/send`: made (shown once), listed, changed, deleted.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tollgate_mail::{ApiKey, NewApiKey};
use utoipa::ToSchema;

use super::queries::TenantQuery;
use super::reach::Reach;
use super::{OK, Ok as Done, past_ts};
use crate::body::{self, parse};
use crate::http::{query, schema};
use crate::problem::Problem;
use crate::state::App;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyRequest {
    /// May be left out with that tenant's token.
    tenant_id: Option<String>,
    /// The account it sends through, unless a request names another of the same tenant.
    account_id: String,
    name: Option<String>,
    /// Recipients a day; 15 if not said.
    daily_limit: Option<u64>,
    /// The IANA zone whose midnight resets it; UTC if not said.
    timezone: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyChange {
    /// Switches it on or off.
    enabled: Option<bool>,
    /// In force at the next send; what was counted today stays counted.
    daily_limit: Option<u64>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct KeyList {
    keys: Vec<KeyRow>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct KeyRow {
    id: String,
    tenant_id: String,
    account_id: String,
    name: String,
    daily_limit: u64,
    timezone: String,
    enabled: bool,
    created_ts: i64,
}

impl KeyRow {
    fn of(key: ApiKey) -> Self {
        Self {
            created_ts: past_ts(key.created_at),
            id: key.id,
            tenant_id: key.tenant_id,
            account_id: key.account_id,
            name: key.name,
            daily_limit: key.daily_limit,
            timezone: key.timezone,
            enabled: key.enabled,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct NewKey {
    #[serde(flatten)]
    key: KeyRow,
    /// What to send as `X-API-Key`. Shown this once; only its hash is kept.
    api_key: String,
}

/// Makes a key.
#[utoipa::path(post, path = "/keys", tag = "mail",
    request_body = KeyRequest,
    responses((status = 201, body = NewKey), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn post(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    request: axum::extract::Request,
) -> Result<(StatusCode, Json<NewKey>), Problem> {
    let bytes = body::read(request.into_body(), app.body_limits).await?;
    let request: KeyRequest = parse(&bytes)?;
    let new = NewApiKey {
        tenant_id: reach.one_tenant(request.tenant_id)?,
        account_id: request.account_id,
        name: request.name.unwrap_or_default(),
        daily_limit: request.daily_limit.unwrap_or(NewApiKey::DEFAULT_DAILY_LIMIT),
        timezone: request.timezone.unwrap_or_else(|| "UTC".into()),
    };
    let mail = app.mail.clone();
    let (key, api_key) = app.finish_mail(async move { mail.create_key(new).await }).await?;
    Ok((StatusCode::CREATED, Json(NewKey { key: KeyRow::of(key), api_key })))
}

/// The keys of one tenant, or of all. Never with their secrets.
#[utoipa::path(get, path = "/keys", tag = "mail",
    params(TenantQuery),
    responses((status = 200, body = KeyList), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    query: Result<Query<TenantQuery>, QueryRejection>,
) -> Result<Json<KeyList>, Problem> {
    let tenant_id = reach.tenant(query::read(query)?.tenant_id)?;
    let keys = app.mail.keys(tenant_id.as_deref()).await;
    let keys = keys.map_err(|error| app.mail_failed(error))?;
    Ok(Json(KeyList { keys: keys.into_iter().map(KeyRow::of).collect() }))
}

/// Switches a key on or off, or changes its daily limit.
#[utoipa::path(put, path = "/keys/{id}", tag = "mail",
    params(("id" = String, Path)),
    request_body = KeyChange,
    responses((status = 200, body = KeyRow), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn put(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    Path(id): Path<String>,
    request: axum::extract::Request,
) -> Result<Json<KeyRow>, Problem> {
    let bytes = body::read(request.into_body(), app.body_limits).await?;
    let KeyChange { enabled, daily_limit } = parse(&bytes)?;
    app.within(&reach, &id).await?;
    if enabled.is_none() && daily_limit.is_none() {
        return Err(Problem::bad_request("nothing to change: give enabled, daily_limit or both"));
    }
    let mail = app.mail.clone();
    let key = app.finish_mail(async move { mail.change_key(&id, enabled, daily_limit).await });
    Ok(Json(KeyRow::of(key.await?)))
}

/// Deletes a key. Messages it sent stay.
#[utoipa::path(delete, path = "/keys/{id}", tag = "mail",
    params(("id" = String, Path)),
    responses((status = 200, body = Done), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    Path(id): Path<String>,
) -> Result<Json<Done>, Problem> {
    app.within(&reach, &id).await?;
    let mail = app.mail.clone();
    app.finish_mail(async move { mail.delete_key(&id).await }).await?;
    Ok(Json(OK))
}

impl App {
    /// The key is one the caller may change.
    async fn within(&self, reach: &Reach, id: &str) -> Result<(), Problem> {
        let key = self.mail.key(id).await.map_err(|error| self.mail_failed(error))?;
        reach.tenant(Some(key.tenant_id)).map(drop)
    }
}

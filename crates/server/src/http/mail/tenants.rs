//! Tenants: made, listed and deleted by admins; each with a token of its own.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tollgate_mail::{NewTenant, Secret, Tenant};
use utoipa::ToSchema;

use super::reach::Reach;
use super::{OK, Ok as Done, past_ts};
use crate::body::{self, parse};
use crate::http::schema;
use crate::problem::Problem;
use crate::state::App;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantRequest {
    id: String,
    /// Defaults to the id.
    name: Option<String>,
    /// Where delivery reports are POSTed to.
    report_url: Option<String>,
    /// Signs the reports. The one it has, or a new random one, if not said.
    report_secret: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TenantSaved {
    ok: bool,
    /// False if it was there and was changed.
    created: bool,
    /// The secret that signs its reports, if one was made now. Shown this once.
    #[serde(skip_serializing_if = "Option::is_none")]
    report_secret: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TenantList {
    tenants: Vec<TenantRow>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TenantRow {
    id: String,
    name: String,
    report_url: Option<String>,
    /// Its messages wait until it is activated.
    suspended: bool,
    /// Whether a token was made for it.
    has_token: bool,
    created_ts: i64,
}

impl TenantRow {
    fn of(tenant: Tenant) -> Self {
        Self {
            created_ts: past_ts(tenant.created_at),
            id: tenant.id,
            name: tenant.name,
            report_url: tenant.report_url,
            suspended: tenant.suspended,
            has_token: tenant.has_token,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TenantToken {
    tenant_id: String,
    /// Shown this once; only its hash is kept.
    token: String,
}

/// Makes a tenant, or changes its name and where its reports go.
#[utoipa::path(post, path = "/tenant", tag = "mail",
    request_body = TenantRequest,
    responses((status = 200, body = TenantSaved), schema::BadInput, schema::StoreDown,
        schema::NoAccess, schema::TooLarge))]
pub(crate) async fn post(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    request: axum::extract::Request,
) -> Result<Json<TenantSaved>, Problem> {
    reach.everything()?;
    let bytes = body::read(request.into_body(), app.body_limits).await?;
    let TenantRequest { id, name, report_url, report_secret } = parse(&bytes)?;
    let name = name.unwrap_or_else(|| id.clone());
    let report_secret = report_secret.map(Secret::new);
    let new = NewTenant { id, name, report_url, report_secret };
    let mail = app.mail.clone();
    let saved = app.finish_mail(async move { mail.put_tenant(new).await }).await?;
    let report_secret = saved.report_secret.map(|made| made.reveal().to_owned());
    let created = saved.created;
    Ok(Json(TenantSaved { ok: true, created, report_secret }))
}

/// The tenants; with a tenant's token only that one.
#[utoipa::path(get, path = "/tenants", tag = "mail",
    responses((status = 200, body = TenantList), schema::BadInput, schema::StoreDown, schema::NoAccess))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
) -> Result<Json<TenantList>, Problem> {
    let tenants = match reach {
        Reach::Everything => app.mail.tenants().await,
        Reach::Tenant(own) => app.mail.tenant(&own).await.map(|tenant| vec![tenant]),
    };
    let tenants = tenants.map_err(|error| app.mail_failed(error))?;
    Ok(Json(TenantList { tenants: tenants.into_iter().map(TenantRow::of).collect() }))
}

/// Deletes a tenant with its accounts, keys and finished messages. Unsent ones stand against it.
#[utoipa::path(delete, path = "/tenant/{id}", tag = "mail",
    params(("id" = String, Path)),
    responses((status = 200, body = Done), schema::BadInput, schema::NotFound, schema::HasMail,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    Path(id): Path<String>,
) -> Result<Json<Done>, Problem> {
    reach.everything()?;
    let mail = app.mail.clone();
    app.finish_mail(async move { mail.delete_tenant(&id).await }).await?;
    Ok(Json(OK))
}

/// Makes a token that reaches this tenant only. The one before is no longer valid.
#[utoipa::path(post, path = "/tenant/{id}/token", tag = "mail",
    params(("id" = String, Path)),
    responses((status = 201, body = TenantToken), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn new_token(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<TenantToken>), Problem> {
    let tenant_id = reach.one_tenant(Some(id))?;
    let (mail, of) = (app.mail.clone(), tenant_id.clone());
    let token = app.finish_mail(async move { mail.new_tenant_token(&of).await }).await?;
    Ok((StatusCode::CREATED, Json(TenantToken { tenant_id, token })))
}

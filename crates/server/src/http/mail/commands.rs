//! Commands on what is queued, and how the relay stands.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tollgate::parse_duration;
use tollgate_mail::{RelayStatus, Selection};
use utoipa::ToSchema;
use utoipa::openapi::{OpenApi, RefOr, Required};

use super::queries::TenantQuery;
use super::reach::Reach;
use crate::body::parse;
use crate::http::{query, schema};
use crate::problem::Problem;
use crate::state::App;

const DAY: Duration = Duration::from_secs(86_400);

/// Whose messages a command is about.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Chosen {
    /// May be left out with that tenant's token.
    tenant_id: Option<String>,
    /// Only those of this batch.
    batch_code: Option<String>,
    /// Only those of this account.
    account_id: Option<String>,
    /// Only these.
    ids: Option<Vec<String>>,
}

/// A tenant, or one batch of its messages.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Batch {
    /// May be left out with that tenant's token.
    tenant_id: Option<String>,
    /// Only this batch.
    batch_code: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cleanup {
    /// May be left out with that tenant's token; for an admin that is all tenants.
    tenant_id: Option<String>,
    /// Sent or failed longer ago than this, such as `30d`; `7d` if not said.
    older_than: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Commanded {
    ok: bool,
    /// How many messages it was about.
    messages: u64,
}

fn commanded(messages: u64) -> Json<Commanded> {
    Json(Commanded { ok: true, messages })
}

#[derive(Serialize, ToSchema)]
pub(crate) struct MailStatus {
    ok: bool,
    tenants: u64,
    accounts: u64,
    pending: u64,
    deferred: u64,
    suspended: u64,
    /// Totals, since the accounts were made.
    sent: u64,
    errors: u64,
    rate_limited: u64,
}

/// The body is optional where the query may say it instead; `utoipa::path` cannot say so without
/// allowing `null`.
pub(in crate::http) fn say_who_needs_no_body(api: &mut OpenApi) {
    for name in ["run-now", "suspend", "activate", "delete-messages", "cleanup-messages"] {
        let path = api.paths.paths.get_mut(&format!("/commands/{name}"));
        let operation = path.and_then(|path| path.post.as_mut());
        if let Some(RefOr::T(body)) =
            operation.and_then(|operation| operation.request_body.as_mut())
        {
            body.required = Some(Required::False);
        }
    }
}

/// A command without a body may say in its query what it is about.
async fn body_of<T: for<'a> Deserialize<'a>>(
    app: &App,
    request: axum::extract::Request,
) -> Result<T, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = app.large_bodies.read(body, app.batch_body_limits).await?;
    if bytes.trim_ascii().is_empty() {
        return query::read(Query::try_from_uri(&parts.uri));
    }
    if parts.uri.query().is_some() {
        return Err(Problem::bad_request("say it in the body or in the query, not in both"));
    }
    parse(&bytes)
}

/// Tries deferred messages now instead of later. Limits hold all the same.
///
/// Without a tenant, an admin's call is about all of them.
#[utoipa::path(post, path = "/commands/run-now", tag = "mail",
    request_body = Chosen,
    responses((status = 200, body = Commanded), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn run_now(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    request: axum::extract::Request,
) -> Result<Json<Commanded>, Problem> {
    let Chosen { tenant_id, batch_code, account_id, ids } = body_of(&app, request).await?;
    let tenants: Vec<String> = match reach.tenant(tenant_id)? {
        Some(tenant_id) => vec![tenant_id],
        None => {
            let tenants = app.mail.tenants().await.map_err(|error| app.mail_failed(error))?;
            tenants.into_iter().map(|tenant| tenant.id).collect()
        }
    };
    // Names are a tenant's own: another's may be the same, and what is sent stays sent.
    let names_some = batch_code.is_some() || account_id.is_some() || ids.is_some();
    if names_some && tenants.len() > 1 {
        let detail = "tenant_id is required: other tenants may have the same names";
        return Err(Problem::bad_field("tenant_id", detail));
    }
    let mail = app.mail.clone();
    let moved = async move {
        let mut selection = Selection { tenant_id: String::new(), batch_code, account_id, ids };
        let mut moved = 0;
        for tenant_id in tenants {
            selection.tenant_id = tenant_id;
            moved += mail.run_now(&selection).await?;
        }
        Ok(moved)
    };
    app.finish_mail(moved).await.map(commanded)
}

/// Holds a tenant's messages, or one batch of them, also those that are added later.
#[utoipa::path(post, path = "/commands/suspend", tag = "mail",
    request_body = Batch,
    responses((status = 200, body = Commanded), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn suspend(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    request: axum::extract::Request,
) -> Result<Json<Commanded>, Problem> {
    let Batch { tenant_id, batch_code } = body_of(&app, request).await?;
    let tenant_id = reach.one_tenant(tenant_id)?;
    let mail = app.mail.clone();
    let held = async move { mail.suspend(&tenant_id, batch_code.as_deref()).await };
    app.finish_mail(held).await.map(commanded)
}

/// Lets a tenant's messages, or one batch of them, go again.
#[utoipa::path(post, path = "/commands/activate", tag = "mail",
    request_body = Batch,
    responses((status = 200, body = Commanded), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn activate(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    request: axum::extract::Request,
) -> Result<Json<Commanded>, Problem> {
    let Batch { tenant_id, batch_code } = body_of(&app, request).await?;
    let tenant_id = reach.one_tenant(tenant_id)?;
    let mail = app.mail.clone();
    let freed = async move { mail.activate(&tenant_id, batch_code.as_deref()).await };
    app.finish_mail(freed).await.map(commanded)
}

/// Deletes messages, but those being sent at this moment. Quota of unsent ones is given back.
#[utoipa::path(post, path = "/commands/delete-messages", tag = "mail",
    request_body = Chosen,
    responses((status = 200, body = Commanded), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn delete_messages(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    request: axum::extract::Request,
) -> Result<Json<Commanded>, Problem> {
    let Chosen { tenant_id, batch_code, account_id, ids } = body_of(&app, request).await?;
    let tenant_id = reach.one_tenant(tenant_id)?;
    // Everything a tenant has is too much to lose by a field that was forgotten.
    if batch_code.is_none() && account_id.is_none() && ids.is_none() {
        return Err(Problem::bad_field(
            "ids",
            "say which: ids, batch_code or account_id (in commands: ids, --batch or --account)",
        ));
    }
    let selection = Selection { tenant_id, batch_code, account_id, ids };
    let mail = app.mail.clone();
    app.finish_mail(async move { mail.delete_messages(&selection).await }).await.map(commanded)
}

/// Removes messages that were sent, or failed, long ago.
#[utoipa::path(post, path = "/commands/cleanup-messages", tag = "mail",
    request_body = Cleanup,
    responses((status = 200, body = Commanded), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn cleanup_messages(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    request: axum::extract::Request,
) -> Result<Json<Commanded>, Problem> {
    let Cleanup { tenant_id, older_than } = body_of(&app, request).await?;
    let tenant_id = reach.tenant(tenant_id)?;
    let older_than = match older_than {
        None => 7 * DAY,
        Some(text) => {
            let span = parse_duration(&text)
                .map_err(|why| Problem::bad_field("older_than", format!("older_than {why}")))?;
            Duration::from_micros(span.as_micros().unsigned_abs())
        }
    };
    let mail = app.mail.clone();
    let removed = async move { mail.cleanup_messages(tenant_id.as_deref(), older_than).await };
    app.finish_mail(removed).await.map(commanded)
}

/// The relay at a glance: of one tenant, or of all.
#[utoipa::path(get, path = "/status", tag = "mail",
    params(TenantQuery),
    responses((status = 200, body = MailStatus), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn status(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    query: Result<Query<TenantQuery>, QueryRejection>,
) -> Result<Json<MailStatus>, Problem> {
    let tenant_id = reach.tenant(query::read(query)?.tenant_id)?;
    let status = app.mail.status(tenant_id.as_deref()).await;
    let status = status.map_err(|error| app.mail_failed(error))?;
    let RelayStatus { tenants, accounts, sent, errors, rate_limited, pending, deferred, suspended } =
        status;
    Ok(Json(MailStatus {
        ok: true,
        tenants,
        accounts,
        pending,
        deferred,
        suspended,
        sent,
        errors,
        rate_limited,
    }))
}

//! One subject's own maximum.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate::Override;
use utoipa::ToSchema;

use crate::auth::Caller;
use crate::body::{self, parse};
use crate::http::schema;
use crate::http::subject::Subject;
use crate::problem::Problem;
use crate::state::App;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OverrideRequest<'a> {
    policy: String,
    /// The attributes the limit counts by.
    #[serde(borrow)]
    #[schema(value_type = BTreeMap<String, String>)]
    subject: Subject<'a>,
    limit: String,
    max: u64,
}

/// The same body takes it away again; `max` does not matter then.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OverrideName<'a> {
    policy: String,
    #[serde(borrow)]
    #[schema(value_type = BTreeMap<String, String>)]
    subject: Subject<'a>,
    limit: String,
    #[serde(default, rename = "max")]
    _max: Option<u64>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct OverrideInForce {
    policy: String,
    limit: String,
    /// Values of private limits are not shown.
    #[schema(value_type = BTreeMap<String, String>)]
    subject: Value,
    max: u64,
    created_by: String,
    created_at: String,
}

impl OverrideInForce {
    fn of(change: Override) -> Self {
        Self {
            policy: change.policy,
            limit: change.limit,
            subject: serde_json::from_str(&change.subject).unwrap_or(Value::Null),
            max: change.max,
            created_by: change.created_by,
            created_at: change.created_at.to_string(),
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct OverrideList {
    overrides: Vec<OverrideInForce>,
}

/// The overrides in force.
#[utoipa::path(get, path = "/admin/overrides", tag = "policies",
    responses((status = 200, body = OverrideList), schema::BadInput, schema::NoAccess))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<OverrideList> {
    let overrides = app.gate.overrides().into_iter().map(OverrideInForce::of).collect();
    Json(OverrideList { overrides })
}

/// Gives one subject its own maximum in one limit.
#[utoipa::path(put, path = "/admin/overrides", tag = "policies",
    request_body = OverrideRequest,
    responses((status = 200, body = OverrideInForce), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn put(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: axum::extract::Request,
) -> Result<Json<OverrideInForce>, Problem> {
    let bytes = body::read(request.into_body(), app.body_limits).await?;
    let request: OverrideRequest<'_> = parse(&bytes)?;
    let (gate, subject) = (app.gate.clone(), request.subject.into_owned());
    let (policy, limit, max) = (request.policy, request.limit, request.max);
    let change = async move {
        gate.put_override(&policy, &limit, &pairs(&subject), max, &caller.name).await
    };
    Ok(Json(OverrideInForce::of(app.finish(change).await?)))
}

/// Takes an override away.
#[utoipa::path(delete, path = "/admin/overrides", tag = "policies",
    request_body = OverrideName,
    responses((status = 200, body = schema::Deleted), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    request: axum::extract::Request,
) -> Result<Json<schema::Deleted>, Problem> {
    let bytes = body::read(request.into_body(), app.body_limits).await?;
    let request: OverrideName<'_> = parse(&bytes)?;
    let (gate, subject) = (app.gate.clone(), request.subject.into_owned());
    let (policy, limit) = (request.policy, request.limit);
    let removal = async move { gate.delete_override(&policy, &limit, &pairs(&subject)).await };
    if app.finish(removal).await? {
        Ok(Json(schema::Deleted { deleted: true }))
    } else {
        Err(Problem::not_found("this subject has no override in this limit"))
    }
}

fn pairs(subject: &[(String, String)]) -> Vec<(&str, &str)> {
    subject.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

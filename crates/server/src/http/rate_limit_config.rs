//! The seed's own way to set a policy of one limit: `/admin/rate-limit/config`.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tollgate::core::schedule::{BadPlan, Plan};
use tollgate::{Compiled, Policy, parse_duration};
use utoipa::ToSchema;

use crate::auth::Caller;
use crate::body::{self, parse};
use crate::http::{query, schema};
use crate::problem::Problem;
use crate::state::App;

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ConfigRequest {
    config_name: String,
    max_per_window: u64,
    /// An ISO-8601 or friendly duration.
    #[schema(example = "PT4S")]
    window_size: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    config_name: String,
    max_per_window: u64,
    window_size: String,
    version: u64,
    effective_from: String,
}

impl Config {
    /// `None` if the policy is not one limit that counts everybody together.
    fn of(compiled: &Compiled) -> Option<Self> {
        let [limit] = compiled.policy().limits() else { return None };
        let window_size = compiled.policy().document().pointer("/limits/0/per")?.as_str()?;
        limit.by.is_empty().then(|| Self {
            config_name: compiled.policy().name().to_owned(),
            max_per_window: limit.max,
            window_size: window_size.to_owned(),
            version: compiled.version(),
            effective_from: compiled.effective_from().to_string(),
        })
    }
}

/// Sets how many per window: the policy's limits become this one, which counts everybody together. Its schedule, its routes and
/// everything else it says stays as it is.
#[utoipa::path(post, path = "/admin/rate-limit/config", tag = "policies",
    request_body = ConfigRequest,
    responses(
        (status = 201, body = Config),
        schema::BadInput, schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn post(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: axum::extract::Request,
) -> Result<(StatusCode, Json<Config>), Problem> {
    let bytes = body::read(request.into_body(), app.body_limits).await?;
    let request: ConfigRequest = parse(&bytes)?;
    check(&request)?;
    let ConfigRequest { config_name, max_per_window, window_size } = request;
    let (gate, per) = (app.gate.clone(), window_size.clone());
    let change =
        async move { gate.set_window(&config_name, max_per_window, &per, &caller.name).await };
    let policy = app.finish(change).await?;
    let config = Config::of(&policy).expect("its limits have become one, without attributes");
    // In the caller's words, also where others were in force already.
    Ok((StatusCode::CREATED, Json(Config { window_size, ..config })))
}

/// Such a config must be one that events can be scheduled by, also when it is not used for that.
fn check(request: &ConfigRequest) -> Result<(), Problem> {
    let ConfigRequest { config_name, max_per_window, window_size } = request;
    let bad = |field: &str, why: &str| Problem::bad_field(field, format!("{field}: {why}"));
    let per = parse_duration(window_size).map_err(|why| bad("windowSize", &why))?;
    Plan::new(per, *max_per_window).map_err(|why| match why {
        BadPlan::PerTooLong => bad("windowSize", "is too long"),
        BadPlan::NoPlaces => bad("maxPerWindow", "must be at least 1"),
        BadPlan::MaxAbovePer => {
            bad("maxPerWindow", "must be at most 1 for each microsecond of windowSize")
        }
        other => bad("maxPerWindow", &other.to_string()),
    })?;
    let limit = json!({ "name": "window", "max": max_per_window, "per": window_size });
    Policy::from_json(config_name, json!({ "limits": [limit] }))
        .map_err(|invalid| Problem::bad_policy(&invalid).field(seed_field(&invalid)))?;
    Ok(())
}

/// The field of this call that a policy's first fault came from.
fn seed_field(invalid: &tollgate::InvalidPolicy) -> &'static str {
    match invalid.faults.first().map(|fault| fault.place.as_str()) {
        Some("limits[0].max") => "maxPerWindow",
        Some("limits[0].per") => "windowSize",
        _ => "configName",
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigName {
    #[serde(default = "default_name")]
    name: String,
}

fn default_name() -> String {
    "default".into()
}

/// How many per window are in force.
#[utoipa::path(get, path = "/admin/rate-limit/config", tag = "policies",
    params(("name" = Option<String>, Query, description = "Defaults to `default`")),
    responses((status = 200, body = Config), schema::BadInput, schema::NotFound, schema::NoAccess))]
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    query: Result<Query<ConfigName>, QueryRejection>,
) -> Result<Json<Config>, Problem> {
    let query = query::read(query)?;
    let policy = app.gate.policy(&query.name).map_err(|error| app.failed(error))?;
    Config::of(&policy).map(Json).ok_or_else(|| {
        Problem::not_found(format!(
            "policy {:?} has several limits or counts by attributes; see /admin/policies/{0}",
            query.name
        ))
    })
}

/// Reads everything in force from the store again.
#[utoipa::path(post, path = "/admin/rate-limit/cache/flush", tag = "policies",
    responses((status = 200, body = schema::Status), schema::BadInput, schema::StoreDown, schema::NoAccess))]
pub(crate) async fn flush(State(app): State<Arc<App>>) -> Result<Json<schema::Status>, Problem> {
    app.gate.reload().await.map_err(|error| app.failed(error))?;
    Ok(Json(schema::Status { status: "cache flushed" }))
}

//! The seed's own way to set a policy of one limit: `/admin/rate-limit/config`.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tollgate::{Compiled, Policy, parse_duration};
use utoipa::ToSchema;

use crate::auth::Caller;
use crate::body::{self, parse};
use crate::http::schema;
use crate::problem::Problem;
use crate::state::App;

/// The name of the one limit such a policy has.
const LIMIT_NAME: &str = "window";

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

/// Sets how many per window. Keeps the policy's schedule.
#[utoipa::path(post, path = "/admin/rate-limit/config", tag = "policies",
    request_body = ConfigRequest,
    responses((status = 201, body = Config), schema::BadInput, schema::StoreDown, schema::NoAccess,
        schema::TooLarge))]
pub(crate) async fn post(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: axum::extract::Request,
) -> Result<(StatusCode, Json<Config>), Problem> {
    let bytes = body::read(request.into_body(), app.body_limits).await?;
    let request: ConfigRequest = parse(&bytes)?;
    parse_duration(&request.window_size)
        .map_err(|message| Problem::bad_field("windowSize", message))?;
    let limit =
        json!({ "name": LIMIT_NAME, "max": request.max_per_window, "per": request.window_size });
    let mut document = Map::from_iter([("limits".to_owned(), json!([limit]))]);
    let schedule = app.gate.policy(&request.config_name).ok();
    let schedule = schedule.and_then(|before| before.policy().document().get("schedule").cloned());
    document.extend(schedule.map(|schedule| ("schedule".to_owned(), schedule)));
    let policy = Policy::from_json(&request.config_name, Value::Object(document))
        .map_err(|invalid| Problem::bad_policy(&invalid).field(seed_field(&invalid)))?;
    let gate = app.gate.clone();
    let applied = app.finish(async move { gate.apply(&policy, &caller.name).await }).await?;
    let config = Config::of(&applied.policy).expect("just made of one limit");
    Ok((StatusCode::CREATED, Json(config)))
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
    responses((status = 200, body = Config), schema::NotFound, schema::NoAccess))]
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    query: Result<Query<ConfigName>, QueryRejection>,
) -> Result<Json<Config>, Problem> {
    let Query(query) = query.map_err(|rejection| bad_query(&rejection))?;
    let policy = app.gate.policy(&query.name)?;
    Config::of(&policy).map(Json).ok_or_else(|| {
        Problem::not_found(format!(
            "policy {:?} has several limits or counts by attributes; see /admin/policies/{0}",
            query.name
        ))
    })
}

/// Names the parameter at fault, which stands between backticks.
fn bad_query(rejection: &QueryRejection) -> Problem {
    let text = rejection.body_text();
    match text.split('`').nth(1) {
        Some(parameter) => Problem::bad_field(parameter, text.clone()),
        None => Problem::bad_request(text),
    }
}

/// Reads everything in force from the store again.
#[utoipa::path(post, path = "/admin/rate-limit/cache/flush", tag = "policies",
    responses((status = 200, body = schema::Status), schema::StoreDown, schema::NoAccess))]
pub(crate) async fn flush(State(app): State<Arc<App>>) -> Result<Json<schema::Status>, Problem> {
    app.gate.reload().await.map_err(|error| app.failed(error))?;
    Ok(Json(schema::Status { status: "cache flushed" }))
}

//! Health, metrics and the description of this interface.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::http::schema;
use crate::problem::Problem;
use crate::state::App;

/// The process is alive.
#[utoipa::path(get, path = "/healthz", tag = "system",
    responses((status = 200, body = schema::Status)))]
pub(crate) async fn healthz() -> Json<schema::Status> {
    Json(schema::Status { status: "ok" })
}

/// The store answers.
#[utoipa::path(get, path = "/readyz", tag = "system",
    responses((status = 200, body = schema::Status), schema::StoreDown))]
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Result<Json<schema::Status>, Problem> {
    app.gate.ping().await.map_err(|error| app.failed(error))?;
    Ok(Json(schema::Status { status: "ready" }))
}

/// Prometheus metrics.
#[utoipa::path(get, path = "/metrics", tag = "system",
    responses((status = 200, body = String,
        content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8")))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], app.metrics.text())
}

//! Health, metrics and the description of this interface.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::http::schema;
use crate::problem::Problem;
use crate::state::App;

/// Scrapers give up after ten seconds, as a rule.
const COUNTING_TIME: Duration = Duration::from_secs(5);

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
    app.mail.ping().await.map_err(|error| app.mail_failed(error))?;
    Ok(Json(schema::Status { status: "ready" }))
}

/// Prometheus metrics.
#[utoipa::path(get, path = "/metrics", tag = "system",
    responses((status = 200, body = String,
        content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8")))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let counts = match tokio::time::timeout(COUNTING_TIME, app.mail.counts()).await {
        Ok(Ok(counts)) => counts,
        // The rest is worth having without them.
        failed => {
            tracing::warn!(?failed, "the mail relay's counts could not be read");
            app.metrics.store_error();
            Vec::new()
        }
    };
    ([(header::CONTENT_TYPE, content_type)], app.metrics.text(&app.gate.policies(), counts))
}

//! Health, metrics and the description of this interface.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;

use crate::http::schema;
use crate::metrics::Format;
use crate::problem::Problem;
use crate::state::App;

/// Scrapers give up after some seconds, and most of what they want is known without the store.
const COUNTING_TIME: Duration = Duration::from_secs(1);

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
    responses((status = 200, content(
        (String = "text/plain; version=0.0.4; charset=utf-8"),
        (String = "application/openmetrics-text; version=1.0.0; charset=utf-8")))))]
pub(crate) async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> impl IntoResponse {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::wanted(&accepted.collect::<Vec<_>>().join(","));
    let counts = tokio::time::timeout(COUNTING_TIME, app.mail.counts()).await;
    let counts = counts.map(|counts| counts.map_err(|error| error.to_string()));
    let late = || Err("the store did not answer in time".to_owned());
    let counts = counts.unwrap_or_else(|_| late()).unwrap_or_else(|why| {
        // The rest is worth having without them.
        tracing::warn!(why, "the mail relay's counts could not be read");
        app.metrics.store_error();
        Vec::new()
    });
    let text = app.metrics.text(format, &app.gate.policies(), counts);
    ([(header::CONTENT_TYPE, format.content_type())], text)
}

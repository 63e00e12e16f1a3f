//! Health, metrics and the description of this interface.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use tokio::sync::Mutex;

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

/// Lets all who ask whether the store answers share one question to it: anybody may ask, and as often
/// as they like.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<(Instant, Result<(), Problem>)>>);

impl Readiness {
    /// An answer that came after the caller did is the caller's, too.
    async fn ask(&self, ping: impl Future<Output = Result<(), Problem>>) -> Result<(), Problem> {
        let came = Instant::now();
        let mut last = self.0.lock().await;
        if let Some((answered, found)) = &*last
            && *answered >= came
        {
            return found.clone();
        }
        let found = ping.await;
        *last = Some((Instant::now(), found.clone()));
        found
    }
}

/// The store answers.
#[utoipa::path(get, path = "/readyz", tag = "system",
    responses((status = 200, body = schema::Status), schema::StoreDown))]
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Result<Json<schema::Status>, Problem> {
    let ping = async {
        app.gate.ping().await.map_err(|error| app.failed(error))?;
        app.mail.ping().await.map_err(|error| app.mail_failed(error))
    };
    app.readiness.ask(ping).await?;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use axum::http::StatusCode;
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_asks_while_another_is_answered_shares_the_next_answer_and_never_an_older_one() {
        let (readiness, pings) = (Arc::new(Readiness::default()), Arc::new(AtomicU32::new(0)));
        let ask = |found| {
            let (readiness, pings) = (readiness.clone(), pings.clone());
            async move {
                let ping = async {
                    pings.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    found
                };
                readiness.ask(ping).await
            }
        };
        let asking: JoinSet<_> = (0..100).map(|_| ask(Ok(()))).collect();
        assert!(asking.join_all().await.iter().all(Result::is_ok));
        assert_eq!(pings.load(Ordering::Relaxed), 1, "all of them came before the first answer");
        let down = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "urn:tollgate:store-down", "down");
        assert!(ask(Err(down)).await.is_err(), "what was true before is no answer");
        assert!(ask(Ok(())).await.is_ok());
        assert_eq!(pings.load(Ordering::Relaxed), 3);
    }
}

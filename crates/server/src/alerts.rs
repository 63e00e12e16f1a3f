//! Alerts about refusals: rules from the configuration, collected every few seconds, listed, counted,
//! and sent to a webhook. Checks wait for nothing here.

pub(crate) mod settings;
mod webhook;

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::task::JoinHandle;
use tollgate::{Alert, Tollgate};

use crate::exit::Failure;
use crate::http::AlertDocument;
use settings::AlertSettings;
use webhook::Webhook;

/// Between two collections. Lists collect before they answer, so this delays alerts only.
const BETWEEN_COLLECTIONS: Duration = Duration::from_secs(2);

/// For what is left to do when the server stops.
const LAST_MOMENT: Duration = Duration::from_secs(2);

/// What is counted about alerts.
#[derive(Clone, Debug, Default)]
pub(crate) struct AlertCounters {
    pub(crate) raised: Counter,
    /// Attempts that the webhook took, and that it did not.
    pub(crate) deliveries: Counter,
    pub(crate) failures: Counter,
    /// Alerts that the webhook never took: given up, or pushed out of a full queue.
    pub(crate) undelivered: Counter,
}

/// Watches refusals until it is stopped.
pub(crate) struct Watching {
    gate: Tollgate,
    collector: JoinHandle<()>,
    webhook: Option<Arc<Webhook>>,
}

impl Watching {
    pub(crate) fn start(
        gate: &Tollgate,
        settings: &AlertSettings,
        counters: &AlertCounters,
    ) -> Result<Self, Failure> {
        let webhook = settings
            .webhook
            .as_ref()
            .map(|target| Webhook::start(target.clone(), counters.clone()))
            .transpose()
            .map_err(|error| Failure::unreachable(format!("no thread for alerts: {error}")))?
            .map(Arc::new);
        let (sender, raised) = (webhook.clone(), counters.raised.clone());
        let on_alert = move |alert: &Alert| {
            raised.inc();
            tracing::warn!(
                rule = alert.rule,
                policy = alert.policy,
                limit = alert.limit.as_deref().unwrap_or_default(),
                refused = alert.refused,
                id = alert.id,
                "alert: see GET /admin/alerts"
            );
            if let Some(webhook) = &sender {
                webhook.send(&AlertDocument::of(alert));
            }
        };
        if settings.watch {
            gate.watch_refusals(settings.rules.clone(), on_alert);
        }
        let collector = tokio::spawn(collect(gate.clone()));
        Ok(Self { gate: gate.clone(), collector, webhook })
    }

    /// Collects what is left, and gives the webhook a moment for what it was not told yet.
    pub(crate) async fn stop(self) {
        self.collector.abort();
        let last = tokio::time::timeout(LAST_MOMENT, self.gate.collect_refusals()).await;
        if !matches!(last, Ok(Ok(()))) {
            tracing::warn!("the last refusals were not collected: the store does not answer");
        }
        if let Some(webhook) = self.webhook {
            webhook.stop().await;
        }
    }
}

async fn collect(gate: Tollgate) {
    let mut failing = false;
    loop {
        tokio::time::sleep(BETWEEN_COLLECTIONS).await;
        match gate.collect_refusals().await {
            Ok(()) => failing = false,
            // Kept until the store is back; once is enough to say so.
            Err(error) if !failing => {
                failing = true;
                tracing::warn!(%error, "refusals wait for the store");
            }
            Err(_) => {}
        }
    }
}

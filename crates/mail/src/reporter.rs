//! Tells tenants what became of their messages: POSTs of up to a hundred reports, signed, until
//! they are taken. At least once: a report whose answer was lost is sent again.
//!
//! One POST at a time per tenant, over all instances (a lease), each on a thread of its own, so a
//! tenant that hangs delays nobody else. Redirects are not followed.

mod webhook;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;
use tollgate::Instant;

use crate::dispatcher::{after, growing};
use crate::error::MailError;
use crate::mail::Inner;
use crate::model::ReportBatch;

const BATCH: u32 = 100;
/// Tenants reported to at once.
const PARALLEL: usize = 64;
/// Lets reports gather, so that not each becomes a POST.
const GATHER: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(3600);
/// What a POST under way may take when the relay stops. What is given up is sent again.
const STOP_LIMIT: Duration = Duration::from_secs(5);

pub(crate) struct Reporter {
    pub(crate) inner: Arc<Inner>,
    /// Something became final.
    pub(crate) reported: Arc<Notify>,
    pub(crate) stop: watch::Receiver<bool>,
}

impl Reporter {
    pub(crate) async fn run(mut self) {
        let mut posts = JoinSet::new();
        loop {
            if let Err(error) = self.send_due(&mut posts).await {
                tracing::warn!(%error, "delivery reports cannot be read; trying again");
            }
            // Due later on the gate's clock, which need not run at the pace of ours; or of
            // another instance that died.
            let poll = self.inner.settings.poll_interval;
            tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => break,
                Some(_) = posts.join_next() => {}
                () = gathered(&self.reported) => {}
                () = tokio::time::sleep(poll) => {}
            }
        }
        let ending = async { while posts.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(STOP_LIMIT, ending).await;
    }

    /// Starts a POST for each tenant that has reports due.
    async fn send_due(&self, posts: &mut JoinSet<()>) -> Result<(), MailError> {
        let inner = &self.inner;
        while posts.len() < PARALLEL {
            let now = inner.gate.now();
            if inner.queue.reports_due_at().await?.is_none_or(|at| at > now) {
                return Ok(());
            }
            // Longer than any POST, so that nobody else sends the same ones meanwhile.
            let until = after(now, inner.settings.report_timeout * 2);
            let Some(batch) = inner.claim_reports(now, until, BATCH).await? else { return Ok(()) };
            posts.spawn(send(inner.clone(), batch));
        }
        Ok(())
    }
}

async fn gathered(reported: &Notify) {
    reported.notified().await;
    tokio::time::sleep(GATHER).await;
}

/// POSTs one batch and notes whether it was taken.
async fn send(inner: Arc<Inner>, batch: ReportBatch) {
    let now = inner.gate.now();
    let body = webhook::body(&batch);
    let post = webhook::Post {
        url: batch.url.clone(),
        signature: webhook::signature(&batch.secret, unix_secs(now), &body),
        body,
        timeout: inner.settings.report_timeout,
    };
    let taken = on_a_thread(post).await;
    let tenant_id = batch.tenant_id.as_str();
    let noted = match taken {
        Ok(()) => {
            tracing::info!(tenant_id, reports = batch.reports.len(), "reported");
            let now = inner.gate.now();
            inner.queue.reports_done(tenant_id, &inner.instance, &batch.reports, now).await
        }
        Err(reason) => {
            let failures = batch.failures.saturating_add(1);
            let delay = growing(inner.settings.report_retry_base, LONGEST_DELAY, failures);
            let wait_secs = delay.as_secs();
            tracing::warn!(tenant_id, reason, failures, wait_secs, "reports were not taken");
            let retry_at = after(inner.gate.now(), delay);
            inner.queue.reports_failed(tenant_id, &inner.instance, retry_at).await
        }
    };
    if let Err(error) = noted {
        tracing::warn!(%error, tenant_id, "reports will be sent again");
    }
}

/// Not one of the runtime's: that would wait for it at its end.
async fn on_a_thread(post: webhook::Post) -> Result<(), String> {
    let (answer, answered) = oneshot::channel();
    std::thread::Builder::new()
        .name("mail-report".into())
        .spawn(move || answer.send(post.send()))
        .map_err(|error| format!("no thread to send it with: {error}"))?;
    answered.await.unwrap_or_else(|_| Err("the request was cut short".into()))
}

fn unix_secs(at: Instant) -> i64 {
    at.as_micros().div_euclid(1_000_000)
}

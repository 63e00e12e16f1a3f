//! Sends alerts to a webhook, from a thread of its own.
//!
//! What cannot be sent is tried again, later and later, so many times. The queue is bounded: the
//! oldest alert gives way. Deliberately absent: a memory of what was not sent beyond this process.

use std::collections::VecDeque;
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::settings::{Secret, Target};
use super::{AlertCounters, LAST_MOMENT};
use crate::http::AlertDocument;

const MAX_WAITING: usize = 1_000;
/// Doubled after every failure, up to the longest; a quarter more or less by chance.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(60);

pub(crate) struct Webhook {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
}

struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    counters: AlertCounters,
}

#[derive(Default)]
struct Waiting {
    /// Oldest first.
    deliveries: VecDeque<Delivery>,
    stopping: bool,
}

struct Delivery {
    id: u64,
    body: String,
    failures: usize,
    due: Instant,
}

impl Webhook {
    pub(crate) fn start(target: Target, counters: AlertCounters) -> io::Result<Self> {
        let (waiting, changed) = (Mutex::default(), Condvar::new());
        let queue = Arc::new(Queue { waiting, changed, counters });
        let theirs = queue.clone();
        let thread = std::thread::Builder::new()
            .name("alerts".into())
            .spawn(move || deliver_all(&theirs, &target))?;
        Ok(Self { queue, thread })
    }

    /// Leaves an alert to be sent; never waits for the webhook.
    pub(crate) fn send(&self, alert: &AlertDocument) {
        let body = serde_json::to_string(alert).expect("an alert can be written");
        self.queue.put(Delivery { id: alert.id(), body, failures: 0, due: Instant::now() });
    }

    /// Lets what waits be tried once more, for a moment.
    pub(crate) async fn stop(&self) {
        self.queue.lock().stopping = true;
        self.queue.changed.notify_one();
        let by = Instant::now() + LAST_MOMENT;
        while !self.thread.is_finished() && Instant::now() < by {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let left = self.queue.lock().deliveries.len();
        if left > 0 {
            tracing::warn!(left, "alerts that the webhook was not told");
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, delivery: Delivery) {
        let mut waiting = self.lock();
        let place = waiting.deliveries.partition_point(|other| other.id < delivery.id);
        waiting.deliveries.insert(place, delivery);
        if waiting.deliveries.len() > MAX_WAITING {
            waiting.deliveries.pop_front();
            self.counters.undelivered.inc();
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// The oldest that is due; waits for one. `None`: all is done, and the server stops.
    fn next(&self) -> Option<Delivery> {
        let mut waiting = self.lock();
        loop {
            let now = Instant::now();
            let stopping = waiting.stopping;
            let is_due = |delivery: &Delivery| stopping || delivery.due <= now;
            if let Some(position) = waiting.deliveries.iter().position(is_due) {
                return waiting.deliveries.remove(position);
            }
            if stopping {
                return None;
            }
            let soonest = waiting.deliveries.iter().map(|delivery| delivery.due).min();
            waiting = match soonest {
                Some(due) => {
                    let waited = self.changed.wait_timeout(waiting, due - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

fn deliver_all(queue: &Queue, target: &Target) {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(target.timeout))
        // What was signed for one place is for that place.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
        .build()
        .into();
    while let Some(mut delivery) = queue.next() {
        let why = match attempt(&agent, target, &delivery.body) {
            Ok(()) => {
                queue.counters.deliveries.inc();
                continue;
            }
            Err(why) => why,
        };
        queue.counters.failures.inc();
        delivery.failures += 1;
        let (id, failures) = (delivery.id, delivery.failures);
        if failures >= target.attempts || queue.lock().stopping {
            queue.counters.undelivered.inc();
            tracing::warn!(id, failures, why, "the webhook did not take an alert; given up");
        } else {
            tracing::info!(id, failures, why, "the webhook did not take an alert; tried again");
            delivery.due = Instant::now() + delay(failures, by_chance());
            queue.put(delivery);
        }
    }
}

/// One try. The reason why not never holds the URL, which may hold a password.
fn attempt(agent: &ureq::Agent, target: &Target, body: &str) -> Result<(), String> {
    let mut request = agent.post(&target.url).header("content-type", "application/json");
    if let Some(secret) = &target.secret {
        let signature = signature(secret, jiff::Timestamp::now().as_second(), body);
        request = request.header("x-tollgate-signature", signature);
    }
    match request.send(body) {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => Err(format!("status {}", answer.status().as_u16())),
        Err(ureq::Error::BadUri(_)) => Err("the URL cannot be used".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// `t=UNIX,v1=HEX`: an HMAC-SHA256 of the time, a dot and the body.
fn signature(Secret(secret): &Secret, unix_secs: i64, body: &str) -> String {
    let mut mac: Hmac<Sha256> =
        Hmac::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(format!("{unix_secs}.{body}").as_bytes());
    let mut text = format!("t={unix_secs},v1=");
    for byte in mac.finalize().into_bytes() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// How long to wait after so many failures; `chance` spreads it.
fn delay(failures: usize, chance: u64) -> Duration {
    let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    let plain = FIRST_DELAY.saturating_mul(1 << doublings).min(LONGEST_DELAY);
    // From 75 to 125 hundredths.
    let hundredths = u32::try_from(75 + chance % 51).unwrap_or(100);
    plain * hundredths / 100
}

fn by_chance() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_what_anybody_can_compute() {
        // printf '1700000000.{"id":1}' | openssl dgst -sha256 -hmac whsec
        let secret = Secret("whsec".into());
        let expected =
            "t=1700000000,v1=e79220cb981f992adbc8b93ac6d46028b0217ea19327d27dc9d18bf334403bde";
        assert_eq!(signature(&secret, 1_700_000_000, r#"{"id":1}"#), expected);
    }

    #[test]
    fn a_full_queue_drops_the_oldest_and_counts_it() {
        let counters = AlertCounters::default();
        let (waiting, changed) = (Mutex::default(), Condvar::new());
        let queue = Queue { waiting, changed, counters: counters.clone() };
        let due = Instant::now();
        let delivery = |id| Delivery { id, body: String::new(), failures: 0, due };
        for id in (1..=MAX_WAITING as u64 + 3).rev() {
            queue.put(delivery(id));
        }
        assert_eq!((queue.lock().deliveries.len(), counters.undelivered.get()), (MAX_WAITING, 3));
        assert_eq!(queue.next().map(|delivery| delivery.id), Some(4));
        queue.lock().deliveries.clear();
        queue.lock().stopping = true;
        assert!(queue.next().is_none());
    }

    #[test]
    fn delays_grow_to_a_bound_and_are_spread() {
        let seconds = |failures, chance| delay(failures, chance).as_millis();
        assert_eq!((seconds(1, 25), seconds(2, 25), seconds(3, 25)), (1_000, 2_000, 4_000));
        assert_eq!((seconds(1, 0), seconds(1, 50), seconds(1, 51)), (750, 1_250, 750));
        assert_eq!(seconds(7, 25), 60_000);
        assert_eq!(seconds(usize::MAX, 50), 75_000);
    }
}

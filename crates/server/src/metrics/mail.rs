//! The mail relay's metrics, by tenant and account. Their names are the ones its users know.
//!
//! They are read from the queue when asked for, so every server of one database says the same, and
//! an account is there at zero from the moment it is made.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tollgate_mail::Counts;

/// A name, what it says, and the number of one account.
type Metric = (&'static str, &'static str, fn(&Counts) -> u64);

/// Encoded with `_total` behind them, as counters are.
const COUNTERS: [Metric; 3] = [
    ("sent", "Messages sent", |counts| counts.sent),
    ("errors", "Messages that ended in error", |counts| counts.errors),
    ("rate_limited", "Times a limit of the account was reached", |counts| counts.rate_limited),
];

const GAUGES: [Metric; 2] = [
    ("deferred_total", "Messages that wait for an instant to come", |counts| counts.deferred),
    ("pending_messages", "Messages that wait or are being sent", |counts| counts.pending),
];

pub(super) fn registry(counts: Vec<Counts>) -> Registry {
    let mut registry = Registry::with_prefix("gmp");
    registry.register_collector(Box::new(MailCollector(counts)));
    registry
}

#[derive(Debug)]
struct MailCollector(Vec<Counts>);

impl Collector for MailCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        for (name, help, number) in COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for counts in &self.0 {
                ConstCounter::new(number(counts)).encode(metric.encode_family(&labels(counts))?)?;
            }
        }
        for (name, help, number) in GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for counts in &self.0 {
                let number = i64::try_from(number(counts)).unwrap_or(i64::MAX);
                ConstGauge::new(number).encode(metric.encode_family(&labels(counts))?)?;
            }
        }
        Ok(())
    }
}

fn labels(counts: &Counts) -> [(&'static str, &str); 2] {
    [("tenant_id", &counts.tenant_id), ("account_id", &counts.account_id)]
}

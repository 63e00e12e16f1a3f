//! Prometheus metrics. No label ever carries a subject.

mod mail;
mod plain;

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder,
    NoLabelSet,
};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tollgate::{Answer, BATCH_SIZE_BOUNDS, Compiled, Outcome, Slot, Tollgate};
use tollgate_mail::Counts;

use crate::alerts::AlertCounters;

/// From a microsecond in memory to a store that hangs.
const DECISION_SECONDS_BOUNDS: [f64; 12] =
    [1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0];

/// From at once to a horizon of a year.
const SLOT_DELAY_SECONDS_BOUNDS: [f64; 13] = [
    0.001,
    0.01,
    0.1,
    1.0,
    10.0,
    60.0,
    600.0,
    3_600.0,
    21_600.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    31_536_000.0,
];

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    decision_seconds: Histogram,
    store_errors: Counter,
    slots: Family<SlotLabels, Counter>,
    slot_delay_seconds: Histogram,
    pub(crate) alerts: AlertCounters,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    policy: PolicyName,
    outcome: OutcomeLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SlotLabels {
    policy: PolicyName,
    outcome: SlotOutcome,
}

/// What an event that asked for a slot was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SlotOutcome {
    Given,
    /// Its slot from before.
    Repeated,
    Differs,
    Cancelled,
    HorizonFull,
    TooOld,
}

impl EncodeLabelValue for SlotOutcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        let text = match self {
            Self::Given => "given",
            Self::Repeated => "repeated",
            Self::Differs => "differs",
            Self::Cancelled => "cancelled",
            Self::HorizonFull => "horizon_full",
            Self::TooOld => "too_old",
        };
        text.encode(encoder)
    }
}

/// Shared with the policy instead of copied for every decision. A counter never goes away, so it
/// keeps the name alone: the policy itself may hold many overrides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PolicyName(Arc<str>);

impl PolicyName {
    fn of(policy: &Compiled) -> Self {
        Self(policy.policy().shared_name().clone())
    }
}

impl EncodeLabelValue for PolicyName {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        (&*self.0).encode(encoder)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OutcomeLabel {
    Allowed,
    Refused,
    NeverFits,
}

impl EncodeLabelValue for OutcomeLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        let text = match self {
            Self::Allowed => "allowed",
            Self::Refused => "refused",
            Self::NeverFits => "never_fits",
        };
        text.encode(encoder)
    }
}

impl Metrics {
    pub(crate) fn new(gate: Tollgate) -> Self {
        let mut registry = Registry::with_prefix("tollgate");
        let decisions = Family::default();
        registry.register("decisions", "Checks decided", decisions.clone());
        let decision_seconds = Histogram::new(DECISION_SECONDS_BOUNDS);
        registry.register_with_unit(
            "decision",
            "Time to decide a check",
            Unit::Seconds,
            decision_seconds.clone(),
        );
        let store_errors = Counter::default();
        registry.register("store_errors", "Calls the store could not answer", store_errors.clone());
        let slots = Family::default();
        registry.register("slots", "Events that asked for a slot", slots.clone());
        let slot_delay_seconds = Histogram::new(SLOT_DELAY_SECONDS_BOUNDS);
        registry.register_with_unit(
            "slot_delay",
            "From the time an event asked for to the time it was given",
            Unit::Seconds,
            slot_delay_seconds.clone(),
        );
        let alerts = register_alerts(&mut registry);
        registry.register_collector(Box::new(StoreCollector(gate)));
        Self {
            registry,
            decisions,
            decision_seconds,
            store_errors,
            slots,
            slot_delay_seconds,
            alerts,
        }
    }

    pub(crate) fn decided(&self, answer: &Answer, took: Duration) {
        let outcome = match answer.decision.outcome {
            Outcome::Allowed => OutcomeLabel::Allowed,
            Outcome::Refused { .. } => OutcomeLabel::Refused,
            Outcome::NeverFits => OutcomeLabel::NeverFits,
        };
        let labels = DecisionLabels { policy: PolicyName::of(&answer.policy), outcome };
        self.decisions.get_or_create(&labels).inc();
        if answer.degraded.is_some() {
            self.store_errors.inc();
        }
        self.decision_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn slot_asked(&self, policy: &Arc<Compiled>, outcome: SlotOutcome) {
        let labels = SlotLabels { policy: PolicyName::of(policy), outcome };
        self.slots.get_or_create(&labels).inc();
    }

    pub(crate) fn slot_given(&self, slot: &Slot) {
        let delay_micros = slot.scheduled_at.micros_since(slot.requested_at).unsigned_abs();
        self.slot_delay_seconds.observe(Duration::from_micros(delay_micros).as_secs_f64());
    }

    pub(crate) fn store_error(&self) {
        self.store_errors.inc();
    }

    /// A policy in force has its series before anybody asked it: the first refusal is then a rise
    /// from 0, not a series out of nothing.
    fn begin_at_zero(&self, policy: &Arc<Compiled>) {
        for outcome in [OutcomeLabel::Allowed, OutcomeLabel::Refused] {
            let labels = DecisionLabels { policy: PolicyName::of(policy), outcome };
            drop(self.decisions.get_or_create(&labels));
        }
        if policy.plan().is_ok() {
            let outcome = SlotOutcome::Given;
            let labels = SlotLabels { policy: PolicyName::of(policy), outcome };
            drop(self.slots.get_or_create(&labels));
        }
    }

    /// Everything there is to count, and the mail relay's counts as they were read now.
    pub(crate) fn text(
        &self,
        format: Format,
        policies: &[Arc<Compiled>],
        mail: Vec<Counts>,
    ) -> String {
        policies.iter().for_each(|policy| self.begin_at_zero(policy));
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &mail::registry(mail)))
            .and_then(|()| encode_eof(&mut text))
            .expect("writing to memory does not fail");
        match format {
            Format::OpenMetrics => text,
            Format::Plain => plain::plain(&text),
        }
    }
}

/// How metrics are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    OpenMetrics,
    Plain,
}

impl Format {
    /// What somebody wants who accepts this. Only who asks for OpenMetrics is sure to know it.
    pub(crate) fn wanted(accept: &str) -> Self {
        let mut kinds = accept.split(',').map(|kind| kind.split(';').next().unwrap_or(kind).trim());
        let is_known = kinds.any(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text"));
        if is_known { Self::OpenMetrics } else { Self::Plain }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

fn register_alerts(registry: &mut Registry) -> AlertCounters {
    let alerts = AlertCounters::default();
    for (name, help, counter) in [
        ("alerts", "Alerts this instance raised", &alerts.raised),
        ("alert_deliveries", "Alerts the webhook took", &alerts.deliveries),
        ("alert_delivery_failures", "Attempts the webhook did not take", &alerts.failures),
        ("alerts_undelivered", "Alerts the webhook never took", &alerts.undelivered),
    ] {
        registry.register(name, help, counter.clone());
    }
    alerts
}

/// Reads the store's own counters when asked.
#[derive(Debug)]
struct StoreCollector(Tollgate);

impl Collector for StoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let stats = self.0.stats();
        let keys = ConstGauge::new(i64::try_from(stats.keys).unwrap_or(i64::MAX));
        let metric = encoder.encode_descriptor(
            "keys",
            "Keys the store holds, about",
            None,
            keys.metric_type(),
        )?;
        keys.encode(metric)?;
        let shielded = ConstCounter::new(stats.shielded);
        let help = "Refusals repeated from memory, without the store";
        let metric = encoder.encode_descriptor("shielded", help, None, shielded.metric_type())?;
        shielded.encode(metric)?;
        let unrecorded = ConstCounter::new(self.0.unrecorded_refusals());
        let help = "Refusals that no list of offenders counts";
        let kind = unrecorded.metric_type();
        let metric = encoder.encode_descriptor("unrecorded_refusals", help, None, kind)?;
        unrecorded.encode(metric)?;
        let failed = ConstCounter::new(stats.store_errors);
        let help = "Commits that failed and are tried again";
        let metric =
            encoder.encode_descriptor("failed_commits", help, None, failed.metric_type())?;
        failed.encode(metric)?;
        let buckets: Vec<(f64, u64)> = BATCH_SIZE_BOUNDS
            .iter()
            .map(|bound| *bound as f64)
            .chain([f64::INFINITY])
            .zip(stats.batches.iter().copied())
            .collect();
        let count = stats.batches.iter().sum();
        let help = "Decisions committed together";
        let mut metric = encoder.encode_descriptor(
            "batch_size",
            help,
            None,
            prometheus_client::metrics::MetricType::Histogram,
        )?;
        metric.encode_histogram::<NoLabelSet>(stats.decisions_batched as f64, count, &buckets, None)
    }
}

#[cfg(test)]
mod tests;

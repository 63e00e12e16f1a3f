//! What one contender did in one slice.

use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    micros: u64,
    pub(crate) p50_micros: f64,
    pub(crate) p99_micros: f64,
    failed: u64,
    /// Of the requests; where refusals are told apart.
    #[serde(default)]
    pub(crate) refused: u64,
}

impl Outcome {
    /// Of answers that were all as expected.
    pub(crate) fn of(latencies: Vec<Duration>, elapsed: Duration) -> Result<Self> {
        Self::of_some(latencies.len() as u64, latencies, elapsed)
    }

    /// The same where only some of them were timed.
    pub(crate) fn of_some(
        requests: u64,
        mut latencies: Vec<Duration>,
        elapsed: Duration,
    ) -> Result<Self> {
        ensure!(!latencies.is_empty(), "no request was answered");
        latencies.sort_unstable();
        let micros_at = |percent: usize| {
            latencies[(latencies.len() - 1) * percent / 100].as_nanos() as f64 / 1e3
        };
        Ok(Self {
            requests,
            micros: elapsed.as_micros() as u64,
            p50_micros: micros_at(50),
            p99_micros: micros_at(99),
            failed: 0,
            refused: 0,
        })
    }

    /// From a program that ends with a line `RESULT {…}`.
    pub(crate) fn read(output: &Output) -> Result<Self> {
        let text = String::from_utf8_lossy(&output.stdout);
        let result = text.lines().find_map(|line| line.strip_prefix("RESULT "));
        let result = result.with_context(|| {
            format!("no result: {text}{}", String::from_utf8_lossy(&output.stderr))
        })?;
        let outcome: Self = serde_json::from_str(result)?;
        ensure!(outcome.failed == 0, "{} of {} requests failed", outcome.failed, outcome.requests);
        ensure!(outcome.requests > 0, "no request was answered");
        Ok(outcome)
    }

    pub(crate) fn requests_per_second(&self) -> f64 {
        self.requests as f64 * 1e6 / self.micros as f64
    }
}

//! Drives the library in this process: one task for each caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::runtime::Runtime;
use tollgate::Tollgate;

use super::loads::{self, Load, MANY_KEYS};
use crate::contenders::Subject;
use crate::disorder::Disorder;
use crate::outcome::Outcome;
use crate::wrk::Expected;

/// Of so many answers from memory one is timed.
const TIMED_FROM_MEMORY: u64 = 16;

pub(crate) struct InProcess {
    runtime: Runtime,
    gate: Arc<Tollgate>,
    subjects: Arc<[Subject]>,
}

impl InProcess {
    /// Opens the store, and puts the policies of all loads in force.
    pub(crate) fn open(url: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let gate = runtime.block_on(async {
            let gate = Tollgate::open(url).await?;
            loads::prepare(&gate).await?;
            anyhow::Ok(gate)
        })?;
        // It does nothing but ask.
        gate.adopt_runtime(runtime.handle());
        let subjects = (1..=MANY_KEYS).map(Subject::new).collect();
        Ok(Self { runtime, gate: Arc::new(gate), subjects })
    }

    pub(crate) fn run(&self, load: Load, callers: usize, slice: Duration) -> Result<Outcome> {
        let stop = Arc::new(AtomicBool::new(false));
        let started = Instant::now();
        let calls: Vec<_> = (0..callers)
            .map(|number| {
                let caller = Caller {
                    gate: self.gate.clone(),
                    subjects: self.subjects.clone(),
                    stop: stop.clone(),
                    random: Disorder::number(number),
                };
                self.runtime.spawn(caller.call(load))
            })
            .collect();
        std::thread::sleep(slice);
        stop.store(true, Ordering::Relaxed);
        let (mut requests, mut latencies) = (0, Vec::new());
        for call in calls {
            let (answered, timed) = self.runtime.block_on(call)??;
            requests += answered;
            latencies.push(timed);
        }
        let elapsed = started.elapsed();
        Outcome::of_some(requests, latencies.concat(), elapsed)
    }
}

struct Caller {
    gate: Arc<Tollgate>,
    subjects: Arc<[Subject]>,
    stop: Arc<AtomicBool>,
    random: Disorder,
}

impl Caller {
    /// Asks again as soon as it has its answer. How many it had, and how long those took that
    /// were timed.
    async fn call(mut self, load: Load) -> Result<(u64, Vec<Duration>)> {
        let subjects = &self.subjects[..load.keys()];
        let expected = matches!(load.expected(), Expected::Allowed);
        let from_memory = load == Load::Refusals;
        let (mut requests, mut latencies) = (0_u64, Vec::new());
        while !self.stop.load(Ordering::Relaxed) {
            let subject = &subjects[self.random.below(subjects.len())];
            let attributes = load.attributes(subject);
            // Answers from memory take less time than it takes to note when they came.
            let is_timed = !from_memory || requests.is_multiple_of(TIMED_FROM_MEMORY);
            let asked = is_timed.then(Instant::now);
            let answer = self.gate.check(load.policy(), &attributes, 1).await?;
            requests += 1;
            latencies.extend(asked.map(|asked| asked.elapsed()));
            ensure!(answer.allowed() == expected, "answered {:?}", answer.decision);
            // An answer from memory waits for nothing, and the other callers want their turn.
            tokio::task::consume_budget().await;
        }
        Ok((requests, latencies))
    }
}

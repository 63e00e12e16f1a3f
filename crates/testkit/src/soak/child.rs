//! One instance: checks as fast as it can, and writes down each answer before it goes on.
//!
//! It judges nothing. Killed and started again, it goes on where its log ends.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Clock, Refunded, SystemClock};

use super::door::{Door, NoAnswer};
use super::record::{self, Log, Record, What};
use super::scene::Scene;
use super::script::{Part, Refund, Request};

/// After an error; doubled with each further one in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
const BETWEEN_STATS: Duration = Duration::from_millis(100);

/// Plays a part, `[scene, seed, round, instance, tasks, turns]`, on a store or server at `url`.
///
/// The part begins with the first byte on `stdin`, and ends early when that is closed: so it never
/// outlives whoever started it.
pub fn play(url: &str, log: &Path, part: &[&str]) -> Result<(), String> {
    let part = Part::parse(part).ok_or("a part is: scene seed round instance tasks turns")?;
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| said(&error))?;
    let answered = record::read(log)?;
    let mut next_turns = vec![0; usize::from(part.tasks)];
    for record in &answered {
        if part.consumes_turn(record) {
            next_turns[usize::from(record.task)] = record.turn + 1;
        }
    }
    runtime.block_on(async {
        let door = Door::open(url).await?;
        let log = Log::open(log).map_err(|error| said(&error))?;
        let instance = Arc::new(Instance { part, door, log });
        instance.write(0, 0, now(), What::Born)?;
        wait_for_the_start().await?;
        let mut tasks = tokio::task::JoinSet::new();
        for (task, first) in (0..).zip(next_turns) {
            let instance = instance.clone();
            tasks.spawn(async move { instance.ask(task, first).await });
        }
        let stats = tokio::spawn({
            let instance = instance.clone();
            async move {
                loop {
                    tokio::time::sleep(BETWEEN_STATS).await;
                    instance.write_stats()?;
                }
                #[expect(unreachable_code, reason = "says what the loop may fail with")]
                Ok::<(), String>(())
            }
        });
        while let Some(done) = tasks.join_next().await {
            done.map_err(|error| said(&error))??;
        }
        stats.abort();
        instance.write_stats()
    })
}

/// Reads one byte from whoever started this, then leaves with them.
async fn wait_for_the_start() -> Result<(), String> {
    let (started, start) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock().bytes();
        if let Some(Ok(_)) = input.next() {
            // Gone only if the process ends anyway.
            let _ = started.send(());
            while let Some(Ok(_)) = input.next() {}
        }
        std::process::exit(2);
    });
    start.await.map_err(|_| "nobody said when to start".to_owned())
}

impl Part {
    /// As [`Part::parse`] reads it.
    pub(super) fn to_arguments(self) -> [String; 6] {
        let Self { scene, seed, round, instance, tasks, turns } = self;
        [
            scene.as_str().to_owned(),
            seed.to_string(),
            round.to_string(),
            instance.to_string(),
            tasks.to_string(),
            turns.to_string(),
        ]
    }

    fn parse(arguments: &[&str]) -> Option<Self> {
        let [scene, seed, round, instance, tasks, turns] = arguments else { return None };
        Some(Self {
            scene: Scene::parse(scene)?,
            seed: seed.parse().ok()?,
            round: round.parse().ok()?,
            instance: instance.parse().ok()?,
            tasks: tasks.parse().ok()?,
            turns: turns.parse().ok()?,
        })
    }

    /// Whether a task that wrote this goes on to its next turn. Under an idempotency key it asks
    /// until it is answered.
    pub(super) fn consumes_turn(&self, record: &Record) -> bool {
        match record.what {
            What::Answered(_) => true,
            What::Failed(_) => !self.request(record.task, record.turn).once,
            What::Born | What::GaveBack(_) | What::Stats { .. } => false,
        }
    }
}

struct Instance {
    part: Part,
    door: Door,
    log: Log,
}

impl Instance {
    async fn ask(&self, task: u16, first: u32) -> Result<(), String> {
        let mut pause = FIRST_PAUSE;
        let mut turn = first;
        while turn < self.part.turns {
            let request = self.part.request(task, turn);
            let asked_at = now();
            match self.door.check(&self.part, &request, (task, turn)).await {
                Ok(reply) => {
                    pause = FIRST_PAUSE;
                    self.write(task, turn, asked_at, What::Answered(reply.answered))?;
                    if let Some(receipt) = reply.receipt {
                        self.give_back(&request, &receipt, task, turn).await?;
                    }
                    if reply.answered.from_memory {
                        // Nothing waited for anything: let the others have their turn.
                        tokio::task::yield_now().await;
                    }
                    turn += 1;
                }
                Err(NoAnswer::Store(kind)) => {
                    self.write(task, turn, asked_at, What::Failed(kind))?;
                    if !request.once {
                        turn += 1;
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(NoAnswer::Other(message)) => return Err(message),
            }
        }
        Ok(())
    }

    /// Gives a receipt back as often as the script says, until each time is answered.
    async fn give_back(
        &self,
        request: &Request,
        receipt: &str,
        task: u16,
        turn: u32,
    ) -> Result<(), String> {
        let times = match request.refund {
            Refund::No => 0,
            Refund::Once => 1,
            Refund::Twice => 2,
        };
        for _ in 0..times {
            let asked_at = now();
            let mut pause = FIRST_PAUSE;
            let refunded = loop {
                match self.door.refund(receipt).await {
                    Ok(refunded) => break refunded,
                    Err(NoAnswer::Store(_)) => tokio::time::sleep(pause).await,
                    Err(NoAnswer::Other(message)) => return Err(message),
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            };
            self.write(task, turn, asked_at, What::GaveBack(refunded))?;
            if refunded == Refunded::Expired {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, task: u16, turn: u32, asked_at: i64, what: What) -> Result<(), String> {
        let record = Record { task, turn, asked_at, told_at: now(), what };
        self.log.write(record).map_err(|error| format!("the log cannot be written: {error}"))
    }

    fn write_stats(&self) -> Result<(), String> {
        match self.door.stats() {
            Some((batched, shielded)) => self.write(0, 0, now(), What::Stats { batched, shielded }),
            None => Ok(()),
        }
    }
}

fn now() -> i64 {
    SystemClock.now().as_micros()
}

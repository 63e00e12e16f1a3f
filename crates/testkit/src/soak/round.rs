//! One round: instances that check as fast as they can, and what is done to them meanwhile.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Stopwatch};

use tokio::runtime::Handle;
use tollgate::Tollgate;

use super::changes::Changes;
use super::instance::{Casting, Face, Instance};
use super::scene::Scene;
use super::script::{AVERAGE_COST_PERCENT, Part};
use super::summary::Summary;
use super::verdict::{self, CaseVerdict};
use crate::dice::Dice;
use crate::servers::Postgres;

/// How often the logs are looked at.
const POLL: Duration = Duration::from_millis(2);
/// Callers over HTTP, at most: each has a connection.
const HTTP_TASKS: u16 = 200;
/// Nothing written for so long: something hangs.
const STUCK: Duration = Duration::from_secs(60);

/// What all rounds stand on.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    pub postgres: &'a Postgres,
    /// This binary, which can be an instance.
    pub program: &'a Path,
    /// `tollgate`, for one more instance over HTTP.
    pub server: Option<&'a Path>,
    /// For the logs.
    pub folder: &'a Path,
    /// Parameters of the store's URL, beside its deadline.
    pub settings: &'a str,
    /// Whole seconds.
    pub deadline: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub scene: Scene,
    pub seed: u64,
    pub number: u64,
    /// Processes with the library in them.
    pub instances: u64,
    /// Callers in each.
    pub tasks: u16,
    /// What each caller asks.
    pub turns: u32,
    pub kills: u64,
    pub outage: Outage,
    pub changes: LimitsChange,
}

/// What happens to PostgreSQL half-way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outage {
    None,
    /// SIGKILL to all its processes.
    Crash,
    Restart,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitsChange {
    Meanwhile,
    Never,
}

/// Something that is done when so many records are written in all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Moment {
    records: u64,
    deed: Deed,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Deed {
    Kill { instance: usize, again: bool },
    Crash,
    Restart,
}

impl Round {
    /// Answers there will be, about.
    pub fn expected(&self, ground: &Ground<'_>) -> u64 {
        let http_tasks = ground.server.map_or(0, |_| self.tasks.min(HTTP_TASKS));
        let tasks = self.instances * u64::from(self.tasks) + u64::from(http_tasks);
        tasks * u64::from(self.turns)
    }

    /// Plays the round to its end and judges it. `progress` is told of the records so far.
    pub async fn play(
        &self,
        ground: &Ground<'_>,
        progress: impl FnMut(u64),
    ) -> Result<(Vec<CaseVerdict>, Summary), String> {
        let started = Stopwatch::now();
        let Ground { settings, deadline, .. } = ground;
        let (url, seconds) = (ground.postgres.url(), deadline.as_secs());
        let store = format!("{url}?{settings}&deadline={seconds}s");
        let gate = Tollgate::open(&store).await.map_err(|error| error.to_string())?;
        let cases = self.scene.cases().len() as u64;
        let demand = self.expected(ground) * AVERAGE_COST_PERCENT / 100 / cases;
        let mut dice = Dice::of(&[self.seed, self.number]);
        let changing = Dice::of(&[dice.number()]);
        let mut changes = Changes::begin(&gate, self.scene, self.number, demand, changing).await?;
        let castings = self.castings(ground, &store);
        let moments = self.moments(ground, &mut dice);
        let done = AtomicBool::new(false);
        let runtime = Handle::current();
        // The processes are watched on this thread; limits change on another.
        let (watched, changed) = std::thread::scope(|scope| {
            let changer = scope.spawn(|| match self.changes {
                LimitsChange::Meanwhile => runtime.block_on(changes.go_on(&gate, &done)),
                LimitsChange::Never => Ok(()),
            });
            let watched = tokio::task::block_in_place(|| {
                Stand { ground, castings: &castings, dice }.watch(&moments, progress)
            });
            done.store(true, Ordering::SeqCst);
            (watched, changer.join().unwrap_or_else(|_| Err("the changer panicked".into())))
        });
        let seen = watched?;
        changed?;
        let (verdicts, mut summary) = verdict::judge(&gate, &changes, &castings, *deadline).await?;
        changes.end(&gate).await?;
        // What is wrong is looked at: then the logs stay.
        if summary.wrongs() == 0 {
            for casting in &castings {
                std::fs::remove_file(&casting.log).map_err(|error| error.to_string())?;
            }
        }
        summary.add(&seen);
        summary.rounds = 1;
        summary.changes = changes.count();
        summary.duration = started.elapsed();
        Ok((verdicts, summary))
    }

    fn castings(&self, ground: &Ground<'_>, store: &str) -> Vec<Casting> {
        let library = (0..self.instances).map(|_| Face::Library);
        let server = ground.server.map(|program| Face::Server { program: program.to_owned() });
        let Self { scene, seed, number: round, tasks, turns, .. } = *self;
        (0..)
            .zip(library.chain(server))
            .map(|(instance, face)| {
                let tasks = if face == Face::Library { tasks } else { tasks.min(HTTP_TASKS) };
                Casting {
                    program: ground.program.to_owned(),
                    store: store.to_owned(),
                    face,
                    log: self.log(ground, instance),
                    part: Part { scene, seed, round, instance, tasks, turns },
                }
            })
            .collect()
    }

    fn log(&self, ground: &Ground<'_>, instance: u64) -> PathBuf {
        ground.folder.join(format!("round-{}-instance-{instance}.log", self.number))
    }

    fn moments(&self, ground: &Ground<'_>, dice: &mut Dice) -> Vec<Moment> {
        let expected = self.expected(ground);
        let instances = self.instances + u64::from(ground.server.is_some());
        let mut moments: Vec<Moment> = (0..self.kills)
            .map(|_| Moment {
                records: expected * (2 + dice.below(90)) / 100,
                deed: Deed::Kill {
                    instance: dice.below(instances) as usize,
                    again: dice.one_in(6),
                },
            })
            .collect();
        let records = expected * (30 + dice.below(40)) / 100;
        match self.outage {
            Outage::None => {}
            Outage::Crash => moments.push(Moment { records, deed: Deed::Crash }),
            Outage::Restart => moments.push(Moment { records, deed: Deed::Restart }),
        }
        moments.sort_unstable();
        moments
    }
}

/// Everything that runs during a round.
struct Stand<'a> {
    ground: &'a Ground<'a>,
    castings: &'a [Casting],
    dice: Dice,
}

impl Stand<'_> {
    /// Starts all instances, does every deed in its moment, and returns when all have ended.
    fn watch(
        mut self,
        moments: &[Moment],
        mut progress: impl FnMut(u64),
    ) -> Result<Summary, String> {
        let started = self.castings.iter().map(|casting| casting.start().map(Some));
        let mut instances: Vec<Option<Instance>> = started.collect::<Result<_, _>>()?;
        // All are there before the first begins.
        self.wait_for_all_born(&mut instances)?;
        instances.iter_mut().flatten().for_each(Instance::begin);
        let mut summary = Summary::default();
        let mut moments = moments.iter().peekable();
        let (mut records, mut moved) = (0, Stopwatch::now());
        while instances.iter().any(Option::is_some) {
            std::thread::sleep(POLL);
            let now = self.castings.iter().map(Casting::records).sum();
            if now != records {
                (records, moved) = (now, Stopwatch::now());
                progress(records);
            } else if moved.elapsed() > STUCK {
                return Err(format!("nothing was answered for {} s", STUCK.as_secs()));
            }
            while let Some(moment) = moments.next_if(|moment| moment.records <= records) {
                self.act(moment.deed, &mut instances, &mut summary)?;
            }
            for (number, place) in instances.iter_mut().enumerate() {
                let Some(instance) = place else { continue };
                match instance.ended()? {
                    None => {}
                    Some(status) if status.success() => *place = None,
                    Some(status) => return Err(format!("instance {number} ended: {status}")),
                }
            }
        }
        Ok(summary)
    }

    fn wait_for_all_born(&self, instances: &mut [Option<Instance>]) -> Result<(), String> {
        let started = Stopwatch::now();
        while self.castings.iter().any(|casting| casting.records() == 0) {
            std::thread::sleep(POLL);
            for instance in instances.iter_mut().flatten() {
                if let Some(status) = instance.ended()? {
                    return Err(format!("an instance did not start: {status}"));
                }
            }
            if started.elapsed() > STUCK {
                return Err("the instances do not start".into());
            }
        }
        Ok(())
    }

    fn act(
        &mut self,
        deed: Deed,
        instances: &mut [Option<Instance>],
        summary: &mut Summary,
    ) -> Result<(), String> {
        match deed {
            Deed::Kill { instance: number, again } => {
                // Where one has ended already, the next that runs is killed.
                let count = instances.len();
                let runs = |number: &usize| instances[*number].is_some();
                let Some(number) = (number..number + count).map(|n| n % count).find(runs) else {
                    return Ok(());
                };
                let killed = instances[number].take();
                std::thread::sleep(Duration::from_micros(self.dice.below(3000)));
                drop(killed);
                summary.kills += 1;
                if again {
                    // Some die while they open the store, or right after.
                    let mut newborn = self.castings[number].start()?;
                    newborn.begin();
                    std::thread::sleep(Duration::from_micros(self.dice.below(100_000)));
                    if newborn.ended()?.is_none() {
                        summary.kills += 1;
                    }
                    drop(newborn);
                }
                let mut next = self.castings[number].start()?;
                next.begin();
                instances[number] = Some(next);
            }
            Deed::Crash => {
                self.ground.postgres.kill();
                self.ground.postgres.start_again();
                summary.crashes += 1;
            }
            Deed::Restart => {
                self.ground.postgres.restart();
                summary.restarts += 1;
            }
        }
        Ok(())
    }
}

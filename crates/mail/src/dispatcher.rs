//! Sends what is queued: fairly, at the pace of each account, over connections that are kept.
//!
//! One task knows which accounts may have work and gives them turns, a message each; it holds
//! accounts, never messages. Each turn is a task of its own (`turn`). Another task (`scout`) finds
//! what falls due. What is counted is the gate's, what is kept is the queue's: many instances can
//! do all this on one database.

mod aftermath;
mod claim_watch;
mod delays;
mod ring;
mod scout;
mod sender;
mod throttles;
mod turn;
mod under_way;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinError, JoinHandle, JoinSet};
use tokio::time::Instant as Deadline;

use crate::mail::{Inner, Mail};
use crate::model::AccountKey;
use crate::reporter::Reporter;
use crate::smtp::Connection;
use claim_watch::ClaimWatch;
pub(crate) use delays::{after, growing};
use ring::Ring;
use scout::{Alarms, Scout};
use sender::Sender;
use throttles::Throttles;
use turn::{Context, Turn};
use under_way::UnderWay;

/// A connection that carried nothing for so long is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(90);
/// How often idle connections are looked at.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);
/// A turn that takes longer gives its place to others: servers that stall must not be waited for
/// by everybody else.
const SLOW_AFTER: Duration = Duration::from_secs(10);
/// Turns in all, slow ones included, for each place.
const TURNS_PER_PLACE: usize = 4;
/// What noting the outcomes of attempts may take when the relay stops, after the time that each
/// attempt has anyway.
const NOTING_LIMIT: Duration = Duration::from_secs(10);
const SALT: &str = "log_salt";

/// The relay at work. Stops when it is told to, or dropped.
#[derive(Debug)]
pub struct Running {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Mail {
    /// Begins to send what is queued and to report what became of it, on this runtime.
    pub fn start(&self) -> Running {
        let (stop, stopped) = watch::channel(false);
        let reported = Arc::new(Notify::new());
        let alarms = Arc::new(Alarms::default());
        let under_way = Arc::new(UnderWay::default());
        let inner = &self.inner;
        let scout = Scout {
            inner: inner.clone(),
            alarms: alarms.clone(),
            under_way: under_way.clone(),
            claim_watch: ClaimWatch::default(),
            stop: stopped.clone(),
        };
        let reporter =
            Reporter { inner: inner.clone(), reported: reported.clone(), stop: stopped.clone() };
        let dispatcher = run(inner.clone(), alarms, under_way, reported, stopped);
        let tasks =
            vec![tokio::spawn(scout.run()), tokio::spawn(reporter.run()), tokio::spawn(dispatcher)];
        Running { stop, tasks }
    }
}

impl Running {
    /// Takes no more mail, and returns when what is under way has ended or its time is up. What
    /// had to be given up is tried again when its lease ends.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        for task in self.tasks {
            // A panic was logged where it happened, and stopping goes on.
            let _ = task.await;
        }
    }
}

async fn run(
    inner: Arc<Inner>,
    alarms: Arc<Alarms>,
    under_way: Arc<UnderWay>,
    reported: Arc<Notify>,
    mut stop: watch::Receiver<bool>,
) {
    let salt = tokio::select! {
        salt = log_salt(&inner) => salt,
        _ = stop.wait_for(|stop| *stop) => return,
    };
    let context = Arc::new(Context {
        inner: inner.clone(),
        alarms,
        under_way,
        reported,
        salt,
        silent_since: Mutex::default(),
        throttles: Throttles::default(),
    });
    let mut dispatcher = Dispatcher::new(context);
    let mut idle_check = tokio::time::interval(IDLE_INTERVAL);
    loop {
        dispatcher.hear();
        dispatcher.fill();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            Some(ended) = dispatcher.turns.join_next_with_id() => dispatcher.ended(ended),
            () = inner.nudges.arrived() => dispatcher.called = true,
            _ = idle_check.tick() => dispatcher.close_idle(),
        }
    }
    dispatcher.wind_up().await;
}

/// Kept for all instances, so that an address looks the same in all their lines.
async fn log_salt(inner: &Inner) -> Vec<u8> {
    let mut fresh = vec![0; 16];
    // Without randomness, whoever knows an address can find its lines.
    let _ = getrandom::fill(&mut fresh);
    loop {
        match inner.queue.setting(SALT, Some(&fresh)).await {
            Ok(kept) => return kept.unwrap_or(fresh),
            Err(error) => {
                tracing::warn!(%error, "the mail queue cannot be read; trying again");
                tokio::time::sleep(inner.settings.poll_interval).await;
            }
        }
    }
}

/// Whose turn it is, and who has one.
struct Dispatcher {
    context: Arc<Context>,
    ring: Ring,
    lanes: HashMap<AccountKey, Lane>,
    turns: JoinSet<Turn>,
    /// Whose turn each task is, and since when.
    owners: HashMap<Id, (AccountKey, Deadline)>,
    /// Somebody nudged.
    called: bool,
}

/// An account with a turn, or with a connection worth keeping.
#[derive(Default)]
struct Lane {
    turns: usize,
    /// It was nudged while it had as many turns as it may have.
    again: bool,
    sender: Option<Arc<Sender>>,
    idle: Vec<Connection>,
}

impl Lane {
    /// Turns it may have at once: never more than half of the places, so that there is always
    /// one for others.
    fn width(&self, places: usize) -> usize {
        let wanted = self.sender.as_ref().map_or(1, |sender| sender.account.concurrency);
        usize::from(wanted).min((places / 2).max(1))
    }
}

impl Dispatcher {
    fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            ring: Ring::default(),
            lanes: HashMap::new(),
            turns: JoinSet::new(),
            owners: HashMap::new(),
            called: false,
        }
    }

    /// Puts the accounts that may have work into the ring.
    fn hear(&mut self) {
        if !std::mem::take(&mut self.called) {
            return;
        }
        let nudged = self.context.inner.nudges.take();
        if nudged.is_empty() {
            self.context.alarms.look_now();
        }
        for key in nudged {
            self.ring.push(key);
        }
    }

    /// Gives turns as long as there are places.
    fn fill(&mut self) {
        let places = self.context.inner.settings.concurrency.max(1);
        while self.has_place(places) {
            let Some(key) = self.ring.next() else { return };
            let lane = self.lanes.entry(key.clone()).or_default();
            if lane.turns >= lane.width(places) {
                lane.again = true;
                continue;
            }
            lane.turns += 1;
            let turn =
                Turn { sender: lane.sender.clone(), connection: lane.idle.pop(), more: false };
            let wider = lane.turns < lane.width(places);
            let (context, owner) = (self.context.clone(), key.clone());
            let task = self.turns.spawn(async move { context.turn(&owner, turn).await });
            self.owners.insert(task.id(), (key.clone(), Deadline::now()));
            if wider {
                self.ring.push(key);
            }
        }
    }

    fn has_place(&self, places: usize) -> bool {
        let turns = self.turns.len();
        if turns < places || turns >= places * TURNS_PER_PLACE {
            return turns < places;
        }
        let is_slow = |(_, since): &&(AccountKey, Deadline)| since.elapsed() >= SLOW_AFTER;
        turns - self.owners.values().filter(is_slow).count() < places
    }

    fn ended(&mut self, ended: Result<(Id, Turn), JoinError>) {
        let (id, turn) = match ended {
            Ok((id, turn)) => (id, Some(turn)),
            Err(error) => {
                // Its message comes back when the lease ends.
                tracing::error!(%error, "a turn was cut short");
                (error.id(), None)
            }
        };
        let Some((key, _)) = self.owners.remove(&id) else { return };
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        lane.turns -= 1;
        let mut more = std::mem::take(&mut lane.again);
        if let Some(turn) = turn {
            let changed = match (&lane.sender, &turn.sender) {
                (Some(known), Some(used)) => known.account.version != used.account.version,
                _ => false,
            };
            // What was connected for the account as it was before is not kept.
            if changed {
                farewell(std::mem::take(&mut lane.idle));
            }
            if turn.sender.is_some() {
                lane.sender = turn.sender;
            }
            lane.idle.extend(turn.connection);
            more |= turn.more;
        }
        if more {
            self.ring.push(key);
        } else if lane.turns == 0 && lane.idle.is_empty() && !self.ring.contains(&key) {
            self.lanes.remove(&key);
        }
    }

    fn close_idle(&mut self) {
        let now = Deadline::now();
        for lane in self.lanes.values_mut() {
            let is_old = |kept: &mut Connection| now - kept.idle_since >= IDLE_LIMIT;
            farewell(lane.idle.extract_if(.., is_old).collect());
        }
        let ring = &self.ring;
        self.lanes
            .retain(|key, lane| lane.turns > 0 || !lane.idle.is_empty() || ring.contains(key));
    }

    /// Lets turns under way end, and says goodbye to all servers.
    async fn wind_up(mut self) {
        let until = Deadline::now() + self.context.inner.settings.attempt_timeout + NOTING_LIMIT;
        if !self.turns.is_empty() {
            tracing::info!(attempts = self.turns.len(), "waiting for mail that is being sent");
        }
        while let Ok(Some(ended)) =
            tokio::time::timeout_at(until, self.turns.join_next_with_id()).await
        {
            self.ended(ended);
        }
        if !self.turns.is_empty() {
            tracing::warn!(attempts = self.turns.len(), "attempts under way are given up");
        }
        self.turns.shutdown().await;
        let mut goodbyes = JoinSet::new();
        for connection in self.lanes.into_values().flat_map(|lane| lane.idle) {
            goodbyes.spawn(connection.quit());
        }
        while goodbyes.join_next().await.is_some() {}
    }
}

/// Says goodbye without waiting for it.
fn farewell(connections: Vec<Connection>) {
    for connection in connections {
        tokio::spawn(connection.quit());
    }
}

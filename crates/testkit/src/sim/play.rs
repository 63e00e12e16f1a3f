//! Plays one seed: instances, traffic and faults, and then a quiet time in which everything must work.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tollgate::{Outcome as Decided, Policy as StoredPolicy};

use super::database::Database;
use super::history::{History, Key, Outcome, What};
use super::instance::Instance;
use super::line::Condition;
use super::request::{ask, perform};
use super::scene::{self, Policy, USERS};
use super::statements::hold;
use super::weather::Weather;
use crate::dice::Dice;

/// More requests than this do not wait at one instance.
const MOST_WAITING: usize = 10;
const DAY_MICROS: i64 = 86_400_000_000;

/// What one seed left behind.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) history: History,
    pub(super) policies: Vec<Policy>,
    /// By policy and user, one per limit.
    pub(super) keys: BTreeMap<(usize, usize), Vec<Key>>,
    pub(super) shield: bool,
    /// What must not happen, and did while it was played.
    pub(super) impossible: Option<(usize, String)>,
}

struct Play {
    database: Arc<Database>,
    dice: Dice,
    policies: Vec<Policy>,
    keys: BTreeMap<(usize, usize), Vec<Key>>,
    url: String,
    instances: Vec<Instance>,
    /// How many there ever were.
    started: usize,
    /// How many there should be.
    wanted: usize,
    receipts: Arc<Mutex<Vec<(usize, String)>>>,
    /// Checks made under an idempotency key, by its number.
    onces: Vec<What>,
    refunds_once: Vec<(usize, String)>,
    strangers: Vec<JoinHandle<()>>,
}

pub(super) async fn play(seed: u64) -> Played {
    let mut dice = Dice::of(&[seed, 1]);
    let weather = Weather::of(&mut dice);
    let database = Database::new(seed, Weather::CALM);
    let shield = dice.one_in(2);
    let url = format!(
        "postgres://sim@sim/sim?sslmode=disable&keep_idle=0s&lanes={}&deadline={}ms&shield={}",
        1 + dice.below(2),
        super::DEADLINE.as_millis(),
        if shield { "on" } else { "off" },
    );
    let mut play = Play {
        policies: scene::policies(&mut dice),
        wanted: 1 + usize::try_from(dice.below(3)).expect("a few"),
        database: database.clone(),
        dice,
        keys: BTreeMap::new(),
        url,
        instances: Vec::new(),
        started: 0,
        receipts: Arc::default(),
        onces: Vec::new(),
        refunds_once: Vec::new(),
        strangers: Vec::new(),
    };
    let done = match play.begin().await {
        Ok(()) => {
            database.state().weather = weather;
            play.act().await;
            play.quiet().await
        }
        Err(error) => Err(format!("it does not start: {error}")),
    };
    let Play { policies, keys, .. } = play;
    let state = &mut *database.state();
    let history = std::mem::take(&mut state.history);
    let impossible = state.impossible.take().or(done.err().map(|what| (usize::MAX, what)));
    Played { history, policies, keys, shield, impossible }
}

impl Play {
    async fn begin(&mut self) -> Result<(), tollgate::Error> {
        while self.instances.len() < self.wanted {
            self.start_instance().await?;
        }
        let gate = self.instances[0].gate.clone();
        for number in 0..self.policies.len() {
            let maxima = scene::maxima(&self.policies[number], &mut self.dice);
            gate.apply(&self.policy(number, &maxima), "sim").await?;
            for user in 0..USERS {
                let keys = gate.keys_of(&format!("p{number}"), &[("user", &scene::user(user))])?;
                self.keys.insert((number, user), keys);
            }
        }
        for instance in &self.instances {
            // Whoever asks for a policy that is not known yet waits for that, too.
            instance.gate.refresh().await?;
        }
        Ok(())
    }

    fn policy(&self, number: usize, maxima: &[u64]) -> StoredPolicy {
        let document = self.policies[number].document(maxima);
        StoredPolicy::from_json(&format!("p{number}"), document).expect("a scene's policy is valid")
    }

    async fn start_instance(&mut self) -> Result<(), tollgate::Error> {
        self.started += 1;
        let instance = Instance::open(&self.database, self.started, &self.url).await?;
        self.instances.push(instance);
        Ok(())
    }

    async fn act(&mut self) {
        for _ in 0..40 + self.dice.below(60) {
            match self.dice.below(100) {
                0..54 => self.traffic(),
                54..74 => self.rest(0, 12).await,
                74..81 => self.rest(20, 300).await,
                81..84 => self.rest(900, 5000).await,
                84..86 => self.crash(),
                86..89 => {
                    if self.instances.len() < self.wanted {
                        // Tried again later, or in the end.
                        let _ = self.start_instance().await;
                    }
                }
                89..91 => self.set_clock(),
                91..93 => self.sweep(),
                93..96 => self.change_terms(),
                96..98 => self.stranger(),
                _ => self.outage(),
            }
        }
    }

    async fn rest(&mut self, least: u64, most: u64) {
        let millis = least + self.dice.below(most - least + 1);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    fn any_instance(&mut self) -> Option<usize> {
        let count = self.instances.len() as u64;
        (count > 0).then(|| usize::try_from(self.dice.below(count)).expect("less than a length"))
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.dice.below(bound as u64)).expect("less than a usize")
    }

    fn traffic(&mut self) {
        let (policy, user) = (self.below(self.policies.len()), self.below(USERS));
        for _ in 0..1 + self.dice.below(4) {
            let Some(place) = self.any_instance() else { return };
            if self.instances[place].unfinished() >= MOST_WAITING {
                continue;
            }
            let user = if self.dice.one_in(3) { self.below(USERS) } else { user };
            self.request(place, policy, user);
        }
    }

    fn request(&mut self, place: usize, policy: usize, user: usize) {
        let cost = self.dice.pick(&[1, 1, 1, 1, 2, 2, 3, 5]);
        let receipts = self.receipts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (what, receipt) = match self.dice.below(20) {
            0..12 => (What::Check { policy, user, cost, once: None }, None),
            12 | 13 => (What::Peek { policy, user, cost }, None),
            14 => {
                let once = Some(self.onces.len() as u64);
                let what = What::Check { policy, user, cost, once };
                self.onces.push(what.clone());
                (what, None)
            }
            15 if !self.onces.is_empty() => {
                let place = self.below(self.onces.len());
                (self.onces[place].clone(), None)
            }
            16..19 if !receipts.is_empty() => {
                // Mostly recent ones: the others have expired.
                let from = if self.dice.one_in(3) { 0 } else { receipts.len().saturating_sub(4) };
                let (of, receipt) = receipts[from + self.below(receipts.len() - from)].clone();
                (What::Refund { of, once: None }, Some(receipt))
            }
            19 if !receipts.is_empty() => self.refund_once(&receipts),
            _ => (What::Check { policy, user, cost: 1, once: None }, None),
        };
        self.spawn(place, what, receipt);
    }

    fn refund_once(&mut self, receipts: &[(usize, String)]) -> (What, Option<String>) {
        let once = if self.refunds_once.is_empty() || self.dice.one_in(2) {
            let receipt = receipts[self.below(receipts.len())].clone();
            self.refunds_once.push(receipt);
            self.refunds_once.len() - 1
        } else {
            self.below(self.refunds_once.len())
        };
        let (of, receipt) = self.refunds_once[once].clone();
        (What::Refund { of, once: Some(once as u64) }, Some(receipt))
    }

    fn spawn(&mut self, place: usize, what: What, receipt: Option<String>) {
        let instance = &mut self.instances[place];
        let number = ask(&self.database, instance.number, what);
        let asked = perform(self.database.clone(), instance.gate.clone(), number, receipt);
        let receipts = self.receipts.clone();
        instance.tasks.push(tokio::spawn(async move {
            if let Some(receipt) = asked.await {
                receipts.lock().unwrap_or_else(PoisonError::into_inner).push((number, receipt));
            }
        }));
    }

    fn crash(&mut self) {
        if let Some(place) = self.any_instance() {
            let condition = self.dice.pick(&[Condition::Cut, Condition::Silent]);
            self.instances.swap_remove(place).crash(condition);
        }
    }

    fn outage(&mut self) {
        let Some(place) = self.any_instance() else { return };
        if self.dice.one_in(2) {
            self.database.log(|| "an instance is cut off for a while".into());
            self.instances[place].out_of_reach(Condition::Cut);
        } else {
            for instance in &self.instances {
                instance.reachable();
            }
        }
    }

    fn set_clock(&mut self) {
        let size = self.dice.pick(&[300, 40_000, 900_000, 5_000_000, 3_600_000_000]);
        let size = i64::try_from(1 + self.dice.below(size)).expect("an hour at most");
        let step = if self.dice.one_in(2) { size } else { -size };
        self.database.set_clock(self.database.clock() + step);
    }

    fn sweep(&mut self) {
        if let Some(place) = self.any_instance() {
            let gate = self.instances[place].gate.clone();
            let database = self.database.clone();
            self.instances[place].tasks.push(tokio::spawn(async move {
                let swept = gate.sweep().await.is_ok();
                database.log(|| format!("a sweep ends, {}", if swept { "done" } else { "failed" }));
            }));
        }
    }

    /// Another maximum for all, or for one user.
    fn change_terms(&mut self) {
        let Some(place) = self.any_instance() else { return };
        let number = self.below(self.policies.len());
        let gate = self.instances[place].gate.clone();
        let limit = self.below(self.policies[number].limits.len());
        let own = self.policies[number].limits[limit].by_user && self.dice.one_in(2);
        let task = if own {
            let (policy, limit) = (format!("p{number}"), format!("l{limit}"));
            let user = scene::user(self.below(USERS));
            let max = (!self.dice.one_in(3)).then(|| self.dice.below(12));
            tokio::spawn(async move {
                let subject = [("user", user.as_str())];
                // Whether it was done shows in the database.
                match max {
                    Some(max) => {
                        let _ = gate.put_override(&policy, &limit, &subject, max, "sim").await;
                    }
                    None => {
                        let _ = gate.delete_override(&policy, &limit, &subject).await;
                    }
                }
            })
        } else {
            let maxima = scene::maxima(&self.policies[number], &mut self.dice);
            let policy = self.policy(number, &maxima);
            tokio::spawn(async move {
                let _ = gate.apply(&policy, "sim").await;
            })
        };
        self.instances[place].tasks.push(task);
    }

    fn stranger(&mut self) {
        let rows: Vec<Key> = self.database.state().tables.counters.keys().cloned().collect();
        if !rows.is_empty() {
            let key = rows[self.below(rows.len())].clone();
            let held_for = Duration::from_millis(5 + self.dice.below(700));
            let database = self.database.clone();
            self.strangers.push(tokio::spawn(async move { hold(&database, key, held_for).await }));
        }
    }

    /// Nothing goes wrong any more: everything must be answered, and every wait must be right.
    async fn quiet(&mut self) -> Result<(), String> {
        self.database.state().weather = Weather::CALM;
        self.database.log(|| "from here on nothing goes wrong".into());
        for instance in &self.instances {
            instance.reachable();
        }
        // Longer than sessions, locks and memories last.
        tokio::time::sleep(Duration::from_secs(40)).await;
        for instance in &mut self.instances {
            if instance.unfinished() > 0 {
                return Err("somebody waits for ever".into());
            }
        }
        if self.instances.is_empty() {
            self.start_instance().await.map_err(|error| format!("it does not start: {error}"))?;
        }
        for _ in 0..3 {
            self.wait_as_told().await?;
        }
        Ok(())
    }

    /// Whoever waits until `retry_at` passes, and a microsecond before does not.
    async fn wait_as_told(&mut self) -> Result<(), String> {
        let (policy, user) = (self.below(self.policies.len()), self.below(USERS));
        let cost = self.dice.pick(&[1, 1, 2, 3]);
        for _ in 0..4 {
            let peek = What::Peek { policy, user, cost };
            match self.calm(peek.clone()).await? {
                Decided::NeverFits => return Ok(()),
                Decided::Allowed => {}
                Decided::Refused { retry_at } => {
                    let retry_at_micros = retry_at.as_micros();
                    if retry_at_micros - self.database.clock() > DAY_MICROS {
                        return Ok(());
                    }
                    if retry_at_micros > self.database.clock() + 1 {
                        self.database.set_clock(retry_at_micros - 1);
                        if self.calm(peek).await? != (Decided::Refused { retry_at }) {
                            return Err("it passes before retry_at, or is told another".into());
                        }
                    }
                    if retry_at_micros > self.database.clock() {
                        self.database.set_clock(retry_at_micros);
                    }
                }
            }
            let check = What::Check { policy, user, cost, once: None };
            if self.calm(check).await? != Decided::Allowed {
                return Err("who waited until retry_at does not pass".into());
            }
        }
        Ok(())
    }

    async fn calm(&mut self, what: What) -> Result<Decided, String> {
        let place = self.any_instance().expect("one was started");
        let instance = &self.instances[place];
        let number = ask(&self.database, instance.number, what);
        perform(self.database.clone(), instance.gate.clone(), number, None).await;
        let state = self.database.state();
        match &state.history.requests[number].answer {
            Some(answer) => match &answer.outcome {
                Outcome::Decided { decision, .. } => Ok(decision.outcome),
                other => Err(format!("#{number} is answered in calm weather: {other:?}")),
            },
            None => Err(format!("#{number} is not answered in calm weather")),
        }
    }
}

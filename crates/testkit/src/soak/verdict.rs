//! What the logs of one round say, put together and judged.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::time::Duration;

use tollgate::{Clock, Refunded, SystemClock, Tollgate};

use super::changes::Changes;
use super::instance::{Casting, Face};
use super::record::{self, Answered, Record, What};
use super::scene::{PLACES, USERS, rules};
use super::script::{Part, Refund, Request};
use super::summary::Summary;
use crate::history::{Answer, GivenBack, History, Outcome, Seen, Tally, when_counted};

/// How one policy of a round came out.
#[derive(Clone, Debug)]
pub struct CaseVerdict {
    pub name: &'static str,
    /// Of each limit, before any change.
    pub maxima: Vec<u64>,
    /// Of each key, by (limit, number of the key).
    pub tallies: BTreeMap<(usize, u32), Tally>,
}

/// The round's logs, on their way to a verdict.
struct Trial {
    histories: Vec<History>,
    /// What was answered under each idempotency key, by face, task and turn.
    once: HashMap<(bool, u16, u32), Once>,
    summary: Summary,
    /// Of the store.
    deadline: Duration,
}

/// What was allowed under one idempotency key.
struct Once {
    answered: Answered,
    /// Whoever was told first wrote it down. Otherwise they were killed, and only replays tell.
    told_first: bool,
}

/// Reads the logs of all instances and holds every answer against all others.
pub(crate) async fn judge(
    gate: &Tollgate,
    changes: &Changes,
    castings: &[Casting],
    deadline: Duration,
) -> Result<(Vec<CaseVerdict>, Summary), String> {
    let Some(first) = castings.first() else { return Err("there is no instance".into()) };
    let cases = first.part.scene.cases();
    let mut histories = Vec::with_capacity(cases.len());
    for (number, case) in cases.iter().enumerate() {
        let (policy, versions) = changes.versions(gate, number).await?;
        histories.push(History::new(case.policy_name(first.part.round), rules(&policy), versions));
    }
    let mut trial =
        Trial { histories, once: HashMap::new(), summary: Summary::default(), deadline };
    for casting in castings {
        trial.hear(casting, &record::read(&casting.log)?);
    }
    trial.look(gate, &first.part).await?;
    let Trial { histories, once, mut summary, .. } = trial;
    summary.recovered = once.values().filter(|once| !once.told_first).count() as u64;
    let mut verdicts = Vec::with_capacity(cases.len());
    for (number, (case, history)) in cases.iter().zip(histories).enumerate() {
        let (tallies, faults) = history.judge();
        summary.add_faults(&faults);
        let maxima = changes.maxima(number).to_vec();
        verdicts.push(CaseVerdict { name: case.name, maxima, tallies });
    }
    Ok((verdicts, summary))
}

impl Trial {
    /// Everything one instance wrote, over all its lives.
    fn hear(&mut self, casting: &Casting, records: &[Record]) {
        let part = &casting.part;
        let refunds = self.refunds(records);
        let mut next_turns = vec![0; usize::from(part.tasks)];
        // When each task was last heard of: what it asked then, it asked later.
        let mut heard_at = vec![i64::MIN; usize::from(part.tasks)];
        let mut lives = 0;
        let mut counted = (0, 0);
        for record in records {
            match record.what {
                What::Born => {
                    if lives > 0 {
                        let asked = next_turns.iter().copied().zip(heard_at.iter().copied());
                        self.doubt_all(part, asked, record.told_at);
                    }
                    heard_at.fill(record.told_at);
                    lives += 1;
                    self.summary.add_stats(std::mem::take(&mut counted));
                }
                What::Answered(answered) => self.answered(casting, record, &answered, &refunds),
                What::Failed(kind) => {
                    self.summary.failed(kind);
                    let when = when_counted((record.asked_at, record.told_at), self.deadline);
                    self.doubt(part, (record.task, record.turn), &when);
                }
                What::GaveBack(refunded) => self.summary.gave_back(refunded),
                What::Stats { batched, shielded } => counted = (batched, shielded),
            }
            if !matches!(record.what, What::Born | What::Stats { .. }) {
                heard_at[usize::from(record.task)] = record.told_at;
            }
            if part.consumes_turn(record) {
                next_turns[usize::from(record.task)] = record.turn + 1;
            }
        }
        self.summary.add_stats(counted);
    }

    fn answered(
        &mut self,
        casting: &Casting,
        record: &Record,
        answered: &Answered,
        refunds: &HashMap<(u16, u32), GivenBack>,
    ) {
        let Record { task, turn, asked_at, told_at, .. } = *record;
        let part = &casting.part;
        let request = part.request(task, turn);
        self.summary.answered(answered, &casting.face);
        if request.once && answered.allowed && !self.is_first(casting, record, answered) {
            return;
        }
        let outcome = if answered.allowed {
            let given_back = match request.refund {
                Refund::No => None,
                // Killed before it could write what came of it: it may have been given back.
                Refund::Once | Refund::Twice => {
                    let unknown = GivenBack { from: answered.decided_at, by: None };
                    Some(refunds.get(&(task, turn)).copied().unwrap_or(unknown))
                }
            };
            Outcome::Allowed { given_back }
        } else {
            Outcome::Refused { from_memory: answered.from_memory }
        };
        // What is replayed was decided when it was first asked, by whoever that was.
        let asked_at = if answered.replayed { answered.decided_at } else { asked_at };
        self.add(part, &request, (asked_at, told_at), outcome, answered);
    }

    /// Whether this is the first record of what was allowed under an idempotency key. All others must
    /// say the same.
    fn is_first(&mut self, casting: &Casting, record: &Record, answered: &Answered) -> bool {
        let plain = Answered { replayed: false, from_memory: false, ..*answered };
        let place = (casting.face == Face::Library, record.task, record.turn);
        let told_first = !answered.replayed;
        match self.once.entry(place) {
            Entry::Vacant(entry) => {
                entry.insert(Once { answered: plain, told_first });
                true
            }
            Entry::Occupied(mut entry) => {
                let once = entry.get_mut();
                // Two that were both told first were both counted.
                let twice = once.told_first && told_first;
                self.summary.two_answers += u64::from(twice || once.answered != plain);
                once.told_first |= told_first;
                false
            }
        }
    }

    fn add(
        &mut self,
        part: &Part,
        request: &Request,
        (asked_at, told_at): (i64, i64),
        outcome: Outcome,
        answered: &Answered,
    ) {
        let keys = request.keys(&part.scene.cases()[request.case]);
        let limits: Vec<Seen> = keys
            .iter()
            .enumerate()
            .map(|(position, key)| Seen {
                key: *key,
                max: u64::from(answered.max[position]),
                used: u64::from(answered.used[position]),
                refuses: answered.refuses & (1 << position) != 0,
            })
            .collect();
        self.histories[request.case].add(&Answer {
            outcome,
            asked_at,
            decided_at: answered.decided_at,
            told_at,
            cost: request.cost,
            version: (answered.version > 0).then_some(u64::from(answered.version)),
            limits: &limits,
        });
    }

    /// When each turn's spend was first asked to be given back, and when it was known to be.
    fn refunds(&mut self, records: &[Record]) -> HashMap<(u16, u32), GivenBack> {
        let mut refunds = HashMap::new();
        for record in records {
            if let What::GaveBack(refunded) = record.what {
                let place = (record.task, record.turn);
                if refunds.contains_key(&place) && refunded == Refunded::Done {
                    self.summary.refunded_twice += 1;
                }
                // "Already" to the first: an earlier try was done, and its answer lost.
                let is_done = matches!(refunded, Refunded::Done | Refunded::Already);
                let by = is_done.then_some(record.told_at);
                refunds.entry(place).or_insert(GivenBack { from: record.asked_at, by });
            }
        }
        refunds
    }

    /// A killed instance had one request of each task on its way: the turn, and since when at the earliest.
    fn doubt_all(&mut self, part: &Part, asked: impl Iterator<Item = (u32, i64)>, until: i64) {
        for (task, (turn, from)) in (0..).zip(asked) {
            if turn < part.turns {
                self.doubt(part, (task, turn), &when_counted((from, until), self.deadline));
            }
        }
    }

    /// Under an idempotency key nothing stays in doubt: it is asked until it is answered.
    fn doubt(&mut self, part: &Part, (task, turn): (u16, u32), when: &RangeInclusive<i64>) {
        let request = part.request(task, turn);
        if !request.once {
            let keys = request.keys(&part.scene.cases()[request.case]);
            self.histories[request.case].doubt(request.cost, &keys, when);
            self.summary.in_doubt += 1;
        }
    }

    /// How every key stands at the end.
    async fn look(&mut self, gate: &Tollgate, part: &Part) -> Result<(), String> {
        for case in 0..part.scene.cases().len() {
            let name = part.scene.cases()[case].policy_name(part.round);
            for number in 0..USERS.len().max(PLACES.len()) {
                let (user, place) = (number % USERS.len(), number % PLACES.len());
                let request =
                    Request { case, user, place, cost: 1, once: false, refund: Refund::No };
                let asked_at = SystemClock.now().as_micros();
                let answer = gate.peek(&name, &request.subject(), 1).await;
                let answered = Answered::of(&answer.map_err(|error| error.to_string())?);
                let told_at = SystemClock.now().as_micros();
                self.add(part, &request, (asked_at, told_at), Outcome::Looked, &answered);
            }
        }
        Ok(())
    }
}

//! Was anything counted too little, too much, twice or not at all? Judged from what callers wrote down.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tollgate::Policy;

use super::load::{
    CHECKED, CHECKED_LIMITS, Given, Log, Record, SCHEDULED, SLOTS_PER_SECOND, Trouble, USERS, What,
};
use crate::history::{Answer, History, Outcome, Seen, Versions, when_counted};
use crate::http::{Connection, Decided, LIMITS, read_decision};
use crate::soak::scene::{rules, terms};

/// The limit that counts everything for ever.
const ALL: usize = 2;
/// The default of a store that has one.
const DEADLINE: Duration = Duration::from_millis(500);
/// Wrongs told in full.
const TOLD: usize = 3;
/// What one request for slots may hold.
const BATCH: usize = 1000;

/// What the records come to.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    /// Allowed, and no longer counted after a restart.
    pub(super) forgotten: u64,
    /// From the first forgotten decision to the last.
    pub(super) forgotten_span: Duration,
    /// Counted, and nobody was told: their answers were lost.
    pub(super) unheard: u64,
    pub(super) slots: u64,
    /// What cannot be right, in words.
    pub(super) wrongs: Vec<String>,
}

/// What is judged, and where.
pub(super) struct Case<'a> {
    pub(super) address: &'a str,
    pub(super) requested_time: &'a str,
    pub(super) log: &'a Log,
    /// When the server was started again, since the load began.
    pub(super) restarted: Option<Duration>,
    pub(super) refusals: Refusals,
}

/// What stands behind a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusals {
    /// The counts of that instant.
    Counts,
    /// They may be a second old, and nobody can tell: this store has a memory of what it refused.
    CountsOrMemory,
}

/// Looks how everything stands on the server, and judges.
pub(super) async fn judge(case: &Case<'_>) -> Result<Verdict, String> {
    let Case { address, log, restarted, .. } = *case;
    let said = |error: std::io::Error| format!("after the fault, {address}: {error}");
    let mut connection = Connection::open(address).await.map_err(said)?;
    let mut verdict = Verdict::default();
    let looks = look(&mut connection).await?;
    let counted = looks.first().map_or(0, |look| look.used[ALL]);
    let checks: Vec<&Record> = log.records.iter().filter(|record| record.user.is_some()).collect();
    for decided in checks.iter().filter_map(|record| record.decided()) {
        *(if decided.allowed { &mut verdict.allowed } else { &mut verdict.refused }) += 1;
    }
    let kept = restarted.map_or(u64::MAX, |at| kept_at_restart(&checks, at));
    let is_forgotten = |record: &Record| {
        let before = restarted.is_some_and(|at| record.answered_at() < at);
        let place = record.decided().filter(|decided| decided.allowed);
        before && place.is_some_and(|decided| decided.used[ALL] > kept)
    };
    let forgotten = checks.iter().filter(|record| is_forgotten(record));
    let instants = forgotten.filter_map(|record| record.decided()).map(|it| it.decided_at_micros);
    let instants: Vec<i64> = instants.collect();
    verdict.forgotten = instants.len() as u64;
    let span =
        instants.iter().max().zip(instants.iter().min()).map_or(0, |(last, first)| last - first);
    verdict.forgotten_span = Duration::from_micros(span.unsigned_abs());
    verdict.unheard = (counted + verdict.forgotten).saturating_sub(verdict.allowed);

    let mut whole = case.history(&checks, is_forgotten);
    for (user, decided) in looks.iter().enumerate() {
        let user = u32::try_from(user).expect("there are few users");
        let at = decided.decided_at_micros;
        add(&mut whole, user, decided, Outcome::Looked, (at, at));
    }
    let mut faults = whole.judge().1;
    if verdict.forgotten > 0 {
        // Those before the crash, for themselves: then nothing was forgotten.
        let first_life: Vec<&Record> = checks
            .iter()
            .filter(|record| restarted.is_some_and(|at| record.asked_at < at))
            .copied()
            .collect();
        faults.extend(case.history(&first_life, |_| false).judge().1);
    }
    verdict.wrongs = faults.iter().take(TOLD).map(ToString::to_string).collect();
    if faults.len() > TOLD {
        verdict.wrongs.push(format!("and {} more of the kind", faults.len() - TOLD));
    }
    verdict.slots = log.slots.len() as u64;
    let mut wrongs = recount_slots(&mut connection, case).await?;
    wrongs.extend(crowded(&log.slots, case.requested_time)?);
    verdict.wrongs.extend(wrongs.into_iter().take(TOLD));
    Ok(verdict)
}

/// How many allowed checks the server knew of when it was there again: the least that any answer says.
fn kept_at_restart(checks: &[&Record], restarted: Duration) -> u64 {
    let after = checks.iter().filter(|record| record.asked_at >= restarted);
    let known = after.filter_map(|record| record.decided());
    known.map(|decided| decided.used[ALL] - u64::from(decided.allowed)).min().unwrap_or(u64::MAX)
}

impl Case<'_> {
    /// Everything but what was forgotten, which then counted only until it was.
    fn history(&self, checks: &[&Record], is_forgotten: impl Fn(&Record) -> bool) -> History {
        let policy = policy();
        let versions = Versions::only(terms(&policy));
        let mut history = History::new(CHECKED, rules(&policy), versions);
        for record in checks {
            let user = record.user.unwrap_or_default();
            let told = [record.asked_at, record.answered_at()].map(|at| self.log.wall_micros(at));
            let told = (told[0], told[1]);
            match record.what {
                What::Decided(decided) if is_forgotten(record) => {
                    let at = decided.decided_at_micros;
                    history.doubt(1, &[0, user, 0], &(at..=at));
                }
                What::Decided(decided) => {
                    let from_memory = self.refusals == Refusals::CountsOrMemory;
                    let outcome = match decided.allowed {
                        true => Outcome::Allowed { given_back: None },
                        false => Outcome::Refused { from_memory },
                    };
                    add(&mut history, user, &decided, outcome, told);
                }
                // Nobody was there to count it.
                What::Failed(Trouble::Refused) | What::Answered => {}
                What::Failed(_) => {
                    history.doubt(1, &[0, user, 0], &when_counted(told, DEADLINE));
                }
            }
        }
        history
    }
}

fn add(
    history: &mut History,
    user: u32,
    decided: &Decided,
    outcome: Outcome,
    (asked_at, told_at): (i64, i64),
) {
    let keys = [0, user, 0];
    let limits: [Seen; LIMITS] = std::array::from_fn(|position| Seen {
        key: keys[position],
        max: decided.max[position],
        used: decided.used[position],
        refuses: decided.refuses & (1 << position) != 0,
    });
    let decided_at = decided.decided_at_micros;
    let (version, limits) = (None, &limits);
    history.add(&Answer { outcome, asked_at, decided_at, told_at, cost: 1, version, limits });
}

fn policy() -> Policy {
    Policy::from_toml(CHECKED, CHECKED_LIMITS).expect("the load's policies are valid")
}

/// How every user stands.
async fn look(connection: &mut Connection) -> Result<Vec<Decided>, String> {
    let mut looks = Vec::new();
    for user in 0..USERS {
        let body = json!({ "policy": CHECKED, "subject": { "user": format!("user-{user}") } });
        let body = ask(connection, "POST /api/v1/peek", &body.to_string()).await?;
        looks.push(read_decision(&body, CHECKED).ok_or("a peek that is not one")?);
    }
    Ok(looks)
}

/// Asks for every slot again, and counts what the windows hold.
async fn recount_slots(
    connection: &mut Connection,
    case: &Case<'_>,
) -> Result<Vec<String>, String> {
    let Case { log, requested_time, .. } = *case;
    let mut wrongs = Vec::new();
    for batch in log.slots.chunks(BATCH) {
        let event = |given: &Given| json!({ "eventId": given.event, "configName": SCHEDULED, "requestedTime": requested_time });
        let events: Vec<Value> = batch.iter().map(event).collect();
        let body = json!({ "events": events }).to_string();
        let answer = ask(connection, "POST /api/v1/slots/batch", &body).await?;
        for (position, given) in batch.iter().enumerate() {
            let again = &answer["results"][position]["scheduledTime"];
            if again != &given.scheduled_time {
                let Given { event, scheduled_time } = given;
                wrongs.push(format!("event {event} had {scheduled_time}, now {again}"));
            }
        }
    }
    let windows =
        ask(connection, &format!("GET /api/v1/windows?configName={SCHEDULED}"), "").await?;
    let windows = windows["windows"].as_array().ok_or("no windows are listed")?;
    let count = |window: &Value, what: &str| window[what].as_u64().unwrap_or_default();
    let counted: u64 = windows.iter().map(|window| count(window, "count")).sum();
    let given = log.slots.len() as u64;
    if !(given..=given + log.slots_in_doubt).contains(&counted) {
        wrongs.push(format!("{given} slots were given and {counted} are counted"));
    }
    if let Some(over) = windows.iter().find(|it| count(it, "count") > count(it, "max")) {
        wrongs.push(format!("a window has too many slots: {over}"));
    }
    let path = format!("GET /admin/slots/verify?configName={SCHEDULED}");
    let recount = ask(connection, &path, "").await?;
    if recount["drifts"] != json!([]) || recount["slots"] != counted {
        wrongs.push(format!("the windows count {counted} slots, a recount says: {recount}"));
    }
    Ok(wrongs)
}

/// Places that two events share, that come too soon, or of which any second holds too many.
fn crowded(slots: &[Given], requested_time: &str) -> Result<Vec<String>, String> {
    let read = |text: &str| text.parse::<Timestamp>().map_err(|error| format!("{text}: {error}"));
    let requested = read(requested_time)?;
    let times = slots.iter().map(|given| Ok((read(&given.scheduled_time)?, &given.event)));
    let mut times: Vec<(Timestamp, &String)> = times.collect::<Result<_, String>>()?;
    times.sort_unstable();
    let mut wrongs = Vec::new();
    if let Some((at, event)) = times.first().filter(|(at, _)| *at < requested) {
        wrongs.push(format!("event {event} was asked for {requested} and has {at}"));
    }
    for pair in times.windows(2) {
        if pair[0].0 == pair[1].0 {
            wrongs.push(format!("events {} and {} share {}", pair[0].1, pair[1].1, pair[0].0));
        }
    }
    for many in times.windows(SLOTS_PER_SECOND + 1) {
        let (first, last) = (many[0].0, many[SLOTS_PER_SECOND].0);
        if last.as_microsecond() - first.as_microsecond() < 1_000_000 {
            wrongs.push(format!("{} slots from {first} to {last}, within a second", many.len()));
        }
    }
    Ok(wrongs)
}

async fn ask(connection: &mut Connection, head: &str, body: &str) -> Result<Value, String> {
    let answer = connection.ask(head, "", body).await;
    let answer = answer.map_err(|error| format!("after the fault, {head}: {error}"))?;
    if answer.status != 200 {
        let said = String::from_utf8_lossy(&answer.body);
        return Err(format!("after the fault, {head} answers {}: {said}", answer.status));
    }
    serde_json::from_slice(&answer.body).map_err(|error| error.to_string())
}

impl Record {
    fn decided(&self) -> Option<Decided> {
        match self.what {
            What::Decided(decided) => Some(decided),
            What::Answered | What::Failed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Wrong;

    /// What callers wrote down, by when they asked in milliseconds; each was answered at once.
    fn wrongs(refusals: Refusals, told: &[(u64, What)]) -> Vec<Wrong> {
        let record = |(asked_ms, what): &(u64, What)| Record {
            asked_at: Duration::from_millis(*asked_ms),
            took: Duration::ZERO,
            user: Some(0),
            what: *what,
        };
        let records: Vec<Record> = told.iter().map(record).collect();
        let (address, requested_time, restarted) = ("", "", None);
        let case = Case { address, requested_time, log: &Log::default(), restarted, refusals };
        let (_, faults) = case.history(&records.iter().collect::<Vec<_>>(), |_| false).judge();
        faults.iter().map(|fault| fault.wrong).collect()
    }

    fn decided(at_ms: i64, allowed: bool, used: u64) -> What {
        let (decided_at_micros, max) = (at_ms * 1000, [300, 100, 9_000_000_000]);
        let refuses = u8::from(!allowed);
        What::Decided(Decided { allowed, decided_at_micros, max, used: [used; 3], refuses })
    }

    #[test]
    fn errors_excuse_a_refusal_for_as_long_as_they_can_count() {
        let errors = vec![(100, What::Failed(Trouble::Status(503))); 300];
        let then = |at_ms: u64, used: u64| {
            let refused = (at_ms, decided(at_ms.cast_signed(), false, used));
            wrongs(Refusals::Counts, &[errors.clone(), vec![refused]].concat())
        };
        assert_eq!(then(1_100, 0), []);
        let max = 300;
        assert_eq!(then(5_000, 0), [Wrong::RefusedForNothing { held: 0, cost: 1, max }]);
    }

    #[test]
    fn only_a_store_with_a_memory_may_refuse_by_old_counts() {
        let mut told: Vec<(u64, What)> =
            (1..=90_u64).map(|used| (used, decided(used.cast_signed(), true, used))).collect();
        told.push((200, decided(200, false, 80)));
        let forgotten = Wrong::Forgotten { held: 90, used: 80 };
        assert_eq!(
            wrongs(Refusals::Counts, &told).iter().filter(|it| **it == forgotten).count(),
            3
        );
        assert!(!wrongs(Refusals::CountsOrMemory, &told).contains(&forgotten));
    }

    #[test]
    fn slots_that_share_a_place_or_crowd_a_second_are_found() {
        let given = |micros: i64| Given {
            event: micros.to_string(),
            scheduled_time: Timestamp::from_microsecond(micros).unwrap().to_string(),
        };
        let crowd = |micros: &mut dyn Iterator<Item = i64>| {
            let slots: Vec<Given> = micros.map(given).collect();
            crowded(&slots, "1970-01-01T00:00:01Z").unwrap()
        };
        let even = |number: i64| 1_000_000 + number * 20_000;
        assert_eq!(crowd(&mut (0..200).map(even)), [""; 0]);
        assert_eq!(crowd(&mut [even(3), even(3)].into_iter()).len(), 1);
        assert_eq!(crowd(&mut [even(-1)].into_iter()).len(), 1);
        // 51 in a second that is no window.
        let one_more = (0..200).map(even).chain([even(70) + 1]);
        assert_eq!(crowd(&mut one_more.into_iter()).len(), 51);
    }
}

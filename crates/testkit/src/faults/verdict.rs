//! Was anything counted too little, too much, twice or not at all? Judged from what callers wrote down.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate::Policy;

use super::load::caller::read_decision;
use super::load::{
    CHECKED, CHECKED_LIMITS, Decided, Given, LIMITS, Log, Record, SCHEDULED, Trouble, USERS, What,
};
use crate::history::{Answer, History, Outcome, Seen, Versions};
use crate::http::Connection;
use crate::soak::scene::{rules, terms};

/// The limit that counts everything for ever.
const ALL: usize = 2;
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

/// Looks how everything stands on the server, and judges. `restarted`: when the server was started again,
/// since the load began.
pub(super) async fn judge(
    address: &str,
    requested_time: &str,
    log: &Log,
    restarted: Option<Duration>,
) -> Result<Verdict, String> {
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

    let mut whole = history(&checks, is_forgotten);
    for (user, decided) in looks.iter().enumerate() {
        let user = u32::try_from(user).expect("there are few users");
        add(&mut whole, user, decided, Outcome::Looked);
    }
    let mut faults = whole.judge().1;
    if verdict.forgotten > 0 {
        // Those before the crash, for themselves: then nothing was forgotten.
        let first_life: Vec<&Record> = checks
            .iter()
            .filter(|record| restarted.is_some_and(|at| record.asked_at < at))
            .copied()
            .collect();
        faults.extend(history(&first_life, |_| false).judge().1);
    }
    verdict.wrongs = faults.iter().take(TOLD).map(ToString::to_string).collect();
    if faults.len() > TOLD {
        verdict.wrongs.push(format!("and {} more of the kind", faults.len() - TOLD));
    }
    verdict.slots = log.slots.len() as u64;
    verdict.wrongs.extend(recount_slots(&mut connection, requested_time, log).await?);
    Ok(verdict)
}

/// How many allowed checks the server knew of when it was there again: the least that any answer says.
fn kept_at_restart(checks: &[&Record], restarted: Duration) -> u64 {
    let after = checks.iter().filter(|record| record.asked_at >= restarted);
    let known = after.filter_map(|record| record.decided());
    known.map(|decided| decided.used[ALL] - u64::from(decided.allowed)).min().unwrap_or(u64::MAX)
}

/// Everything but what was forgotten, which is then only in doubt.
fn history(checks: &[&Record], is_forgotten: impl Fn(&Record) -> bool) -> History {
    let policy = policy();
    let versions = Versions::only(terms(&policy));
    let mut history = History::new(CHECKED, rules(&policy), versions);
    for record in checks {
        let user = record.user.unwrap_or_default();
        match record.what {
            What::Decided(_) if is_forgotten(record) => history.doubt(1, &[0, user, 0]),
            What::Decided(decided) => {
                let outcome = if decided.allowed {
                    Outcome::Allowed { given_back_from: None }
                } else {
                    // Nobody can tell: a server may have a memory of what it refused.
                    Outcome::Refused { from_memory: true }
                };
                add(&mut history, user, &decided, outcome);
            }
            // Nobody was there to count it.
            What::Failed(Trouble::Refused) | What::Answered => {}
            What::Failed(_) => history.doubt(1, &[0, user, 0]),
        }
    }
    history
}

fn add(history: &mut History, user: u32, decided: &Decided, outcome: Outcome) {
    let keys = [0, user, 0];
    let limits: [Seen; LIMITS] = std::array::from_fn(|position| Seen {
        key: keys[position],
        max: decided.max[position],
        used: decided.used[position],
        refuses: decided.refuses & (1 << position) != 0,
    });
    let at = decided.decided_at_micros;
    let (version, limits) = (None, &limits);
    let (asked_at, decided_at, told_at) = (at, at, at);
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
        looks.push(read_decision(&body).ok_or("a peek that is not one")?);
    }
    Ok(looks)
}

/// Asks for every slot again, and counts what the windows hold.
async fn recount_slots(
    connection: &mut Connection,
    requested_time: &str,
    log: &Log,
) -> Result<Vec<String>, String> {
    let mut wrongs = Vec::new();
    for batch in log.slots.chunks(BATCH) {
        let event = |given: &Given| json!({ "eventId": given.event, "configName": SCHEDULED, "requestedTime": requested_time });
        let events: Vec<Value> = batch.iter().map(event).collect();
        let body = json!({ "events": events }).to_string();
        let answer = ask(connection, "POST /api/v1/slots/batch", &body).await?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
        for (position, given) in batch.iter().enumerate() {
            let again = &answer["results"][position]["scheduledTime"];
            if again != &given.scheduled_time {
                let Given { event, scheduled_time } = given;
                wrongs.push(format!("event {event} had {scheduled_time}, now {again}"));
            }
        }
    }
    let path = format!("GET /api/v1/windows?configName={SCHEDULED}");
    let windows = ask(connection, &path, "").await?;
    let windows: Value = serde_json::from_slice(&windows).map_err(|error| error.to_string())?;
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
    wrongs.truncate(TOLD);
    Ok(wrongs)
}

async fn ask(connection: &mut Connection, head: &str, body: &str) -> Result<Vec<u8>, String> {
    let answer = connection.ask(head, "", body).await;
    let answer = answer.map_err(|error| format!("after the fault, {head}: {error}"))?;
    if answer.status == 200 {
        return Ok(answer.body);
    }
    let said = String::from_utf8_lossy(&answer.body);
    Err(format!("after the fault, {head} answers {}: {said}", answer.status))
}

impl Record {
    fn decided(&self) -> Option<Decided> {
        match self.what {
            What::Decided(decided) => Some(decided),
            What::Answered | What::Failed(_) => None,
        }
    }
}

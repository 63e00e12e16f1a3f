//! States and spends as stores keep them. An input is a few numbers, then the bytes of a state and
//! perhaps those of a spend.

use tollgate::core::{
    Claim, Cost, Intent, MAX_PER, Reader, Refund, Rule, Spend, State, States, Unit, Window, Writer,
    decide, refund,
};
use tollgate::{Instant, Span};

use crate::Numbers;

pub fn state(input: &[u8]) {
    let mut numbers = Numbers(input);
    let (selector, per, max) = (numbers.u8(), numbers.i64(), numbers.u64());
    let (cost, now) = (numbers.u32(), Instant::from_micros(numbers.i64()));
    let mut reader = Reader(numbers.0);
    let Ok(state) = reader.state() else { return };
    let read = &numbers.0[..numbers.0.len() - reader.0.len()];
    assert_eq!(state_bytes(&state), read, "a state that is written back otherwise");
    let rest = reader.0;
    let spend = reader.spend().ok();
    if let Some(spend) = &spend {
        let read = &rest[..rest.len() - reader.0.len()];
        assert_eq!(spend_bytes(spend), read, "a spend that is written back otherwise");
    }
    let rule = rule_for(&state, selector, per);
    let cost = Cost::new(cost).unwrap_or(Cost::MIN);
    decide_on(state, &rule, max, cost, now, spend);
}

fn decide_on(state: State, rule: &Rule, max: u64, cost: Cost, now: Instant, spend: Option<Spend>) {
    let quota = rule.quota(max);
    let claim = Claim { rule, quota: &quota, shadow: false };
    let mut keys = Keys(state);
    let before = keys.0.clone();
    decide(&[claim], &mut keys, Intent::Peek, cost, now);
    assert_eq!(keys.0, before, "a peek changed the state");
    let decision = decide(&[claim], &mut keys, Intent::Spend, cost, now);
    let mut spends = Vec::from_iter(spend);
    if decision.allowed() {
        let standing = decision.limits[0].standing;
        assert!(standing.used <= standing.max, "{standing:?}");
        spends.push(keys.0.latest_spend(&quota, cost));
    } else {
        assert_eq!(keys.0, before, "a refusal changed the state");
    }
    for spend in &spends {
        let before = keys.0.clone();
        let outcome = refund(&mut keys.0, spend, cost, now);
        assert!(outcome == Refund::Done || keys.0 == before, "expired, yet changed");
        let _ = spend.expires_at();
    }
    let _ = keys.0.expires_at();
    let bytes = state_bytes(&keys.0);
    if bytes.len() < 1000 {
        assert_eq!(Reader(&bytes).state().as_ref(), Ok(&keys.0), "a state that cannot be read");
    }
}

/// A rule of the state's own algorithm: that is part of every key.
fn rule_for(state: &State, selector: u8, per: i64) -> Rule {
    let per = per.unsigned_abs() % MAX_PER.as_micros().unsigned_abs() + 1;
    let per = i64::try_from(per).ok().and_then(Span::from_micros).expect("at least one");
    let span = |micros: i64| Span::from_micros(micros.max(1)).expect("at least one");
    match state {
        State::Fixed(_) => Rule::Fixed(match selector % 4 {
            0 => Window::Span(per),
            1 => Window::Calendar(Unit::Day, zone("Europe/Rome")),
            2 => Window::Calendar(Unit::Month, zone("America/New_York")),
            _ => Window::Calendar(Unit::Hour, zone("Australia/Lord_Howe")),
        }),
        State::Sliding(_) => {
            let finest = per.as_micros() / 3600 + 1;
            let resolution = span(finest.max(per.as_micros() / (1 + i64::from(selector))));
            Rule::Sliding { per, resolution }
        }
        State::Bucket(_) | State::RefundedBucket(_) | State::UnitBucket(_) => {
            let burst = (selector % 2 == 1).then_some(u64::from(selector) + 1);
            Rule::Bucket { per, burst }
        }
    }
}

fn zone(name: &str) -> jiff::tz::TimeZone {
    jiff::tz::TimeZone::get(name).expect("a zone of the database")
}

fn state_bytes(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer(&mut bytes).state(state);
    bytes
}

fn spend_bytes(spend: &Spend) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer(&mut bytes).spend(spend);
    bytes
}

struct Keys(State);

impl States for Keys {
    fn get(&self, _: usize) -> Option<&State> {
        Some(&self.0)
    }

    fn get_or_insert_with(&mut self, _: usize, _: impl FnOnce() -> State) -> &mut State {
        &mut self.0
    }
}

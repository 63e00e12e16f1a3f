//! What a script can do, and how scripts are made.

use proptest::prelude::*;
use serde_json::json;
use tollgate_core::{Rule, Span, Unit, Window};

/// Policies, and what is done with them.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) policies: Vec<Vec<Limited>>,
    pub(super) steps: Vec<Step>,
}

/// One limit, as the model knows it.
#[derive(Clone, Debug)]
pub(super) struct Limited {
    pub(super) rule: Rule,
    pub(super) max: u64,
    pub(super) by: &'static [&'static str],
    pub(super) private: bool,
    pub(super) shadow: bool,
}

/// One of a few users in one of two teams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub(super) user: usize,
    pub(super) team: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Check {
        policy: usize,
        subject: Subject,
        cost: u32,
    },
    Peek {
        policy: usize,
        subject: Subject,
        cost: u32,
    },
    /// Of the receipts so far, the one at this place, counted round and round.
    Refund {
        receipt: usize,
    },
    Advance(Span),
    GoBack(Span),
    SetMax {
        policy: usize,
        limit: usize,
        max: u64,
    },
    Sweep,
}

const USERS: [&str; 3] = ["ada", "bob", "eve"];
const TEAMS: [&str; 2] = ["blue", "red"];
const BY: [&[&str]; 4] = [&[], &["user"], &["team"], &["team", "user"]];
const UNITS: [Unit; 5] = [Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month];
const ZONES: [&str; 3] = ["UTC", "Europe/Rome", "Australia/Lord_Howe"];
const MAX_LIMITS: usize = 3;
const MOST: u64 = 8;

impl Subject {
    pub(super) fn attributes(self) -> [(&'static str, &'static str); 2] {
        [("user", USERS[self.user]), ("team", TEAMS[self.team])]
    }

    pub(super) fn value(self, attribute: &str) -> &'static str {
        match attribute {
            "user" => USERS[self.user],
            "team" => TEAMS[self.team],
            other => panic!("the model has no attribute {other}"),
        }
    }
}

impl Limited {
    pub(super) fn document(&self, name: &str) -> serde_json::Value {
        let micros = |span: &Span| format!("{}us", span.as_micros());
        let mut document = json!({
            "name": name, "max": self.max, "by": self.by, "shadow": self.shadow,
        });
        if self.private {
            document["private"] = true.into();
        }
        let set = match &self.rule {
            Rule::Fixed(Window::Span(per)) => json!({ "per": micros(per) }),
            Rule::Fixed(Window::Calendar(unit, zone)) => json!({
                "per": unit.as_str(),
                "timezone": zone.iana_name().expect("the model's zones have names"),
            }),
            Rule::Sliding { per, resolution } => json!({
                "algorithm": "sliding", "per": micros(per), "resolution": micros(resolution),
            }),
            Rule::Bucket { per, burst } => {
                let mut set = json!({ "algorithm": "bucket", "per": micros(per) });
                if let Some(burst) = burst {
                    set["burst"] = (*burst).into();
                }
                set
            }
        };
        for (field, value) in set.as_object().into_iter().flatten() {
            document[field] = value.clone();
        }
        document
    }
}

pub(super) fn scripts() -> impl Strategy<Value = Script> {
    let policy = prop::collection::vec(limited(), 1..=MAX_LIMITS);
    let policies = prop::collection::vec(policy, 1..=2);
    (policies, prop::collection::vec(step(), 1..80)).prop_map(|(policies, mut steps)| {
        for step in &mut steps {
            match step {
                Step::Check { policy, .. } | Step::Peek { policy, .. } => *policy %= policies.len(),
                Step::SetMax { policy, limit, .. } => {
                    *policy %= policies.len();
                    *limit %= policies[*policy].len();
                }
                _ => {}
            }
        }
        Script { policies, steps }
    })
}

fn limited() -> impl Strategy<Value = Limited> {
    let shadow = prop::bool::weighted(0.15);
    (rule(), 0..=MOST, prop::sample::select(&BY[..]), any::<bool>(), shadow).prop_map(
        |(rule, max, by, private, shadow)| Limited {
            rule,
            max,
            by,
            private: private && !by.is_empty(),
            shadow,
        },
    )
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        3 => per().prop_map(|per| Rule::Fixed(Window::Span(per))),
        1 => (prop::sample::select(&UNITS[..]), prop::sample::select(&ZONES[..])).prop_map(
            |(unit, zone)| {
                let zone = jiff::tz::TimeZone::get(zone).expect("a zone everybody has");
                Rule::Fixed(Window::Calendar(unit, zone))
            }
        ),
        4 => (per(), 1..=60_i64).prop_map(|(per, parts)| {
            let resolution = Span::from_micros((per.as_micros() / parts).max(1));
            Rule::Sliding { per, resolution: resolution.expect("at least one microsecond") }
        }),
        4 => (per(), prop::option::of(1..=MOST)).prop_map(|(per, burst)| Rule::Bucket { per, burst }),
    ]
}

/// From some microseconds to a day, most near a minute: the scripts' clock moves in that range.
fn per() -> impl Strategy<Value = Span> {
    span(prop_oneof![
        1 => 1..=1_000_i64,
        4 => 1_000_000..=120_000_000_i64,
        1 => Just(60_000_000_i64),
        1 => 3_600_000_000..=86_400_000_000_i64,
    ])
}

fn span(micros: impl Strategy<Value = i64>) -> impl Strategy<Value = Span> {
    micros.prop_map(|micros| Span::from_micros(micros).expect("at least one microsecond"))
}

fn step() -> impl Strategy<Value = Step> {
    let subject =
        || (0..USERS.len(), 0..TEAMS.len()).prop_map(|(user, team)| Subject { user, team });
    let cost = || prop_oneof![6 => Just(1_u32), 3 => 2..=4_u32, 1 => 5..=10_u32];
    let moved = || {
        span(prop_oneof![
            2 => 1..=1_000_i64,
            4 => 100_000..=40_000_000_i64,
            2 => 40_000_000..=200_000_000_i64,
            1 => 3_600_000_000..=200_000_000_000_i64,
        ])
    };
    prop_oneof![
        12 => (0..2_usize, subject(), cost())
            .prop_map(|(policy, subject, cost)| Step::Check { policy, subject, cost }),
        3 => (0..2_usize, subject(), cost())
            .prop_map(|(policy, subject, cost)| Step::Peek { policy, subject, cost }),
        4 => (0..80_usize).prop_map(|receipt| Step::Refund { receipt }),
        5 => moved().prop_map(Step::Advance),
        2 => moved().prop_map(Step::GoBack),
        1 => (0..2_usize, 0..MAX_LIMITS, 0..=MOST)
            .prop_map(|(policy, limit, max)| Step::SetMax { policy, limit, max }),
        1 => Just(Step::Sweep),
    ]
}

//! The policies of one simulation: few limits, small numbers, short windows, hot keys.

use serde_json::{Value, json};
use tollgate::core::{Quota, Rule, Span, Window};

use crate::dice::Dice;
use crate::history;

pub(super) const USERS: usize = 3;

/// One limit whose algorithm, window and `by` never change; its `max` does.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    pub(super) rule: Rule,
    pub(super) by_user: bool,
    pub(super) shadow: bool,
}

/// One policy: its limits.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) limits: Vec<Limit>,
}

/// The number in a name such as `p3`.
pub(super) fn number(name: &str) -> usize {
    name[1..].parse().expect("a letter and a number")
}

pub(super) fn user(number: usize) -> String {
    format!("u{number}")
}

pub(super) fn policies(dice: &mut Dice) -> Vec<Policy> {
    let count = 1 + dice.below(2);
    let policy = |dice: &mut Dice| {
        let limits = 1 + dice.below(3) + u64::from(dice.one_in(6));
        Policy { limits: (0..limits).map(|_| Limit::any(dice)).collect() }
    };
    (0..count).map(|_| policy(dice)).collect()
}

pub(super) fn maxima(policy: &Policy, dice: &mut Dice) -> Vec<u64> {
    let max = |dice: &mut Dice| if dice.one_in(40) { 0 } else { 1 + dice.below(9) };
    policy.limits.iter().map(|_| max(dice)).collect()
}

impl Policy {
    pub(super) fn document(&self, maxima: &[u64]) -> Value {
        let limits = self.limits.iter().zip(maxima).enumerate();
        let limits = limits.map(|(position, (limit, max))| limit.document(position, *max));
        json!({ "limits": limits.collect::<Vec<_>>() })
    }
}

impl Limit {
    fn any(dice: &mut Dice) -> Self {
        let per = [50_000, 200_000, 1_000_000, 1_500_000, 4_000_000, 30_000_000];
        let per = span(dice.pick(&per) + i64::try_from(dice.below(3)).expect("a few") * 7);
        let rule = match dice.below(3) {
            0 => Rule::Fixed(Window::Span(per)),
            1 => {
                let parts = dice.pick(&[1, 3, 10, 60]);
                Rule::Sliding { per, resolution: span(per.as_micros() / parts) }
            }
            _ => Rule::Bucket { per, burst: dice.one_in(2).then(|| 1 + dice.below(6)) },
        };
        Self { rule, by_user: !dice.one_in(3), shadow: dice.one_in(8) }
    }

    pub(super) fn quota(&self, max: u64) -> Quota {
        self.rule.quota(max)
    }

    /// The same for judges that know nothing of the core.
    pub(super) fn plain(&self) -> history::Rule {
        match &self.rule {
            Rule::Fixed(Window::Span(per)) => history::Rule::Fixed { per: per.as_micros() },
            Rule::Fixed(Window::Calendar(..)) => unreachable!("no calendars here"),
            Rule::Sliding { per, resolution } => {
                history::Rule::Sliding { per: per.as_micros(), resolution: resolution.as_micros() }
            }
            Rule::Bucket { per, burst: None } => history::Rule::Bucket { per: per.as_micros() },
            Rule::Bucket { per, burst: Some(_) } => {
                history::Rule::UnitBucket { per: per.as_micros() }
            }
        }
    }

    /// What `max` means to such a judge.
    pub(super) fn terms(&self, max: u64) -> history::Terms {
        let holds = match &self.rule {
            Rule::Bucket { burst: Some(burst), .. } if max > 0 => *burst,
            _ => max,
        };
        history::Terms { max, holds }
    }

    fn document(&self, position: usize, max: u64) -> Value {
        let micros = |span: &Span| format!("{}us", span.as_micros());
        let by: &[&str] = if self.by_user { &["user"] } else { &[] };
        let mut document =
            json!({ "name": format!("l{position}"), "max": max, "by": by, "shadow": self.shadow });
        let mut set = |field: &str, value: Value| document[field] = value;
        match &self.rule {
            Rule::Fixed(Window::Span(per)) => set("per", micros(per).into()),
            Rule::Fixed(Window::Calendar(..)) => unreachable!("no calendars here"),
            Rule::Sliding { per, resolution } => {
                set("algorithm", "sliding".into());
                set("per", micros(per).into());
                set("resolution", micros(resolution).into());
            }
            Rule::Bucket { per, burst } => {
                set("algorithm", "bucket".into());
                set("per", micros(per).into());
                if let Some(burst) = burst {
                    set("burst", (*burst).into());
                }
            }
        }
        document
    }
}

fn span(micros: i64) -> Span {
    Span::from_micros(micros.max(1)).expect("at least one microsecond")
}

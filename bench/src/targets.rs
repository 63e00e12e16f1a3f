//! Figures beside what is asked of them, and the verdict.

mod list;

use std::collections::BTreeMap;

use crate::report::{Measured, Table};
use crate::statistics::number;

/// One promise.
pub(crate) struct Target {
    /// Begins with the bench that measures it, and a dot.
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) bound: Bound,
    pub(crate) must: Option<f64>,
    pub(crate) aim: Option<f64>,
    /// How it is measured.
    pub(crate) how: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    AtMost,
    AtLeast,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    AimMet,
    Met,
    /// There is no `must`, and it is short of the aim.
    ShortOfAim,
    Missed,
}

impl Verdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::AimMet => "aim met",
            Self::Met => "met",
            Self::ShortOfAim => "**aim missed**",
            Self::Missed => "**missed**",
        }
    }
}

/// By the issue that asks for them, from 1 to 6.
pub(crate) fn by_issue() -> &'static [(u8, &'static [Target])] {
    list::ALL
}

pub(crate) fn all() -> impl Iterator<Item = &'static Target> {
    by_issue().iter().flat_map(|(_, targets)| *targets)
}

pub(crate) fn find(id: &str) -> Option<&'static Target> {
    all().find(|target| target.id == id)
}

impl Target {
    pub(crate) fn bench(&self) -> &'static str {
        self.id.split('.').next().unwrap_or(self.id)
    }

    pub(crate) fn verdict(&self, value: f64) -> Verdict {
        let holds = |wanted: f64| match self.bound {
            Bound::AtMost => value <= wanted,
            Bound::AtLeast => value >= wanted,
        };
        match self.aim {
            _ if !self.must.is_none_or(holds) => Verdict::Missed,
            Some(aim) if holds(aim) => Verdict::AimMet,
            Some(_) if self.must.is_none() => Verdict::ShortOfAim,
            _ => Verdict::Met,
        }
    }

    pub(crate) fn shown(&self, value: f64) -> String {
        format!("{}{}", number(value), self.unit)
    }

    /// The bound in words, or a dash.
    pub(crate) fn wanted(&self, value: Option<f64>) -> String {
        let sign = if self.bound == Bound::AtMost { "≤" } else { "≥" };
        value.map_or("–".into(), |value| format!("{sign} {}", self.shown(value)))
    }
}

/// The targets that were measured, as Markdown.
pub(crate) fn table(measured: &BTreeMap<String, Measured>) -> String {
    let mut table = Table::new("", &["figure", "measured", "must be", "aim", "verdict"]);
    for target in all() {
        if let Some(Measured { value, .. }) = measured.get(target.id) {
            table.row([
                target.what.to_owned(),
                target.shown(*value),
                target.wanted(target.must),
                target.wanted(target.aim),
                target.verdict(*value).word().to_owned(),
            ]);
        }
    }
    table.markdown()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_target_has_an_id_of_its_own_a_bench_and_a_bound() {
        let mut ids = HashSet::new();
        for target in all() {
            assert!(ids.insert(target.id), "{} is there twice", target.id);
            assert!(target.must.is_some() || target.aim.is_some(), "{} asks nothing", target.id);
            let known = crate::benches::ALL.iter().any(|bench| bench.name == target.bench());
            assert!(known, "no bench measures {}", target.id);
        }
    }

    #[test]
    fn a_verdict_looks_at_the_promise_first_and_then_at_the_aim() {
        let target = Target {
            id: "a.b",
            what: "",
            unit: "",
            bound: Bound::AtLeast,
            must: Some(2.0),
            aim: Some(4.0),
            how: "",
        };
        assert_eq!(target.verdict(1.9), Verdict::Missed);
        assert_eq!(target.verdict(2.0), Verdict::Met);
        assert_eq!(target.verdict(4.0), Verdict::AimMet);
        assert_eq!(target.verdict(f64::NAN), Verdict::Missed);
        let only_aim = Target { bound: Bound::AtMost, must: None, ..target };
        assert_eq!(only_aim.verdict(4.1), Verdict::ShortOfAim);
        assert_eq!(only_aim.verdict(4.0), Verdict::AimMet);
    }
}

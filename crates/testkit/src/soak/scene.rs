//! The policies of one round: hot keys of one limit and of three that cross, in every algorithm.

use tollgate::Policy;
use tollgate::core::{Rule as CoreRule, Window};

use crate::dice::Dice;
use crate::history::{Rule, Terms};

/// So long that nothing leaves while this runs: then exactly `max` must pass in all.
const FOR_EVER: &str = "3650d";
/// Subjects that cross: each of these with each of those.
pub(crate) const USERS: [&str; 5] = ["ada", "bob", "cyd", "dan", "eve"];
pub(crate) const PLACES: [&str; 3] = ["rome", "oslo", "kyiv"];

/// Which policies a round has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scene {
    /// Everything, in windows that pass and in windows that do not.
    All,
    /// One limit, in windows that do not pass: one policy for each algorithm.
    OneLimit,
    /// Three limits that cross, in windows that do not pass.
    ThreeLimits,
    /// One limit and three, in windows that pass.
    Passing,
}

impl Scene {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let all = [Self::All, Self::OneLimit, Self::ThreeLimits, Self::Passing];
        all.into_iter().find(|scene| scene.as_str() == text)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::OneLimit => "one-limit",
            Self::ThreeLimits => "three-limits",
            Self::Passing => "passing",
        }
    }

    pub(crate) fn cases(self) -> &'static [Case] {
        match self {
            Self::All => &ALL,
            Self::Passing => &ALL[..5],
            Self::OneLimit => &ALL[5..8],
            Self::ThreeLimits => &ALL[8..],
        }
    }
}

/// One policy.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) limits: &'static [Shape],
    /// Some of what passes is given back.
    pub(crate) refunds: bool,
}

#[derive(Debug)]
pub(crate) struct Shape {
    algorithm: &'static str,
    per: &'static str,
    pub(crate) by: By,
}

/// What a limit counts by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    Nothing,
    User,
    Place,
}

const fn shape(algorithm: &'static str, per: &'static str, by: By) -> Shape {
    Shape { algorithm, per, by }
}

const fn case(name: &'static str, limits: &'static [Shape]) -> Case {
    Case { name, limits, refunds: false }
}

static ALL: [Case; 10] = [
    case("fixed", &[shape("fixed", "300ms", By::Nothing)]),
    case("sliding", &[shape("sliding", "400ms", By::Nothing)]),
    case("bucket", &[shape("bucket", "1s", By::Nothing)]),
    case(
        "tiers",
        &[
            shape("sliding", "500ms", By::Nothing),
            shape("fixed", "400ms", By::User),
            shape("bucket", "1s", By::Place),
        ],
    ),
    Case {
        name: "refunds",
        limits: &[
            shape("fixed", "500ms", By::Nothing),
            shape("bucket", "1s", By::User),
            shape("sliding", "400ms", By::Place),
        ],
        refunds: true,
    },
    case("ever-fixed", &[shape("fixed", FOR_EVER, By::Nothing)]),
    case("ever-sliding", &[shape("sliding", FOR_EVER, By::Nothing)]),
    case("ever-bucket", &[shape("bucket", FOR_EVER, By::Nothing)]),
    case(
        "ever-tiers",
        &[
            shape("fixed", FOR_EVER, By::Nothing),
            shape("sliding", FOR_EVER, By::User),
            shape("bucket", FOR_EVER, By::Place),
        ],
    ),
    case(
        "ever-crossed",
        &[
            shape("bucket", FOR_EVER, By::Nothing),
            shape("fixed", FOR_EVER, By::User),
            shape("sliding", FOR_EVER, By::Place),
        ],
    ),
];

impl Case {
    /// The policy's name in this round: fresh, so that each round has counts of its own.
    pub(crate) fn policy_name(&self, round: u64) -> String {
        format!("{}-{round}", self.name)
    }

    /// Windows of this case pass.
    pub(crate) fn passes(&self) -> bool {
        self.limits.iter().all(|shape| shape.per != FOR_EVER)
    }

    /// The largest number of units that each limit lets through, before any change. `demand` is how
    /// many units this case is about to be asked for in all.
    pub(crate) fn maxima(&self, demand: u64, dice: &mut Dice) -> Vec<u64> {
        let all = if self.passes() {
            dice.pick(&[40, 150, 400, 1000, 2500])
        } else {
            // Far less than is asked for.
            (demand * (20 + dice.below(40)) / 100).max(1)
        };
        // With tiers, each is the one that refuses for some of the subjects.
        let part = |shape: &Shape| match shape.by {
            By::Nothing => all,
            By::User => (all * (10 + dice.below(25)) / 100).max(1),
            By::Place => (all * (20 + dice.below(30)) / 100).max(1),
        };
        self.limits.iter().map(part).collect()
    }

    /// The policy with so many percent of its `maxima`.
    pub(crate) fn policy(&self, round: u64, maxima: &[u64], percent: u64) -> Policy {
        let limits = self.limits.iter().zip(maxima).enumerate().map(|(number, (shape, max))| {
            let Shape { algorithm, per, by } = shape;
            let max = (max * percent / 100).max(1);
            let by = match by {
                By::Nothing => "",
                By::User => r#", by = ["user"]"#,
                By::Place => r#", by = ["place"]"#,
            };
            // A burst of its own, where what is measured is a rate.
            let burst = match *algorithm {
                "bucket" if self.passes() => format!(", burst = {}", max.div_ceil(3) + 8),
                _ => String::new(),
            };
            format!(
                r#"{{ name = "l{number}", max = {max}, per = "{per}", algorithm = "{algorithm}"{by}{burst} }}"#
            )
        });
        let limits: Vec<String> = limits.collect();
        let toml = format!("on_store_error = \"refuse\"\nlimits = [{}]", limits.join(", "));
        Policy::from_toml(&self.policy_name(round), &toml).expect("the scene's policies are valid")
    }
}

/// How the checker counts what this policy's limits count.
pub(crate) fn rules(policy: &Policy) -> Vec<Rule> {
    let rule = |rule: &CoreRule| match rule {
        CoreRule::Fixed(Window::Span(per)) => Rule::Fixed { per: per.as_micros() },
        CoreRule::Fixed(Window::Calendar(..)) => panic!("no scene counts by the calendar"),
        CoreRule::Sliding { per, resolution } => {
            Rule::Sliding { per: per.as_micros(), resolution: resolution.as_micros() }
        }
        CoreRule::Bucket { per, burst: None } => Rule::Bucket { per: per.as_micros() },
        CoreRule::Bucket { per, burst: Some(_) } => Rule::UnitBucket { per: per.as_micros() },
    };
    policy.limits().iter().map(|limit| rule(&limit.rule)).collect()
}

/// What this version of a policy lets through.
pub(crate) fn terms(policy: &Policy) -> Vec<Terms> {
    let terms = |limit: &tollgate::core::Limit| Terms {
        max: limit.max,
        holds: match limit.rule {
            CoreRule::Bucket { burst: Some(burst), .. } => burst,
            _ => limit.max,
        },
    };
    policy.limits().iter().map(terms).collect()
}

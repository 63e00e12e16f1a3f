//! Was there ever one too many? Sums over what was admitted, without the core.
//!
//! In order of commit, per limit and key: never more than `max` in a window (`fixed`), in any interval
//! of the window's length (`sliding`), or than burst + rate × time (`bucket`), less what was given
//! back; and time never goes back within a key. The sums are those that judge the soak
//! (`history/standing.rs`).

use std::collections::BTreeMap;

use super::explain::{Effect, Explained};
use super::history::{Key, What};
use super::play::Played;
use super::verdict::Wrong;
use crate::history::Rule;
use crate::history::standing::{Side, Standing};

struct Account {
    rule: Rule,
    standing: Standing,
    /// Requests in order; their places are the numbers of their spends.
    spends: Vec<usize>,
    latest: i64,
}

pub(super) fn check(played: &Played, trail: &[Explained]) -> Result<(), Wrong> {
    let mut accounts: BTreeMap<&Key, Account> = BTreeMap::new();
    for explained in trail {
        let wrong = |what: String| Wrong { step: explained.step, what };
        match &explained.effect {
            Effect::GaveBack(of) => {
                for account in accounts.values_mut() {
                    if let Some(number) = account.spends.iter().position(|spend| spend == of) {
                        account.standing.give_back(number);
                    }
                }
            }
            Effect::Spent { at, maxima } => {
                let request = &played.history.requests[explained.request];
                let What::Check { policy, user, cost, .. } = request.what else { continue };
                let limits = played.policies[policy].limits.iter().zip(maxima);
                for (key, (limit, max)) in played.keys[&(policy, user)].iter().zip(limits) {
                    let terms = limit.terms(*max);
                    let account =
                        accounts.entry(key).or_insert_with(|| Account::new(limit.plain()));
                    account.forward(*at).map_err(wrong)?;
                    account.spends.push(explained.request);
                    account.standing.spend(*at, u64::from(cost), terms);
                    let held = account.standing.held(*at, terms);
                    if held > terms.holds && !limit.shadow {
                        let what = format!("{held} passed where {} may", terms.holds);
                        return Err(wrong(format!("#{}: {what}", explained.request)));
                    }
                }
            }
        }
    }
    Ok(())
}

impl Account {
    fn new(rule: Rule) -> Self {
        let standing = Standing::new(rule, Side::Least);
        Self { rule, standing, spends: Vec::new(), latest: i64::MIN }
    }

    /// A fixed window does not know how far into it the clock was.
    fn forward(&mut self, at: i64) -> Result<(), String> {
        let moment = match self.rule {
            Rule::Fixed { per } => at.div_euclid(per),
            Rule::Sliding { .. } | Rule::Bucket { .. } | Rule::UnitBucket { .. } => at,
        };
        if moment < self.latest {
            return Err(format!("a key's time goes back to {at}"));
        }
        self.latest = moment;
        Ok(())
    }
}

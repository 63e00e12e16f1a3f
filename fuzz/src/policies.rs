//! Policy documents and configuration files.

use serde_json::Value;
use tollgate::core::{Claim, Cost, Intent, Limit, State, States, decide};
use tollgate::{Decision, Instant, InvalidPolicy, Outcome, Policy};
use tollgate_server::fuzzing;

pub fn policy_json(input: &[u8]) {
    if let Ok(document) = serde_json::from_slice::<Value>(input) {
        judge(Policy::from_json("fuzzed", document));
    }
}

pub fn policy_toml(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        judge(Policy::from_toml("fuzzed", text));
    }
}

pub fn config_toml(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input)
        && let Err(why) = fuzzing::config(text)
    {
        assert!(!why.is_empty(), "a fault is named");
    }
}

/// What is refused says why, and what is accepted is the same when it is read again and can be
/// decided on.
fn judge(read: Result<Policy, InvalidPolicy>) {
    match read {
        Err(invalid) => {
            assert!(!invalid.faults.is_empty(), "a refusal without a fault");
            for fault in &invalid.faults {
                assert!(!fault.place.is_empty() && !fault.message.is_empty(), "{fault:?}");
            }
        }
        Ok(policy) => {
            let again = Policy::from_json(policy.name(), policy.document().clone());
            assert_eq!(again.as_ref(), Ok(&policy), "its own document is another policy");
            policy.limits().iter().for_each(decided_on);
        }
    }
}

fn decided_on(limit: &Limit) {
    const TODAY: i64 = 1_790_000_000_000_000;
    for micros in [i64::MIN, -1, 0, TODAY, i64::MAX] {
        for cost in [1, 2, u32::MAX] {
            spend_twice(limit, Instant::from_micros(micros), cost, micros == TODAY);
        }
    }
}

fn spend_twice(limit: &Limit, now: Instant, cost: u32, is_usual: bool) {
    let quota = limit.rule.quota(limit.max);
    let claim = Claim { rule: &limit.rule, quota: &quota, shadow: limit.shadow };
    let cost = Cost::new(cost).expect("at least one");
    let mut key = Key(None);
    for _ in 0..2 {
        let ask =
            |key: &mut Key, intent, at| -> Decision { decide(&[claim], key, intent, cost, at) };
        let decision = ask(&mut key, Intent::Spend, now);
        if limit.shadow {
            assert_eq!(decision.outcome, Outcome::Allowed, "a shadow limit refused");
        } else if let Outcome::Refused { retry_at } = decision.outcome {
            assert!(retry_at > decision.decided_at, "a wait that is over");
            // Near the ends of time nothing can be waited for.
            if is_usual {
                assert!(ask(&mut key, Intent::Peek, retry_at).allowed(), "refused at retry_at");
                let before = retry_at.plus_micros(-1);
                assert!(!ask(&mut key, Intent::Peek, before).allowed(), "retry_at is too late");
            }
        } else if decision.allowed() {
            let standing = decision.limits[0].standing;
            assert!(standing.used <= standing.max, "{standing:?}");
        }
    }
}

/// The state of one key.
struct Key(Option<State>);

impl States for Key {
    fn get(&self, _: usize) -> Option<&State> {
        self.0.as_ref()
    }

    fn get_or_insert_with(&mut self, _: usize, fresh: impl FnOnce() -> State) -> &mut State {
        self.0.get_or_insert_with(fresh)
    }
}

//! A decision as a server tells it.

use serde_json::Value;

/// Limits of one policy, at most: enough for every load here.
pub(crate) const LIMITS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Decided {
    pub(crate) allowed: bool,
    pub(crate) decided_at_micros: i64,
    /// Of each limit, by position; 0 where there is none.
    pub(crate) max: [u64; LIMITS],
    pub(crate) used: [u64; LIMITS],
    /// Bit by bit, the limits that refuse.
    pub(crate) refuses: u8,
}

/// The decision in the body of a 200, a 429 or a 422. `None`: it is none of the store's under this policy.
pub(crate) fn read_decision(body: &Value, policy: &str) -> Option<Decided> {
    if body["policy"] != policy || body.get("degraded").is_some() {
        return None;
    }
    let decided_at: jiff::Timestamp = body["decided_at"].as_str()?.parse().ok()?;
    let allowed = body["allowed"].as_bool()?;
    let cost = body["cost"].as_u64()?;
    let decided_at_micros = decided_at.as_microsecond();
    let (max, used) = ([0; LIMITS], [0; LIMITS]);
    let mut decided = Decided { allowed, decided_at_micros, max, used, refuses: 0 };
    let limits = body["limits"].as_array().filter(|limits| limits.len() <= LIMITS)?;
    for (position, limit) in limits.iter().enumerate() {
        let (max, used) = (limit["max"].as_u64()?, limit["used"].as_u64()?);
        (decided.max[position], decided.used[position]) = (max, used);
        // What can never fit has no wait.
        let refuses = !allowed && (limit.get("retry_after").is_some() || cost > max);
        decided.refuses |= u8::from(refuses) << position;
    }
    Some(decided)
}

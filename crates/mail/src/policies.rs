//! Accounts and API keys as policies that are stored nowhere: what the gate counts by.
//!
//! `max` is no part of a key, so a changed limit keeps its counts, and the smaller limits of
//! ordinary mail count together with those of priority 0. All count apart from stored policies:
//! whoever may check by those must not spend what keys and accounts have.

use serde_json::json;
use tollgate::core::MAX_UNITS;
use tollgate::{Limiter, Policy, Tollgate};

use crate::error::MailError;
use crate::model::{Account, ApiKey};

const NAMESPACE: &str = "mail";

/// Paces one account for messages of one priority. A level without a limit counts too, so that one that
/// is set later knows what was sent before.
pub(crate) fn account_limiter(
    gate: &Tollgate,
    account: &Account,
    priority: u8,
) -> Result<Limiter, MailError> {
    let share = if priority == 0 { 0 } else { u64::from(account.priority0_share) };
    // A message waits until the last of a bucket has left: of a day in sixty, that is up to 24
    // minutes longer than it must. The finer, the more there is to write for each message.
    let levels = [
        ("minute", "60s", "1s", account.limit_per_minute),
        ("hour", "1h", "15s", account.limit_per_hour),
        ("day", "1d", "5m", account.limit_per_day),
    ];
    let levels = levels
        .map(|(name, per, resolution, max)| (name, per, resolution, max.filter(|max| *max > 0)));
    let is_limited = levels.iter().any(|(.., max)| max.is_some());
    let limits = levels.map(|(name, per, resolution, max)| {
        json!({
            "name": name,
            "max": max.map_or(MAX_UNITS, |max| without_share(max, share)),
            "per": per,
            "resolution": resolution,
            "algorithm": "sliding",
            "by": ["tenant", "account"],
        })
    });
    // Where nothing is limited, nothing need wait for its count.
    let (durability, on_store_error) =
        if is_limited { ("sync", "refuse") } else { ("interval", "allow") };
    let document =
        json!({ "durability": durability, "on_store_error": on_store_error, "limits": limits });
    let policy = Policy::from_json("mail-account", document)
        .map_err(|bad| MailError::invalid("account", bad.to_string()))?;
    Ok(gate.limiter_in(NAMESPACE, policy))
}

/// What is left of a limit for ordinary mail: the share is rounded up, and never all of it.
fn without_share(max: u64, share_percent: u64) -> u64 {
    let kept = (u128::from(max) * u128::from(share_percent)).div_ceil(100);
    max.saturating_sub(u64::try_from(kept).unwrap_or(max)).max(1)
}

/// Counts the recipients of one API key by its own days.
pub(crate) fn key_limiter(gate: &Tollgate, key: &ApiKey) -> Result<Limiter, MailError> {
    let limit = json!({
        "name": "day",
        "max": key.daily_limit,
        "per": "day",
        "timezone": key.timezone,
        "by": ["api_key"],
    });
    let document = json!({ "durability": "sync", "limits": [limit] });
    let policy = Policy::from_json("mail-key", document)
        .map_err(|bad| MailError::invalid("timezone", bad.to_string()))?;
    Ok(gate.limiter_in(NAMESPACE, policy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AccountKey, NewAccount};
    use crate::validate;

    #[tokio::test]
    async fn a_stored_policy_of_the_same_name_does_not_spend_what_an_account_has() {
        let gate = Tollgate::open("memory:").await.unwrap();
        let mut new = NewAccount::new(AccountKey::new("acme", "main"), "127.0.0.1", 25);
        new.limit_per_minute = Some(10);
        let account = validate::account(&new, gate.now()).unwrap();
        let limiter = account_limiter(&gate, &account, 0).unwrap();
        let mine = limiter.policy().policy().clone();
        assert_eq!(mine.name(), "mail-account", "as answers show it");
        gate.apply(&mine, "somebody").await.unwrap();
        let subject = [("tenant", "acme"), ("account", "main")];
        gate.check("mail-account", &subject, 7).await.unwrap();
        let standing = limiter.check(&subject, 2).await.unwrap().decision.limits[0].standing;
        assert_eq!(standing.used, 2);
    }

    #[tokio::test]
    async fn nobody_waits_much_longer_than_until_the_window_frees() {
        let gate = Tollgate::open("memory:").await.unwrap();
        for (per_secs, most_secs) in [(60, 61), (3_600, 3_615), (86_400, 86_700)] {
            // Each of its own: levels without a limit count, too.
            let name = format!("a{per_secs}");
            let mut new = NewAccount::new(AccountKey::new("acme", &*name), "127.0.0.1", 25);
            let limit = match per_secs {
                60 => &mut new.limit_per_minute,
                3_600 => &mut new.limit_per_hour,
                _ => &mut new.limit_per_day,
            };
            *limit = Some(1);
            let account = validate::account(&new, gate.now()).unwrap();
            let limiter = account_limiter(&gate, &account, 0).unwrap();
            let subject = [("tenant", "acme"), ("account", &*name)];
            assert!(limiter.check(&subject, 1).await.unwrap().allowed());
            let refused = limiter.check(&subject, 1).await.unwrap().decision;
            let wait = refused.retry_after_secs().unwrap();
            assert!((per_secs..=most_secs).contains(&wait), "{per_secs}: {wait}");
        }
    }

    #[test]
    fn the_share_of_priority_0_is_rounded_up_and_never_everything() {
        for (max, share, left) in [(10, 0, 10), (10, 25, 7), (10, 99, 1), (1, 50, 1), (100, 20, 80)]
        {
            assert_eq!(without_share(max, share), left, "{share} % of {max}");
        }
    }
}

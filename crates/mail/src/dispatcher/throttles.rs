//! How often in a row each account's server asked for a pause, so that pauses grow by what the
//! server does, not by how often one message was tried. Not stored: after a restart they begin anew.

use std::collections::HashMap;

use parking_lot::Mutex;
use tollgate::Instant;

use crate::model::AccountKey;

#[derive(Debug, Default)]
pub(super) struct Throttles(Mutex<HashMap<AccountKey, Throttle>>);

#[derive(Debug)]
struct Throttle {
    in_a_row: u32,
    until: Instant,
}

impl Throttles {
    /// Notes that a server asked for a pause, and gives its end, which `end` makes of how many there
    /// were in a row. What is asked of attempts that began before the last pause ended is one.
    pub(super) fn pause(
        &self,
        account: &AccountKey,
        started_at: Instant,
        end: impl FnOnce(u32) -> Instant,
    ) -> Instant {
        let mut all = self.0.lock();
        let (before, last_end) =
            all.get(account).map_or((0, started_at), |last| (last.in_a_row, last.until));
        let in_a_row = if started_at < last_end { before } else { before.saturating_add(1) };
        let until = end(in_a_row);
        all.insert(account.clone(), Throttle { in_a_row, until: until.max(last_end) });
        until
    }

    /// The server does its work again.
    pub(super) fn over(&self, account: &AccountKey) {
        self.0.lock().remove(account);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_each_probe_until_something_passes() {
        let all = Throttles::default();
        let (main, other) = (AccountKey::new("acme", "main"), AccountKey::new("acme", "other"));
        let after = |secs: i64, account: &AccountKey| {
            let started_at = Instant::from_secs(secs);
            let mut seen = 0;
            all.pause(account, started_at, |in_a_row| {
                seen = in_a_row;
                Instant::from_secs(secs + 10)
            });
            seen
        };
        assert_eq!(after(100, &main), 1);
        assert_eq!((after(101, &main), after(109, &main)), (1, 1), "they were under way together");
        assert_eq!(after(119, &main), 2, "the last of them asked until then");
        assert_eq!(after(129, &main), 3);
        assert_eq!(after(129, &other), 1);
        all.over(&main);
        assert_eq!(after(130, &main), 1);
    }
}

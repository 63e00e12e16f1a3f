//! Which messages this instance is working on at this moment, so that it never takes one from
//! itself when the clock is set ahead. Not stored: what a crash leaves is found by its lease.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::queue::Claimed;

/// By name in storage and attempt: another instance may have had the message in between.
type Name = (i64, u32);

#[derive(Debug, Default)]
pub(super) struct UnderWay(Mutex<HashSet<Name>>);

/// A message is under way until this is dropped, be it by a panic.
#[derive(Debug)]
pub(super) struct Held<'a> {
    all: &'a UnderWay,
    name: Name,
}

impl UnderWay {
    pub(super) fn hold(&self, claimed: &Claimed) -> Held<'_> {
        let name = (claimed.seq, claimed.attempts);
        self.0.lock().insert(name);
        Held { all: self, name }
    }

    pub(super) fn seqs(&self) -> Vec<i64> {
        self.0.lock().iter().map(|(seq, _)| *seq).collect()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::AccountKey;

    #[tokio::test]
    async fn what_a_panic_cut_short_is_no_longer_under_way() {
        let all = Arc::new(UnderWay::default());
        let claimed = Claimed {
            seq: 7,
            account: AccountKey::new("acme", "main"),
            id: "a".into(),
            priority: 2,
            recipients: 1,
            attempts: 1,
            created_at: tollgate::Instant::from_secs(1),
        };
        let again = Claimed { attempts: 2, ..claimed.clone() };
        let _held = all.hold(&again);
        let theirs = all.clone();
        let cut_short = tokio::spawn(async move {
            let _held = theirs.hold(&claimed);
            assert_eq!(theirs.seqs(), [7, 7]);
            panic!("as the test asked");
        });
        assert!(cut_short.await.unwrap_err().is_panic());
        assert_eq!(all.seqs(), [7], "the other one goes on");
    }
}

//! The caller's code in a job: what it may do, and what becomes of a request if it panics.

use std::path::Path;
use std::sync::Arc;

use tollgate_core::store::{Clock, KeyedClaim, OwnedClaim, StoreErrorKind};
use tollgate_core::{Cost, Rule, Span, Window};

use super::*;

#[derive(Debug)]
struct Noon;

impl Clock for Noon {
    fn now(&self) -> Instant {
        Instant::from_micros(43_200_000_000)
    }
}

fn open(path: &Path) -> Embedded {
    Embedded::open(path, Arc::new(Noon)).unwrap()
}

fn once(id: u8) -> OnceKey {
    let expires_at = Noon.now().plus(Span::from_secs(60));
    OnceKey { id: vec![id], fingerprint: vec![1], expires_at }
}

/// A cost of two, against each kind of limit.
fn ask() -> OwnedAsk {
    let per = Span::from_secs(3600);
    let rules = [
        Rule::Fixed(Window::Span(per)),
        Rule::Sliding { per, resolution: Span::from_secs(60) },
        Rule::Bucket { per, burst: None },
        Rule::Bucket { per, burst: Some(10) },
    ];
    let claims = rules.into_iter().zip(1..).map(|(rule, limit)| OwnedClaim {
        quota: rule.quota(10),
        rule,
        shadow: false,
        key: Key { limit, values: b"ada" }.to_vec(),
    });
    OwnedAsk { cost: Cost::new(2).unwrap(), epoch: None, crux: 0, claims: claims.collect() }
}

fn blocking<'a>(ask: &OwnedAsk, claims: &'a [KeyedClaim<'a>], intent: Intent) -> Ask<'a> {
    let durability = Durability::Interval;
    Ask { intent, cost: ask.cost, durability, epoch: None, crux: 0, claims }
}

fn used(store: &Embedded) -> Vec<u64> {
    let ask = ask();
    let claims = ask.claims();
    let (decided, _) = store.inner.check(&blocking(&ask, &claims, Intent::Peek)).unwrap();
    decided.decision.limits.iter().map(|limit| limit.standing.used).collect()
}

async fn spend(store: &Embedded, id: u8) -> Receipt {
    let Once::Fresh(decided) = store.check_once(once(id), ask(), |_| vec![7]).await.unwrap() else {
        panic!("{id} is recorded already");
    };
    receipt_of(&ask(), &decided)
}

fn receipt_of(ask: &OwnedAsk, decided: &Decided) -> Receipt {
    let spent = decided.spent.clone().unwrap();
    let keys = ask.claims.iter().map(|claim| claim.key.clone());
    Receipt { id: spent.id, cost: ask.cost, spends: keys.zip(spent.spends).collect() }
}

fn says_whose_code_it_was(error: &StoreError) {
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    let message = error.to_string();
    assert!(message.contains("the caller's code panicked"), "{message}");
}

#[tokio::test]
async fn a_render_that_panics_counts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tollgate.db");
    let store = open(&path);
    let earlier = spend(&store, 1).await;
    let error = store.check_once(once(2), ask(), |_| panic!("in a test of it")).await;
    says_whose_code_it_was(&error.unwrap_err());
    assert_eq!(used(&store), [2; 4], "in memory");
    assert!(store.find_once(once(2)).await.unwrap().is_none());
    store.close();
    let store = open(&path);
    assert_eq!(used(&store), [2; 4], "in the file");
    spend(&store, 2).await;
    assert_eq!(used(&store), [4; 4]);
    assert_eq!(store.refund(earlier).await.unwrap(), Refunded::Done);
    assert_eq!(used(&store), [2; 4]);
}

/// The render saw a receipt: who was given it cannot have another's spend back with it.
#[tokio::test]
async fn the_receipt_of_a_render_that_panicked_is_used_up() {
    let store = Embedded::memory(Arc::new(Noon)).unwrap();
    spend(&store, 1).await;
    let (told, tells) = std::sync::mpsc::channel();
    let tell = move |decided: &Decided| {
        told.send(decided.clone()).unwrap();
        panic!("in a test of it")
    };
    store.check_once(once(2), ask(), tell).await.unwrap_err();
    let receipt = receipt_of(&ask(), &tells.recv().unwrap());
    assert_eq!(store.refund(receipt).await.unwrap(), Refunded::Already);
    assert_eq!(used(&store), [2; 4]);
}

/// What others were given while the render ran stays theirs.
#[tokio::test]
async fn a_render_that_panics_takes_back_no_more_than_its_own() {
    let store = Arc::new(Embedded::memory(Arc::new(Noon)).unwrap());
    let other = store.clone();
    let render = move |_: &Decided| {
        let ask = ask();
        let claims = ask.claims();
        let (other_ask, inner) = (blocking(&ask, &claims, Intent::Spend), &other.inner);
        assert!(inner.check(&other_ask).unwrap().0.decision.allowed());
        panic!("in a test of it")
    };
    store.check_once(once(1), ask(), render).await.unwrap_err();
    assert_eq!(used(&store), [2; 4]);
}

#[tokio::test]
async fn a_render_that_panics_gives_nothing_back() {
    let store = Embedded::memory(Arc::new(Noon)).unwrap();
    let receipt = spend(&store, 1).await;
    let render = |_| panic!("in a test of it");
    let error = store.refund_once(once(2), receipt.clone(), render).await;
    says_whose_code_it_was(&error.unwrap_err());
    assert_eq!(used(&store), [2; 4]);
    assert!(store.find_once(once(2)).await.unwrap().is_none());
    let refunded = store.refund_once(once(2), receipt, |_| vec![8]).await.unwrap();
    assert_eq!(refunded, Once::Fresh(Refunded::Done));
    assert_eq!(used(&store), [0; 4]);
}

#[tokio::test]
async fn a_render_may_ask_the_store() {
    let store = Arc::new(Embedded::memory(Arc::new(Noon)).unwrap());
    let asked = store.clone();
    let (told, tells) = std::sync::mpsc::channel();
    let render = move |_: &Decided| {
        told.send(used(&asked)).unwrap();
        Vec::new()
    };
    store.check_once(once(1), ask(), render).await.unwrap();
    assert_eq!(tells.recv().unwrap(), [2; 4]);
}

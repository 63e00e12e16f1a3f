//! What a retry under an idempotency key finds when its message was removed.

use super::stage::{NOW, Stage, TENANT, at, message};
use crate::model::Selection;
use crate::queue::{Inserted, MessageRecord, Outcome, derived_id};

const HOUR: i64 = 3600;

/// A message sent under an idempotency key.
fn once(receipt: &str) -> MessageRecord {
    let mut message = message(&derived_id(receipt));
    message.receipt = Some(receipt.to_owned());
    message
}

fn all() -> Selection {
    Selection { tenant_id: TENANT.into(), ..Selection::default() }
}

async fn retry(stage: &Stage, message: MessageRecord) -> Inserted {
    stage.queue.insert(vec![message], NOW).await.unwrap()[0]
}

pub(super) async fn a_removed_message_is_not_queued_again_by_a_retry(stage: Stage) {
    stage.add(vec![once("sent")]).await;
    let claimed = stage.claim_one().await;
    stage.finish(&claimed, Outcome::Sent).await;
    assert_eq!(stage.queue.cleanup(None, at(3), at(3), 10).await.unwrap(), 1);
    stage.add(vec![once("waiting")]).await;
    assert_eq!(stage.queue.delete_messages(&all(), at(4), 10).await.unwrap(), 1);
    for receipt in ["sent", "waiting"] {
        assert_eq!(retry(&stage, once(receipt)).await, Inserted::Again);
        let mut other = once(receipt);
        other.digest = b"another content".to_vec();
        assert_eq!(retry(&stage, other).await, Inserted::IdTaken);
    }
    assert_eq!(stage.claim_at(NOW, 10).await, []);
    assert_eq!(stage.counts(NOW).await.pending, 0);
    // Once its key is forgotten nobody can come with its receipt.
    assert_eq!(stage.queue.forget_removed(at(24 * HOUR), 10).await.unwrap(), 0);
    assert_eq!(stage.queue.forget_removed(at(26 * HOUR), 1).await.unwrap(), 1);
    assert_eq!(stage.queue.forget_removed(at(26 * HOUR), 10).await.unwrap(), 1);
    assert_eq!(retry(&stage, once("sent")).await, Inserted::New);
}

pub(super) async fn what_no_retry_can_come_for_leaves_nothing_when_it_is_removed(stage: Stage) {
    stage.add(vec![message("by id"), once("old")]).await;
    let tomorrow = at(26 * HOUR);
    assert_eq!(stage.queue.delete_messages(&all(), tomorrow, 10).await.unwrap(), 2);
    assert_eq!(stage.queue.forget_removed(at(99 * HOUR), 10).await.unwrap(), 0);
    // An id that the caller chose may be used again, as ever.
    assert_eq!(retry(&stage, message("by id")).await, Inserted::New);
}

pub(super) async fn a_retry_at_the_moment_of_the_removal_queues_nothing(stage: Stage) {
    let selection = all();
    for round in 0..20 {
        let receipt = format!("r{round}");
        stage.add(vec![once(&receipt)]).await;
        let (removed, retried) = tokio::join!(
            stage.queue.delete_messages(&selection, NOW, 10),
            stage.queue.insert(vec![once(&receipt)], NOW),
        );
        assert_eq!((removed.unwrap(), retried.unwrap()), (1, vec![Inserted::Again]), "{round}");
        assert_eq!(stage.claim_at(NOW, 1).await, []);
    }
}

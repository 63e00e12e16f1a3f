//! Everything at once: whatever happens in whatever order, the counts are those of the rows, and
//! nothing is lost or there twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::stage::{NOW, Stage, TENANT, at, lease, main_account, message};
use crate::model::{MessageQuery, Selection, Status};
use crate::queue::{Finish, Inserted, Outcome};

const WORKERS: u64 = 4;
const STEPS: u64 = 40;
const IDS: u64 = 120;

/// The same numbers at every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

pub(super) async fn counts_and_rows_agree_after_a_scramble(stage: Stage) {
    let stage = Arc::new(stage);
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let stage = stage.clone();
            tokio::spawn(async move { work(&stage, worker).await })
        })
        .collect();
    let (mut added, mut deleted) = (0, 0);
    for worker in workers {
        let (more, fewer) = worker.await.unwrap();
        added += more;
        deleted += fewer;
    }
    stage.queue.activate(TENANT, Some("batch"), at(1)).await.unwrap();
    let query = MessageQuery { limit: 1000, ..MessageQuery::of_tenant(TENANT) };
    let rows = stage.queue.messages(&query, 0, at(1)).await.unwrap();
    assert_eq!(rows.len() as u64, added - deleted, "{added} added, {deleted} deleted");
    let distinct: BTreeSet<_> = rows.iter().map(|(_, row)| &row.id).collect();
    assert_eq!(distinct.len(), rows.len());
    let mut shown: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, row) in &rows {
        *shown.entry(row.status.as_str()).or_default() += 1;
    }
    let of = |status: Status| shown.get(status.as_str()).copied().unwrap_or(0);
    let counts = stage.counts(at(1)).await;
    assert_eq!(counts.pending, of(Status::Pending));
    assert_eq!(counts.deferred, of(Status::Deferred));
    assert_eq!((counts.suspended, of(Status::Suspended)), (0, 0));
    // Totals keep what was deleted since.
    assert!(counts.sent >= of(Status::Sent) && counts.errors >= of(Status::Error));
}

/// How many messages this one added, and deleted.
async fn work(stage: &Stage, worker: u64) -> (u64, u64) {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (worker + 1));
    let (mut added, mut deleted) = (0, 0);
    let instance = format!("worker {worker}");
    let account = main_account();
    for step in 0..STEPS {
        match dice.below(9) {
            0..=2 => added += add(stage, &mut dice).await,
            3 | 4 => send(stage, &instance, &mut dice).await,
            5 => {
                let claims = stage.queue.claim(&account, lease(&instance, at(1)), 3).await.unwrap();
                let claimed = claims.unwrap().messages;
                stage.queue.release(&instance, &claimed, None).await.unwrap();
            }
            6 => drop(stage.queue.promote_due(at(20), 5).await.unwrap()),
            7 if step % 2 == 0 => drop(stage.queue.suspend(TENANT, Some("batch")).await.unwrap()),
            7 => drop(stage.queue.activate(TENANT, Some("batch"), at(1)).await.unwrap()),
            _ => {
                let ids = (0..5).map(|_| format!("m{}", dice.below(IDS))).collect();
                let selection =
                    Selection { tenant_id: TENANT.into(), ids: Some(ids), ..Selection::default() };
                deleted += stage.queue.delete_messages(&selection, NOW, 100).await.unwrap();
            }
        }
    }
    (added, deleted)
}

/// Overlapping batches in any order.
async fn add(stage: &Stage, dice: &mut Dice) -> u64 {
    let one = |_| {
        let number = dice.below(IDS);
        let mut message = message(&format!("m{number}"));
        message.batch_code = number.is_multiple_of(3).then(|| "batch".to_owned());
        message.deferred_until = number.is_multiple_of(4).then(|| at(10));
        message.priority = (number % 2) as u8;
        message
    };
    let batch = (0..8).map(one).collect();
    let inserted = stage.queue.insert(batch, NOW).await.unwrap();
    assert!(inserted.iter().all(|it| matches!(it, Inserted::New | Inserted::Again)));
    inserted.iter().filter(|it| **it == Inserted::New).count() as u64
}

async fn send(stage: &Stage, instance: &str, dice: &mut Dice) {
    let claims = stage.queue.claim(&main_account(), lease(instance, at(1)), 3).await.unwrap();
    for claimed in claims.unwrap().messages {
        let reason = "because".to_owned();
        let outcome = match dice.below(3) {
            0 => Outcome::Sent,
            1 => Outcome::Failed { reason },
            _ => Outcome::Retry { at: at(5), reason },
        };
        let finish = Finish {
            claimed: &claimed,
            instance,
            started_at: at(1),
            finished_at: at(1),
            smtp_code: None,
            smtp_text: String::new(),
            outcome,
        };
        stage.queue.finish(&finish).await.unwrap();
    }
}

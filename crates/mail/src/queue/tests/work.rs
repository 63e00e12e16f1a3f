//! Claims, pauses, deferrals, leases.

use super::stage::{NOW, Stage, TENANT, at, ids, lease, main_account, message};
use crate::model::Status;
use crate::queue::{Pause, PauseCause, PauseScope};

pub(super) async fn priority_goes_first_and_order_is_kept_within(stage: Stage) {
    let mut messages: Vec<_> = ["a", "b", "c", "d", "e"].iter().map(|id| message(id)).collect();
    messages[2].priority = 0;
    messages[3].priority = 3;
    messages[4].priority = 0;
    stage.add(messages).await;
    assert_eq!(ids(&stage.claim_at(NOW, 3).await), ["c", "e", "a"]);
    assert_eq!(ids(&stage.claim_at(NOW, 3).await), ["b", "d"]);
    assert!(!stage.has_work(NOW).await);
}

pub(super) async fn a_claimed_message_is_not_claimed_again(stage: Stage) {
    stage.add_ids(&["a"]).await;
    let first = stage.claim_one().await;
    assert_eq!((first.attempts, first.recipients, first.created_at), (1, 1, NOW));
    assert_eq!(stage.claim_at(NOW, 10).await, []);
    assert_eq!(stage.row("a", NOW).await.status, Status::Pending);
}

pub(super) async fn many_claimers_share_without_overlap(stage: Stage) {
    stage.add((0..60).map(|n| message(&format!("m{n:02}"))).collect()).await;
    let account = main_account();
    let claim = |_| stage.queue.claim(&account, lease("me", NOW), 7);
    let tasks: Vec<_> = (0..12).map(claim).collect();
    let mut claimed = Vec::new();
    for task in futures_in_order(tasks).await {
        claimed.extend(task.unwrap().unwrap().messages.into_iter().map(|message| message.id));
    }
    // Whoever came while others held the rows may have found fewer.
    claimed.extend(stage.claim_at(NOW, 60).await.into_iter().map(|message| message.id));
    claimed.sort();
    let all: Vec<String> = (0..60).map(|n| format!("m{n:02}")).collect();
    assert_eq!(claimed, all);
}

/// Polls all at once.
async fn futures_in_order<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut answers: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, answer) in futures.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *answer = Some(value);
            }
        }
        if answers.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    answers.into_iter().flatten().collect()
}

pub(super) async fn a_released_message_keeps_its_place_and_its_attempts(stage: Stage) {
    stage.add_ids(&["a", "b"]).await;
    let claimed = stage.claim_at(NOW, 2).await;
    stage.queue.release("me", &claimed, None).await.unwrap();
    // Not ours any more: nothing happens.
    stage.queue.release("me", &claimed, None).await.unwrap();
    let again = stage.claim_at(NOW, 2).await;
    assert_eq!((ids(&again), again[0].attempts), (vec!["a", "b"], 1));
    stage.queue.release("another", &again, None).await.unwrap();
    assert_eq!(stage.claim_at(NOW, 2).await, []);
    assert_eq!(stage.counts(NOW).await.pending, 2);
}

fn pause(version: i64, until: i64, scope: PauseScope) -> Pause {
    let cause = PauseCause::Limit;
    Pause { account: main_account(), version, until: at(until), scope, cause }
}

pub(super) async fn a_paused_account_has_no_work_until_it_resumes(stage: Stage) {
    stage.add_ids(&["a", "b"]).await;
    let claimed = stage.claim_at(NOW, 1).await;
    let version = stage.version().await;
    let until = pause(version, 60, PauseScope::All);
    stage.queue.release("me", &claimed, Some(&until)).await.unwrap();
    assert!(!stage.has_work(at(59)).await);
    assert_eq!(stage.claim_at(at(59), 1).await, []);
    for id in ["a", "b"] {
        let row = stage.row(id, at(59)).await;
        assert_eq!((row.status, row.deferred_until), (Status::Deferred, Some(at(60))));
        assert_eq!(stage.row(id, at(60)).await.status, Status::Pending);
    }
    assert_eq!(stage.queue.next_due(at(1)).await.unwrap(), Some(at(60)));
    assert!(stage.has_work(at(60)).await);
    assert_eq!(ids(&stage.claim_at(at(60), 1).await), ["a"]);
    assert_eq!(stage.counts(NOW).await.rate_limited, 1);
}

pub(super) async fn a_longer_pause_wins_and_one_by_old_limits_is_not_noted(stage: Stage) {
    stage.add_ids(&["a"]).await;
    let version = stage.version().await;
    for until in [60, 30] {
        stage.queue.pause_account(&pause(version, until, PauseScope::All)).await.unwrap();
    }
    let resume = stage.row("a", NOW).await.deferred_until;
    assert_eq!(resume, Some(at(60)));
    // A change of the account clears the pause; one that was decided before it comes too late.
    stage.account(&main_account()).await;
    assert!(stage.has_work(NOW).await);
    stage.queue.pause_account(&pause(version, 90, PauseScope::All)).await.unwrap();
    assert!(stage.has_work(NOW).await);
}

pub(super) async fn an_ordinary_pause_lets_priority_0_through(stage: Stage) {
    stage.add_ids(&["a"]).await;
    let version = stage.version().await;
    stage.queue.pause_account(&pause(version, 60, PauseScope::Ordinary)).await.unwrap();
    assert!(!stage.has_work(NOW).await);
    let mut urgent = message("urgent");
    urgent.priority = 0;
    stage.add(vec![urgent]).await;
    assert!(stage.has_work(NOW).await);
    let counts = stage.counts(NOW).await;
    assert_eq!((counts.pending, counts.deferred), (1, 1));
    assert_eq!(stage.row("urgent", NOW).await.status, Status::Pending);
    assert_eq!(stage.row("a", NOW).await.status, Status::Deferred);
    assert_eq!(ids(&stage.claim_at(NOW, 9).await), ["urgent"]);
    assert_eq!(ids(&stage.claim_at(at(60), 9).await), ["a"]);
}

pub(super) async fn a_deferred_message_is_promoted_when_it_is_due(stage: Stage) {
    let mut messages = vec![message("later"), message("past"), message("latest")];
    messages[0].deferred_until = Some(at(60));
    messages[1].deferred_until = Some(NOW);
    messages[2].deferred_until = Some(at(90));
    stage.add(messages).await;
    assert_eq!(ids(&stage.claim_at(NOW, 9).await), ["past"]);
    let row = stage.row("later", NOW).await;
    assert_eq!((row.status, row.deferred_until), (Status::Deferred, Some(at(60))));
    assert_eq!(stage.queue.promote_due(at(59), 10).await.unwrap().messages, 0);
    assert_eq!(stage.queue.next_due(NOW).await.unwrap(), Some(at(60)));
    let moved = stage.queue.promote_due(at(60), 10).await.unwrap();
    assert_eq!((moved.accounts, moved.messages), (vec![main_account()], 1));
    assert_eq!(ids(&stage.claim_at(at(60), 9).await), ["later"]);
}

pub(super) async fn the_next_instant_is_the_earliest_of_all(stage: Stage) {
    assert_eq!(stage.queue.next_due(NOW).await.unwrap(), None);
    stage.add_ids(&["a", "b"]).await;
    stage.claim_one().await;
    assert_eq!(stage.queue.next_due(NOW).await.unwrap(), Some(at(300)), "the lease ends");
    let version = stage.version().await;
    stage.queue.pause_account(&pause(version, 200, PauseScope::All)).await.unwrap();
    assert_eq!(stage.queue.next_due(NOW).await.unwrap(), Some(at(200)), "the account resumes");
    let mut later = message("later");
    later.deferred_until = Some(at(100));
    stage.add(vec![later]).await;
    assert_eq!(stage.queue.next_due(NOW).await.unwrap(), Some(at(100)), "a message is due");
}

pub(super) async fn what_we_have_under_way_is_not_recovered(stage: Stage) {
    stage.add_ids(&["a", "b", "c"]).await;
    let mine = stage.claim_at(NOW, 2).await;
    let theirs = stage.queue.claim(&main_account(), lease("another", NOW), 1).await.unwrap();
    let under_way = [mine[0].seq, theirs.unwrap().messages[0].seq];
    let moved = stage.recover(at(300), &under_way).await;
    assert_eq!(moved.messages, 2, "a turn of ours that was cut short, and theirs");
    assert_eq!(ids(&stage.claim_at(at(300), 9).await), ["b", "c"]);
    let mut later = message("later");
    later.deferred_until = Some(at(400));
    stage.add(vec![later]).await;
    assert_eq!(stage.queue.next_due(at(301)).await.unwrap(), Some(at(400)), "not the ended lease");
}

pub(super) async fn an_expired_lease_is_recovered_and_logged(stage: Stage) {
    stage.add_ids(&["a", "b"]).await;
    stage.claim_at(NOW, 1).await;
    assert_eq!(stage.recover(at(299), &[]).await.messages, 0);
    let moved = stage.recover(at(300), &[]).await;
    assert_eq!((moved.accounts, moved.messages), (vec![main_account()], 1));
    let again = stage.claim_at(at(300), 9).await;
    assert_eq!((ids(&again), again[0].attempts), (vec!["a", "b"], 2));
    let attempts = stage.queue.attempts(TENANT, "a").await.unwrap();
    assert_eq!((attempts.len(), attempts[0].outcome.as_str()), (1, "unknown"));
    assert_eq!((attempts[0].instance.as_str(), attempts[0].started_at), ("me", NOW));
}

pub(super) async fn a_claim_that_changed_meanwhile_is_not_taken_over(stage: Stage) {
    stage.add_ids(&["a"]).await;
    let claimed = stage.claim_at(NOW, 1).await;
    let open = stage.queue.open_claims(at(1), "another", &[], 10).await.unwrap();
    assert_eq!((open[0].seq, open[0].until), (claimed[0].seq, at(300)), "also before it ends");
    assert_eq!(stage.queue.open_claims(at(299), "me", &[], 10).await.unwrap(), []);
    stage.queue.release("me", &claimed, None).await.unwrap();
    assert_eq!(stage.claim_at(at(10), 1).await.len(), 1);
    assert_eq!(stage.queue.take_over(&open, at(300)).await.unwrap().messages, 0);
    assert_eq!(stage.queue.attempts(TENANT, "a").await.unwrap(), []);
}

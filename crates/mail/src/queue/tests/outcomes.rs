//! What becomes of attempts: rows, logs, reports, refunds.

use super::stage::{NOW, Stage, TENANT, at, lease, main_account, message};
use crate::model::Status;
use crate::queue::{Finished, MessageRecord, Outcome, Pause, PauseCause, PauseScope};

pub(super) async fn what_was_sent_is_final_and_its_content_gone(stage: Stage) {
    stage.add_ids(&["a"]).await;
    let claimed = stage.claim_one().await;
    assert_eq!(stage.finish(&claimed, Outcome::Sent).await, Finished::Noted);
    let row = stage.row("a", NOW).await;
    assert_eq!((row.status, row.sent_at, row.attempts), (Status::Sent, Some(at(2)), 1));
    assert_eq!(stage.queue.load_content(claimed.seq).await.unwrap(), None);
    let attempt = stage.queue.attempts(TENANT, "a").await.unwrap().remove(0);
    assert_eq!((attempt.started_at, attempt.finished_at), (at(1), at(2)));
    assert_eq!((attempt.smtp_code, attempt.outcome.as_str()), (Some(250), "sent"));
    let counts = stage.counts(NOW).await;
    assert_eq!((counts.sent, counts.errors, counts.pending), (1, 0, 0));
    assert_eq!(stage.recover(at(9999), &[]).await.messages, 0);
}

pub(super) async fn a_failure_is_final_reported_and_due_back(stage: Stage) {
    stage.tenant(TENANT, Some("https://example.org/reports")).await;
    let mut spent = message("a");
    spent.receipt = Some("receipt-a".into());
    spent.batch_code = Some("b1".into());
    stage.add(vec![spent]).await;
    let claimed = stage.claim_one().await;
    let reason = "550 no such user\0".to_owned();
    stage.finish(&claimed, Outcome::Failed { reason }).await;
    let row = stage.row("a", NOW).await;
    assert_eq!(row.status, Status::Error);
    assert_eq!((row.failed_at, row.sent_at), (Some(at(2)), None));
    assert_eq!(row.last_error.as_deref(), Some("550 no such user"));
    let due = stage.queue.refunds_due(10).await.unwrap();
    assert_eq!(due.iter().map(|due| due.receipt.as_str()).collect::<Vec<_>>(), ["receipt-a"]);
    stage.queue.refunds_done(&[due[0].seq]).await.unwrap();
    assert_eq!(stage.queue.refunds_due(10).await.unwrap(), []);
    let claim = stage.queue.reports_claim(lease("me", NOW), 10).await.unwrap().unwrap();
    let report = &claim.reports[0];
    assert_eq!((report.message_id.as_str(), report.status.as_str()), ("a", "error"));
    assert_eq!((report.batch_code.as_deref(), report.at), (Some("b1"), at(2)));
    assert_eq!(
        (claim.url.as_str(), claim.secret_sealed),
        ("https://example.org/reports", vec![1, 2, 3])
    );
}

pub(super) async fn a_retry_waits_for_its_instant(stage: Stage) {
    stage.add_ids(&["a"]).await;
    let claimed = stage.claim_one().await;
    stage.finish(&claimed, Outcome::Retry { at: at(60), reason: "451 later".into() }).await;
    let row = stage.row("a", NOW).await;
    assert_eq!((row.status, row.deferred_until), (Status::Deferred, Some(at(60))));
    assert_eq!((row.last_error.as_deref(), row.attempts), (Some("451 later"), 1));
    assert_eq!(stage.counts(NOW).await.deferred, 1);
    stage.queue.promote_due(at(60), 10).await.unwrap();
    assert_eq!(stage.claim_at(at(60), 1).await[0].attempts, 2);
    assert_eq!(stage.queue.refunds_due(10).await.unwrap(), []);
}

pub(super) async fn a_throttled_account_pauses_and_the_message_waits(stage: Stage) {
    stage.add_ids(&["a", "b"]).await;
    let claimed = stage.claim_one().await;
    let version = stage.version().await;
    let cause = PauseCause::Server;
    let scope = PauseScope::All;
    let pause = Pause { account: main_account(), version, until: at(60), scope, cause };
    let reason = "421 slow down".to_owned();
    stage.finish(&claimed, Outcome::Throttled { pause, at: at(90), reason }).await;
    let row = stage.row("a", NOW).await;
    assert_eq!((row.status, row.deferred_until), (Status::Deferred, Some(at(90))));
    assert!(!stage.has_work(at(59)).await);
    assert_eq!(super::stage::ids(&stage.claim_at(at(60), 9).await), ["b"], "another is the probe");
    assert_eq!(stage.queue.promote_due(at(90), 10).await.unwrap().messages, 1);
    assert_eq!(super::stage::ids(&stage.claim_at(at(90), 9).await), ["a"]);
    assert_eq!(stage.counts(at(60)).await.rate_limited, 0);
    assert_eq!(stage.queue.attempts(TENANT, "a").await.unwrap()[0].outcome, "throttled");
}

pub(super) async fn a_rate_limited_message_is_no_attempt(stage: Stage) {
    stage.add_ids(&["a"]).await;
    let claimed = stage.claim_one().await;
    let reason = "rate_limit_exceeded".to_owned();
    stage.finish(&claimed, Outcome::RateLimited { reason }).await;
    let row = stage.row("a", NOW).await;
    assert_eq!((row.status, row.attempts), (Status::Error, 0));
    assert_eq!(stage.queue.attempts(TENANT, "a").await.unwrap(), []);
    let counts = stage.counts(NOW).await;
    assert_eq!((counts.errors, counts.rate_limited), (1, 1));
}

pub(super) async fn a_lost_lease_changes_nothing_but_the_log(stage: Stage) {
    stage.add_ids(&["a"]).await;
    let claimed = stage.claim_one().await;
    stage.recover(at(300), &[]).await;
    let theirs = stage.queue.claim(&main_account(), lease("another", at(300)), 1).await.unwrap();
    let failed = Outcome::Failed { reason: "too late".into() };
    assert_eq!(stage.finish(&claimed, failed).await, Finished::Lost);
    assert_eq!(stage.finish(&claimed, Outcome::Sent).await, Finished::Lost);
    assert_eq!(stage.row("a", NOW).await.status, Status::Pending);
    assert_eq!(theirs.unwrap().messages[0].attempts, 2);
    assert_eq!(stage.counts(NOW).await.errors, 0);
    assert_eq!(stage.queue.attempts(TENANT, "a").await.unwrap().len(), 3);
}

pub(super) async fn a_late_success_is_noted_if_nobody_else_has_the_message(stage: Stage) {
    stage.add_ids(&["a"]).await;
    let claimed = stage.claim_one().await;
    stage.recover(at(300), &[]).await;
    assert_eq!(stage.finish(&claimed, Outcome::Sent).await, Finished::Noted);
    assert_eq!(stage.claim_at(at(300), 1).await, []);
    let counts = stage.counts(NOW).await;
    assert_eq!((counts.sent, counts.pending), (1, 0));
}

pub(super) async fn reports_are_leased_to_one_and_kept_until_taken(stage: Stage) {
    stage.tenant(TENANT, Some("https://example.org/reports")).await;
    assert_eq!(stage.queue.reports_due_at().await.unwrap(), None);
    stage.add_ids(&["a", "b", "c"]).await;
    for claimed in stage.claim_at(NOW, 3).await {
        stage.finish(&claimed, Outcome::Sent).await;
    }
    assert!(stage.queue.reports_due_at().await.unwrap().unwrap() <= NOW);
    let mine = stage.queue.reports_claim(lease("me", NOW), 2).await.unwrap().unwrap();
    assert_eq!(mine.reports.len(), 2);
    assert!(stage.queue.reports_claim(lease("other", NOW), 2).await.unwrap().is_none());
    assert_eq!(stage.queue.reports_due_at().await.unwrap(), Some(at(300)));
    // A lease that was not kept is another's in the end.
    let theirs = stage.queue.reports_claim(lease("other", at(300)), 2).await.unwrap().unwrap();
    assert_eq!(theirs.reports, mine.reports);
    stage.queue.reports_done(TENANT, "other", &theirs.reports, at(300)).await.unwrap();
    let rest = stage.queue.reports_claim(lease("me", at(300)), 2).await.unwrap().unwrap();
    assert_eq!(rest.reports[0].message_id, "c");
    stage.queue.reports_done(TENANT, "me", &rest.reports, at(300)).await.unwrap();
    assert!(stage.queue.reports_claim(lease("me", at(300)), 2).await.unwrap().is_none());
}

pub(super) async fn tenants_with_reports_take_turns(stage: Stage) {
    let tenants = ["x", "y", "z"];
    for tenant in tenants {
        let account = crate::model::AccountKey::new(tenant, "main");
        stage.tenant(tenant, Some("https://example.org/reports")).await;
        stage.account(&account).await;
        for id in ["1", "2", "3"] {
            stage.add(vec![MessageRecord { account: account.clone(), ..message(id) }]).await;
        }
        let claims = stage.queue.claim(&account, lease("me", NOW), 3).await.unwrap();
        for claimed in claims.unwrap().messages {
            stage.finish(&claimed, Outcome::Sent).await;
        }
    }
    let mut served = Vec::new();
    for turn in 1..=9 {
        let claim = stage.queue.reports_claim(lease("me", at(turn)), 1).await.unwrap().unwrap();
        served.push(claim.tenant_id.clone());
        // Some do not take theirs at first.
        if turn <= 3 && claim.tenant_id == "x" {
            stage.queue.reports_failed("x", "me", at(turn + 2)).await.unwrap();
        } else {
            let (tenant_id, at) = (&claim.tenant_id, at(turn));
            stage.queue.reports_done(tenant_id, "me", &claim.reports, at).await.unwrap();
        }
    }
    assert_eq!(served, ["x", "y", "z", "y", "x", "z", "y", "x", "z"]);
    // A clock that was set back keeps nobody waiting.
    let last = stage.queue.reports_claim(lease("me", NOW), 1).await.unwrap().unwrap();
    assert_eq!(last.tenant_id, "x");
}

pub(super) async fn reports_that_failed_wait(stage: Stage) {
    stage.tenant(TENANT, Some("https://example.org/reports")).await;
    stage.add_ids(&["a"]).await;
    let claimed = stage.claim_one().await;
    stage.finish(&claimed, Outcome::Sent).await;
    stage.queue.reports_claim(lease("me", NOW), 9).await.unwrap().unwrap();
    stage.queue.reports_failed(TENANT, "me", at(20)).await.unwrap();
    assert!(stage.queue.reports_claim(lease("me", at(19)), 9).await.unwrap().is_none());
    assert_eq!(stage.queue.reports_due_at().await.unwrap(), Some(at(20)));
    let again = stage.queue.reports_claim(lease("me", at(20)), 9).await.unwrap().unwrap();
    assert_eq!((again.failures, again.reports.len()), (1, 1));
}

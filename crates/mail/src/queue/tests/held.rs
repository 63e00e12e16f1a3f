//! Commands on many messages, listing, counts.

use super::stage::{NOW, Stage, TENANT, at, ids, main_account, message};
use crate::model::{MessageQuery, Selection, Status};
use crate::queue::{MessageRecord, Outcome, Pause, PauseCause, PauseScope};

fn of_batch(id: &str, batch: &str) -> MessageRecord {
    let mut message = message(id);
    message.batch_code = Some(batch.to_owned());
    message
}

fn all() -> Selection {
    Selection { tenant_id: TENANT.into(), ..Selection::default() }
}

pub(super) async fn a_suspended_tenant_has_no_work(stage: Stage) {
    stage.add_ids(&["a"]).await;
    assert_eq!(stage.queue.suspend(TENANT, None).await.unwrap(), 1);
    assert!(!stage.has_work(NOW).await);
    assert_eq!(stage.claim_at(NOW, 1).await, []);
    assert_eq!(stage.row("a", NOW).await.status, Status::Suspended);
    stage.add_ids(&["b"]).await;
    assert_eq!(stage.counts(NOW).await.suspended, 2);
    stage.queue.activate(TENANT, None, NOW).await.unwrap();
    assert_eq!(ids(&stage.claim_at(NOW, 9).await), ["a", "b"]);
}

pub(super) async fn a_suspended_batch_waits_with_what_comes_later(stage: Stage) {
    let mut deferred = of_batch("deferred", "x");
    deferred.deferred_until = Some(at(60));
    stage.add(vec![of_batch("x1", "x"), of_batch("y1", "y"), deferred]).await;
    let sending = stage.claim_one().await;
    assert_eq!(sending.id, "x1");
    assert_eq!(stage.queue.suspend(TENANT, Some("x")).await.unwrap(), 1);
    stage.add(vec![of_batch("x2", "x")]).await;
    // What was being sent may end, or be held when it comes back.
    stage.queue.release("me", &[sending], None).await.unwrap();
    assert_eq!(ids(&stage.claim_at(NOW, 9).await), ["y1"]);
    assert_eq!(stage.queue.promote_due(at(60), 9).await.unwrap().messages, 0);
    assert_eq!(stage.counts(NOW).await.suspended, 3);
    assert_eq!(stage.queue.activate(TENANT, Some("x"), NOW).await.unwrap(), 3);
    assert_eq!(ids(&stage.claim_at(NOW, 9).await), ["x1", "x2"]);
    assert_eq!(stage.row("deferred", NOW).await.deferred_until, Some(at(60)));
}

pub(super) async fn run_now_makes_deferred_mail_due_and_forgets_pauses(stage: Stage) {
    let mut deferred = message("deferred");
    deferred.deferred_until = Some(at(60));
    stage.add(vec![deferred, message("a")]).await;
    let (version, scope, cause) = (stage.version().await, PauseScope::All, PauseCause::Limit);
    let pause = Pause { account: main_account(), version, until: at(60), scope, cause };
    stage.queue.pause_account(&pause).await.unwrap();
    for (selection, messages) in [
        (Selection { batch_code: Some("none".into()), ..all() }, 0),
        (Selection { ids: Some(vec!["a".into()]), ..all() }, 0),
        (Selection { account_id: Some("other".into()), ..all() }, 0),
        (all(), 1),
    ] {
        let moved = stage.queue.run_now(&selection).await.unwrap();
        assert_eq!(moved.messages, messages, "{selection:?}");
    }
    assert_eq!(ids(&stage.claim_at(NOW, 9).await), ["deferred", "a"]);
}

pub(super) async fn deleted_messages_are_gone_and_their_quota_due(stage: Stage) {
    let mut spent = message("spent");
    spent.receipt = Some("r".into());
    stage.add(vec![message("sending"), spent, message("kept"), message("sent")]).await;
    let sending = stage.claim_one().await;
    let given = ["sending", "spent", "nobody"].map(ToOwned::to_owned).to_vec();
    let selection = Selection { ids: Some(given), ..all() };
    assert_eq!(stage.queue.delete_messages(&selection, NOW, 100).await.unwrap(), 1);
    assert_eq!(stage.queue.refunds_due(9).await.unwrap()[0].receipt, "r");
    stage.finish(&sending, Outcome::Sent).await;
    let of_batch = Selection { batch_code: Some("none".into()), ..all() };
    assert_eq!(stage.queue.delete_messages(&of_batch, NOW, 100).await.unwrap(), 0);
    assert_eq!(stage.queue.delete_messages(&all(), NOW, 100).await.unwrap(), 3);
    assert_eq!(stage.queue.refunds_due(9).await.unwrap().len(), 1);
    let counts = stage.counts(NOW).await;
    assert_eq!((counts.pending, counts.sent), (0, 1));
    let rows = stage.queue.messages(&MessageQuery::of_tenant(TENANT), 0, NOW).await.unwrap();
    assert_eq!(rows, []);
}

pub(super) async fn cleanup_removes_only_what_is_old_and_final(stage: Stage) {
    stage.add_ids(&["sent", "waiting"]).await;
    let claimed = stage.claim_one().await;
    stage.finish(&claimed, Outcome::Sent).await;
    assert_eq!(stage.queue.cleanup(None, at(2), NOW, 10).await.unwrap(), 0);
    assert_eq!(stage.queue.cleanup(Some("other"), at(3), NOW, 10).await.unwrap(), 0);
    assert_eq!(stage.queue.cleanup(Some(TENANT), at(3), NOW, 10).await.unwrap(), 1);
    assert_eq!(stage.queue.attempts(TENANT, "sent").await.unwrap(), []);
    assert_eq!(stage.row("waiting", NOW).await.status, Status::Pending);
}

/// All that a query finds, page by page.
async fn ids_by_pages(stage: &Stage, query: &MessageQuery) -> Vec<String> {
    let (mut seen, mut after) = (Vec::new(), 0);
    loop {
        let page = stage.queue.messages(query, after, NOW).await.unwrap();
        let Some((last, _)) = page.last() else { return seen };
        after = *last;
        seen.extend(page.into_iter().map(|(_, row)| row.id));
    }
}

pub(super) async fn pages_follow_each_other_and_filters_hold(stage: Stage) {
    let mut messages: Vec<_> = (0..9).map(|n| of_batch(&format!("m{n}"), "x")).collect();
    messages[4].deferred_until = Some(at(60));
    messages[5].batch_code = None;
    stage.add(messages).await;
    let claimed = stage.claim_at(NOW, 2).await;
    stage.finish(&claimed[0], Outcome::Sent).await;
    stage.finish(&claimed[1], Outcome::Failed { reason: "no".into() }).await;
    let mut query = MessageQuery { limit: 4, ..MessageQuery::of_tenant(TENANT) };
    assert_eq!(
        ids_by_pages(&stage, &query).await,
        (0..9).map(|n| format!("m{n}")).collect::<Vec<_>>()
    );
    query.limit = 100;
    for (status, expected) in [
        (Status::Sent, vec!["m0"]),
        (Status::Error, vec!["m1"]),
        (Status::Deferred, vec!["m4"]),
        (Status::Pending, vec!["m2", "m3", "m5", "m6", "m7", "m8"]),
        (Status::Suspended, vec![]),
    ] {
        query.status = Some(status);
        let rows = stage.queue.messages(&query, 0, NOW).await.unwrap();
        let found: Vec<_> = rows.iter().map(|(_, row)| row.id.as_str()).collect();
        assert_eq!(found, expected, "{status:?}");
    }
    query = MessageQuery { batch_code: Some("x".into()), ..MessageQuery::of_tenant(TENANT) };
    assert_eq!(stage.queue.messages(&query, 0, NOW).await.unwrap().len(), 8);
    query.account_id = Some("no such".into());
    assert_eq!(stage.queue.messages(&query, 0, NOW).await.unwrap(), []);
}

pub(super) async fn a_paced_account_and_a_free_one_are_listed_apart(stage: Stage) {
    let free = crate::model::AccountKey::new(TENANT, "free");
    stage.account(&free).await;
    let messages = (0..12).map(|n| {
        let mut message = message(&format!("m{n:02}"));
        message.priority = (n % 4) as u8;
        if n % 2 == 1 {
            message.account = free.clone();
        }
        message
    });
    stage.add(messages.collect()).await;
    let (version, scope, cause) = (stage.version().await, PauseScope::Ordinary, PauseCause::Limit);
    let pause = Pause { account: main_account(), version, until: at(60), scope, cause };
    stage.queue.pause_account(&pause).await.unwrap();
    // Of the paced account, priority 0 goes on; each third is a page of its own.
    for (status, expected) in [
        (Status::Deferred, vec!["m02", "m06", "m10"]),
        (Status::Pending, vec!["m00", "m01", "m03", "m04", "m05", "m07", "m08", "m09", "m11"]),
    ] {
        let status = Some(status);
        let query = MessageQuery { status, limit: 3, ..MessageQuery::of_tenant(TENANT) };
        let (mut seen, mut after) = (Vec::new(), 0);
        loop {
            let page = stage.queue.messages(&query, after, NOW).await.unwrap();
            let Some((last, _)) = page.last() else { break };
            after = *last;
            seen.extend(page.into_iter().map(|(_, row)| row.id));
        }
        assert_eq!(seen, expected, "{status:?}");
    }
}

pub(super) async fn a_page_over_many_accounts_has_the_first_of_all(stage: Stage) {
    let account = |n: usize| crate::model::AccountKey::new(TENANT, format!("a{n}"));
    for n in 0..5 {
        stage.account(&account(n)).await;
    }
    // The later the account's name, the earlier its messages; and some of each at any place.
    let messages = (0..60).map(|n| {
        let mut message = message(&format!("m{n:02}"));
        message.priority = (n % 4) as u8;
        message.account = account(if n % 7 == 0 { n % 5 } else { 4 - n / 12 });
        message
    });
    stage.add(messages.collect()).await;
    let status = Some(Status::Pending);
    let query = MessageQuery { status, limit: 7, ..MessageQuery::of_tenant(TENANT) };
    assert_eq!(
        ids_by_pages(&stage, &query).await,
        (0..60).map(|n| format!("m{n:02}")).collect::<Vec<_>>()
    );
}

pub(super) async fn counts_add_up_after_every_step(stage: Stage) {
    let mut messages: Vec<_> = (0..6).map(|n| of_batch(&format!("m{n}"), "x")).collect();
    messages[5].deferred_until = Some(at(60));
    stage.add(messages).await;
    let shown = |counts: crate::model::Counts| {
        (counts.pending, counts.deferred, counts.suspended, counts.sent, counts.errors)
    };
    assert_eq!(shown(stage.counts(NOW).await), (5, 1, 0, 0, 0));
    let claimed = stage.claim_at(NOW, 3).await;
    assert_eq!(shown(stage.counts(NOW).await), (5, 1, 0, 0, 0));
    stage.finish(&claimed[0], Outcome::Sent).await;
    stage.finish(&claimed[1], Outcome::Failed { reason: "no".into() }).await;
    stage.finish(&claimed[2], Outcome::Retry { at: at(9), reason: "no".into() }).await;
    assert_eq!(shown(stage.counts(NOW).await), (2, 2, 0, 1, 1));
    stage.queue.suspend(TENANT, Some("x")).await.unwrap();
    assert_eq!(shown(stage.counts(NOW).await), (0, 0, 4, 1, 1));
    stage.queue.activate(TENANT, Some("x"), at(9)).await.unwrap();
    assert_eq!(shown(stage.counts(at(9)).await), (3, 1, 0, 1, 1));
    stage.queue.delete_messages(&all(), NOW, 100).await.unwrap();
    assert_eq!(shown(stage.counts(NOW).await), (0, 0, 0, 1, 1));
}

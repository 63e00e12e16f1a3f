//! Messages into the queue.

use super::stage::{NOW, Stage, TENANT, ids, main_account, message};
use crate::error::MailError;
use crate::model::AccountKey;
use crate::queue::records::TenantPut;
use crate::queue::{Inserted, MessageRecord, ReportSecret};

pub(super) async fn the_same_id_again_is_not_queued_twice(stage: Stage) {
    stage.add_ids(&["a", "b"]).await;
    let again = stage.queue.insert(vec![message("a"), message("c"), message("c")], NOW).await;
    assert_eq!(again.unwrap(), [Inserted::Again, Inserted::New, Inserted::Again]);
    assert_eq!(ids(&stage.claim_at(NOW, 10).await), ["a", "b", "c"]);
}

pub(super) async fn an_id_with_another_content_is_taken(stage: Stage) {
    stage.add_ids(&["a"]).await;
    let mut other = message("a");
    other.digest = b"other".to_vec();
    assert_eq!(stage.queue.insert(vec![other], NOW).await.unwrap(), [Inserted::IdTaken]);
    assert_eq!(stage.counts(NOW).await.pending, 1);
}

pub(super) async fn a_batch_that_is_tried_again_is_told_apart_message_by_message(stage: Stage) {
    stage.add_ids(&["a", "c", "d"]).await;
    let other = MessageRecord { digest: b"other".to_vec(), ..message("c") };
    let strange = MessageRecord { account: AccountKey::new(TENANT, "no such"), ..message("d") };
    let batch = vec![message("a"), message("b"), other, strange, message("d"), message("b")];
    let again = stage.queue.insert(batch, NOW).await.unwrap();
    use Inserted::{Again, IdTaken, New, NoAccount};
    assert_eq!(again, [Again, New, IdTaken, NoAccount, Again, Again]);
    assert_eq!(ids(&stage.claim_at(NOW, 10).await), ["a", "c", "d", "b"]);
}

pub(super) async fn ids_of_two_tenants_do_not_meet(stage: Stage) {
    stage.tenant("other", None).await;
    stage.account(&AccountKey::new("other", "main")).await;
    let mut theirs = message("a");
    theirs.account = AccountKey::new("other", "main");
    theirs.digest = b"theirs".to_vec();
    stage.add(vec![message("a"), theirs]).await;
    assert_eq!(stage.claim_at(NOW, 10).await.len(), 1);
    assert_eq!(stage.queue.counts(Some("other"), NOW).await.unwrap()[0].pending, 1);
}

pub(super) async fn a_message_for_another_tenants_account_is_not_taken(stage: Stage) {
    stage.tenant("other", None).await;
    stage.account(&AccountKey::new("other", "theirs")).await;
    let mut bad = message("a");
    bad.account = AccountKey::new(TENANT, "theirs");
    let inserted = stage.queue.insert(vec![bad, message("b")], NOW).await.unwrap();
    assert_eq!(inserted, [Inserted::NoAccount, Inserted::New]);
}

pub(super) async fn content_comes_back_as_it_was(stage: Stage) {
    stage.add_ids(&["a"]).await;
    let claimed = stage.claim_one().await;
    let content = stage.queue.load_content(claimed.seq).await.unwrap().unwrap();
    assert_eq!((content.subject.as_str(), content.body.as_deref()), ("a", Some("hello")));
    assert_eq!(stage.queue.load_content(claimed.seq + 1).await.unwrap(), None);
}

pub(super) async fn an_account_with_unsent_mail_cannot_be_deleted(stage: Stage) {
    stage.add_ids(&["a"]).await;
    let refused = stage.queue.delete_account(&main_account()).await;
    assert!(matches!(refused, Err(MailError::Conflict(_))), "{refused:?}");
    assert!(stage.queue.account(&main_account()).await.unwrap().is_some());
    let claimed = stage.claim_one().await;
    stage.finish(&claimed, crate::queue::Outcome::Sent).await;
    assert!(stage.queue.delete_account(&main_account()).await.unwrap());
    assert!(!stage.queue.delete_account(&main_account()).await.unwrap());
    assert_eq!(stage.queue.insert(vec![message("b")], NOW).await.unwrap(), [Inserted::NoAccount]);
}

pub(super) async fn a_report_secret_is_made_once_and_replaced_when_given(stage: Stage) {
    let mut tenant = stage.queue.tenant(TENANT).await.unwrap().unwrap();
    tenant.id = "new".into();
    for (secret, created, in_force) in [
        (ReportSecret::Kept, true, None),
        (ReportSecret::Made(vec![1]), false, Some(vec![1])),
        (ReportSecret::Made(vec![2]), false, Some(vec![1])),
        (ReportSecret::Given(vec![3]), false, Some(vec![3])),
        (ReportSecret::Kept, false, Some(vec![3])),
    ] {
        let put = stage.queue.put_tenant(&tenant, &secret).await.unwrap();
        assert_eq!(put, TenantPut { created, report_secret_sealed: in_force }, "{secret:?}");
    }
}

pub(super) async fn a_setting_stays_what_it_was_first(stage: Stage) {
    assert_eq!(stage.queue.setting("x", None).await.unwrap(), None);
    assert_eq!(stage.queue.setting("x", Some(b"1")).await.unwrap().unwrap(), b"1");
    assert_eq!(stage.queue.setting("x", Some(b"2")).await.unwrap().unwrap(), b"1");
}

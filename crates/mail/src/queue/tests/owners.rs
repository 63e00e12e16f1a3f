//! What belongs to a tenant goes with it: the next one of that id begins with nothing.

use super::stage::{NOW, Stage, TENANT, main_account, message};
use crate::error::MailError;
use crate::model::{AccountKey, ApiKey, Selection};

fn key(id: &str, account: &AccountKey) -> ApiKey {
    ApiKey {
        id: id.into(),
        tenant_id: account.tenant_id.clone(),
        account_id: account.account_id.clone(),
        name: id.into(),
        daily_limit: 10,
        timezone: "UTC".into(),
        enabled: true,
        created_at: NOW,
    }
}

async fn give_key(stage: &Stage, id: &str, account: &AccountKey) -> Result<(), MailError> {
    stage.queue.put_key(&key(id, account), id.as_bytes()).await
}

fn assert_gone<T: std::fmt::Debug>(answer: Result<T, MailError>, what: &str) {
    let error = answer.unwrap_err();
    assert!(matches!(&error, MailError::NotFound(said) if said.contains(what)), "{error}");
}

pub(super) async fn nothing_is_given_to_a_tenant_that_is_gone(stage: Stage) {
    let unknown = AccountKey::new(TENANT, "unknown");
    assert_gone(give_key(&stage, "k", &unknown).await, "no account");
    give_key(&stage, "k", &main_account()).await.unwrap();
    stage.queue.delete_tenant(TENANT).await.unwrap();
    assert_gone(give_key(&stage, "late", &main_account()).await, "no tenant");
    assert_gone(stage.queue.suspend(TENANT, Some("x")).await, "no tenant");
    assert_eq!(stage.queue.keys(None).await.unwrap(), []);
}

pub(super) async fn nothing_outlives_a_tenant_that_is_deleted_at_that_moment(stage: Stage) {
    let all = Selection { tenant_id: TENANT.into(), ..Selection::default() };
    let (main, other) = (main_account(), AccountKey::new(TENANT, "other"));
    for round in 0..30 {
        let id = format!("k{round}");
        let (key, held, account, deleted) = tokio::join!(
            give_key(&stage, &id, &main),
            stage.queue.suspend(TENANT, Some("x")),
            stage.try_account(&other),
            stage.queue.delete_tenant(TENANT),
        );
        deleted.unwrap();
        for late in [key.err(), held.err(), account.err()].into_iter().flatten() {
            assert!(matches!(late, MailError::NotFound(_)), "{late}");
        }
        assert_eq!(stage.queue.keys(None).await.unwrap(), [], "{round}");
        assert_eq!(stage.queue.accounts(None).await.unwrap(), [], "{round}");
        stage.tenant(TENANT, None).await;
        stage.account(&main).await;
        let mut next = message("next");
        next.batch_code = Some("x".into());
        stage.add(vec![next]).await;
        assert_eq!(stage.counts(NOW).await.suspended, 0, "{round}: a batch is held");
        assert_eq!(stage.queue.delete_messages(&all, NOW, 10).await.unwrap(), 1);
    }
}

//! Tenants, accounts and keys.

use crate::stage::{Stage, new_account, new_message, new_tenant};
use tollgate_mail::{
    AccountKey, MailError, NewApiKey, NewTenant, Secret, Selection, SendError, Tls,
};

fn field(error: MailError) -> String {
    match error {
        MailError::Invalid(invalid) => invalid.field,
        other => panic!("not invalid but {other:?}"),
    }
}

pub(crate) async fn a_tenants_token_names_its_tenant_and_is_replaced(stage: Stage) {
    let mail = &stage.mail;
    let first = mail.new_tenant_token("acme").await.unwrap();
    assert!(first.starts_with("tgt_") && first.len() > 40, "256 bits: {first}");
    assert_eq!(mail.bearer(&first).await.unwrap().as_deref(), Some("acme"));
    assert_eq!(mail.bearer("tgt_nobody's").await.unwrap(), None);
    assert_eq!(mail.bearer("").await.unwrap(), None);
    let second = mail.new_tenant_token("acme").await.unwrap();
    assert_eq!(mail.bearer(&first).await.unwrap(), None);
    assert_eq!(mail.bearer(&second).await.unwrap().as_deref(), Some("acme"));
    assert!(mail.tenant("acme").await.unwrap().has_token);
    // A change of the tenant keeps its token.
    mail.put_tenant(new_tenant("acme")).await.unwrap();
    assert_eq!(mail.bearer(&second).await.unwrap().as_deref(), Some("acme"));
}

pub(crate) async fn an_account_is_replaced_whole_and_keeps_its_password_only_for_its_server(
    stage: Stage,
) {
    let mail = &stage.mail;
    let key = AccountKey::new("acme", "main");
    let before = mail.account(&key).await.unwrap();
    assert_eq!((before.tls, before.has_password), (Tls::Starttls, true));
    assert_eq!((before.limit_per_minute, before.limit_per_hour), (Some(10), None));
    let mut change = new_account("acme", "main");
    change.password = None;
    change.limit_per_minute = None;
    assert!(!mail.put_account(change.clone()).await.unwrap(), "it is not new");
    let after = mail.account(&key).await.unwrap();
    assert_eq!((after.limit_per_minute, after.has_password), (None, true));
    assert!(after.version > before.version);
    for other in ["host", "port", "user", "tls"] {
        let mut change = change.clone();
        match other {
            "host" => change.host = "evil.example.org".into(),
            "port" => change.port = 25,
            "user" => change.user = Some("eve".into()),
            _ => change.tls = Some(Tls::None),
        }
        assert_eq!(field(mail.put_account(change).await.unwrap_err()), "password", "{other}");
    }
    change.password = Some(Secret::new(""));
    mail.put_account(change).await.unwrap();
    assert!(!mail.account(&key).await.unwrap().has_password);
}

pub(crate) async fn bad_accounts_are_refused_with_the_field_named(stage: Stage) {
    let mail = &stage.mail;
    type Change = fn(&mut tollgate_mail::NewAccount);
    let cases: [(&str, Change); 12] = [
        ("id", |account| account.id = String::new()),
        ("id", |account| account.id = "a b".into()),
        ("host", |account| account.host = String::new()),
        ("host", |account| account.host = "mail.example.org:25".into()),
        ("host", |account| account.host = "mail\r\nexample".into()),
        ("port", |account| account.port = 0),
        ("user", |account| account.user = Some("a\nb".into())),
        ("user", |account| account.user = None),
        ("priority0_share", |account| account.priority0_share = 100),
        ("concurrency", |account| account.concurrency = 0),
        ("limit_per_day", |account| account.limit_per_day = Some(u64::MAX)),
        ("root_cert", |account| account.root_cert = Some("not PEM".into())),
    ];
    for (expected, change) in cases {
        let mut account = new_account("acme", "bad");
        change(&mut account);
        assert_eq!(field(mail.put_account(account).await.unwrap_err()), expected);
    }
    let stranger = mail.put_account(new_account("nobody", "main")).await;
    assert!(matches!(stranger, Err(MailError::NotFound(_))), "{stranger:?}");
    assert_eq!(mail.accounts(Some("acme")).await.unwrap().len(), 1);
}

pub(crate) async fn accounts_of_two_tenants_do_not_meet(stage: Stage) {
    let mail = &stage.mail;
    mail.put_tenant(new_tenant("other")).await.unwrap();
    let mut theirs = new_account("other", "main");
    theirs.host = "other.example.org".into();
    assert!(mail.put_account(theirs).await.unwrap());
    assert_eq!(mail.accounts(None).await.unwrap().len(), 2);
    let ours = mail.accounts(Some("acme")).await.unwrap();
    assert_eq!(ours[0].host, "mail.example.org");
    mail.delete_account(&AccountKey::new("other", "main")).await.unwrap();
    assert_eq!(mail.accounts(Some("acme")).await.unwrap().len(), 1);
}

pub(crate) async fn a_tenant_is_deleted_with_all_that_is_its_own(stage: Stage) {
    let mail = &stage.mail;
    let key = stage.key(10).await;
    let token = mail.new_tenant_token("acme").await.unwrap();
    mail.add_messages(vec![new_message("a")]).await.unwrap();
    let refused = mail.delete_tenant("acme").await;
    assert!(matches!(refused, Err(MailError::Conflict(_))), "{refused:?}");
    let all = Selection { tenant_id: "acme".into(), ..Selection::default() };
    assert_eq!(mail.delete_messages(&all).await.unwrap(), 1);
    mail.delete_tenant("acme").await.unwrap();
    assert_eq!(mail.tenants().await.unwrap(), []);
    assert_eq!(mail.accounts(None).await.unwrap(), []);
    assert!(matches!(mail.usable_key(&key).await, Err(SendError::UnknownKey)));
    assert_eq!(mail.bearer(&token).await.unwrap(), None);
    assert_eq!(mail.counts().await.unwrap(), []);
}

pub(crate) async fn what_does_not_exist_is_not_found(stage: Stage) {
    let mail = &stage.mail;
    let nobody = AccountKey::new("acme", "nobody");
    let key = NewApiKey {
        tenant_id: "acme".into(),
        account_id: "nobody".into(),
        name: "x".into(),
        daily_limit: 1,
        timezone: "UTC".into(),
    };
    for outcome in [
        mail.delete_tenant("nobody").await,
        mail.new_tenant_token("nobody").await.map(drop),
        mail.delete_account(&nobody).await,
        mail.account(&nobody).await.map(drop),
        mail.accounts(Some("nobody")).await.map(drop),
        mail.create_key(key.clone()).await.map(drop),
        mail.delete_key("nobody").await,
        mail.change_key("nobody", Some(true), None).await.map(drop),
        mail.message("acme", "nobody").await.map(drop),
        mail.suspend("nobody", None).await.map(drop),
    ] {
        assert!(matches!(outcome, Err(MailError::NotFound(_))), "{outcome:?}");
    }
    // No database keeps a zero byte; it is the caller's mistake on each.
    assert!(matches!(mail.suspend("acme\0", None).await, Err(MailError::Invalid(_))));
    let listed = |id: &str| Selection {
        tenant_id: "acme".into(),
        ids: Some(vec!["m1".into(), id.into()]),
        ..Selection::default()
    };
    for id in ["\0", "a\0b"] {
        let outcome = mail.delete_messages(&listed(id)).await;
        assert!(matches!(outcome, Err(MailError::Invalid(_))), "{id:?}: {outcome:?}");
    }
    assert_eq!(mail.delete_messages(&listed("\\u0000")).await.unwrap(), 0);
    for timezone in ["Mars/Olympus", "Etc/Unknown"] {
        let timezone = timezone.into();
        let wrong = NewApiKey { account_id: "main".into(), timezone, ..key.clone() };
        assert_eq!(field(mail.create_key(wrong).await.unwrap_err()), "timezone");
    }
}

pub(crate) async fn report_secrets_are_made_once_and_shown_once(stage: Stage) {
    let mail = &stage.mail;
    let url = Some("https://example.org/reports".to_owned());
    let tenant = NewTenant { report_url: url, ..new_tenant("reporting") };
    let made = mail.put_tenant(tenant.clone()).await.unwrap();
    assert!(made.created && made.report_secret.is_some());
    let again = mail.put_tenant(tenant.clone()).await.unwrap();
    assert_eq!((again.created, again.report_secret), (false, None));
    for bad in ["ftp://example.org", "https://", "example.org", "http://a b"] {
        let tenant = NewTenant { report_url: Some(bad.into()), ..tenant.clone() };
        assert_eq!(field(mail.put_tenant(tenant).await.unwrap_err()), "report_url", "{bad}");
    }
}

pub(crate) async fn of_two_who_make_a_tenant_at_once_one_is_told_its_report_secret(stage: Stage) {
    for round in 0..5 {
        let new = NewTenant {
            report_url: Some("https://example.org/reports".into()),
            ..new_tenant(&format!("racing{round}"))
        };
        let put = |_| {
            let (mail, new) = (stage.mail.clone(), new.clone());
            tokio::spawn(async move { mail.put_tenant(new).await.unwrap().report_secret })
        };
        let tasks: Vec<_> = (0..8).map(put).collect();
        let mut told = 0;
        for task in tasks {
            told += usize::from(task.await.unwrap().is_some());
        }
        assert_eq!(told, 1);
    }
}

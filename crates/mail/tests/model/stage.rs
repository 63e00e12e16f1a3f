//! A relay with one tenant and one account, and a clock that the case moves.

use testkit::ManualClock;
use testkit::servers::Postgres;
use tollgate::Tollgate;
use tollgate_mail::{
    AccountKey, Content, KeySource, Mail, MailSettings, NewAccount, NewApiKey, NewMessage,
    NewTenant, Secret, SendError, SendRequest, Sent,
};

pub(crate) struct Stage {
    pub(crate) mail: Mail,
    pub(crate) gate: Tollgate,
    pub(crate) clock: ManualClock,
    /// Where PostgreSQL keeps it.
    pub(crate) schema: Option<String>,
    _ground: Option<tempfile::TempDir>,
}

pub(crate) fn settings() -> MailSettings {
    let key = KeySource::Given(Secret::new("a passphrase that is long enough"));
    MailSettings { key, ..MailSettings::default() }
}

pub(crate) fn new_tenant(id: &str) -> NewTenant {
    NewTenant { id: id.into(), name: id.to_uppercase(), ..NewTenant::default() }
}

pub(crate) fn new_account(tenant_id: &str, id: &str) -> NewAccount {
    NewAccount {
        user: Some("ada@example.org".into()),
        password: Some(Secret::new("s3cret")),
        limit_per_minute: Some(10),
        limit_per_hour: Some(0),
        ..NewAccount::new(AccountKey::new(tenant_id, id), "mail.example.org", 587)
    }
}

pub(crate) fn new_message(id: &str) -> NewMessage {
    NewMessage {
        id: id.into(),
        tenant_id: "acme".into(),
        account_id: "main".into(),
        content: Content {
            from: "Ada <ada@example.org>".into(),
            to: vec!["bob@example.org".into()],
            subject: "hello".into(),
            body: Some("hello, Bob".into()),
            ..Content::default()
        },
        priority: NewMessage::DEFAULT_PRIORITY,
        deferred_until: None,
        batch_code: None,
    }
}

/// To so many recipients.
pub(crate) fn request(recipients: usize) -> SendRequest {
    SendRequest {
        to: (0..recipients).map(|n| format!("user{n}@example.org")).collect(),
        subject: "hello".into(),
        text: Some("hello".into()),
        ..SendRequest::default()
    }
}

/// Looks the key up and sends with it.
pub(crate) async fn send(
    mail: &Mail,
    secret: &str,
    request: SendRequest,
    once: Option<&str>,
) -> Result<Sent, SendError> {
    mail.send(mail.usable_key(secret).await?, request, once).await
}

impl Stage {
    pub(crate) async fn memory() -> Self {
        Self::on("memory:", ManualClock::start(), None).await
    }

    pub(crate) async fn file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("tollgate.db").display());
        Self::on(&url, ManualClock::start(), Some(folder)).await
    }

    pub(crate) async fn postgres() -> Self {
        let schema = testkit::random::name("mail").replace('-', "_");
        let url = format!("{}?schema={schema}&deadline=20s", Postgres::shared().url());
        let stage = Self::on(&url, ManualClock::start(), None).await;
        Self { schema: Some(schema), ..stage }
    }

    async fn on(url: &str, clock: ManualClock, ground: Option<tempfile::TempDir>) -> Self {
        let gate = Tollgate::open_with_clock(url, clock.shared()).await.unwrap();
        let mail = Mail::open(gate.clone(), url, settings()).await.unwrap();
        mail.put_tenant(new_tenant("acme")).await.unwrap();
        mail.put_account(new_account("acme", "main")).await.unwrap();
        Self { mail, gate, clock, schema: None, _ground: ground }
    }

    /// A key of this daily limit; its secret.
    pub(crate) async fn key(&self, daily_limit: u64) -> String {
        self.key_in("UTC", daily_limit).await
    }

    pub(crate) async fn key_in(&self, timezone: &str, daily_limit: u64) -> String {
        let new = NewApiKey {
            tenant_id: "acme".into(),
            account_id: "main".into(),
            name: "test".into(),
            daily_limit,
            timezone: timezone.into(),
        };
        self.mail.create_key(new).await.unwrap().1
    }

    pub(crate) async fn send(
        &self,
        secret: &str,
        request: SendRequest,
        once: Option<&str>,
    ) -> Result<Sent, SendError> {
        send(&self.mail, secret, request, once).await
    }

    pub(crate) async fn used(&self, key: &str) -> u64 {
        self.mail.usage(key).await.unwrap().emails_sent_today
    }

    pub(crate) async fn pending(&self) -> u64 {
        self.mail.status(None).await.unwrap().pending
    }
}

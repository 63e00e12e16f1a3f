//! A queue with one tenant and one account, and what every case does with it.

use std::sync::OnceLock;

use testkit::servers::{PgBouncer, Postgres};
use tollgate::{Instant, Span, Tollgate};

use crate::error::MailError;
use crate::model::{
    Account, AccountKey, Content, Counts, LimitBehavior, LimitUnit, MessageQuery, MessageRow,
    Tenant, Tls,
};
use crate::queue::records::encode_content;
use crate::queue::{
    AccountRecord, Claimed, Finish, Finished, Inserted, Lease, MessageRecord, Moved, Outcome,
    Queue, ReportSecret,
};

pub(super) const NOW: Instant = Instant::from_secs(1_772_714_096);
pub(super) const TENANT: &str = "acme";

pub(super) struct Stage {
    pub(super) queue: Queue,
    /// Whatever must outlive the queue.
    _ground: Option<tempfile::TempDir>,
}

/// So many seconds after the beginning.
pub(super) fn at(secs: i64) -> Instant {
    if secs > 0 { NOW.plus(Span::from_secs(secs)) } else { NOW }
}

pub(super) fn main_account() -> AccountKey {
    AccountKey::new(TENANT, "main")
}

pub(super) fn lease<'a>(instance: &'a str, now: Instant) -> Lease<'a> {
    Lease { instance, now, until: now.plus(Span::from_secs(300)) }
}

pub(super) fn message(id: &str) -> MessageRecord {
    let content = Content {
        from: "ada@example.org".into(),
        to: vec!["bob@example.org".into()],
        subject: id.to_owned(),
        body: Some("hello".into()),
        ..Content::default()
    };
    MessageRecord {
        account: main_account(),
        id: id.to_owned(),
        priority: 2,
        recipients: 1,
        deferred_until: None,
        batch_code: None,
        receipt: None,
        digest: id.as_bytes().to_vec(),
        former_digest: None,
        content: encode_content(&content),
    }
}

impl Stage {
    pub(super) async fn memory() -> Self {
        Self::on(Queue::open("memory:").await.unwrap(), None).await
    }

    pub(super) async fn file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("tollgate.db").display());
        let queue = Queue::open(&url).await.unwrap();
        assert!(folder.path().join("tollgate-mail.db").exists());
        Self::on(queue, Some(folder)).await
    }

    pub(super) async fn postgres() -> Self {
        Self::on_postgres(&Postgres::shared().url()).await
    }

    /// Through PgBouncer in transaction mode, with fewer sessions than connections.
    pub(super) async fn pgbouncer() -> Self {
        static BOUNCER: OnceLock<PgBouncer> = OnceLock::new();
        let bouncer = BOUNCER.get_or_init(|| {
            let lines = ["default_pool_size = 6", "max_client_conn = 1000"];
            PgBouncer::start_with(Postgres::shared(), &lines)
        });
        Self::on_postgres(&bouncer.url()).await
    }

    /// In a schema of its own, made by the gate that the relay stands beside.
    async fn on_postgres(url: &str) -> Self {
        let schema = testkit::random::name("mail").replace('-', "_");
        let url = format!("{url}?schema={schema}&deadline=20s");
        Tollgate::open(&url).await.unwrap().close();
        Self::on(Queue::open(&url).await.unwrap(), None).await
    }

    async fn on(queue: Queue, ground: Option<tempfile::TempDir>) -> Self {
        let stage = Self { queue, _ground: ground };
        stage.tenant(TENANT, None).await;
        stage.account(&main_account()).await;
        stage
    }

    pub(super) async fn tenant(&self, id: &str, report_url: Option<&str>) {
        let tenant = Tenant {
            id: id.into(),
            name: id.to_uppercase(),
            report_url: report_url.map(ToOwned::to_owned),
            suspended: false,
            has_token: false,
            created_at: NOW,
        };
        self.queue.put_tenant(&tenant, &ReportSecret::Given(vec![1, 2, 3])).await.unwrap();
    }

    pub(super) async fn account(&self, key: &AccountKey) {
        self.try_account(key).await.unwrap();
    }

    /// `true` if it is new.
    pub(super) async fn try_account(&self, key: &AccountKey) -> Result<bool, MailError> {
        let account = Account {
            key: key.clone(),
            host: "mail.example.org".into(),
            port: 587,
            user: Some("ada".into()),
            password: None,
            has_password: true,
            from_address: None,
            use_tls: true,
            tls: Tls::Starttls,
            root_cert: None,
            allow_plaintext_auth: false,
            limit_per_minute: Some(10),
            limit_per_hour: None,
            limit_per_day: None,
            limit_behavior: LimitBehavior::Defer,
            limit_unit: LimitUnit::Recipients,
            priority0_share: 20,
            concurrency: 3,
            resume_at: None,
            resume_ordinary_at: None,
            version: 0,
            created_at: NOW,
            updated_at: NOW,
        };
        let record = AccountRecord { account, password_sealed: Some(vec![9; 40]) };
        self.queue.put_account(&record, NOW).await
    }

    pub(super) async fn add(&self, messages: Vec<MessageRecord>) {
        let count = messages.len();
        let inserted = self.queue.insert(messages, NOW).await.unwrap();
        assert_eq!(inserted, vec![Inserted::New; count]);
    }

    pub(super) async fn add_ids(&self, ids: &[&str]) {
        self.add(ids.iter().map(|id| message(id)).collect()).await;
    }

    pub(super) async fn claim_at(&self, now: Instant, limit: u32) -> Vec<Claimed> {
        let claims = self.queue.claim(&main_account(), lease("me", now), limit).await.unwrap();
        claims.map(|claims| claims.messages).unwrap_or_default()
    }

    pub(super) async fn claim_one(&self) -> Claimed {
        self.claim_at(NOW, 1).await.pop().expect("there is a message to claim")
    }

    pub(super) async fn finish(&self, claimed: &Claimed, outcome: Outcome) -> Finished {
        let finish = Finish {
            claimed,
            instance: "me",
            started_at: at(1),
            finished_at: at(2),
            smtp_code: Some(250),
            smtp_text: "as the server said".into(),
            outcome,
        };
        self.queue.finish(&finish).await.unwrap()
    }

    /// What has ended by the clock is taken over at once, as if it had been watched for long.
    pub(super) async fn recover(&self, now: Instant, under_way: &[i64]) -> Moved {
        let mut open = self.queue.open_claims(now, "me", under_way, 10).await.unwrap();
        open.retain(|claim| claim.until <= now);
        self.queue.take_over(&open, now).await.unwrap()
    }

    pub(super) async fn row(&self, id: &str, now: Instant) -> MessageRow {
        let mut query = MessageQuery::of_tenant(TENANT);
        query.id = Some(id.to_owned());
        self.queue.messages(&query, 0, now).await.unwrap().pop().expect("the message is there").1
    }

    pub(super) async fn has_work(&self, now: Instant) -> bool {
        self.queue.accounts_with_work(now).await.unwrap() == [main_account()]
    }

    pub(super) async fn version(&self) -> i64 {
        self.queue.account(&main_account()).await.unwrap().unwrap().account.version
    }

    pub(super) async fn counts(&self, now: Instant) -> Counts {
        self.queue.counts(None, now).await.unwrap().remove(0)
    }
}

pub(super) fn ids(claimed: &[Claimed]) -> Vec<&str> {
    claimed.iter().map(|message| message.id.as_str()).collect()
}

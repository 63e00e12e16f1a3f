//! A relay with a clock to move and a server to send to.

#![allow(dead_code, reason = "each test uses some of it")]

use std::sync::Arc;
use std::time::Duration;

use testkit::ManualClock;
use tollgate::{Clock, Instant, Span, Tollgate};
use tollgate_mail::{
    Account, AccountKey, Attempt, Content, KeySource, Mail, MailSettings, MessageQuery, MessageRow,
    NewAccount, NewMessage, NewTenant, Running, Secret, Status,
};

#[path = "sink.rs"]
pub(crate) mod sink;

pub(crate) use sink::Sink;

pub(crate) const TENANT: &str = "acme";
/// Behind all others in any order.
const WITNESS: &str = "witness";
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Stage {
    pub(crate) clock: ManualClock,
    pub(crate) gate: Tollgate,
    pub(crate) mail: Mail,
    pub(crate) sink: Arc<Sink>,
    running: Option<Running>,
}

/// Leases outlive any jump of the clock, so that only tests about leases see one end.
pub(crate) fn settings() -> MailSettings {
    MailSettings {
        key: KeySource::Given(Secret::new("a passphrase for tests only")),
        lease: Duration::from_secs(100 * 24 * 3600),
        poll_interval: Duration::from_millis(200),
        ..MailSettings::default()
    }
}

impl Stage {
    /// In memory, its relay at work.
    pub(crate) async fn new() -> Self {
        Self::with(settings()).await
    }

    pub(crate) async fn with(settings: MailSettings) -> Self {
        let mut stage = Self::resting(settings).await;
        stage.start();
        stage
    }

    /// Nothing is sent until `start`.
    pub(crate) async fn resting(settings: MailSettings) -> Self {
        let sink = tokio::task::spawn_blocking(Sink::start).await.unwrap();
        let clock = ManualClock::start();
        let gate = Tollgate::open_with_clock("memory:", clock.shared()).await.unwrap();
        let mail = Mail::open(gate.clone(), "memory:", settings).await.unwrap();
        put_tenant(&mail, TENANT).await;
        Self { clock, gate, mail, sink: Arc::new(sink), running: None }
    }

    pub(crate) fn start(&mut self) {
        self.running = Some(self.mail.start());
    }

    pub(crate) async fn stop(&mut self) {
        self.running.take().unwrap().stop().await;
    }

    /// An account at the server's plain port, with changes.
    pub(crate) async fn account(&self, id: &str, change: impl FnOnce(&mut NewAccount)) {
        put_account(&self.mail, id, self.sink.plain, change).await;
    }

    pub(crate) async fn read_account(&self, id: &str) -> Account {
        self.mail.account(&AccountKey::new(TENANT, id)).await.unwrap()
    }

    pub(crate) async fn add(&self, messages: Vec<NewMessage>) {
        add(&self.mail, messages).await;
    }

    pub(crate) async fn message(&self, id: &str) -> MessageRow {
        self.mail.message(TENANT, id).await.unwrap()
    }

    pub(crate) async fn attempts(&self, id: &str) -> Vec<Attempt> {
        self.mail.attempts(TENANT, id).await.unwrap()
    }

    pub(crate) async fn count(&self, status: Status) -> usize {
        count(&self.mail, status).await
    }

    pub(crate) async fn until_count(&self, status: Status, wanted: usize) {
        until(&format!("{wanted} messages {status:?}"), async || {
            self.count(status).await >= wanted
        })
        .await;
    }

    /// Moves the clock to `at`, and comes back once somebody else who was due at that very instant
    /// was served: so the relay has looked at it.
    pub(crate) async fn look_at(&self, at: Instant) {
        let key = AccountKey::new(WITNESS, "main");
        put_tenant(&self.mail, WITNESS).await;
        let mut account = NewAccount::new(key, "127.0.0.1", self.sink.plain);
        account.use_tls = false;
        self.mail.put_account(account).await.unwrap();
        let id = format!("due at {}", at.as_micros());
        let deferred_until = Some(at);
        self.add(vec![NewMessage { tenant_id: WITNESS.into(), deferred_until, ..message(&id) }])
            .await;
        self.clock.set(at);
        until("the witness", async || {
            self.mail.message(WITNESS, &id).await.unwrap().status == Status::Sent
        })
        .await;
    }

    pub(crate) async fn until_status(&self, id: &str, status: Status) -> MessageRow {
        let begun = std::time::Instant::now();
        loop {
            let row = self.message(id).await;
            if row.status == status {
                return row;
            }
            assert!(begun.elapsed() < PATIENCE, "waited in vain for {status:?}: {row:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the account stops for a limit or at its server's wish, and says until when.
    pub(crate) async fn until_paused(&self, id: &str) -> Instant {
        until(&format!("account {id} paused"), async || {
            self.read_account(id).await.resume_at.is_some_and(|at| at > self.clock.now())
        })
        .await;
        self.read_account(id).await.resume_at.unwrap()
    }

    /// Sends everything, moving the clock to each instant that the account waits for.
    pub(crate) async fn play(&self, account: &str, messages: usize) {
        until(&format!("{messages} messages sent"), async || {
            if self.count(Status::Sent).await >= messages {
                return true;
            }
            let waits_until = self.read_account(account).await.resume_at;
            if let Some(at) = waits_until.filter(|at| *at > self.clock.now()) {
                self.clock.set(at);
            }
            false
        })
        .await;
    }

    /// The instants at which attempts began, of messages `m0` and so on.
    pub(crate) async fn starts(&self, messages: usize) -> Vec<Instant> {
        let mut starts = Vec::new();
        for number in 0..messages {
            let attempts = self.attempts(&format!("m{number}")).await;
            starts.extend(attempts.iter().map(|attempt| attempt.started_at));
        }
        starts.sort_unstable();
        starts
    }
}

/// The most instants in any window of this length.
pub(crate) fn most_within(starts: &[Instant], span: Span) -> usize {
    let within = |from: Instant, at: Instant| from <= at && at < from.plus(span);
    let count = |from: Instant| starts.iter().filter(|at| within(from, **at)).count();
    starts.iter().map(|from| count(*from)).max().unwrap_or(0)
}

pub(crate) fn secs(secs: i64) -> Span {
    Span::from_micros(secs * 1_000_000).unwrap()
}

pub(crate) async fn put_tenant(mail: &Mail, id: &str) {
    let tenant = NewTenant { id: id.into(), name: id.into(), ..NewTenant::default() };
    mail.put_tenant(tenant).await.unwrap();
}

pub(crate) async fn put_account(
    mail: &Mail,
    id: &str,
    port: u16,
    change: impl FnOnce(&mut NewAccount),
) {
    let mut account = NewAccount::new(AccountKey::new(TENANT, id), "127.0.0.1", port);
    account.use_tls = false;
    change(&mut account);
    mail.put_account(account).await.unwrap();
}

pub(crate) async fn add(mail: &Mail, messages: Vec<NewMessage>) {
    let wanted = messages.len() as u64;
    let added = mail.add_messages(messages).await.unwrap();
    assert_eq!((added.queued, added.rejected), (wanted, vec![]));
}

pub(crate) async fn count(mail: &Mail, status: Status) -> usize {
    let mut query = MessageQuery::of_tenant(TENANT);
    query.status = Some(status);
    query.limit = 1000;
    let mut count = 0;
    loop {
        let (rows, next) = mail.messages(&query).await.unwrap();
        count += rows.len();
        query.cursor = next;
        if query.cursor.is_none() {
            return count;
        }
    }
}

/// A message to nobody special through account `main`; its subject is its id.
pub(crate) fn message(id: &str) -> NewMessage {
    NewMessage {
        id: id.into(),
        tenant_id: TENANT.into(),
        account_id: "main".into(),
        content: Content {
            from: "shop@example.org".into(),
            to: vec!["bob@example.org".into()],
            subject: id.into(),
            body: Some("hello".into()),
            ..Content::default()
        },
        priority: NewMessage::DEFAULT_PRIORITY,
        ..NewMessage::default()
    }
}

/// Messages `m0`, `m1` and so on.
pub(crate) fn numbered(count: usize) -> Vec<NewMessage> {
    (0..count).map(|number| message(&format!("m{number}"))).collect()
}

/// The same to somebody the server treats specially: see `sink.py`.
pub(crate) fn message_to(id: &str, name: &str) -> NewMessage {
    let mut message = message(id);
    message.content.to = vec![format!("{name}@example.org")];
    message
}

pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

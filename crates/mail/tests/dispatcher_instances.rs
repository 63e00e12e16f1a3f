//! Several instances on one queue, and instances that die.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "support/stage.rs"]
mod stage;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use stage::{
    Sink, TENANT, add, count, message, message_to, numbered, put_account, put_tenant, until,
};
use testkit::servers::Postgres;
use testkit::{ManualClock, random};
use tollgate::{Clock, Span, SystemClock, Tollgate};
use tollgate_mail::{AccountKey, Mail, MailSettings, NewAccount, NewMessage, Status};

/// Where a child process finds what to send.
const STORE: &str = "TOLLGATE_TEST_MAIL_STORE";

fn fresh_schema() -> String {
    let name = format!("mail_{}", random::below(u64::MAX));
    format!("{}?schema={name}", Postgres::shared().url())
}

/// Leases short enough to see them end.
fn settings() -> MailSettings {
    MailSettings {
        attempt_timeout: Duration::from_secs(2),
        lease: Duration::from_secs(4),
        ..stage::settings()
    }
}

async fn open(url: &str, settings: MailSettings) -> Mail {
    let gate = Tollgate::open(url).await.unwrap();
    Mail::open(gate, url, settings).await.unwrap()
}

async fn sink() -> Sink {
    tokio::task::spawn_blocking(Sink::start).await.unwrap()
}

/// How often each subject arrived.
fn arrivals(sink: &Sink) -> BTreeMap<String, usize> {
    let mut arrivals = BTreeMap::new();
    for subject in sink.subjects() {
        *arrivals.entry(subject).or_default() += 1;
    }
    arrivals
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_send_two_thousand_messages_once_each() {
    let (url, sink) = (fresh_schema(), sink().await);
    let one = open(&url, stage::settings()).await;
    let two = open(&url, stage::settings()).await;
    put_tenant(&one, TENANT).await;
    for account in ["main", "second", "third"] {
        put_account(&one, account, sink.plain, |account| account.concurrency = 4).await;
    }
    let running = [one.start(), two.start()];
    let mut messages = numbered(2000);
    for (number, message) in messages.iter_mut().enumerate() {
        message.account_id = ["main", "second", "third"][number % 3].into();
    }
    for chunk in messages.chunks(500) {
        add(&one, chunk.to_vec()).await;
    }
    until("all sent", async || count(&two, Status::Sent).await == 2000).await;
    sink.wait_for("message", 2000).await;
    let arrivals = arrivals(&sink);
    assert_eq!(arrivals.len(), 2000);
    assert!(arrivals.values().all(|times| *times == 1));
    let mut instances = BTreeSet::new();
    for number in 0..2000 {
        for attempt in one.attempts(TENANT, &format!("m{number}")).await.unwrap() {
            instances.insert(attempt.instance);
        }
    }
    assert_eq!(instances.len(), 2, "both took part");
    for running in running {
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_holds_over_all_instances() {
    let (url, sink) = (fresh_schema(), sink().await);
    let one = open(&url, stage::settings()).await;
    let two = open(&url, stage::settings()).await;
    put_tenant(&one, TENANT).await;
    put_account(&one, "main", sink.plain, |account| {
        account.concurrency = 5;
        account.limit_per_hour = Some(40);
    })
    .await;
    let running = [one.start(), two.start()];
    add(&one, numbered(100)).await;
    let key = AccountKey::new(TENANT, "main");
    until("a pause", async || {
        one.account(&key).await.unwrap().resume_at.is_some() && sink.messages().len() >= 40
    })
    .await;
    until("60 wait", async || count(&two, Status::Deferred).await == 60).await;
    // Neither does what must not be done, and both had the occasion.
    both_have_looked(&one, &two).await;
    assert_eq!(sink.messages().len(), 40);
    // Raised through one instance, in force on both.
    put_account(&two, "main", sink.plain, |account| account.limit_per_hour = Some(70)).await;
    sink.wait_for("message", 70).await;
    until("70 sent", async || count(&one, Status::Sent).await == 70).await;
    for running in running {
        running.stop().await;
    }
    assert_eq!(sink.messages().len(), 70);
}

/// Comes back once each of two instances has sent mail of somebody else that fell due meanwhile. What
/// is due is found by a look at all accounts, and by nothing else.
async fn both_have_looked(one: &Mail, two: &Mail) {
    let (witness, sink) = ("witness", sink().await);
    put_tenant(one, witness).await;
    let mut account = NewAccount::new(AccountKey::new(witness, "main"), "127.0.0.1", sink.plain);
    account.use_tls = false;
    one.put_account(account).await.unwrap();
    let mut instances = BTreeSet::new();
    for round in 0.. {
        assert!(round < 50, "only {instances:?} took part");
        // Late enough for both to know of it before.
        let deferred_until = Some(SystemClock.now().plus(Span::from_micros(500_000).unwrap()));
        let ids: Vec<String> = (0..10).map(|number| format!("w{round}-{number}")).collect();
        let due =
            |id: &String| NewMessage { tenant_id: witness.into(), deferred_until, ..message(id) };
        add(one, ids.iter().map(due).collect()).await;
        for id in ids {
            until("a witness", async || {
                two.message(witness, &id).await.unwrap().status == Status::Sent
            })
            .await;
            instances.insert(two.attempts(witness, &id).await.unwrap().remove(0).instance);
        }
        if instances.len() == 2 {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_ahead_makes_nobody_send_what_another_is_sending() {
    let (url, sink, clock) = (fresh_schema(), sink().await, ManualClock::start());
    let open = async |instance: &str| {
        let gate = Tollgate::open_with_clock(&url, clock.shared()).await.unwrap();
        let (instance, lease) = (instance.to_owned(), Duration::from_secs(300));
        let settings = MailSettings { instance, lease, ..stage::settings() };
        Mail::open(gate, &url, settings).await.unwrap()
    };
    let (one, two) = (open("one").await, open("two").await);
    put_tenant(&one, TENANT).await;
    put_account(&one, "main", sink.plain, |account| account.concurrency = 1).await;
    let _running = one.start();
    add(&one, vec![message_to("m0", "stall")]).await;
    sink.wait_for("stall", 1).await;
    clock.advance(Span::from_secs(600));
    let also_running = two.start();
    // The first instance has no turn to give. The second looks for what the dead left, then for this.
    add(&one, vec![message_to("m1", "bob")]).await;
    until("m1 sent", async || count(&one, Status::Sent).await == 1).await;
    assert_eq!(two.attempts(TENANT, "m1").await.unwrap()[0].instance, "two");
    assert_eq!(two.attempts(TENANT, "m0").await.unwrap(), [], "the first is still sending it");
    also_running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_crashes_and_comes_back_loses_nothing_and_repeats_nothing() {
    let server = tokio::task::spawn_blocking(Postgres::start).await.unwrap();
    let (url, sink) = (server.url(), sink().await);
    // Away for longer than leases last.
    let lease = Duration::from_secs(3);
    let mail = open(&url, MailSettings { lease, ..stage::settings() }).await;
    put_tenant(&mail, TENANT).await;
    put_account(&mail, "main", sink.plain, |account| {
        account.concurrency = 4;
        account.limit_per_day = Some(100_000);
    })
    .await;
    add(&mail, numbered(400)).await;
    let running = mail.start();
    sink.wait_for("message", 100).await;
    // Kept until the end.
    let _server = tokio::task::spawn_blocking(move || {
        server.kill();
        std::thread::sleep(lease + Duration::from_secs(1));
        server.start_again();
        server
    })
    .await
    .unwrap();
    // Everything is noted: nobody will send any of it again.
    until("all sent", async || {
        let counts = mail.counts().await;
        counts.is_ok_and(|counts| counts[0].sent == 400 && counts[0].pending == 0)
    })
    .await;
    running.stop().await;
    let arrivals = arrivals(&sink);
    assert_eq!(arrivals.len(), 400);
    assert!(arrivals.values().all(|times| *times == 1), "outcomes waited for the database");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_whose_earlier_attempts_cannot_be_looked_up_is_noted_when_they_can() {
    let (url, sink) = (fresh_schema(), sink().await);
    let mail = open(&url, stage::settings()).await;
    put_tenant(&mail, TENANT).await;
    put_account(&mail, "main", sink.plain, |_| {}).await;
    let (_, schema) = url.split_once("schema=").unwrap();
    let server = Postgres::shared();
    server.psql(&format!("alter table {schema}.mail_send_log rename to away"));
    let running = mail.start();
    add(&mail, vec![message_to("m0", "code-451-0")]).await;
    let failed = format!("{schema}.mail_send_log\" does not exist");
    until("a look-up that fails", async || server.log().contains(&failed)).await;
    server.psql(&format!("alter table {schema}.away rename to mail_send_log"));
    until("m0 deferred", async || count(&mail, Status::Deferred).await == 1).await;
    assert_eq!(mail.attempts(TENANT, "m0").await.unwrap().len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_instance_is_taken_over_and_nothing_is_lost_on_postgres() {
    taken_over(&fresh_schema()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_instance_is_taken_over_and_nothing_is_lost_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    taken_over(&format!("sqlite:{}", folder.path().join("tollgate.db").display())).await;
}

/// A child sends and is killed while a message is on its way; then somebody else goes on.
async fn taken_over(url: &str) {
    let sink = sink().await;
    {
        let first = open(url, settings()).await;
        put_tenant(&first, TENANT).await;
        put_account(&first, "main", sink.plain, |_| {}).await;
        let mut messages = numbered(200);
        // It hangs here, and is certainly in the middle of it when it is killed.
        messages[50] = message_to("m50", "stall-1");
        add(&first, messages).await;
        first.close();
    }
    let mut child = spawn_child(url);
    sink.wait_for("stall", 1).await;
    // Sent by the child alone.
    let before = sink.arrived(50).await.len();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(before, 50);
    let next = open(url, settings()).await;
    let running = next.start();
    until("all sent", async || count(&next, Status::Sent).await == 200).await;
    sink.wait_for("message", 200).await;
    let arrivals = arrivals(&sink);
    assert_eq!(arrivals.len(), 200, "nothing is lost");
    let twice = arrivals.values().filter(|times| **times > 1).count();
    assert_eq!(twice, 0, "it was killed before the message was said");
    let attempts = next.attempts(TENANT, "m50").await.unwrap();
    let outcomes: Vec<&str> = attempts.iter().map(|attempt| attempt.outcome.as_str()).collect();
    assert_eq!(outcomes, ["unknown", "sent"]);
    assert_ne!(attempts[0].instance, attempts[1].instance);
    running.stop().await;
}

/// This test program again, as an instance of its own.
fn spawn_child(url: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "an_instance_of_its_own"])
        .env(STORE, url)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by other tests, which kill it"]
async fn an_instance_of_its_own() {
    let Ok(url) = std::env::var(STORE) else { return };
    let mail = open(&url, MailSettings { attempt_timeout: Duration::from_secs(60), ..settings() });
    let _running = mail.await.start();
    std::future::pending::<()>().await;
}

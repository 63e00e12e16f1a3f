//! Delivery reports reach a tenant's web server: signed, in batches, at least once.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "support/stage.rs"]
mod stage;
#[path = "support/webhook.rs"]
mod webhook;

use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use stage::{Stage, TENANT, message, message_to, numbered, put_tenant, secs, settings, until};
use tollgate::Clock;
use tollgate_mail::{MailSettings, NewAccount, NewTenant, Secret, Status};
use webhook::{Post, Webhook};

const SECRET: &str = "a secret of the tenant";

async fn reports_to(stage: &Stage, tenant: &str, webhook: &Webhook) {
    let tenant = NewTenant {
        id: tenant.into(),
        name: tenant.into(),
        report_url: Some(webhook.url.clone()),
        report_secret: Some(Secret::new(SECRET)),
    };
    stage.mail.put_tenant(tenant).await.unwrap();
}

/// By another's hand than the relay's.
fn hmac(secret: &str, text: &str) -> String {
    use std::io::Write;
    let mut openssl = Command::new("openssl")
        .args(["dgst", "-sha256", "-hmac", secret])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    openssl.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = String::from_utf8(openssl.wait_with_output().unwrap().stdout).unwrap();
    output.rsplit(' ').next().unwrap().trim().to_owned()
}

#[tokio::test]
async fn final_outcomes_arrive_in_batches_and_signed() {
    let mut stage = Stage::resting(settings()).await;
    let webhook = Webhook::start();
    reports_to(&stage, TENANT, &webhook).await;
    stage.account("main", |_| {}).await;
    let mut messages = numbered(150);
    messages[3] = message_to("m3", "code-550-0");
    messages[4] = message_to("m4", "code-451-0");
    messages[5].batch_code = Some("spring".into());
    stage.add(messages).await;
    stage.start();
    until("149 reports", async || webhook.taken().len() >= 149).await;
    let posts = webhook.posts();
    assert!(posts.len() < 50, "{} requests", posts.len());
    assert!(posts.iter().all(|post| post.reports().len() <= 100));
    let mut reports: Vec<_> = posts.iter().flat_map(Post::reports).collect();
    assert_eq!(reports.len(), 149, "each once, and none for what is not final");
    let refused = reports.iter().find(|report| report["id"] == "m3").unwrap();
    assert_eq!((&refused["status"], &refused["smtp_code"]), (&"error".into(), &550.into()));
    assert!(refused["error"].as_str().unwrap().contains("550"));
    reports.retain(|report| report["id"] == "m5");
    assert_eq!(reports[0]["status"], "sent");
    assert_eq!(reports[0]["account_id"], "main");
    assert_eq!(reports[0]["batch_code"], "spring");
    assert_eq!(reports[0]["sent_ts"], stage.clock.now().as_micros() / 1_000_000);
    let signature = &posts[0].headers["x-tollgate-signature"];
    let (time, given) = signature.split_once(",v1=").unwrap();
    let signed = format!("{}.{}", time.strip_prefix("t=").unwrap(), posts[0].body);
    assert_eq!(given, hmac(SECRET, &signed));
    assert_eq!(posts[0].headers["content-type"], "application/json");
}

#[tokio::test]
async fn reports_that_were_not_taken_come_again_with_growing_delays() {
    let quick = Duration::from_millis(10);
    let stage = Stage::with(MailSettings { poll_interval: quick, ..settings() }).await;
    let webhook = Webhook::start();
    webhook.failing.store(2, SeqCst);
    reports_to(&stage, TENANT, &webhook).await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message("m0")]).await;
    until("the first request", async || webhook.posts().len() == 1).await;
    // A second at a time, which the relay looks at, so that none is sent long after it was due.
    until("the third", async || {
        tokio::time::sleep(5 * quick).await;
        stage.clock.advance(secs(1));
        webhook.taken() == ["m0"]
    })
    .await;
    let sent: Vec<i64> = webhook.posts().iter().map(Post::signed_at).collect();
    let [first, second, third] = sent[..] else { panic!("three requests: {sent:?}") };
    // Ten seconds and twenty, each up to a fifth shorter or longer.
    assert!(second - first >= 8, "it waits: {sent:?}");
    assert!(third - second >= 16, "it waits longer: {sent:?}");
}

#[tokio::test]
async fn a_webhook_that_hangs_delays_nobody() {
    let given = MailSettings { report_timeout: Duration::from_secs(60), ..settings() };
    let stage = Stage::with(given).await;
    let (hanging, well) = (Webhook::start(), Webhook::start());
    hanging.hanging.store(true, SeqCst);
    reports_to(&stage, TENANT, &hanging).await;
    put_tenant(&stage.mail, "other").await;
    reports_to(&stage, "other", &well).await;
    stage.account("main", |_| {}).await;
    let port = stage.sink.plain;
    let theirs = |account: &mut NewAccount| account.tenant_id = "other".into();
    stage::put_account(&stage.mail, "main", port, theirs).await;
    stage.add(vec![message("m0")]).await;
    until("the hanging request", async || hanging.posts().len() == 1).await;
    let mut messages = numbered(20);
    for message in &mut messages {
        message.tenant_id = "other".into();
        message.id = format!("o{}", message.id);
    }
    stage.add(messages).await;
    until("the other's reports", async || well.taken().len() == 20).await;
    stage.add(vec![message("m1")]).await;
    stage.until_status("m1", Status::Sent).await;
    assert_eq!(hanging.posts().len(), 1, "one request at a time");
}

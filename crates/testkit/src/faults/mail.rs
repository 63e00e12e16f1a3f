//! The mail server goes away while messages wait for it.

use std::time::Duration;

use serde_json::{Value, json};

use super::Plan;
use super::server::Home;
use super::smtp::Smtp;
use super::stage::{Promise, Report, Scenery, Stage, blocking};
use crate::http::Connection;
use crate::servers::Proxy;

const LASTS: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);
/// Messages that come before, meanwhile and after.
const EACH: u32 = 60;
/// Tries again soon: the defaults begin with a minute.
const HASTY: &str = "[mail]\nretry_base = \"200ms\"\nretry_max = \"1s\"\npoll_interval = \"100ms\"";
/// After the mail server is back the last message may wait for its next try, and then for its turn.
const DELIVERED_WITHIN: Duration = Duration::from_secs(20);

pub(super) async fn gone(plan: &Plan, name: &'static str) -> Result<Report, String> {
    let home = Home::new(name)?;
    let said = |error: std::io::Error| format!("the mail server: {error}");
    let smtp = Smtp::start().await.map_err(said)?;
    let proxy = Proxy::start(smtp.port());
    let store = format!("sqlite:{}", home.path().join("counts.db").display());
    let (folder, durability, config) = (home.path(), "interval", HASTY);
    let scenery = Scenery { folder, store, durability, config, visitors: 0 };
    let mut stage = Stage::open(plan, scenery).await?;
    let mut relay = Relay::open(stage.server.address(), proxy.port()).await?;
    relay.queue("before").await?;
    stage.begin();
    blocking(|| proxy.cut());
    relay.queue("meanwhile").await?;
    tokio::time::sleep(LASTS).await;
    blocking(|| proxy.pass());
    stage.end();
    relay.queue("after").await?;
    let back = stage.load.now();
    let within = DELIVERED_WITHIN + plan.slack * 5;
    while smtp.taken().len() < relay.queued && stage.load.now() - back < within {
        tokio::time::sleep(POLL).await;
    }
    let took = stage.load.now() - back;
    let unsent = relay.unsent(within).await?;
    let fault = "the mail server is gone for 5 s while messages wait for it";
    let mut report = stage.close(name, fault, &Promise::of(&[])).await?;
    let taken = smtp.taken();
    let (delivered, queued) = (taken.len(), relay.queued);
    let again: u32 = taken.values().map(|times| times - 1).sum();
    if delivered < queued || unsent > 0 {
        let lost = queued - delivered;
        report.broken.push(format!("{lost} messages were not delivered, {unsent} are not sent"));
    }
    report.checked += &format!(
        "; {delivered} of {queued} messages delivered, {again} of them twice, the last {} ms after its return",
        took.as_millis()
    );
    Ok(report)
}

/// The mail relay's calls.
struct Relay {
    connection: Connection,
    queued: usize,
}

impl Relay {
    /// With one tenant that has one account.
    async fn open(address: &str, port: u16) -> Result<Self, String> {
        let connection = Connection::open(address).await.map_err(|error| error.to_string())?;
        let mut relay = Self { connection, queued: 0 };
        relay.ask("POST /tenant", &json!({ "id": "t", "name": "Faults" })).await?;
        let account = json!({ "id": "main", "tenant_id": "t", "host": "127.0.0.1", "port": port,
            "use_tls": false, "concurrency": 8 });
        relay.ask("POST /account", &account).await?;
        Ok(relay)
    }

    async fn queue(&mut self, when: &str) -> Result<(), String> {
        let message = |number: u32| {
            let id = format!("{when}-{number}");
            json!({ "id": id, "tenant_id": "t", "account_id": "main", "from": "ada@example.org",
                "to": ["bob@example.org"], "subject": id, "body": "hello" })
        };
        let messages: Vec<Value> = (0..EACH).map(message).collect();
        let added =
            self.ask("POST /commands/add-messages", &json!({ "messages": messages })).await?;
        if added["queued"] != EACH {
            return Err(format!("messages were not queued: {added}"));
        }
        self.queued += messages.len();
        Ok(())
    }

    /// How many messages are not known to be sent, once all are or the time is over.
    async fn unsent(&mut self, within: Duration) -> Result<usize, String> {
        let begun = std::time::Instant::now();
        loop {
            let page = self.ask("GET /messages?tenant_id=t&limit=1000", &Value::Null).await?;
            let messages = page["messages"].as_array().ok_or("no messages are listed")?;
            let sent = messages.iter().filter(|message| message["status"] == "sent").count();
            let unsent = self.queued.saturating_sub(sent);
            if unsent == 0 || begun.elapsed() > within {
                return Ok(unsent);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn ask(&mut self, head: &str, body: &Value) -> Result<Value, String> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.connection.ask(head, "", &body).await;
        let answer = answer.map_err(|error| format!("{head}: {error}"))?;
        let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        match answer.status {
            200 | 201 => Ok(said),
            status => Err(format!("{head} answers {status}: {said}")),
        }
    }
}

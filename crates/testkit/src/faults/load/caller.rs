//! One caller: a connection, a question, a record of the answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{CHECKED, GROWING, Given, Log, Record, SCHEDULED, Shared, Trouble, USERS, What};
use crate::http::{Connection, Response, read_decision};

/// Nobody waits longer than this for an answer. Far beyond every promise: it tells slow from never.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Before another try to connect.
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

pub(super) struct Caller {
    shared: Arc<Shared>,
    number: u32,
    turn: u64,
    connection: Option<Connection>,
    log: Log,
}

impl Caller {
    pub(super) fn new(shared: Arc<Shared>, number: u32) -> Self {
        Self { shared, number, turn: 0, connection: None, log: Log::default() }
    }

    /// Checks for one of the users, again and again.
    pub(super) async fn check(mut self) -> Log {
        let user = self.number % USERS;
        let body = json!({ "policy": CHECKED, "subject": { "user": format!("user-{user}") } });
        let body = body.to_string();
        while !self.is_over() {
            self.ask(Some(user), "/api/v1/check", &body, |response| {
                let status = response.status;
                if ![200, 429].contains(&status) {
                    return Err(Trouble::Status(status));
                }
                let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
                read_decision(&body, CHECKED).map(What::Decided).ok_or(Trouble::Misdelivered)
            })
            .await;
            self.rest().await;
        }
        self.log
    }

    /// Checks for somebody else each time, with a long name.
    pub(super) async fn visit(mut self) -> Log {
        while !self.is_over() {
            let visitor = format!("{}-{:0>200}", self.number, self.turn);
            let body = json!({ "policy": GROWING, "subject": { "visitor": visitor } }).to_string();
            self.ask(None, "/api/v1/check", &body, |response| match response.status {
                200 => Ok(What::Answered),
                status => Err(Trouble::Status(status)),
            })
            .await;
            self.rest().await;
        }
        self.log
    }

    /// Asks for a slot for one event after the other, each until it has one.
    pub(super) async fn schedule(mut self) -> Log {
        let mut events = 0;
        let mut in_doubt = false;
        while !self.is_over() {
            let event = format!("{}-{events}", self.number);
            let requested = &self.shared.requested_time;
            let body = json!({
                "eventId": event, "configName": SCHEDULED, "requestedTime": requested,
            });
            let mut given = None;
            self.ask(None, "/api/v1/slots", &body.to_string(), |response| {
                if response.status != 200 {
                    return Err(Trouble::Status(response.status));
                }
                let slot: Value = serde_json::from_slice(&response.body).unwrap_or_default();
                let (id, time) = (slot["eventId"].as_str(), slot["scheduledTime"].as_str());
                let time = time.filter(|_| id == Some(&event)).ok_or(Trouble::Misdelivered)?;
                given = Some(Given { event: event.clone(), scheduled_time: time.to_owned() });
                Ok(What::Answered)
            })
            .await;
            in_doubt = given.is_none();
            if let Some(given) = given {
                self.log.slots.push(given);
                events += 1;
            }
            self.rest().await;
        }
        self.log.slots_in_doubt = u64::from(in_doubt);
        self.log
    }

    fn is_over(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    async fn rest(&self) {
        tokio::time::sleep(self.shared.rest).await;
    }

    /// Asks once and writes down what came of it.
    async fn ask(
        &mut self,
        user: Option<u32>,
        path: &str,
        body: &str,
        read: impl FnOnce(&Response) -> Result<What, Trouble>,
    ) {
        self.turn += 1;
        let id = format!("{}-{}", self.number, self.turn);
        let asked = Instant::now();
        let answered = tokio::time::timeout(PATIENCE, self.exchange(path, &id, body)).await;
        let took = asked.elapsed();
        let what = match answered {
            Err(_) => Err(Trouble::Silence),
            Ok(Err(trouble)) => Err(trouble),
            Ok(Ok(response)) if response.header("x-request-id") != Some(&id) => {
                Err(Trouble::Misdelivered)
            }
            Ok(Ok(response)) => read(&response),
        };
        let asked_at = asked.duration_since(self.shared.began);
        let what = what.unwrap_or_else(What::Failed);
        self.log.records.push(Record { asked_at, took, user, what });
        match what {
            What::Failed(Trouble::Status(_)) => {}
            What::Failed(_) => {
                self.connection = None;
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            What::Decided(_) | What::Answered => {
                self.shared.good.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    async fn exchange(&mut self, path: &str, id: &str, body: &str) -> Result<Response, Trouble> {
        // What the server closed while nobody asked is no answer lost.
        if self.connection.as_ref().is_some_and(Connection::is_closed) {
            self.connection = None;
        }
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let opened = Connection::open(&self.shared.address).await;
                opened.map_err(|_| Trouble::Refused)?
            }
        };
        let (head, header) = (format!("POST {path}"), format!("X-Request-ID: {id}\r\n"));
        let response = connection.ask(&head, &header, body).await;
        let response = response.map_err(|_| Trouble::Broken)?;
        if response.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        Ok(response)
    }
}

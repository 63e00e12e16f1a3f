//! A server asked over HTTP, on connections that are kept.

use std::sync::Mutex;

use serde_json::{Value, json};
use tollgate::{Refunded, StoreErrorKind};

use super::door::{NoAnswer, Reply};
use super::record::{Answered, small};
use super::script::Request;
use crate::http::{Connection, read_decision};

#[derive(Debug)]
pub(super) struct Http {
    address: String,
    idle: Mutex<Vec<Connection>>,
}

struct Response {
    status: u16,
    replayed: bool,
    body: Value,
}

impl Http {
    pub(super) fn new(address: &str) -> Self {
        Self { address: address.trim_end_matches('/').to_owned(), idle: Mutex::default() }
    }

    pub(super) async fn check(
        &self,
        policy: &str,
        request: &Request,
        key: Option<&str>,
    ) -> Result<Reply, NoAnswer> {
        let [(user, user_is), (place, place_is)] = request.subject();
        let subject = json!({ user: user_is, place: place_is });
        let body = json!({ "policy": policy, "subject": subject, "cost": request.cost });
        let response = self.post("/api/v1/check", key, &body).await?;
        // 422 is a cost that can never fit.
        if ![200, 429, 422].contains(&response.status) {
            return Err(response.into());
        }
        let decided = read_decision(&response.body, policy);
        let decided = decided.ok_or_else(|| NoAnswer::Other(response.body.to_string()))?;
        let answered = Answered {
            allowed: decided.allowed,
            // Nobody can tell: the server has a memory too.
            from_memory: !decided.allowed,
            replayed: response.replayed,
            // It is not told; the `max`es tell it.
            version: 0,
            decided_at: decided.decided_at_micros,
            refuses: decided.refuses,
            max: decided.max.map(small),
            used: decided.used.map(small),
        };
        let receipt = response.body["receipt"].as_str().map(str::to_owned);
        Ok(Reply { answered, receipt })
    }

    pub(super) async fn refund(&self, receipt: &str) -> Result<Refunded, NoAnswer> {
        let response = self.post("/api/v1/refund", None, &json!({ "receipt": receipt })).await?;
        if response.status != 200 {
            return Err(response.into());
        }
        match (response.body["refunded"].as_bool(), response.body["reason"].as_str()) {
            (Some(true), None) => Ok(Refunded::Done),
            (Some(false), Some("already refunded")) => Ok(Refunded::Already),
            (Some(false), Some("expired")) => Ok(Refunded::Expired),
            _ => Err(NoAnswer::Other(response.body.to_string())),
        }
    }

    /// A connection that breaks leaves open whether it happened, like a store that does.
    async fn post(
        &self,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> Result<Response, NoAnswer> {
        let mut connection = match self.take_idle() {
            Some(connection) => connection,
            None => Connection::open(&self.address).await.map_err(broken)?,
        };
        let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
        let asked = connection.ask(&format!("POST {path}"), &key, &body.to_string()).await;
        let response = asked.map_err(broken)?;
        self.idle.lock().expect("no task panicked while it held it").push(connection);
        let replayed = response.header("idempotency-replayed").is_some();
        let body = serde_json::from_slice(&response.body);
        let body = body.map_err(|error| NoAnswer::Other(format!("not JSON: {error}")))?;
        Ok(Response { status: response.status, replayed, body })
    }

    fn take_idle(&self) -> Option<Connection> {
        self.idle.lock().expect("no task panicked while it held it").pop()
    }
}

fn broken(_: std::io::Error) -> NoAnswer {
    NoAnswer::Store(StoreErrorKind::Unavailable)
}

impl From<Response> for NoAnswer {
    fn from(response: Response) -> Self {
        match response.status {
            503 => Self::Store(StoreErrorKind::Unavailable),
            status => Self::Other(format!("status {status}: {}", response.body)),
        }
    }
}

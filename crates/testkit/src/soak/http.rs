//! As much of an HTTP client as a soak needs: one request, one answer, connections kept.

use std::sync::Mutex;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tollgate::{Refunded, StoreErrorKind};

use super::door::{NoAnswer, Reply};
use super::record::{Answered, LIMITS, small};
use super::script::Request;

#[derive(Debug)]
pub(super) struct Http {
    address: String,
    idle: Mutex<Vec<BufReader<TcpStream>>>,
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
        let answered = read_decision(&response);
        let answered = answered.ok_or_else(|| NoAnswer::Other(response.body.to_string()))?;
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
            None => BufReader::new(TcpStream::connect(&self.address).await.map_err(broken)?),
        };
        let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
        let (address, body) = (&self.address, body.to_string());
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{key}\r\n{body}",
            body.len()
        );
        connection.get_mut().write_all(request.as_bytes()).await.map_err(broken)?;
        let response = read_response(&mut connection).await?;
        self.idle.lock().expect("no task panicked while it held it").push(connection);
        Ok(response)
    }

    fn take_idle(&self) -> Option<BufReader<TcpStream>> {
        self.idle.lock().expect("no task panicked while it held it").pop()
    }
}

async fn read_response(connection: &mut BufReader<TcpStream>) -> Result<Response, NoAnswer> {
    let mut line = String::new();
    connection.read_line(&mut line).await.map_err(broken)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let Some(status) = status else { return Err(NoAnswer::Store(StoreErrorKind::Unavailable)) };
    let (mut length, mut replayed) = (0, false);
    loop {
        line.clear();
        connection.read_line(&mut line).await.map_err(broken)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let bad = |_| NoAnswer::Other(format!("Content-Length is {value:?}"));
                length = value.trim().parse().map_err(bad)?;
            }
            "idempotency-replayed" => replayed = true,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).await.map_err(broken)?;
    let body = serde_json::from_slice(&body);
    let body = body.map_err(|error| NoAnswer::Other(format!("not JSON: {error}")))?;
    Ok(Response { status, replayed, body })
}

/// The decision in a response's body. It does not tell the policy's version; its `max`es do.
fn read_decision(response: &Response) -> Option<Answered> {
    let body = &response.body;
    let decided_at: jiff::Timestamp = body["decided_at"].as_str()?.parse().ok()?;
    let allowed = body["allowed"].as_bool()?;
    let cost = body["cost"].as_u64()?;
    let mut answered = Answered {
        allowed,
        // Nobody can tell: the server has a memory too.
        from_memory: !allowed,
        replayed: response.replayed,
        version: 0,
        decided_at: decided_at.as_microsecond(),
        refuses: 0,
        max: [0; LIMITS],
        used: [0; LIMITS],
    };
    for (position, limit) in body["limits"].as_array()?.iter().enumerate() {
        let (max, used) = (limit["max"].as_u64()?, limit["used"].as_u64()?);
        let refuses = !allowed && (limit.get("retry_after").is_some() || cost > max);
        answered.refuses |= u8::from(refuses) << position;
        answered.max[position] = small(max);
        answered.used[position] = small(used);
    }
    Some(answered)
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

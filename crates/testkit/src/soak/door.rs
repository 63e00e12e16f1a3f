//! The way in: the library in this process, or a server over HTTP.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tollgate::{Error, IdempotencyKey, OnceAnswer, Refunded, StoreErrorKind, Tollgate};

use super::http::Http;
use super::record::Answered;
use super::script::{Part, Request};

/// Keys of the library's users never meet the server's.
const SCOPE: &[u8] = b"soak";

/// Half a minute: longer than a database takes to come back here.
const OPEN_TRIES: u32 = 300;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) enum Door {
    Library(Tollgate),
    Http(Http),
}

pub(super) struct Reply {
    pub(super) answered: Answered,
    pub(super) receipt: Option<String>,
}

/// Why there is none.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The store could not give it; what was asked may have happened.
    Store(StoreErrorKind),
    /// What no soak should meet.
    Other(String),
}

impl Door {
    /// `postgres://…` or `http://…`
    pub(super) async fn open(url: &str) -> Result<Self, String> {
        if let Some(address) = url.strip_prefix("http://") {
            return Ok(Self::Http(Http::new(address)));
        }
        let mut tries = 1;
        loop {
            match Tollgate::open(url).await {
                Ok(gate) => return Ok(Self::Library(gate)),
                // It may be started in the middle of an outage.
                Err(Error::Store(_)) if tries < OPEN_TRIES => {
                    tries += 1;
                    tokio::time::sleep(BETWEEN_TRIES).await;
                }
                Err(error) => return Err(format!("the store does not open: {error}")),
            }
        }
    }

    pub(super) async fn check(
        &self,
        part: &Part,
        request: &Request,
        (task, turn): (u16, u32),
    ) -> Result<Reply, NoAnswer> {
        let policy = part.scene.cases()[request.case].policy_name(part.round);
        let subject = request.subject();
        let key = request.once.then(|| part.once_key(task, turn));
        match (self, key) {
            (Self::Http(http), key) => http.check(&policy, request, key.as_deref()).await,
            (Self::Library(gate), None) => {
                let checked = gate.check(&policy, &subject, request.cost);
                let (answer, from_memory) = with_origin(gate, checked).await;
                let answer = answer?;
                let answered = Answered { from_memory, ..Answered::of(&answer) };
                Ok(Reply { answered, receipt: answer.receipt })
            }
            (Self::Library(gate), Some(key)) => {
                let key = IdempotencyKey { scope: SCOPE, key: &key };
                let render = |answer: &tollgate::Answer| Answered::of(answer).to_body();
                let once = gate.check_once(key, &policy, &subject, request.cost, render).await?;
                let answered = match once {
                    OnceAnswer::Fresh(answer) => Answered::of(&answer),
                    OnceAnswer::Replay(body) => {
                        let answered = Answered::from_body(&body);
                        let answered = answered.ok_or("a replay is not what was recorded")?;
                        Answered { replayed: true, ..answered }
                    }
                };
                Ok(Reply { answered, receipt: None })
            }
        }
    }

    pub(super) async fn refund(&self, receipt: &str) -> Result<Refunded, NoAnswer> {
        match self {
            Self::Library(gate) => Ok(gate.refund(receipt).await?),
            Self::Http(http) => http.refund(receipt).await,
        }
    }

    /// Requests in batches so far, and refusals from memory.
    pub(super) fn stats(&self) -> Option<(u64, u64)> {
        match self {
            Self::Library(gate) => {
                let stats = gate.stats();
                Some((stats.decisions_batched, stats.shielded))
            }
            Self::Http(_) => None,
        }
    }
}

/// What a check gives, and whether it came from memory: then the last poll is the one that counted a
/// shielded refusal. On a runtime of one thread nobody else counts meanwhile.
async fn with_origin<F: Future>(gate: &Tollgate, checked: F) -> (F::Output, bool) {
    let mut checked = pin!(checked);
    std::future::poll_fn(|context| {
        let before = gate.stats().shielded;
        let polled = checked.as_mut().poll(context);
        polled.map(|output| (output, gate.stats().shielded > before))
    })
    .await
}

impl From<Error> for NoAnswer {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(error) if error.kind() != StoreErrorKind::Corrupt => {
                Self::Store(error.kind())
            }
            error => Self::Other(format!("no soak should meet this: {error}")),
        }
    }
}

impl From<&str> for NoAnswer {
    fn from(message: &str) -> Self {
        Self::Other(message.to_owned())
    }
}

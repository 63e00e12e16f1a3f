//! Reading request bodies: bounded in size and time, and strict JSON with the faulty field named.

mod large;

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use serde::Deserialize;
use tokio::sync::oneshot;

use crate::problem::Problem;

pub(crate) use large::LargeBodies;

/// What is read and thrown away of a body that is too large, so that its sender sees the answer.
const MAX_DRAINED_BYTES: usize = 64 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// Whoever announced a body and has sent none of it by then is waiting for the answer.
const FIRST_FRAME_TIME: Duration = Duration::from_secs(1);

/// Limits on one request's body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    pub(crate) max_bytes: usize,
    pub(crate) read_time: Duration,
}

pub(crate) async fn read<B>(body: B, limits: BodyLimits) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    read_counted(body, limits, |_| Ok(())).await
}

/// Calls `count` with how many bytes there are whenever there are more; its error ends the body.
async fn read_counted<B>(
    body: B,
    limits: BodyLimits,
    count: impl FnMut(usize) -> Result<(), Problem>,
) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let reading = read_bounded(body, limits.max_bytes, count);
    match tokio::time::timeout(limits.read_time, reading).await {
        Ok(result) => result,
        Err(_) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "urn:tollgate:timeout",
            "the request body did not arrive in time",
        )
        .header(header::CONNECTION, HeaderValue::from_static("close"))),
    }
}

async fn read_bounded<B>(
    mut body: B,
    max_bytes: usize,
    mut count: impl FnMut(usize) -> Result<(), Problem>,
) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    if body.size_hint().lower() > max_bytes as u64 {
        return Err(refuse(body, too_large(max_bytes)).await);
    }
    let mut first = Bytes::new();
    let mut all: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::bad_request(format!("body: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let bytes = first.len().max(all.len()) + data.len();
        let counted = if bytes > max_bytes {
            // There is no room for that much: what it held goes to the others.
            let _ = count(usize::MAX);
            Err(too_large(max_bytes))
        } else {
            count(bytes)
        };
        if let Err(problem) = counted {
            drop((first, all));
            return Err(refuse(body, problem).await);
        }
        // Nearly always the body is one frame, and needs no copy.
        if first.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
    }
    if all.is_empty() { Ok(first) } else { Ok(all.into()) }
}

fn too_large(max_bytes: usize) -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "urn:tollgate:too-large",
        format!("the body is larger than {max_bytes} bytes"),
    )
    .header(header::CONNECTION, HeaderValue::from_static("close"))
}

/// Reads the rest away before answering: a sender that is cut off mid-body sees a broken
/// connection instead of the reason.
async fn refuse<B>(body: B, problem: Problem) -> Problem
where
    B: Body<Data = Bytes> + Unpin,
{
    drain(body).await;
    problem
}

/// Reads away what nobody wanted of a body, within bounds.
pub(crate) async fn drain<B>(mut body: B)
where
    B: Body<Data = Bytes> + Unpin,
{
    let drain = async {
        let mut drained = 0;
        let mut next = tokio::time::timeout(FIRST_FRAME_TIME, body.frame()).await.unwrap_or(None);
        while let Some(Ok(frame)) = next {
            drained += frame.data_ref().map_or(0, Bytes::len);
            if drained > MAX_DRAINED_BYTES {
                break;
            }
            next = body.frame().await;
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIME, drain).await;
}

/// A body that comes back through a channel when whoever was to read it has dropped it.
pub(crate) struct Lent {
    body: Option<Incoming>,
    back: Option<oneshot::Sender<Incoming>>,
}

/// Lends a body to a handler; what is left of it can be had back afterwards.
pub(crate) fn lend(body: Incoming) -> (Lent, oneshot::Receiver<Incoming>) {
    let (back, returned) = oneshot::channel();
    (Lent { body: Some(body), back: Some(back) }, returned)
}

impl Body for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(body), Some(back)) = (self.body.take(), self.back.take()) {
            let _ = back.send(body);
        }
    }
}

/// Strict JSON. The fast path is a plain parse; a fault is parsed again to find its place.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    // serde would take a list for a struct; only an object says which value is which.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(not_an_object(bytes));
    }
    serde_json::from_slice(bytes).map_err(|error| explain::<T>(bytes, &error))
}

fn not_an_object(bytes: &[u8]) -> Problem {
    if bytes.is_empty() {
        return Problem::bad_request("the body is empty; send a JSON object");
    }
    match serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
        Ok(_) => Problem::bad_request("the body must be a JSON object"),
        Err(error) => Problem::bad_request(format!("the body is not JSON: {error}")),
    }
}

/// serde stops at the first unknown field. Names all of an object's, if there are more.
fn all_unknown(bytes: &[u8], message: &str) -> Option<String> {
    let (first, expected) = message.strip_prefix("unknown field `")?.split_once("`, ")?;
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(bytes).ok()?;
    let unknown: Vec<String> = object
        .keys()
        .filter(|name| !known.contains(&name.as_str()))
        .map(|name| format!("`{name}`"))
        .collect();
    // Else it is of an object further in.
    let is_of_this = object.contains_key(first);
    (unknown.len() > 1 && is_of_this)
        .then(|| format!("unknown fields {}, {expected}", unknown.join(", ")))
}

fn explain<'a, T: Deserialize<'a>>(bytes: &'a [u8], error: &serde_json::Error) -> Problem {
    if !error.is_data() {
        return Problem::bad_request(format!("the body is not JSON: {error}"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let place = match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Ok(_) => String::new(),
        Err(error) => error.path().to_string(),
    };
    let message = error.to_string();
    let named = |prefix: &str| message.strip_prefix(prefix)?.split_once('`').map(|(name, _)| name);
    // The place of a type error names the field; the other messages do themselves, and what is
    // missing has no place but its object's.
    let field =
        match (named("missing field `"), named("unknown field `").or(named("duplicate field `"))) {
            (Some(name), _) => match place.as_str() {
                "" | "." => name.to_owned(),
                parent => format!("{parent}.{name}"),
            },
            (None, Some(name)) => match place.rsplit_once('.') {
                Some((parent, _)) if !parent.is_empty() => format!("{parent}.{name}"),
                _ => name.to_owned(),
            },
            (None, None) => place,
        };
    let message = message.split_once(" at line ").map_or(message.as_str(), |(before, _)| before);
    let message = all_unknown(bytes, message).unwrap_or_else(|| message.to_owned());
    let message = message
        .replace("expected struct SlotRequest", "expected an object")
        .replace("expected u32", "expected a whole number from 1 to 4294967295")
        .replace("expected u64", "expected a whole number, 0 or more")
        .replace("expected u16", "expected a whole number from 0 to 65535");
    match field.as_str() {
        "" | "." => Problem::bad_request(message),
        _ => Problem::bad_field(field.clone(), format!("{field}: {message}")),
    }
}

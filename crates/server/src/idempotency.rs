//! The `Idempotency-Key` header, and answers as they are recorded for replay.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use tollgate::wire::header_texts;

use crate::auth::Caller;
use crate::problem::Problem;
use crate::wire::json_response;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const MAX_BYTES: usize = 255;

/// The key of a request, if it has one: quoted (a structured-field string) or bare.
pub(crate) fn key_of(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let bad = |detail: &str| Err(Problem::bad_field("Idempotency-Key", detail));
    if values.next().is_some() {
        return bad("Idempotency-Key is given more than once");
    }
    let Ok(text) = value.to_str() else {
        return bad("Idempotency-Key may hold only visible ASCII characters");
    };
    let key = if text.starts_with('"') {
        match sfv::Parser::new(text).parse::<sfv::Item>().map(|item| item.bare_item) {
            Ok(sfv::BareItem::String(key)) => key.as_str().to_owned(),
            _ => return bad("Idempotency-Key is not a well-formed quoted string"),
        }
    } else {
        text.trim().to_owned()
    };
    if key.is_empty() || key.len() > MAX_BYTES {
        return bad("Idempotency-Key must be 1 to 255 characters long");
    }
    Ok(Some(key))
}

/// Keys of different tokens and routes never meet.
pub(crate) fn scope(caller: &Caller, route: &str) -> Vec<u8> {
    format!("{route}\0{}", caller.token).into_bytes()
}

/// An answer as it is kept for replay.
#[derive(Serialize, Deserialize)]
struct Recorded {
    headers: Vec<(String, String)>,
    body: String,
}

pub(crate) fn record(headers: &HeaderMap, body: Vec<u8>) -> Vec<u8> {
    let headers = header_texts(headers);
    let body = String::from_utf8(body).expect("our own JSON");
    serde_json::to_vec(&Recorded { headers, body }).expect("texts are always JSON")
}

/// Headers as they were kept.
pub(crate) fn headers_of(kept: &[(String, String)]) -> HeaderMap {
    let read = |(name, value): &(String, String)| {
        Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?))
    };
    kept.iter().filter_map(read).collect()
}

/// Only successes are recorded, so a replay is a 200.
pub(crate) fn replay(record: &[u8]) -> Result<Response<Full<Bytes>>, Problem> {
    let recorded: Recorded = serde_json::from_slice(record).map_err(|error| {
        tracing::error!(%error, "a recorded answer cannot be read");
        Problem::internal("the recorded answer cannot be read; it was made by another version")
    })?;
    let mut headers = headers_of(&recorded.headers);
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(json_response(StatusCode::OK, "application/json", headers, recorded.body.into_bytes()))
}

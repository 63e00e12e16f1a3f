//! The id of a request: the caller's own if it is plain, else a new one.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_BYTES: usize = 128;

#[derive(Clone, Debug)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
        let usable = |given: &&HeaderValue| {
            (1..=MAX_BYTES).contains(&given.len()) && given.as_bytes().iter().all(plain)
        };
        match headers.get(X_REQUEST_ID).filter(usable) {
            Some(given) => Self(given.clone()),
            None => Self(generate()),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    pub(crate) fn into_header(self) -> HeaderValue {
        self.0
    }
}

/// Unique within this process by a counter, across processes by a random start.
fn generate() -> HeaderValue {
    static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| {
        use std::hash::BuildHasher;
        AtomicU64::new(std::hash::RandomState::new().hash_one(std::process::id()))
    });
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let text: [u8; 16] =
        std::array::from_fn(|position| DIGITS[(id >> (60 - 4 * position)) as usize & 15]);
    HeaderValue::from_bytes(&text).expect("hex digits are visible ASCII")
}

//! What the layer answers itself: refusals and errors.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::body::Body;
use crate::answer::Answer;
use crate::wire;

/// How a refusal is written. A gRPC request is always answered with a gRPC status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RefusalBody {
    /// `{"ok":false,"error":…,"retry_after":…}`
    #[default]
    Plain,
    /// A problem document (RFC 9457) with the decision in it.
    Problem,
}

/// How the client of one request is spoken to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Voice {
    Http(RefusalBody),
    Grpc,
}

impl Voice {
    pub(super) fn of(headers: &HeaderMap, body: RefusalBody) -> Self {
        let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        let is_grpc = kind.is_some_and(|kind| kind.starts_with(b"application/grpc"));
        if is_grpc { Self::Grpc } else { Self::Http(body) }
    }

    /// A decision that refuses.
    pub(super) fn refuse<B>(self, status: StatusCode, answer: &Answer) -> Response<Body<B>> {
        let retry_after = answer.decision.retry_after_secs();
        let mut response = match self {
            Self::Http(RefusalBody::Problem) => {
                let json = wire::problem_json(answer, status, None);
                json_response(status, "application/problem+json", json)
            }
            _ => self.say(status, &wire::refusal_sentence(answer), retry_after),
        };
        wire::insert_rate_limit_headers(answer, response.headers_mut());
        response
    }

    /// An error.
    pub(super) fn fail<B>(self, status: StatusCode, why: &str) -> Response<Body<B>> {
        self.say(status, why, None)
    }

    fn say<B>(self, status: StatusCode, why: &str, retry_after: Option<u64>) -> Response<Body<B>> {
        match self {
            Self::Http(RefusalBody::Plain) => {
                let mut said = json!({ "ok": false, "error": why });
                if let Some(secs) = retry_after {
                    said["retry_after"] = secs.into();
                }
                json_response(status, "application/json", said.to_string().into())
            }
            Self::Http(RefusalBody::Problem) => {
                let title = status.canonical_reason().unwrap_or("Error");
                let said = json!({
                    "type": "about:blank", "title": title, "status": status.as_u16(), "detail": why
                });
                json_response(status, "application/problem+json", said.to_string().into())
            }
            Self::Grpc => grpc_response(status, why),
        }
    }
}

fn json_response<B>(status: StatusCode, kind: &'static str, json: Vec<u8>) -> Response<Body<B>> {
    let mut response = Response::new(Body::own(json));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// An answer without messages: its status is in the headers.
fn grpc_response<B>(status: StatusCode, why: &str) -> Response<Body<B>> {
    let code = match status {
        StatusCode::TOO_MANY_REQUESTS => "8",
        StatusCode::UNAUTHORIZED => "16",
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => "3",
        StatusCode::SERVICE_UNAVAILABLE => "14",
        _ => "13",
    };
    let mut response = Response::new(Body::own(Vec::new()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static(code));
    // Percent-encoded where it is not plain, as gRPC wants it.
    let message: String = why
        .bytes()
        .map(|byte| match byte {
            b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect();
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert("grpc-message", message);
    }
    response
}

//! Problem documents (RFC 9457): the one form of every error on the wire.
//!
//! A handler returns a `Problem`; it travels in the response's extensions until the listener, which
//! knows the request's id, renders it.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use http_body_util::Full;
use serde_json::{Map, Value, json};
use tollgate::{Error, Fault, InvalidPolicy, Seldom, StoreErrorKind};

use crate::request_id::RequestId;
use crate::wire::json_response;

/// What a caller sent may stand in what it is told, up to here: an answer is bounded too.
const MAX_DETAIL_CHARS: usize = 2_000;
const MAX_FIELD_CHARS: usize = 300;

static STORE_DOWN: Seldom = Seldom::new();

/// An error as its caller sees it.
#[derive(Clone, Debug)]
pub(crate) struct Problem(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    status: StatusCode,
    kind: &'static str,
    detail: String,
    members: Map<String, Value>,
    headers: HeaderMap,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            status,
            kind,
            detail: shortened(detail.into(), MAX_DETAIL_CHARS),
            members: Map::new(),
            headers: HeaderMap::new(),
        }))
    }

    /// 400, naming the field at fault.
    pub(crate) fn bad_field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "urn:tollgate:bad-input", detail).field(field)
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "urn:tollgate:bad-input", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "urn:tollgate:not-found", detail)
    }

    /// 500: no fault of the caller's.
    pub(crate) fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "urn:tollgate:internal", detail)
    }

    pub(crate) fn field(self, field: impl Into<String>) -> Self {
        self.member("field", shortened(field.into(), MAX_FIELD_CHARS))
    }

    pub(crate) fn member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.members.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.insert(name, value);
        self
    }

    pub(crate) fn headers(mut self, headers: HeaderMap) -> Self {
        self.0.headers.extend(headers);
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.status
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.0.status = status;
        self
    }

    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }

    pub(crate) fn document(&self, request_id: &RequestId) -> Map<String, Value> {
        let Parts { status, kind, detail, members, headers: _ } = &*self.0;
        let mut document = members.clone();
        document.insert("type".into(), (*kind).into());
        document.insert("title".into(), status.canonical_reason().unwrap_or("Error").into());
        document.insert("status".into(), status.as_u16().into());
        document.insert("detail".into(), detail.as_str().into());
        document.insert("request_id".into(), request_id.as_str().into());
        document
    }

    pub(crate) fn render(self, request_id: &RequestId) -> Response<Full<Bytes>> {
        let document = self.document(request_id);
        let Parts { status, headers, .. } = *self.0;
        let json = Value::Object(document).to_string().into_bytes();
        json_response(status, "application/problem+json", headers, json)
    }
}

/// Cut at the last character that fits, and marked so.
fn shortened(mut text: String, max_chars: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(max_chars) {
        text.truncate(end);
        text.push('…');
    }
    text
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.0.status;
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let detail = error.to_string();
        match error {
            Error::NoSuchPolicy(_) | Error::NoSuchLimit { .. } => Self::not_found(detail),
            Error::BadSubject(bad) | Error::BadOverride(bad) | Error::BadEvent(bad) => {
                Self::bad_field(bad.field, detail)
            }
            Error::NotASchedule { .. } => {
                Self::new(StatusCode::BAD_REQUEST, "urn:tollgate:not-a-schedule", detail)
                    .field("configName")
            }
            Error::ZeroCost => Self::bad_field("cost", detail),
            Error::BadReceipt => Self::bad_field("receipt", detail),
            Error::KeyReused => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "urn:tollgate:idempotency-key-reused",
                detail,
            )
            .field("Idempotency-Key"),
            Error::BadPolicy(invalid) => Self::bad_policy(&invalid),
            Error::Store(store) => {
                let problem = Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "urn:tollgate:store-unavailable",
                    match store.kind() {
                        StoreErrorKind::Unavailable => "the store cannot answer now",
                        StoreErrorKind::Timeout => "the store did not answer in time",
                        StoreErrorKind::Contended => "the store is held by somebody else",
                        StoreErrorKind::Corrupt => "the store cannot be read",
                    },
                );
                if let Some(left_out) = STORE_DOWN.due() {
                    tracing::error!(error = %store, left_out, "the store could not answer");
                }
                problem.header(header::RETRY_AFTER, HeaderValue::from_static("1"))
            }
            other => {
                tracing::error!(error = %other, "unexpected error");
                Self::internal(detail)
            }
        }
    }
}

impl Problem {
    /// Every fault with its place; `field` is the first.
    pub(crate) fn bad_policy(invalid: &InvalidPolicy) -> Self {
        let errors: Vec<_> = invalid
            .faults
            .iter()
            .map(|Fault { place, message }| json!({ "field": place, "detail": message }))
            .collect();
        let problem = Self::bad_request(invalid.to_string()).member("errors", errors);
        match invalid.faults.first() {
            Some(fault) => problem.field(fault.place.clone()),
            None => problem,
        }
    }
}

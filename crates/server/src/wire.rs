//! Answers as responses. What they say, in JSON, headers and sentences, is the library's `wire`.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
pub(crate) use tollgate::wire::{
    QUOTA_EXCEEDED, decision_json, problem_json, rate_limit_headers, wait,
};
use tollgate::{Answer, Outcome};

use crate::request_id::RequestId;

/// The whole answer to a check: 200, 429 with the wait, or 422 if no wait helps.
pub(crate) fn check_response(answer: &Answer, request_id: &RequestId) -> Response<Full<Bytes>> {
    let (status, content_type, json) = match answer.decision.outcome {
        Outcome::Allowed => (StatusCode::OK, "application/json", decision_json(answer)),
        Outcome::Refused { .. } => (
            StatusCode::TOO_MANY_REQUESTS,
            "application/problem+json",
            problem_json(answer, StatusCode::TOO_MANY_REQUESTS, Some(request_id.as_str())),
        ),
        Outcome::NeverFits => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "application/problem+json",
            problem_json(answer, StatusCode::UNPROCESSABLE_ENTITY, Some(request_id.as_str())),
        ),
    };
    json_response(status, content_type, rate_limit_headers(answer), json)
}

/// A peek answers 200 whatever it found.
pub(crate) fn peek_response(answer: &Answer) -> Response<Full<Bytes>> {
    let headers = rate_limit_headers(answer);
    json_response(StatusCode::OK, "application/json", headers, decision_json(answer))
}

pub(crate) fn json_response(
    status: StatusCode,
    content_type: &'static str,
    headers: HeaderMap,
    json: Vec<u8>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(json.into()));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

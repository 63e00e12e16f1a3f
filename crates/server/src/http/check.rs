//! Check, peek and refund.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Instant as Stopwatch;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Body;
use serde::Deserialize;
use tollgate::{Answer, Attributes, IdempotencyKey, OnceAnswer, Refunded, Scope};
use utoipa::ToSchema;

use crate::auth::Caller;
use crate::body::{self, parse};
use crate::http::schema;
use crate::http::subject::Subject;
use crate::idempotency;
use crate::problem::Problem;
use crate::request_id::RequestId;
use crate::state::App;
use crate::wire;

pub(crate) const CHECK_PATH: &str = "/api/v1/check";

/// What a check or a peek asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckRequest<'a> {
    #[serde(borrow)]
    policy: Cow<'a, str>,
    #[serde(borrow, default)]
    subject: Subject<'a>,
    #[serde(default = "one")]
    cost: u32,
}

fn one() -> u32 {
    1
}

/// May it happen now?
///
/// If so it is counted, in every limit of the policy. Under an `Idempotency-Key` an allowed answer
/// is recorded and replayed.
#[utoipa::path(post, path = CHECK_PATH, tag = "checks",
    params(schema::IdempotencyHeader),
    request_body = schema::CheckRequest,
    responses(
        (status = 200, description = "Allowed, and counted", body = schema::Decision),
        (status = 429, description = "Refused; nothing was counted", body = schema::Refusal,
            content_type = "application/problem+json"),
        (status = 422, description = "The cost can never fit, or the idempotency key was used \
            with another body", body = schema::Unprocessable,
            content_type = "application/problem+json"),
        schema::BadInput, schema::NotFound, schema::StoreDown, schema::NoAccess,
        schema::TooLarge))]
pub(crate) async fn check(
    State(app): State<Arc<App>>,
    Extension(request_id): Extension<RequestId>,
    request: axum::extract::Request,
) -> Result<Response<Full<Bytes>>, Problem> {
    let (parts, body) = request.into_parts();
    answer_check(&app, &parts.headers, body, &request_id).await
}

/// The hot path, also called by the listener without the router.
pub(crate) async fn answer_check<B>(
    app: &App,
    headers: &HeaderMap,
    body: B,
    request_id: &RequestId,
) -> Result<Response<Full<Bytes>>, Problem>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: fmt::Display,
{
    let caller = app.authorise(headers, Scope::Check).await?;
    let bytes = body::read(body, app.body_limits).await?;
    let request: CheckRequest<'_> = parse(&bytes)?;
    let subject = request.subject.pairs();
    let started = Stopwatch::now();
    if let Some(key) = idempotency::key_of(headers)? {
        let scope = idempotency::scope(&caller, CHECK_PATH);
        let key = IdempotencyKey { scope: &scope, key: &key };
        return check_once(app, key, &request, &subject, request_id).await;
    }
    let answer = app.gate.check(&request.policy, &subject, request.cost).await;
    let answer = answer.map_err(|error| app.failed(error))?;
    app.metrics.decided(&answer, started.elapsed());
    Ok(wire::check_response(&answer, request_id))
}

async fn check_once(
    app: &App,
    key: IdempotencyKey<'_>,
    request: &CheckRequest<'_>,
    subject: Attributes<'_>,
    request_id: &RequestId,
) -> Result<Response<Full<Bytes>>, Problem> {
    let started = Stopwatch::now();
    let render = |answer: &Answer| {
        idempotency::record(&wire::rate_limit_headers(answer), wire::decision_json(answer))
    };
    let once = app.gate.check_once(key, &request.policy, subject, request.cost, render).await;
    match once.map_err(|error| app.failed(error))? {
        OnceAnswer::Fresh(answer) => {
            app.metrics.decided(&answer, started.elapsed());
            Ok(wire::check_response(&answer, request_id))
        }
        OnceAnswer::Replay(record) => idempotency::replay(&record),
    }
}

/// Might it happen now? Nothing is counted.
#[utoipa::path(post, path = "/api/v1/peek", tag = "checks",
    request_body = schema::CheckRequest,
    responses(
        (status = 200, description = "How it stands", body = schema::Decision),
        schema::BadInput, schema::NotFound, schema::StoreDown, schema::NoAccess,
        schema::TooLarge))]
pub(crate) async fn peek(
    State(app): State<Arc<App>>,
    request: axum::extract::Request,
) -> Result<Response<Full<Bytes>>, Problem> {
    let bytes = body::read(request.into_body(), app.body_limits).await?;
    let request: CheckRequest<'_> = parse(&bytes)?;
    let subject = request.subject.pairs();
    let answer = app.gate.peek(&request.policy, &subject, request.cost).await;
    Ok(wire::peek_response(&answer.map_err(|error| app.failed(error))?))
}

/// A refund's request.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefundRequest {
    /// From an allowed decision.
    receipt: String,
}

/// Gives back what a receipt's decision spent, once.
#[utoipa::path(post, path = "/api/v1/refund", tag = "checks",
    params(schema::IdempotencyHeader),
    request_body = RefundRequest,
    responses(
        (status = 200, description = "Whether it was given back", body = schema::Refunded),
        (status = 422, description = "The idempotency key was used with another body",
            body = schema::Problem, content_type = "application/problem+json"),
        schema::BadInput, schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn refund(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: axum::extract::Request,
) -> Result<Response<Full<Bytes>>, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = body::read(body, app.body_limits).await?;
    let request: RefundRequest = parse(&bytes)?;
    let refunded = match idempotency::key_of(&parts.headers)? {
        None => app.gate.refund(&request.receipt).await.map(OnceAnswer::Fresh),
        Some(key) => {
            let scope = idempotency::scope(&caller, "/api/v1/refund");
            let key = IdempotencyKey { scope: &scope, key: &key };
            let render = |refunded| idempotency::record(&HeaderMap::new(), refund_json(refunded));
            app.gate.refund_once(key, &request.receipt, render).await
        }
    };
    match refunded.map_err(|error| app.failed(error))? {
        OnceAnswer::Fresh(refunded) => Ok(wire::json_response(
            StatusCode::OK,
            "application/json",
            HeaderMap::new(),
            refund_json(refunded),
        )),
        OnceAnswer::Replay(record) => idempotency::replay(&record),
    }
}

fn refund_json(refunded: Refunded) -> Vec<u8> {
    let json: &str = match refunded {
        Refunded::Done => r#"{"refunded":true}"#,
        Refunded::Already => r#"{"refunded":false,"reason":"already refunded"}"#,
        Refunded::Expired => r#"{"refunded":false,"reason":"expired"}"#,
        Refunded::Forgotten => r#"{"refunded":false,"reason":"forgotten in a crash"}"#,
    };
    json.as_bytes().to_vec()
}

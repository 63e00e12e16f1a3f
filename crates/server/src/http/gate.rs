//! Forward-auth: a proxy asks whether a request may pass.

use std::net::IpAddr;
use std::time::Instant as Stopwatch;

use axum::body::Bytes;
use axum::http::request::Parts;
use axum::http::{Response, StatusCode};
use http_body_util::Full;
use tollgate::{Answer, Error};

use crate::http::schema;
use crate::problem::Problem;
use crate::request_id::RequestId;
use crate::state::App;
use crate::wire;

pub(crate) const GATE_PATH: &str = "/gate";

/// The listener calls it without the router, which therefore cannot describe it.
#[derive(utoipa::OpenApi)]
#[openapi(paths(answer_gate))]
pub(crate) struct Described;

/// May the request that a proxy received pass?
///
/// For nginx (`auth_request`), Caddy and Traefik. The route comes from `X-Original-URI` or
/// `X-Forwarded-Uri`, the method from `X-Original-Method` or `X-Forwarded-Method`. A route without a
/// policy passes. Any method is answered alike. Only `X-API-Token` authenticates the proxy: an
/// `Authorization` header here belongs to the end user.
#[utoipa::path(method(get, post, put, patch, delete, head, options, trace), path = GATE_PATH, tag = "gate",
    params(
        ("refuse" = Option<String>, Query,
            description = "`403` for nginx, which relays no 429; anything else is not looked at, \
                because some proxies hand on the query of the end user"),
        ("X-Original-URI" = Option<String>, Header, description = "What was asked for"),
        ("X-Original-Method" = Option<String>, Header, description = "And by which method")),
    responses(
        (status = 200, description = "It may pass, and was counted"),
        (status = 429, description = "Refused; nothing was counted", body = schema::Refusal,
            content_type = "application/problem+json"),
        schema::BadInput, schema::StoreDown, schema::NoAccess))]
pub(crate) async fn answer_gate(
    app: &App,
    parts: &Parts,
    peer: IpAddr,
    request_id: &RequestId,
) -> Result<Response<Full<Bytes>>, Problem> {
    app.authorise_proxy(&parts.headers).await?;
    let refusal = refusal_status(parts.uri.query());
    let target = app.forward_auth.target(parts.method.as_str(), &parts.headers)?;
    loop {
        let Some(matched) = app.gate.route(&target.method, &target.uri) else {
            return Ok(Response::new(Full::default()));
        };
        if matched.is_deceptive() {
            let detail = "this path can be read in two ways: write it without \"..\"";
            return Err(Problem::bad_request(detail));
        }
        let subject = app.forward_auth.subject(&matched, &target, peer, &parts.headers)?;
        let started = Stopwatch::now();
        let name = matched.policy().policy().name();
        match app.gate.check(name, &subject.pairs(), 1).await {
            Ok(answer) => {
                app.metrics.decided(&answer, started.elapsed());
                return Ok(response(&answer, refusal, request_id));
            }
            // Deleted meanwhile: its routes are gone with it.
            Err(Error::NoSuchPolicy(_)) => {}
            Err(error) => return Err(app.failed(error)),
        }
    }
}

/// Some proxies hand on the query of the end user, so what is not understood is not looked at.
fn refusal_status(query: Option<&str>) -> StatusCode {
    let mut pairs = query.unwrap_or_default().split('&');
    if pairs.any(|pair| pair == "refuse=403") {
        StatusCode::FORBIDDEN
    } else {
        StatusCode::TOO_MANY_REQUESTS
    }
}

fn response(answer: &Answer, refusal: StatusCode, request_id: &RequestId) -> Response<Full<Bytes>> {
    let headers = wire::rate_limit_headers(answer);
    if answer.allowed() {
        let mut response = Response::new(Full::default());
        *response.headers_mut() = headers;
        return response;
    }
    let json = wire::problem_json(answer, refusal, Some(request_id.as_str()));
    wire::json_response(refusal, "application/problem+json", headers, json)
}

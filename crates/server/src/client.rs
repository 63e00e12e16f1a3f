//! Answers the requests of a connection.
//!
//! Checks and what proxies ask go straight to their handlers, on the thread that holds the connection; everything else
//! goes through the router, elsewhere.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use http_body_util::{Either, Full};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use crate::body::{drain, lend};
use crate::http::{CHECK_PATH, GATE_PATH, answer_check, answer_gate};
use crate::listener::ListenerLimits;
use crate::problem::Problem;
use crate::request_id::{RequestId, X_REQUEST_ID};
use crate::stall::Impatient;
use crate::state::App;

/// A request's head may take this many bytes and lines.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;

/// What answers the requests of one client. They share it, and its counter of users with no other core.
pub(crate) struct Client {
    pub(crate) app: Arc<App>,
    pub(crate) router: Elsewhere,
    pub(crate) address: IpAddr,
    /// Set when the server stops: an answer is then the last one on its connection.
    pub(crate) last_call: Arc<AtomicBool>,
}

impl Client {
    pub(crate) async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        limits: ListenerLimits,
        watcher: Watcher,
    ) {
        let client = Arc::new(self);
        let service = service_fn(move |request| {
            let client = client.clone();
            async move { Ok::<_, Infallible>(client.answer(request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_time)
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .serve_connection(TokioIo::new(Impatient::new(stream, limits.header_time)), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%error, "a connection ended early");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let request_id = RequestId::of(request.headers());
        let is_for = |path: &str| request.uri().path() == path;
        let mut response = if request.headers().get_all(header::HOST).iter().nth(1).is_some() {
            two_hosts(request, &request_id).await
        } else if *request.method() == Method::POST
            && request.uri().path_and_query().is_some_and(|it| it.as_str() == CHECK_PATH)
        {
            self.answer_check(request, &request_id).await
        } else if is_for(GATE_PATH) {
            self.answer_gate(request, &request_id).await
        } else {
            self.answer_elsewhere(request, &request_id).await
        };
        response.headers_mut().insert(X_REQUEST_ID, request_id.into_header());
        if self.last_call.load(Ordering::Relaxed) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn answer_check(&self, request: Request<Incoming>, request_id: &RequestId) -> Answer {
        let (parts, mut body) = request.into_parts();
        let answer = answer_check(&self.app, &parts.headers, &mut body, request_id).await;
        let is_refused = answer.is_err();
        let answer = answer.unwrap_or_else(|problem| problem.render(request_id));
        if is_refused && !is_late(&answer) && !body.is_end_stream() {
            drain(body).await;
        }
        answer.map(Either::Left)
    }

    async fn answer_gate(&self, request: Request<Incoming>, request_id: &RequestId) -> Answer {
        let (parts, body) = request.into_parts();
        let answer = answer_gate(&self.app, &parts, self.address, request_id).await;
        if !body.is_end_stream() {
            drain(body).await;
        }
        answer.unwrap_or_else(|problem| problem.render(request_id)).map(Either::Left)
    }

    async fn answer_elsewhere(
        &self,
        mut request: Request<Incoming>,
        request_id: &RequestId,
    ) -> Answer {
        request.extensions_mut().insert(request_id.clone());
        let (parts, body) = request.into_parts();
        let (lent, returned) = lend(body);
        let response = self.router.answer(Request::from_parts(parts, Body::new(lent))).await;
        // Who is refused before the body was read still has to see why.
        if let Ok(rest) = returned.await
            && !is_late(&response)
            && !rest.is_end_stream()
        {
            drain(rest).await;
        }
        render_problem(response, request_id)
    }
}

pub(crate) type Answer = Response<Either<Full<Bytes>, Body>>;

/// Whoever stands before us may have gone by the other one.
async fn two_hosts(request: Request<Incoming>, request_id: &RequestId) -> Answer {
    let body = request.into_body();
    if !body.is_end_stream() {
        drain(body).await;
    }
    let detail = "this request has two Host headers; send one";
    Problem::bad_field("Host", detail).render(request_id).map(Either::Left)
}

/// The router, for what may take its time: run where no check waits behind it.
#[derive(Clone)]
pub(crate) struct Elsewhere {
    router: Router,
    runtime: Handle,
}

impl Elsewhere {
    /// On the runtime that this is called in.
    pub(crate) fn here(router: Router) -> Self {
        Self { router, runtime: Handle::current() }
    }

    /// Ends with its caller, if that goes away.
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let mut answering = JoinSet::new();
        answering.spawn_on(self.router.clone().oneshot(request), &self.runtime);
        match answering.join_next().await {
            Some(Ok(Ok(response))) => response,
            Some(Err(error)) => {
                tracing::error!(%error, "a request was not answered");
                Problem::internal("this request could not be answered").into_response()
            }
            None => unreachable!("one was just spawned"),
        }
    }
}

/// Whoever was too slow with its body has had its time: nobody waits for the rest.
fn is_late<B>(response: &Response<B>) -> bool {
    response.status() == StatusCode::REQUEST_TIMEOUT
}

/// Errors become problem documents here, whoever made them.
pub(crate) fn render_problem(mut response: Response<Body>, request_id: &RequestId) -> Answer {
    let problem = response.extensions_mut().remove::<Problem>().or_else(|| {
        let status = response.status();
        let is_ours = response
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().ends_with(b"json"));
        let is_error = status.is_client_error() || status.is_server_error();
        (is_error && !is_ours).then(|| unexplained(status))
    });
    let Some(problem) = problem else { return response.map(Either::Right) };
    let mut rendered = problem.render(request_id);
    if let Some(allow) = response.headers_mut().remove(header::ALLOW) {
        rendered.headers_mut().insert(header::ALLOW, allow);
    }
    rendered.map(Either::Left)
}

/// What the router itself refuses, such as a path that is not UTF-8.
fn unexplained(status: StatusCode) -> Problem {
    let detail = match status {
        StatusCode::BAD_REQUEST => "the path or query of this request cannot be read",
        _ => "this request cannot be answered",
    };
    Problem::new(status, "urn:tollgate:bad-input", detail)
}

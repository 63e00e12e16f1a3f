//! Accepts connections and answers requests: bounded in number, size and time.
//!
//! Checks and what proxies ask go straight to their handlers; everything else goes through the router.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use crate::body::{drain, lend};
use crate::http::{CHECK_PATH, GATE_PATH, answer_check, answer_gate};
use crate::problem::Problem;
use crate::request_id::{RequestId, X_REQUEST_ID};
use crate::state::App;

/// A request's head may take this many bytes and lines.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
/// After an error in accepting (too many open files, say) there is no use in trying at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerLimits {
    pub(crate) max_connections: usize,
    /// For the head of a request, and between two requests on one connection.
    pub(crate) header_time: Duration,
    /// For requests under way when the server is told to stop.
    pub(crate) shutdown_time: Duration,
}

/// Serves until `stop` resolves, then lets requests under way finish.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    limits: ListenerLimits,
    stop: impl Future<Output = ()>,
) {
    let router = crate::http::router(app.clone());
    let places = Arc::new(Semaphore::new(limits.max_connections));
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        // Beyond the limit nobody is accepted: they wait in the system's queue.
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, stream, peer) = tokio::select! {
            (place, accepted) = accepted => match accepted {
                Ok((stream, peer)) => (place, stream, peer.ip()),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let connection = connection((stream, peer), app.clone(), router.clone(), limits, &graceful);
        tokio::spawn(async move {
            connection.await;
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(limits.shutdown_time, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not finish in time and were cut off");
    }
}

fn connection(
    (stream, peer): (TcpStream, IpAddr),
    app: Arc<App>,
    router: Router,
    limits: ListenerLimits,
    graceful: &GracefulShutdown,
) -> impl Future<Output = ()> + use<> {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let (app, router) = (app.clone(), router.clone());
        async move { Ok::<_, Infallible>(respond(app, router, peer, request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let connection = graceful.watch(connection);
    async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

pub(crate) type Answer = Response<Either<Full<Bytes>, Body>>;

async fn respond(
    app: Arc<App>,
    router: Router,
    peer: IpAddr,
    mut request: Request<Incoming>,
) -> Answer {
    let request_id = RequestId::of(request.headers());
    let mut response = if *request.method() == Method::POST && request.uri().path() == CHECK_PATH {
        let (parts, mut body) = request.into_parts();
        let answer = answer_check(&app, &parts.headers, &mut body, &request_id).await;
        if answer.is_err() && !body.is_end_stream() {
            drain(body).await;
        }
        answer.unwrap_or_else(|problem| problem.render(&request_id)).map(Either::Left)
    } else if request.uri().path() == GATE_PATH {
        let (parts, body) = request.into_parts();
        let answer = answer_gate(&app, &parts, peer, &request_id).await;
        if !body.is_end_stream() {
            drain(body).await;
        }
        answer.unwrap_or_else(|problem| problem.render(&request_id)).map(Either::Left)
    } else {
        request.extensions_mut().insert(request_id.clone());
        let (parts, body) = request.into_parts();
        let (lent, returned) = lend(body);
        let response = router.oneshot(Request::from_parts(parts, Body::new(lent))).await;
        let response = response.unwrap_or_else(|never| match never {});
        // Who is refused before the body was read still has to see why.
        if let Ok(rest) = returned.await
            && !rest.is_end_stream()
        {
            drain(rest).await;
        }
        render_problem(response, &request_id)
    };
    response.headers_mut().insert(X_REQUEST_ID, request_id.into_header());
    response
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

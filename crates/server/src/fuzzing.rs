//! The server without its sockets, and the parsers that no request reaches, opened for the fuzz
//! targets in `fuzz/`. Without the feature `fuzzing` it is not there.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::runtime::Runtime;
use tollgate::Tollgate;
use tollgate_mail::Mail;
use tower::ServiceExt;

use crate::auth::Access;
use crate::body::{BodyLimits, LargeBodies};
use crate::config::Config;
use crate::forward_auth::ForwardAuth;
use crate::http::{CHECK_PATH, GATE_PATH, Readiness, answer_check, answer_gate};
use crate::metrics::Metrics;
use crate::request_id::RequestId;
use crate::state::App;

pub use crate::cli::fuzzing::{imported, message_file};
pub use crate::http::fuzzing::{instant, since, slot_cursor};

/// Small, so that what is too large is soon reached.
const MAX_BODY_BYTES: usize = 64 << 10;

/// A configuration file, as far as it can be read without the files that it names.
pub fn config(text: &str) -> Result<(), String> {
    let (mut config, _) = Config::parse(text).map_err(|error| error.to_string())?;
    let gate = std::mem::take(&mut config.gate);
    let names_files = gate.jwt.is_some() || gate.api_key.as_ref().is_some_and(|k| k.file.is_some());
    if names_files { Ok(()) } else { ForwardAuth::new(gate).map(drop) }
}

/// A server in memory that answers requests as the listener does. It sends no mail.
#[derive(Debug)]
pub struct Served {
    runtime: Runtime,
    app: Arc<App>,
    router: Router,
}

impl Served {
    /// With the policies and the section `[gate]` of a configuration file.
    pub fn new(config: &str, admin_token: &str) -> Result<Self, String> {
        let (config, policies) = Config::parse(config).map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let app = runtime.block_on(async {
            let gate = Tollgate::open("memory:").await.map_err(|error| error.to_string())?;
            for policy in &policies {
                gate.apply(policy, "fuzzing").await.map_err(|error| error.to_string())?;
            }
            let mail = Mail::open(gate.clone(), "memory:", config.mail.settings.clone()).await;
            let limits =
                BodyLimits { max_bytes: MAX_BODY_BYTES, read_time: Duration::from_secs(60) };
            Ok::<_, String>(App {
                access: Access::new(gate.clone(), Some(admin_token), true),
                forward_auth: ForwardAuth::new(config.gate)?,
                metrics: Metrics::new(gate.clone()),
                body_limits: limits,
                batch_body_limits: limits,
                mail_body_limits: limits,
                large_bodies: LargeBodies::new(MAX_BODY_BYTES, MAX_BODY_BYTES),
                readiness: Readiness::default(),
                mail: mail.map_err(|error| error.to_string())?,
                gate,
            })
        })?;
        let app = Arc::new(app);
        Ok(Self { runtime, router: crate::http::router(app.clone()), app })
    }

    /// From a client on this machine.
    pub fn answer(&self, request: Request<Bytes>) -> Response<Bytes> {
        self.runtime.block_on(self.respond(request))
    }

    async fn respond(&self, request: Request<Bytes>) -> Response<Bytes> {
        let request_id = RequestId::of(request.headers());
        let (mut parts, body) = request.into_parts();
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let path = parts.uri.path();
        let answer = if parts.method == Method::POST && path == CHECK_PATH {
            answer_check(&self.app, &parts.headers, Full::new(body), &request_id).await
        } else if path == GATE_PATH {
            answer_gate(&self.app, &parts, peer, &request_id).await
        } else {
            parts.extensions.insert(request_id.clone());
            let request = Request::from_parts(parts, Body::from(body));
            let response = self.router.clone().oneshot(request).await;
            let response = response.unwrap_or_else(|never| match never {});
            return whole(crate::client::render_problem(response, &request_id)).await;
        };
        whole(answer.unwrap_or_else(|problem| problem.render(&request_id))).await
    }
}

async fn whole<B>(response: Response<B>) -> Response<Bytes>
where
    B: hyper::body::Body,
    B::Error: std::fmt::Debug,
{
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("our own answers are in memory");
    Response::from_parts(parts, body.to_bytes())
}

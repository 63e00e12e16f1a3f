//! Who may do what: tokens on the wire.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tollgate::{Bearer, Scope, Tollgate};

use crate::problem::Problem;
use crate::state::App;

/// Who makes a request, as it is noted in the audit of policies.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) name: String,
    /// Keeps the idempotency keys of different callers apart.
    pub(crate) token: String,
}

/// The rules of this server.
#[derive(Debug)]
pub(crate) struct Access {
    gate: Tollgate,
    /// The hash of the environment's: an admin from the start. Hashes are of one length, so the
    /// time of a comparison does not tell the token's.
    admin_token: Option<[u8; 32]>,
    loopback: bool,
}

impl Access {
    pub(crate) fn new(gate: Tollgate, admin_token: Option<&str>, loopback: bool) -> Self {
        Self { gate, admin_token: admin_token.map(hashed), loopback }
    }

    /// Whether anybody may do anything: a loopback address and no token anywhere.
    pub(crate) fn is_open(&self) -> bool {
        self.loopback && self.admin_token.is_none() && !self.gate.has_tokens()
    }

    pub(crate) async fn authorise(
        &self,
        headers: &HeaderMap,
        wanted: Scope,
    ) -> Result<Caller, Problem> {
        if wanted == Scope::Admin {
            // Rare, and it must see what other instances changed: the first token above all.
            self.refresh().await;
        }
        if self.is_open() {
            refuse_other_sites(headers)?;
            return Ok(Caller { name: "anonymous".into(), token: String::new() });
        }
        let token = token_of(headers).ok_or_else(|| {
            unauthorised("this needs a token: send it as X-API-Token or Authorization: Bearer")
        })?;
        let bearer = self.bearer_of_scope(token, wanted).await?;
        Ok(Caller { name: bearer.name, token: token.to_owned() })
    }

    /// Lets a proxy ask for others: headers such as `Authorization` and `Origin` are theirs.
    pub(crate) async fn authorise_proxy(&self, headers: &HeaderMap) -> Result<(), Problem> {
        if self.is_open() {
            return Ok(());
        }
        let token = proxy_token_of(headers).ok_or_else(|| {
            unauthorised("this needs a token of the proxy: let it send one as X-API-Token")
        })?;
        self.bearer_of_scope(token, Scope::Check).await.map(drop)
    }

    async fn bearer_of_scope(&self, token: &str, wanted: Scope) -> Result<Bearer, Problem> {
        let bearer = match self.bearer(token) {
            Some(bearer) => bearer,
            None => {
                // Another instance may have just made it.
                self.refresh().await;
                self.bearer(token).ok_or_else(|| unauthorised("this token is not known"))?
            }
        };
        if bearer.scope == Scope::Admin || bearer.scope == wanted {
            Ok(bearer)
        } else {
            Err(wrong_scope(bearer.scope.as_str(), wanted))
        }
    }

    async fn refresh(&self) {
        if let Err(error) = self.gate.refresh().await {
            tracing::debug!(%error, "tokens as they were when the store last answered");
        }
    }

    fn bearer(&self, token: &str) -> Option<Bearer> {
        let from_environment = self
            .admin_token
            .filter(|admin| bool::from(admin.ct_eq(&hashed(token))))
            .map(|_| Bearer { name: "admin".into(), scope: Scope::Admin });
        from_environment.or_else(|| self.gate.bearer(token))
    }
}

fn hashed(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// While no token is asked for, a web page of another site must not act through the browser of
/// somebody on this machine. Browsers say where a page came from; other clients say nothing.
///
/// A site whose name was made to point at this machine is same-origin to the browser and says no
/// `Origin` when it reads: its name is in `Host`.
fn refuse_other_sites(headers: &HeaderMap) -> Result<(), Problem> {
    let is_ours = match headers.get(header::ORIGIN) {
        None => true,
        Some(origin) => {
            let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
            authority.is_some_and(|(_, authority)| is_loopback(authority))
        }
    };
    let host = headers.get(header::HOST).map(HeaderValue::to_str);
    let is_called_ours = match host {
        None => true,
        Some(host) => host.is_ok_and(|host| is_loopback(host) || !is_of_a_domain(host)),
    };
    if is_ours && is_called_ours {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "urn:tollgate:other-site",
        "without a token this server answers only to this machine itself, not to pages or \
         names of other sites; make one with `tollgate token create --scope admin`",
    ))
}

fn is_loopback(authority: &str) -> bool {
    let host = host_of(authority);
    host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// A name that somebody on the internet could own. One without a dot is of this network.
fn is_of_a_domain(authority: &str) -> bool {
    let host = host_of(authority);
    host.contains('.') && host.parse::<std::net::IpAddr>().is_err()
}

fn host_of(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(host, _)| host),
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    }
}

pub(crate) fn token_of(headers: &HeaderMap) -> Option<&str> {
    if let Some(token) = headers.get("x-api-token") {
        return token.to_str().ok();
    }
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Beside a proxy's own token an `Authorization` header is the end user's.
fn proxy_token_of(headers: &HeaderMap) -> Option<&str> {
    headers.get("x-api-token")?.to_str().ok()
}

fn wrong_scope(scope: &str, wanted: Scope) -> Problem {
    let wanted = wanted.as_str();
    let detail = format!("a token of scope {scope:?} may not do this; it needs {wanted:?}");
    Problem::new(StatusCode::FORBIDDEN, "urn:tollgate:wrong-scope", detail)
}

fn unauthorised(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "urn:tollgate:unauthorised", detail)
        .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
}

/// Lets only admins through.
pub(crate) async fn require_admin(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    require(&app, Scope::Admin, request, next).await
}

/// Lets those through who may check.
pub(crate) async fn require_check(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    require(&app, Scope::Check, request, next).await
}

impl App {
    /// Who may do this. A tenant's token is a token, of another scope.
    pub(crate) async fn authorise(
        &self,
        headers: &HeaderMap,
        wanted: Scope,
    ) -> Result<Caller, Problem> {
        match self.access.authorise(headers, wanted).await {
            Ok(caller) => Ok(caller),
            Err(problem) => Err(self.or_wrong_scope(problem, token_of(headers), wanted).await),
        }
    }

    /// The same for a proxy.
    pub(crate) async fn authorise_proxy(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match self.access.authorise_proxy(headers).await {
            Ok(()) => Ok(()),
            Err(problem) => {
                Err(self.or_wrong_scope(problem, proxy_token_of(headers), Scope::Check).await)
            }
        }
    }

    async fn or_wrong_scope(
        &self,
        problem: Problem,
        token: Option<&str>,
        wanted: Scope,
    ) -> Problem {
        let Some(token) = token.filter(|_| problem.status() == StatusCode::UNAUTHORIZED) else {
            return problem;
        };
        match self.mail.bearer(token).await {
            Ok(Some(_)) => wrong_scope("mail tenant", wanted),
            // If the relay cannot say, nobody said more than that the token is not known.
            Ok(None) | Err(_) => problem,
        }
    }
}

async fn require(
    app: &App,
    scope: Scope,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let caller = app.authorise(request.headers(), scope).await?;
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

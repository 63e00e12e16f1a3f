//! A layer that counts requests to a tower service, such as axum's, hyper's or tonic's, and answers those
//! that are refused.
//!
//! ```
//! use tollgate::tower::{TollgateLayer, extension};
//! use tollgate::{Policy, Tollgate};
//!
//! /// Who asks, as a layer further out has verified.
//! #[derive(Clone)]
//! struct User(String);
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tollgate::Error> {
//! let gate = Tollgate::open("memory:").await?;
//! let policy = r#"
//!     routes = ["/orders/*"]
//!     limits = [{ name = "user", max = 20, per = "60s", by = ["user", "route"] }]"#;
//! gate.apply(&Policy::from_toml("orders", policy)?, "me").await?;
//! let limits = TollgateLayer::by_routes(gate)
//!     .key(extension("user", |User(name): &User| name.as_str().into()));
//! let app: axum::Router = axum::Router::new()
//!     .route("/orders/{id}", axum::routing::get(|| async { "an order" }))
//!     .layer(limits);
//! # drop(app);
//! # Ok(()) }
//! ```
//!
//! A hyper service takes it through `hyper_util::service::TowerToHyperService`.
//!
//! Every answer carries the headers of the decision. What was spent is given back if the service
//! fails. Deliberately absent: reading bodies, and any notion of who a user is; keys say that.

mod body;
mod key;
mod refusal;
mod service;

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, StatusCode};
use tower_layer::Layer;

pub use body::Body;
pub use key::{Key, client_ip, extension, header};
pub use refusal::RefusalBody;
pub use service::TollgateService;

use crate::gate::Tollgate;
use crate::limiter::Limiter;
use crate::policy::Policy;

/// Counts requests and answers those that are refused. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TollgateLayer {
    settings: Arc<Settings>,
}

#[derive(Clone)]
struct Settings {
    gate: Tollgate,
    rule: Rule,
    keys: Vec<Arc<dyn Key>>,
    cost: Arc<CostOf>,
    refund_when: Arc<RefundWhen>,
    refusal_body: RefusalBody,
    store_error_status: StatusCode,
}

type CostOf = dyn Fn(&Parts) -> u32 + Send + Sync;
type RefundWhen = dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync;

/// Which policy decides.
#[derive(Clone, Debug)]
enum Rule {
    Stored(String),
    Value(Limiter),
    Routes,
}

impl TollgateLayer {
    /// By a stored policy, as it is in force at the moment of each request.
    pub fn by_policy(gate: Tollgate, name: impl Into<String>) -> Self {
        Self::new(gate, Rule::Stored(name.into()))
    }

    /// By a policy value that is stored nowhere.
    pub fn by_value(gate: Tollgate, policy: Policy) -> Self {
        let limiter = gate.limiter(policy);
        Self::new(gate, Rule::Value(limiter))
    }

    /// By the stored policy with the most specific route for each request. A request that no route
    /// is for passes. Adds the attributes `route`, `method` and `param.NAME`, unless a key gave them. Routes are matched with
    /// the path as the layer sees it: a nested axum router has taken its prefix away.
    pub fn by_routes(gate: Tollgate) -> Self {
        Self::new(gate, Rule::Routes)
    }

    fn new(gate: Tollgate, rule: Rule) -> Self {
        let settings = Settings {
            gate,
            rule,
            keys: Vec::new(),
            cost: Arc::new(|_| 1),
            refund_when: Arc::new(has_failed),
            refusal_body: RefusalBody::default(),
            store_error_status: StatusCode::SERVICE_UNAVAILABLE,
        };
        Self { settings: Arc::new(settings) }
    }

    /// Adds attributes to the subject: a ready key, or a closure
    /// `|parts: &Parts, subject: &mut Subject| subject.add("plan", "free")`.
    #[must_use]
    pub fn key(self, key: impl Key + 'static) -> Self {
        self.with(|settings| settings.keys.push(Arc::new(key)))
    }

    /// What a request costs; 1 unless set. A request that costs 0 passes uncounted.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Arc::new(cost))
    }

    /// When the service's answer gives back what the request spent. Unless set: an answer of 5xx, or
    /// a gRPC status that says that the server is at fault. An error of the service always does.
    #[must_use]
    pub fn refund_when(
        self,
        refund_when: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.refund_when = Arc::new(refund_when))
    }

    /// How a refusal is written; [`RefusalBody::Plain`] unless set.
    #[must_use]
    pub fn refusal_body(self, refusal_body: RefusalBody) -> Self {
        self.with(|settings| settings.refusal_body = refusal_body)
    }

    /// What is answered when the store cannot decide and the policy says `refuse`; 503 unless set.
    #[must_use]
    pub fn store_error_status(self, status: StatusCode) -> Self {
        self.with(|settings| settings.store_error_status = status)
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S> Layer<S> for TollgateLayer {
    type Service = TollgateService<S>;

    fn layer(&self, inner: S) -> TollgateService<S> {
        TollgateService::new(inner, self.settings.clone())
    }
}

/// gRPC puts its status into a header if there is nothing else to say: unknown, internal,
/// unavailable and data loss are the server's.
fn has_failed(status: StatusCode, headers: &HeaderMap) -> bool {
    let grpc = headers.get("grpc-status").map(http::HeaderValue::as_bytes);
    status.is_server_error() || matches!(grpc, Some(b"2" | b"13" | b"14" | b"15"))
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("rule", &self.rule)
            .field("keys", &self.keys.len())
            .field("refusal_body", &self.refusal_body)
            .field("store_error_status", &self.store_error_status)
            .finish_non_exhaustive()
    }
}

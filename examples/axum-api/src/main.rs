//! An axum service whose routes are limited by role.
//!
//! ```sh
//! cargo run -p axum-api
//! curl -i localhost:3000/tag-categorize -H 'Authorization: Bearer token-of-ada'
//! ```
//!
//! `TOLLGATE_STORE` says where counts are kept (`memory:` if not set; `sqlite:api.db` survives a
//! restart, `postgres://…` is shared by all instances), `LISTEN` where to listen.

use std::collections::HashMap;
use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tollgate::tower::{TollgateLayer, client_ip, extension};
use tollgate::{Policy, Tollgate, TrustedProxies};

/// Twenty a minute for each user and route, but by role; routes that are not listed pass.
const TAGS: &str = r#"
routes = ["/tag-categorize", "/tag-categorize-dryrun"]
limits = [{ name = "minute", max = 20, per = "60s", algorithm = "sliding", by = ["user", "route"],
            max_by = { role = { free = 3, pro = 50, enterprise = 500 } } }]
"#;

/// Nobody guesses passwords faster than this, whoever they say they are.
const LOGIN: &str = r#"
routes = ["POST /login"]
limits = [{ name = "ip", max = 5, per = "60s", algorithm = "sliding", by = ["ip"], private = true }]
"#;

/// Who asks, as `authenticate` has verified.
#[derive(Clone)]
struct User {
    name: &'static str,
    role: &'static str,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = std::env::var("TOLLGATE_STORE").unwrap_or_else(|_| "memory:".into());
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let gate = Tollgate::open(&store).await?;
    for (name, text) in [("tags", TAGS), ("login", LOGIN)] {
        gate.apply(&Policy::from_toml(name, text)?, "axum-api").await?;
    }
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("listens on http://{}", listener.local_addr()?);
    let app = app(gate).into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}

fn app(gate: Tollgate) -> Router {
    // Nobody stands in front of this example; behind a proxy, name its network here.
    let no_proxies = TrustedProxies::default();
    let peer = |parts: &Parts| Some(parts.extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip());
    let limits = TollgateLayer::by_routes(gate)
        .key(extension("user", |user: &User| user.name.into()))
        .key(extension("role", |user: &User| user.role.into()))
        .key(client_ip(no_proxies, peer));
    Router::new()
        .route("/tag-categorize", get(categorize))
        .route("/tag-categorize-dryrun", get(categorize))
        .route("/login", post(|| async { StatusCode::UNAUTHORIZED }))
        .route("/health", get(|| async { "ok" }))
        .layer(limits)
        // Added last, so it runs first: the limits count by who it says asks.
        .layer(middleware::from_fn(authenticate))
}

async fn categorize(request: Request) -> Result<Json<Value>, StatusCode> {
    // A failed request costs nothing.
    if request.uri().query() == Some("fail") {
        return Err(StatusCode::INTERNAL_SERVER_ERROR);
    }
    Ok(Json(json!({ "ok": true, "tags": ["groceries"] })))
}

/// A real service would verify a signature or look into its database.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let users = HashMap::from([
        ("Bearer token-of-ada", User { name: "ada", role: "free" }),
        ("Bearer token-of-bob", User { name: "bob", role: "pro" }),
        ("Bearer token-of-eve", User { name: "eve", role: "other" }),
    ]);
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if let Some(user) = given.and_then(|given| users.get(given)).cloned() {
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

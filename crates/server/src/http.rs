//! The routes, and the OpenAPI document made from the same list.

mod check;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod gate;
mod mail;
mod offenders;
mod overrides;
mod policies;
mod query;
mod rate_limit_config;
mod schema;
mod slot_audit;
mod slot_batch;
mod slots;
mod subject;
mod system;
mod tokens;
mod unread_query;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::routing::get;
use axum::{Router, middleware};
use tollgate::Error;
use utoipa::OpenApi as _;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, OpenApi, OpenApiBuilder, PathItem, RefOr};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{require_admin, require_check};
use crate::problem::Problem;
use crate::state::App;

pub(crate) use check::{CHECK_PATH, answer_check};
pub(crate) use gate::{GATE_PATH, answer_gate};
pub(crate) use offenders::AlertDocument;
pub(crate) use system::Readiness;

impl App {
    /// Carries a change through to its end even if its caller goes away meanwhile: what is stored
    /// must also come into force.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Problem> {
        carried_through(change).await?.map_err(|error| self.failed(error))
    }

    /// Maps an error and, if it is the store's, counts it.
    pub(crate) fn failed(&self, error: Error) -> Problem {
        match error {
            Error::Store(_) => self.metrics.store_error(),
            Error::NoSuchPolicy(name) => return self.no_such_policy(&name),
            _ => {}
        }
        error.into()
    }

    fn no_such_policy(&self, name: &str) -> Problem {
        Problem::not_found(match self.gate.similar_policy(name) {
            Some(similar) => format!("there is no policy {name:?}; did you mean {similar:?}?"),
            None => format!(
                "there is no policy {name:?}; `tollgate policy list` shows those in force, \
                 `tollgate policy apply FILE` adds one"
            ),
        })
    }
}

/// Runs to its end also when nobody waits for it any more.
async fn carried_through<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Problem> {
    tokio::spawn(work).await.map_err(|error| {
        tracing::error!(%error, "a change did not finish");
        Problem::internal("the change did not finish")
    })
}

pub(crate) fn router(app: Arc<App>) -> Router {
    let (router, mut api) = described(app.clone()).split_for_parts();
    api.merge(gate::Described::openapi());
    say_who_needs_a_token(&mut api);
    mail::say_who_needs_no_body(&mut api);
    complete(&mut api);
    // Written once: it is large, and anybody may ask for it.
    let api = serde_json::to_vec(&api).expect("a description is plain data");
    let api = Bytes::from(api);
    let described = move || async move { ([(header::CONTENT_TYPE, "application/json")], api) };
    router
        .route("/openapi.json", get(described))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(app)
}

fn described(app: Arc<App>) -> OpenApiRouter<Arc<App>> {
    let open = OpenApiRouter::with_openapi(description())
        .routes(routes!(system::healthz))
        .routes(routes!(system::readyz))
        .routes(routes!(system::metrics));
    let checks = OpenApiRouter::new()
        .routes(routes!(check::check))
        .routes(routes!(check::peek))
        .routes(routes!(check::refund))
        .routes(routes!(slots::post, slot_audit::list))
        .routes(routes!(slot_batch::post))
        .route("/api/v1/slots/batch", get(slots::get_batch).delete(slots::delete_batch))
        .routes(routes!(slots::get, slots::delete))
        .routes(routes!(slot_audit::windows));
    let admin = OpenApiRouter::new()
        .routes(routes!(policies::list))
        .routes(routes!(policies::get, policies::put, policies::delete))
        .routes(routes!(policies::versions))
        .routes(routes!(overrides::list, overrides::put, overrides::delete))
        .routes(routes!(rate_limit_config::get, rate_limit_config::post))
        .routes(routes!(rate_limit_config::flush))
        .routes(routes!(slot_audit::verify))
        .routes(routes!(offenders::list))
        .routes(routes!(offenders::alerts))
        .routes(routes!(tokens::list, tokens::post))
        .routes(routes!(tokens::delete));
    // Who may not ask is told that first, so the token is looked at before the query.
    let checks = unread_query::refused_on(checks)
        .route_layer(middleware::from_fn_with_state(app.clone(), require_check));
    let admin = unread_query::refused_on(admin)
        .route_layer(middleware::from_fn_with_state(app.clone(), require_admin));
    open.merge(checks).merge(admin).merge(mail::routes(app))
}

fn description() -> OpenApi {
    let token = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-Token")));
    let api_key = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-Key")));
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Tollgate")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some("When may this happen? Exact, durable, shared rate limits."))
                .build(),
        )
        .components(Some(
            ComponentsBuilder::new()
                .security_scheme("token", token)
                .security_scheme("bearer", SecurityScheme::Http(bearer))
                .security_scheme("api_key", api_key)
                .build(),
        ))
        .build()
}

/// Everything but what is about the server itself; mail keys have calls of their own.
fn say_who_needs_a_token(api: &mut OpenApi) {
    let nothing: [&str; 0] = [];
    let either = vec![
        SecurityRequirement::new("token", nothing),
        SecurityRequirement::new("bearer", nothing),
    ];
    let token_only = vec![either[0].clone()];
    let key = vec![SecurityRequirement::new("api_key", nothing)];
    for (path, item) in &mut api.paths.paths {
        for (_, operation) in operations(item) {
            let is_of = |tag: &str| operation.tags.iter().flatten().any(|known| known == tag);
            operation.security = match path.as_str() {
                // There an Authorization header is the end user's.
                GATE_PATH => Some(token_only.clone()),
                _ if is_of("system") => None,
                _ if is_of("mail key") => Some(key.clone()),
                _ => Some(either.clone()),
            };
        }
    }
}

/// What the standard asks for and the handlers do not say: an id for each operation, and a word on
/// each answer.
fn complete(api: &mut OpenApi) {
    for (path, item) in &mut api.paths.paths {
        for (method, operation) in operations(item) {
            let words = path.split(|c: char| !c.is_ascii_alphanumeric());
            let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
            operation.operation_id = Some(format!("{method}_{}", words.join("_")));
            for (status, response) in &mut operation.responses.responses {
                if let RefOr::T(response) = response
                    && response.description.is_empty()
                {
                    let status = StatusCode::from_bytes(status.as_bytes()).ok();
                    let reason = status.and_then(|status| status.canonical_reason());
                    response.description = reason.unwrap_or("Another answer").to_owned();
                }
            }
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let PathItem { get, put, post, patch, delete, head, options, trace, .. } = item;
    let names = ["get", "put", "post", "patch", "delete", "head", "options", "trace"];
    let found = [get, put, post, patch, delete, head, options, trace].map(Option::as_mut);
    names.into_iter().zip(found).filter_map(|(name, found)| Some((name, found?)))
}

async fn no_route(request: Request) -> Problem {
    let path = request.uri().path();
    Problem::not_found(format!("there is nothing at {path}; /openapi.json lists what there is"))
}

async fn no_method(method: Method, request: Request) -> Problem {
    let path = request.uri().path();
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "urn:tollgate:method-not-allowed",
        format!("{path} does not answer to {method}; /openapi.json lists what it does"),
    )
}

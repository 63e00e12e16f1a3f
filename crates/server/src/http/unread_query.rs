//! Parameters of a query that no call reads are refused, as unknown fields of a body are: whoever
//! wrote `?limit=1` meant something by it.
//!
//! Calls that read a query refuse what they do not know themselves; which calls those are is said
//! by the description they are served by.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{MatchedPath, Query, Request, State};
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::Response;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};
use utoipa_axum::router::OpenApiRouter;

use crate::http::query;
use crate::problem::Problem;
use crate::state::App;

type Readers = HashSet<(Method, String)>;

/// Watches over all calls that the router has by now.
pub(super) fn refused_on(router: OpenApiRouter<Arc<App>>) -> OpenApiRouter<Arc<App>> {
    let readers = Arc::new(readers(router.get_openapi()));
    router.route_layer(middleware::from_fn_with_state(readers, refuse))
}

fn readers(api: &OpenApi) -> Readers {
    let mut readers = Readers::new();
    for (path, item) in &api.paths.paths {
        for (method, operation) in [
            (Method::GET, &item.get),
            (Method::PUT, &item.put),
            (Method::POST, &item.post),
            (Method::DELETE, &item.delete),
        ] {
            if operation.as_ref().is_some_and(reads_query) {
                readers.insert((method, path.clone()));
            }
        }
    }
    readers
}

fn reads_query(operation: &Operation) -> bool {
    operation.parameters.iter().flatten().any(|parameter| match parameter {
        RefOr::T(parameter) => parameter.parameter_in == ParameterIn::Query,
        RefOr::Ref(_) => false,
    })
}

async fn refuse(
    State(readers): State<Arc<Readers>>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if request.uri().query().is_some() {
        let method = match request.method() {
            &Method::HEAD => Method::GET,
            other => other.clone(),
        };
        if !readers.contains(&(method, path.as_str().to_owned())) {
            let given: Vec<(String, String)> = query::read(Query::try_from_uri(request.uri()))?;
            if let Some((name, _)) = given.first() {
                let detail =
                    format!("unknown field `{name}`: this call reads nothing of its query");
                return Err(Problem::bad_field(name, detail));
            }
        }
    }
    Ok(next.run(request).await)
}

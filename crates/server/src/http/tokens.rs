//! Making access tokens.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::Scope;
use utoipa::ToSchema;

use crate::body::{self, parse};
use crate::http::schema;
use crate::problem::Problem;
use crate::state::App;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenRequest {
    /// `admin` or `check`.
    scope: String,
    /// Noted in the audit of what the token does.
    #[serde(default)]
    #[schema(required = false)]
    name: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct NewToken {
    /// Shown this once; only its hash is kept.
    token: String,
    scope: String,
    name: String,
}

/// Makes a token. The first one must be an admin's: from then on tokens are asked for.
#[utoipa::path(post, path = "/admin/tokens", tag = "access",
    request_body = TokenRequest,
    responses(
        (status = 201, body = NewToken),
        (status = 409, description = "There is no admin token yet", body = schema::Problem,
            content_type = "application/problem+json"),
        schema::BadInput, schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn post(
    State(app): State<Arc<App>>,
    request: axum::extract::Request,
) -> Result<(StatusCode, Json<NewToken>), Problem> {
    let bytes = body::read(request.into_body(), app.body_limits).await?;
    let request: TokenRequest = parse(&bytes)?;
    let scope = Scope::parse(&request.scope)
        .ok_or_else(|| Problem::bad_field("scope", "scope must be \"admin\" or \"check\""))?;
    if scope != Scope::Admin && app.access.is_open() {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "urn:tollgate:no-admin-token",
            "the first token must be of scope admin: from then on tokens are asked for, and \
             without one nobody could administer this server",
        ));
    }
    let name = request.name.unwrap_or_else(|| scope.as_str().to_owned());
    let (gate, kept) = (app.gate.clone(), name.clone());
    let token = app.finish(async move { gate.create_token(&kept, scope).await }).await?;
    Ok((StatusCode::CREATED, Json(NewToken { token, scope: scope.as_str().into(), name })))
}

//! Access tokens: made (shown once), listed by name, revoked.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::{Revoked, Scope, TokenInForce};
use utoipa::ToSchema;

use crate::body::{self, parse};
use crate::http::schema;
use crate::problem::Problem;
use crate::state::App;

const MAX_NAME_CHARS: usize = 128;

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
    /// To revoke it by.
    id: String,
    /// Shown this once; only its hash is kept.
    token: String,
    scope: String,
    name: String,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TokenList {
    /// Oldest first.
    tokens: Vec<TokenRow>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TokenRow {
    /// To revoke it by.
    id: String,
    name: String,
    scope: String,
    created_at: String,
}

/// The tokens in force; not what they are. A token from the environment is not among them.
#[utoipa::path(get, path = "/admin/tokens", tag = "access",
    responses((status = 200, body = TokenList), schema::BadInput, schema::NoAccess))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<TokenList> {
    let row = |token: TokenInForce| {
        let TokenInForce { id, name, scope, created_at } = token;
        TokenRow { id, name, scope, created_at: created_at.to_string() }
    };
    Json(TokenList { tokens: app.gate.tokens().into_iter().map(row).collect() })
}

/// Revokes a token. The last admin's stays: make another first.
#[utoipa::path(delete, path = "/admin/tokens/{id}", tag = "access",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = schema::Deleted),
        (status = 409, description = "It is the last admin's", body = schema::Problem,
            content_type = "application/problem+json"),
        schema::BadInput, schema::NotFound, schema::StoreDown, schema::NoAccess))]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<schema::Deleted>, Problem> {
    let gate = app.gate.clone();
    match app.finish(async move { gate.revoke_token(&id).await }).await? {
        Revoked::Done => Ok(Json(schema::Deleted { deleted: true })),
        Revoked::Unknown => Err(Problem::not_found(
            "there is no token of this id; `tollgate token list` or GET /admin/tokens shows them",
        )),
        Revoked::LastAdmin => Err(Problem::new(
            StatusCode::CONFLICT,
            "urn:tollgate:last-admin-token",
            "this is the last token of scope admin that is stored (one in TOLLGATE_ADMIN_TOKEN does \
             not count: the next start may be without it): make another with `tollgate token \
             create --scope admin`, then revoke this one",
        )),
    }
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
    let is_plain = |name: &String| {
        (1..=MAX_NAME_CHARS).contains(&name.chars().count()) && !name.contains(char::is_control)
    };
    if !request.name.as_ref().is_none_or(is_plain) {
        let detail = format!(
            "name must be 1 to {MAX_NAME_CHARS} characters long, without control characters"
        );
        return Err(Problem::bad_field("name", detail));
    }
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
    let tollgate::NewToken { id, token } =
        app.finish(async move { gate.create_token(&kept, scope).await }).await?;
    let scope = scope.as_str().into();
    Ok((StatusCode::CREATED, Json(NewToken { id, token, scope, name })))
}

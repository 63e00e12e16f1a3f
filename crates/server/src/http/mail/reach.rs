//! Whose mail a caller may touch: an admin everybody's, a tenant's token that tenant's.
//!
//! A tenant's token is confined also while the server is open to everybody on its machine: who
//! shows one asks to be that tenant. That such tokens exist does not end the open mode; only the
//! gate's tokens do.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use tollgate::Scope;

use crate::auth::token_of;
use crate::problem::Problem;
use crate::state::App;

/// How far a caller reaches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    Everything,
    Tenant(String),
}

impl Reach {
    /// The tenant a request is about; `None`: all of them, where the caller may.
    pub(super) fn tenant(&self, given: Option<String>) -> Result<Option<String>, Problem> {
        match (self, given) {
            (Self::Everything, given) => Ok(given),
            (Self::Tenant(own), None) => Ok(Some(own.clone())),
            (Self::Tenant(own), Some(given)) if *own == given => Ok(Some(given)),
            (Self::Tenant(_), Some(_)) => Err(forbidden("this token is another tenant's")),
        }
    }

    /// The same where one tenant must be named.
    pub(super) fn one_tenant(&self, given: Option<String>) -> Result<String, Problem> {
        self.tenant(given)?.ok_or_else(|| {
            Problem::bad_field(
                "tenant_id",
                "tenant_id is required: whose mail? (in commands: --tenant ID, or TOLLGATE_TENANT)",
            )
        })
    }

    /// For what only an admin may do.
    pub(super) fn everything(&self) -> Result<(), Problem> {
        match self {
            Self::Everything => Ok(()),
            Self::Tenant(_) => {
                Err(forbidden("a tenant's token may not do this; it needs an admin's"))
            }
        }
    }
}

fn forbidden(detail: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "urn:tollgate:wrong-scope", detail)
}

/// Lets admins and tenants through, and notes how far they reach.
pub(crate) async fn confine(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let reach = app.reach(request.headers()).await?;
    request.extensions_mut().insert(reach);
    Ok(next.run(request).await)
}

impl App {
    async fn reach(&self, headers: &HeaderMap) -> Result<Reach, Problem> {
        if let Some(token) = token_of(headers) {
            let tenant = self.mail.bearer(token).await.map_err(|error| self.mail_failed(error))?;
            if let Some(tenant) = tenant {
                return Ok(Reach::Tenant(tenant));
            }
        }
        self.access.authorise(headers, Scope::Admin).await?;
        Ok(Reach::Everything)
    }
}

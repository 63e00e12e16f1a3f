//! The mail relay on the wire: tenants, accounts, keys, the queue, and sending with an API key.
//!
//! What mail is and whether it is valid is known in `tollgate-mail`; here it is read, and answered.

mod accounts;
mod add_messages;
mod commands;
mod keys;
mod messages;
mod queries;
mod reach;
mod send;
mod tenants;
mod whole;

use std::sync::Arc;

use axum::http::StatusCode;
use axum::middleware;
use serde::Serialize;
use tollgate::{Error, Instant};
use tollgate_mail::MailError;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::unread_query;
use crate::problem::Problem;
use crate::state::App;

pub(super) use add_messages::{Message, Rejected};
pub(super) use commands::say_who_needs_no_body;

const SECOND_MICROS: i64 = 1_000_000;

pub(super) fn routes(app: Arc<App>) -> OpenApiRouter<Arc<App>> {
    let tenants = OpenApiRouter::new()
        .routes(routes!(tenants::post))
        .routes(routes!(tenants::list))
        .routes(routes!(tenants::delete))
        .routes(routes!(tenants::new_token))
        .routes(routes!(accounts::post))
        .routes(routes!(accounts::list))
        .routes(routes!(accounts::delete))
        .routes(routes!(add_messages::post))
        .routes(routes!(messages::list))
        .routes(routes!(messages::attempts))
        .routes(routes!(commands::status))
        .routes(routes!(keys::post, keys::list))
        .routes(routes!(keys::put, keys::delete));
    // These read their query where there is no body.
    let commands = OpenApiRouter::new()
        .routes(routes!(commands::run_now))
        .routes(routes!(commands::suspend))
        .routes(routes!(commands::activate))
        .routes(routes!(commands::delete_messages))
        .routes(routes!(commands::cleanup_messages));
    let tenants = unread_query::refused_on(tenants)
        .merge(commands)
        .route_layer(middleware::from_fn_with_state(app, reach::confine));
    // These ask for a key instead of a token.
    let keys = OpenApiRouter::new().routes(routes!(send::post)).routes(routes!(send::usage));
    tenants.merge(unread_query::refused_on(keys))
}

/// Done.
#[derive(Serialize, ToSchema)]
pub(crate) struct Ok {
    /// Always true; what is not is an error.
    ok: bool,
}

const OK: Ok = Ok { ok: true };

impl App {
    /// Maps an error of the relay and, if it is a store's, counts it.
    pub(super) fn mail_failed(&self, error: MailError) -> Problem {
        match error {
            MailError::Invalid(invalid) => {
                Problem::bad_field(invalid.field.clone(), invalid.to_string())
            }
            MailError::NotFound(detail) => Problem::not_found(detail),
            MailError::Conflict(detail) => {
                Problem::new(StatusCode::CONFLICT, "urn:tollgate:conflict", detail)
            }
            MailError::Key(detail) => {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "urn:tollgate:mail-key", detail)
            }
            MailError::Store(error) => self.failed(Error::Store(error)),
            other => {
                tracing::error!(error = %other, "unexpected error of the mail relay");
                Problem::internal(other.to_string())
            }
        }
    }

    /// Carries a change of the relay through to its end, whoever goes away meanwhile.
    async fn finish_mail<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, MailError>> + Send + 'static,
    ) -> Result<T, Problem> {
        super::carried_through(change).await?.map_err(|error| self.mail_failed(error))
    }
}

/// Whole Unix seconds of something that was.
fn past_ts(at: Instant) -> i64 {
    at.as_micros().div_euclid(SECOND_MICROS)
}

/// Whole Unix seconds of something to come: not before it.
fn future_ts(at: Instant) -> i64 {
    let micros = at.as_micros();
    micros.div_euclid(SECOND_MICROS) + i64::from(micros.rem_euclid(SECOND_MICROS) > 0)
}

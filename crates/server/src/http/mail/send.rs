//! Mail with an API key: 202, or why not. A refusal says how the day's quota stands.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tollgate::Error;
use tollgate_mail::{Refused, SendError, SendRequest, Usage};
use utoipa::ToSchema;

use super::add_messages::OneOrMany;
use crate::body::parse;
use crate::http::schema;
use crate::idempotency::{self, headers_of};
use crate::problem::Problem;
use crate::state::App;
use crate::strict::StrictValue;
use crate::wire::QUOTA_EXCEEDED;

/// A message sent with an API key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendBody {
    /// An address, or a list of them. Each costs one unit of the key's daily limit.
    #[schema(value_type = schema::MailAddresses)]
    to: OneOrMany,
    /// At most 256 characters.
    #[schema(max_length = 256)]
    subject: String,
    /// Plain text. This, `html`, or both.
    text: Option<String>,
    html: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    /// Another account of the same tenant than the key's own.
    account_id: Option<String>,
    /// The account's address if not said.
    from: Option<String>,
}

const FIELDS: [&str; 7] = ["to", "subject", "text", "html", "headers", "account_id", "from"];

#[derive(Serialize, ToSchema)]
pub(crate) struct Queued {
    /// Always `queued`: it is durable, and sent as fast as its account may.
    status: &'static str,
    /// Recipients that still fit today.
    remaining: u64,
    /// The message's id, as in `GET /messages`.
    id: String,
}

/// How a key stands today.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyUsage {
    api_key_id: String,
    daily_limit: u64,
    emails_sent_today: u64,
    emails_remaining: u64,
    /// Midnight in the key's own time zone.
    #[schema(format = DateTime)]
    reset_time: String,
}

/// Queues a message at the cost of one unit per recipient, all or nothing.
///
/// Everything is checked before quota is spent. With an `Idempotency-Key` the same message again
/// is answered the same, and neither counted nor sent twice.
#[utoipa::path(post, path = "/api/v1/send", tag = "mail key",
    params(schema::IdempotencyHeader),
    request_body = SendBody,
    responses(
        (status = 202, description = "Queued, durably", body = Queued),
        (status = 422, description = "Invalid; or more recipients than a day allows; or the \
            idempotency key was used with another message", body = schema::Unsendable,
            content_type = "application/problem+json"),
        (status = 429, description = "The day's quota does not hold so many now",
            body = schema::QuotaExceeded, content_type = "application/problem+json"),
        schema::BadInput, schema::KeyNeeded, schema::StoreDown, schema::TooLarge))]
pub(crate) async fn post(
    State(app): State<Arc<App>>,
    request: axum::extract::Request,
) -> Result<(StatusCode, HeaderMap, Json<Queued>), Problem> {
    let (parts, body) = request.into_parts();
    let secret = secret_of(&parts.headers)?;
    // Nobody's body is read before it is known whose it is.
    let key = app.mail.usable_key(&secret).await.map_err(|error| app.send_failed(error))?;
    let bytes = app.large_bodies.read(body, app.mail_body_limits).await?;
    let once = idempotency::key_of(&parts.headers)?;
    let request = read(&bytes)?;
    let sent = app.mail.send(key, request, once.as_deref()).await;
    let sent = sent.map_err(|error| app.send_failed(error))?;
    let mut headers = headers_of(&sent.headers);
    if sent.replayed {
        headers.insert(idempotency::REPLAYED, HeaderValue::from_static("true"));
    }
    let queued = Queued { status: "queued", remaining: sent.remaining, id: sent.id };
    Ok((StatusCode::ACCEPTED, headers, Json(queued)))
}

/// How the key stands today. Adds nothing.
#[utoipa::path(get, path = "/api/v1/usage", tag = "mail key",
    responses((status = 200, body = KeyUsage), schema::BadInput, schema::KeyNeeded,
        schema::StoreDown))]
pub(crate) async fn usage(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
) -> Result<Json<KeyUsage>, Problem> {
    let secret = secret_of(&headers)?;
    let usage = app.mail.usage(&secret).await.map_err(|error| app.send_failed(error))?;
    let Usage { api_key_id, daily_limit, emails_sent_today, emails_remaining, reset_time } = usage;
    let reset_time = reset_time.to_string();
    Ok(Json(KeyUsage { api_key_id, daily_limit, emails_sent_today, emails_remaining, reset_time }))
}

fn secret_of(headers: &HeaderMap) -> Result<String, Problem> {
    let secret = headers.get("x-api-key").and_then(|value| value.to_str().ok());
    let secret = secret.filter(|secret| !secret.is_empty());
    secret.map(str::to_owned).ok_or_else(|| no_key("this needs an API key: send it as X-API-Key"))
}

fn no_key(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "urn:tollgate:unauthorised", detail)
        .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("ApiKey"))
}

/// What is no JSON object of these fields is 400 as everywhere; what they hold is 422.
fn read(bytes: &[u8]) -> Result<SendRequest, Problem> {
    let body: SendBody = parse(bytes).map_err(|problem| {
        let Ok(StrictValue(value)) = parse(bytes) else { return problem };
        let known = |name: &String| FIELDS.contains(&name.as_str());
        match value.as_object() {
            Some(object) if object.keys().all(known) => invalid(&problem),
            _ => problem,
        }
    })?;
    Ok(SendRequest {
        to: body.to.into_vec(),
        subject: body.subject,
        text: body.text,
        html: body.html,
        headers: body.headers.unwrap_or_default(),
        account_id: body.account_id,
        from: body.from,
    })
}

/// The same problem as a 422.
fn invalid(problem: &Problem) -> Problem {
    problem.clone().with_status(StatusCode::UNPROCESSABLE_ENTITY)
}

impl App {
    fn send_failed(&self, error: SendError) -> Problem {
        let detail = error.to_string();
        let unprocessable =
            |kind, detail| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, kind, detail);
        match error {
            SendError::UnknownKey => no_key(&detail),
            SendError::DisabledKey => {
                Problem::new(StatusCode::FORBIDDEN, "urn:tollgate:key-disabled", detail)
            }
            SendError::Invalid(invalid) => {
                unprocessable("urn:tollgate:bad-input", detail).field(invalid.field)
            }
            SendError::TooLarge { .. } => {
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "urn:tollgate:too-large", detail)
            }
            SendError::NeverFits { requested, limit } => {
                unprocessable("urn:tollgate:cost-never-fits", detail)
                    .member("requested", requested)
                    .member("limit", limit)
            }
            SendError::Refused(refused) => over_quota(&refused, detail),
            SendError::KeyReused => unprocessable("urn:tollgate:idempotency-key-reused", detail)
                .field("Idempotency-Key"),
            SendError::Store(error) => self.failed(Error::Store(error)),
            other => {
                tracing::error!(error = %other, "unexpected error of the mail relay");
                Problem::internal(detail)
            }
        }
    }
}

fn over_quota(refused: &Refused, detail: String) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, QUOTA_EXCEEDED, detail)
        .headers(headers_of(&refused.headers))
        .member("violated-policies", json!(["day"]))
        .member("current", refused.current)
        .member("requested", refused.requested)
        .member("limit", refused.limit)
        .member("retry_after", refused.retry_after_secs)
        .member("retry_at", refused.retry_at.to_string())
}

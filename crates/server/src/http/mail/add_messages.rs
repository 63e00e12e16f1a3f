//! Many messages in one call. Each is judged by itself: what is wrong with one holds up no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Number, Value, json};
use tollgate::Instant;
use tollgate_mail::{Attachment, Content, NewMessage};
use utoipa::ToSchema;

use super::reach::Reach;
use super::whole::Whole;
use crate::body::parse;
use crate::http::{query, schema};
use crate::problem::Problem;
use crate::state::App;

const MAX_MESSAGES: usize = 10_000;

/// Messages as they came, not looked into yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddRequest<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

/// A message for the queue.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    /// Unique within its tenant: the same message again is not queued twice.
    id: String,
    /// May be left out with that tenant's token.
    tenant_id: Option<String>,
    account_id: String,
    /// `ada@example.org` or `Ada <ada@example.org>`.
    from: String,
    #[schema(value_type = Option<Vec<String>>)]
    to: Option<OneOrMany>,
    #[schema(value_type = Option<Vec<String>>)]
    cc: Option<OneOrMany>,
    /// Recipients that nobody sees.
    #[schema(value_type = Option<Vec<String>>)]
    bcc: Option<OneOrMany>,
    reply_to: Option<String>,
    subject: Option<String>,
    /// Plain text.
    body: Option<String>,
    html: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    #[schema(value_type = Option<Vec<schema::MailAttachment>>)]
    attachments: Option<Vec<Attachment>>,
    /// 0 immediate, 1 high, 2 medium (the default), 3 low.
    #[schema(value_type = Option<u8>, maximum = 3)]
    priority: Option<Whole<3>>,
    /// Not before this, in Unix seconds; fractions are no harm.
    #[schema(value_type = Option<i64>)]
    deferred_ts: Option<Number>,
    /// Names messages that are suspended, activated or deleted together.
    batch_code: Option<String>,
}

/// One address, or a list of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an address or a list of addresses")]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(super) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(address) => vec![address],
            Self::Many(addresses) => addresses,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Added {
    /// Messages in the queue now, those that were there already included.
    queued: u64,
    rejected: Vec<Rejected>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Rejected {
    id: String,
    reason: String,
}

/// Queues messages. What is answered as queued is durable.
#[utoipa::path(post, path = "/commands/add-messages", tag = "mail",
    request_body = schema::AddMessages,
    responses(
        (status = 200, body = Added),
        (status = 400, description = "Bad input, or every message was rejected",
            body = schema::NothingAdded, content_type = "application/problem+json"),
        schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn post(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    request: axum::extract::Request,
) -> Result<Json<Added>, Problem> {
    let bytes = app.large_bodies.read(request.into_body(), app.mail_body_limits).await?;
    let AddRequest { messages: given } = parse(&bytes)?;
    if !(1..=MAX_MESSAGES).contains(&given.len()) {
        let detail =
            format!("messages must be from 1 to {MAX_MESSAGES} in number, not {}", given.len());
        return Err(Problem::bad_field("messages", detail));
    }
    let mut rejected = Vec::new();
    let mut messages = Vec::with_capacity(given.len());
    for (position, raw) in given.iter().enumerate() {
        match read(raw, &reach) {
            Ok(message) => messages.push(message),
            Err(Unread::Foreign(problem)) => return Err(problem),
            Err(Unread::Bad(reason)) => {
                let id = id_of(raw);
                let reason =
                    if id.is_empty() { format!("messages[{position}]: {reason}") } else { reason };
                rejected.push(Rejected { id, reason });
            }
        }
    }
    let mail = app.mail.clone();
    let added = app.finish_mail(async move { mail.add_messages(messages).await }).await?;
    let refused = added.rejected.into_iter();
    rejected.extend(refused.map(|message| Rejected { id: message.id, reason: message.reason }));
    if added.queued == 0 {
        return Err(nothing_added(&rejected));
    }
    Ok(Json(Added { queued: added.queued, rejected }))
}

/// Why a message cannot be given to the relay.
enum Unread {
    /// It is wrong by itself.
    Bad(String),
    /// The caller may not send for this tenant: the whole call is refused.
    Foreign(Problem),
}

fn read(raw: &RawValue, reach: &Reach) -> Result<NewMessage, Unread> {
    let bad = |problem: &Problem| Unread::Bad(problem.detail().to_owned());
    let message: Message = parse(raw.get().as_bytes()).map_err(|problem| bad(&problem))?;
    let tenant_id = match reach.tenant(message.tenant_id) {
        Ok(Some(tenant_id)) => tenant_id,
        Ok(None) => return Err(Unread::Bad("tenant_id is required".into())),
        Err(problem) => return Err(Unread::Foreign(problem)),
    };
    let deferred_until = match message.deferred_ts {
        None => None,
        Some(ts) => Some(instant(&ts).ok_or_else(|| {
            Unread::Bad(format!("deferred_ts {ts} is not a time in Unix seconds"))
        })?),
    };
    let list = |given: Option<OneOrMany>| given.map(OneOrMany::into_vec).unwrap_or_default();
    Ok(NewMessage {
        id: message.id,
        tenant_id,
        account_id: message.account_id,
        content: Content {
            from: message.from,
            to: list(message.to),
            cc: list(message.cc),
            bcc: list(message.bcc),
            reply_to: message.reply_to,
            subject: message.subject.unwrap_or_default(),
            body: message.body,
            html: message.html,
            headers: message.headers.unwrap_or_default(),
            attachments: message.attachments.unwrap_or_default(),
        },
        priority: message.priority.map_or(NewMessage::DEFAULT_PRIORITY, |Whole(given)| given),
        deferred_until,
        batch_code: message.batch_code,
    })
}

fn instant(ts: &Number) -> Option<Instant> {
    let since_1970 = match ts.as_u64() {
        Some(seconds) => Duration::from_secs(seconds),
        None => Duration::try_from_secs_f64(ts.as_f64()?).ok()?,
    };
    let at = Instant::from_micros(i64::try_from(since_1970.as_micros()).ok()?);
    (at <= query::LAST).then_some(at)
}

/// The id of a message that is not valid otherwise, if it has one.
fn id_of(raw: &RawValue) -> String {
    let value: Option<Value> = serde_json::from_str(raw.get()).ok();
    value.and_then(|value| Some(value.get("id")?.as_str()?.to_owned())).unwrap_or_default()
}

fn nothing_added(rejected: &[Rejected]) -> Problem {
    let first = rejected.first().map_or("", |message| message.reason.as_str());
    let detail = match rejected.len() {
        1 => format!("the message was rejected: {first}"),
        count => format!("all {count} messages were rejected; the first: {first}"),
    };
    Problem::bad_request(detail).member("queued", 0).member("rejected", json!(rejected))
}

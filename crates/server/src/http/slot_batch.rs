//! Many events in one call. Each has its own answer: a slot, or the problem it would have had alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};
use tollgate::core::store::{StoreError, StoreErrorKind};
use tollgate::{Error, SlotAsk};
use utoipa::ToSchema;

use crate::body::parse;
use crate::http::schema;
use crate::http::slots::{AssignedSlot, FIELDS, Given, SlotRequest};
use crate::problem::Problem;
use crate::request_id::RequestId;
use crate::state::App;
use crate::strict::StrictValue;

const MAX_EVENTS: usize = 1_000;
/// For the whole call, however many configs its events are of: each has its own deadline in the
/// store, and a thousand of those are minutes.
const WITHIN: Duration = Duration::from_secs(5);

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchRequest {
    #[schema(min_items = 1, max_items = 1000)]
    events: Vec<SlotRequest>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct BatchAnswer {
    /// One for each event, in the order of the events.
    results: Vec<BatchResult>,
    /// How many of them have their slot from before this call.
    repeated: usize,
}

/// An event's slot, or why it has none.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum BatchResult {
    Slot(AssignedSlot),
    #[schema(value_type = schema::EventProblem)]
    Problem(Map<String, Value>),
}

/// Events of one policy, and where in the batch they stand.
struct Group {
    policy: String,
    events: Vec<SlotAsk>,
    positions: Vec<usize>,
}

type Told = Option<Result<Given, Problem>>;

/// Gives up to 1000 events their slots, in order.
///
/// Events of one config are assigned together; what is wrong with one event holds up no other.
#[utoipa::path(post, path = "/api/v1/slots/batch", tag = "slots",
    request_body = BatchRequest,
    responses((status = 200, body = BatchAnswer), schema::BadInput, schema::StoreDown,
        schema::NoAccess, schema::TooLarge))]
pub(crate) async fn post(
    State(app): State<Arc<App>>,
    Extension(request_id): Extension<RequestId>,
    request: axum::extract::Request,
) -> Result<Json<BatchAnswer>, Problem> {
    let bytes = app.large_bodies.read(request.into_body(), app.batch_body_limits).await?;
    let events = read(&bytes)?;
    if !(1..=MAX_EVENTS).contains(&events.len()) {
        let detail =
            format!("events must be from 1 to {MAX_EVENTS} in number, not {}", events.len());
        return Err(Problem::bad_field("events", detail));
    }
    let (mut told, groups) = group(events);
    let until = Instant::now() + WITHIN;
    for group in groups {
        let Group { policy, events, positions } = group;
        let assigned = timeout_at(until, app.assign(&policy, events)).await;
        match assigned.unwrap_or_else(|_| Err(app.failed(out_of_time()))) {
            Ok(answers) => {
                for (position, answer) in positions.into_iter().zip(answers) {
                    told[position] = Some(answer);
                }
            }
            // With nothing given yet the whole call failed, and may be repeated as it is.
            Err(problem) if problem.status().is_server_error() && !any_given(&told) => {
                return Err(problem);
            }
            Err(problem) => {
                for position in positions {
                    told[position] = Some(Err(problem.clone()));
                }
            }
        }
    }
    Ok(Json(answer(told, &request_id)))
}

/// An event as it was read, or its problem.
type Event = Result<SlotRequest, Problem>;

/// An event that lacks something, or holds it in another form, has its own problem. What is no
/// batch of events, or holds fields that nobody knows, is refused whole.
fn read(bytes: &[u8]) -> Result<Vec<Event>, Problem> {
    match parse::<BatchRequest>(bytes) {
        Ok(BatchRequest { events }) => Ok(events.into_iter().map(Ok).collect()),
        Err(problem) => one_by_one(bytes).ok_or(problem),
    }
}

fn one_by_one(bytes: &[u8]) -> Option<Vec<Event>> {
    let StrictValue(batch) = parse(bytes).ok()?;
    let batch = batch.as_object().filter(|batch| batch.len() == 1)?;
    let events = batch.get("events")?.as_array()?;
    let known = |name: &String| FIELDS.contains(&name.as_str());
    let is_event = |event: &Value| event.as_object().is_some_and(|it| it.keys().all(known));
    let read_alone = |event: &Value| parse(event.to_string().as_bytes());
    events.iter().all(is_event).then(|| events.iter().map(read_alone).collect())
}

/// Some may have been given all the same: asking again finds them.
fn out_of_time() -> Error {
    StoreError::new(StoreErrorKind::Timeout, "the events of this batch took too long").into()
}

fn any_given(told: &[Told]) -> bool {
    told.iter().any(|answer| matches!(answer, Some(Ok(_))))
}

/// Events by policy, in the order of the first of each; what cannot be asked has its answer at once.
/// An id that comes again under another policy begins new groups: the first is asked for first.
fn group(events: Vec<Event>) -> (Vec<Told>, Vec<Group>) {
    let mut told: Vec<Told> = Vec::with_capacity(events.len());
    let mut groups: Vec<Group> = Vec::new();
    let mut by_policy: HashMap<String, usize> = HashMap::new();
    let mut policy_of: HashMap<String, String> = HashMap::new();
    for (position, event) in events.into_iter().enumerate() {
        let (policy, ask) = match event.and_then(SlotRequest::ask) {
            Ok(asked) => asked,
            Err(problem) => {
                told.push(Some(Err(problem)));
                continue;
            }
        };
        told.push(None);
        let before = policy_of.insert(ask.event_id.clone(), policy.clone());
        if before.is_some_and(|before| before != policy) {
            by_policy.clear();
        }
        let number = *by_policy.entry(policy).or_insert_with_key(|policy| {
            let policy = policy.clone();
            groups.push(Group { policy, events: Vec::new(), positions: Vec::new() });
            groups.len() - 1
        });
        groups[number].events.push(ask);
        groups[number].positions.push(position);
    }
    (told, groups)
}

fn answer(told: Vec<Told>, request_id: &RequestId) -> BatchAnswer {
    let mut repeated = 0;
    let mut results = Vec::with_capacity(told.len());
    for answer in told {
        results.push(match answer.expect("every event is in a group or has its problem") {
            Ok(Given { slot, is_repeated }) => {
                repeated += usize::from(is_repeated);
                BatchResult::Slot(AssignedSlot::of(slot))
            }
            Err(problem) => BatchResult::Problem(problem.document(request_id)),
        });
    }
    BatchAnswer { results, repeated }
}

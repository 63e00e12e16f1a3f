//! Slots: an event asks for its own instant, sees it again, and cancels it.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::{Slot, SlotAnswer, SlotAsk, Tollgate};
use utoipa::ToSchema;

use crate::body::{self, parse};
use crate::http::{query, schema};
use crate::metrics::SlotOutcome;
use crate::problem::Problem;
use crate::state::App;

const DEFAULT_CONFIG: &str = "default";

/// An event that wants a slot.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SlotRequest {
    /// The same id always gets the same slot.
    #[schema(min_length = 1, max_length = 255, example = "pay-123")]
    event_id: String,
    /// The policy to schedule by; `default` if not said.
    #[serde(default)]
    config_name: Option<String>,
    /// As soon as possible if not said. Finer than a microsecond is rounded up.
    #[serde(default)]
    #[schema(format = DateTime, example = "2025-06-01T12:00:00Z")]
    requested_time: Option<String>,
}

pub(super) const FIELDS: [&str; 3] = ["eventId", "configName", "requestedTime"];

impl SlotRequest {
    /// The policy's name and what to ask of it.
    pub(super) fn ask(self) -> Result<(String, SlotAsk), Problem> {
        Tollgate::check_event_id(&self.event_id)?;
        let requested_at =
            self.requested_time.map(|text| query::instant("requestedTime", &text)).transpose()?;
        let ask = SlotAsk { event_id: self.event_id, requested_at };
        Ok((config_name(self.config_name), ask))
    }
}

pub(super) fn config_name(given: Option<String>) -> String {
    given.unwrap_or_else(|| DEFAULT_CONFIG.to_owned())
}

/// When an event may happen.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AssignedSlot {
    event_id: String,
    #[schema(format = DateTime)]
    scheduled_time: String,
    /// Whole milliseconds from the requested to the scheduled time.
    delay_ms: u64,
}

impl AssignedSlot {
    pub(super) fn of(slot: Slot) -> Self {
        Self {
            scheduled_time: slot.scheduled_at.to_string(),
            delay_ms: delay_ms(&slot),
            event_id: slot.event_id,
        }
    }
}

/// A slot with all that is kept of it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuditedSlot {
    event_id: String,
    config_name: String,
    /// Of the config that gave it.
    config_version: u64,
    #[schema(format = DateTime)]
    requested_time: String,
    #[schema(format = DateTime)]
    scheduled_time: String,
    delay_ms: u64,
    #[schema(format = DateTime)]
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    cancelled_at: Option<String>,
}

impl AuditedSlot {
    pub(super) fn of(slot: Slot) -> Self {
        Self {
            config_version: slot.version,
            requested_time: slot.requested_at.to_string(),
            scheduled_time: slot.scheduled_at.to_string(),
            delay_ms: delay_ms(&slot),
            created_at: slot.created_at.to_string(),
            cancelled_at: slot.cancelled_at.map(|at| at.to_string()),
            config_name: slot.policy,
            event_id: slot.event_id,
        }
    }
}

fn delay_ms(slot: &Slot) -> u64 {
    slot.scheduled_at.micros_since(slot.requested_at).max(0).unsigned_abs() / 1_000
}

/// A slot that was asked for, and whether it is from before.
pub(super) struct Given {
    pub(super) slot: Slot,
    pub(super) is_repeated: bool,
}

impl App {
    /// Asks for slots of one policy; every event has its slot or its own problem.
    pub(super) async fn assign(
        &self,
        policy: &str,
        events: Vec<SlotAsk>,
    ) -> Result<Vec<Result<Given, Problem>>, Problem> {
        let answers = self.gate.assign_slots(policy, events).await;
        let answers = answers.map_err(|error| self.failed(error))?;
        let compiled = self.gate.policy(policy).ok();
        let plan = compiled.as_ref().and_then(|compiled| compiled.plan().ok());
        let has_calendar = plan.is_some_and(|plan| plan.calendar().is_some());
        let tell = |answer| {
            let (outcome, told) = told(policy, has_calendar, answer);
            if let Some(compiled) = &compiled {
                self.metrics.slot_asked(compiled, outcome);
            }
            if let (SlotOutcome::Given, Ok(given)) = (outcome, &told) {
                self.metrics.slot_given(&given.slot);
            }
            told
        };
        Ok(answers.into_iter().map(tell).collect())
    }
}

/// What an answer means on the wire.
fn told(
    policy: &str,
    has_calendar: bool,
    answer: SlotAnswer,
) -> (SlotOutcome, Result<Given, Problem>) {
    match answer {
        SlotAnswer::Given(slot) => (SlotOutcome::Given, Ok(Given { slot, is_repeated: false })),
        SlotAnswer::Repeated(slot) => {
            (SlotOutcome::Repeated, Ok(Given { slot, is_repeated: true }))
        }
        SlotAnswer::Differs(slot) => (SlotOutcome::Differs, Err(differs(&slot))),
        SlotAnswer::Cancelled(slot) => {
            let at = slot.cancelled_at.unwrap_or_default();
            let detail = format!(
                "the slot of event {:?} was cancelled at {at}; ask again under another id",
                slot.event_id
            );
            let kind = "urn:tollgate:slot-cancelled";
            let problem = Problem::new(StatusCode::CONFLICT, kind, detail).field("eventId");
            (SlotOutcome::Cancelled, Err(problem))
        }
        SlotAnswer::HorizonFull => {
            let closed = if has_calendar {
                " (its calendar counts: with an even spread, a window that is open in part has only \
                 the places that stand there)"
            } else {
                ""
            };
            let detail = format!(
                "config {policy:?} has no free place between the requested time and its \
                 horizon{closed}; raise maxPerWindow or the horizon, {}or ask for a later time",
                if has_calendar { "choose shorter windows, " } else { "" }
            );
            let kind = "urn:tollgate:horizon-full";
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, kind, detail);
            (SlotOutcome::HorizonFull, Err(problem))
        }
        SlotAnswer::TooOld { oldest } => {
            let detail = format!(
                "requestedTime lies before all that config {policy:?} keeps: it must be {oldest} \
                 or later"
            );
            (SlotOutcome::TooOld, Err(Problem::bad_field("requestedTime", detail)))
        }
    }
}

fn differs(slot: &Slot) -> Problem {
    let time = if slot.is_requested_by_caller {
        format!("requestedTime {}", slot.requested_at)
    } else {
        "no requestedTime".to_owned()
    };
    let detail = format!(
        "event {:?} has a slot that was asked for with configName {:?} and {time}; one id goes \
         with one set of inputs",
        slot.event_id, slot.policy
    );
    Problem::new(StatusCode::CONFLICT, "urn:tollgate:slot-differs", detail).field("eventId")
}

/// Gives an event its own instant, at or after the one it asks for.
///
/// Asking again with the same inputs gets the same slot.
#[utoipa::path(post, path = "/api/v1/slots", tag = "slots",
    request_body = SlotRequest,
    responses(
        (status = 200, description = "Its slot, now or from before", body = AssignedSlot),
        schema::BadInput, schema::NotFound, schema::SlotConflict, schema::NoSlot,
        schema::NoAccess, schema::TooLarge))]
pub(crate) async fn post(
    State(app): State<Arc<App>>,
    request: axum::extract::Request,
) -> Result<Json<AssignedSlot>, Problem> {
    let bytes = body::read(request.into_body(), app.body_limits).await?;
    let (policy, ask) = parse::<SlotRequest>(&bytes)?.ask()?;
    let mut answers = app.assign(&policy, vec![ask]).await?;
    let given = answers.pop().expect("one answer for one event")?;
    Ok(Json(AssignedSlot::of(given.slot)))
}

/// The slot of an event, cancelled or not.
#[utoipa::path(get, path = "/api/v1/slots/{eventId}", tag = "slots",
    params(("eventId" = String, Path)),
    responses((status = 200, body = AuditedSlot), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    event_id: Result<Path<String>, PathRejection>,
) -> Result<Json<AuditedSlot>, Problem> {
    show(&app, &read_id(event_id)?).await
}

/// Frees the place of an event. Again changes nothing.
#[utoipa::path(delete, path = "/api/v1/slots/{eventId}", tag = "slots",
    params(("eventId" = String, Path)),
    responses((status = 200, description = "Cancelled, now or before", body = AuditedSlot),
        schema::BadInput, schema::NotFound, schema::StoreDown, schema::NoAccess))]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    event_id: Result<Path<String>, PathRejection>,
) -> Result<Json<AuditedSlot>, Problem> {
    cancel(&app, read_id(event_id)?).await
}

/// An event may be called what a route is called.
pub(crate) async fn get_batch(State(app): State<Arc<App>>) -> Result<Json<AuditedSlot>, Problem> {
    show(&app, "batch").await
}

pub(crate) async fn delete_batch(
    State(app): State<Arc<App>>,
) -> Result<Json<AuditedSlot>, Problem> {
    cancel(&app, "batch".to_owned()).await
}

fn read_id(path: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    let path = path.map_err(|_| Problem::bad_field("eventId", "eventId is not UTF-8"))?;
    Ok(path.0)
}

async fn show(app: &App, event_id: &str) -> Result<Json<AuditedSlot>, Problem> {
    let slot = app.gate.slot(event_id).await.map_err(|error| app.failed(error))?;
    slot.map(AuditedSlot::of).map(Json).ok_or_else(|| unknown(event_id))
}

async fn cancel(app: &App, event_id: String) -> Result<Json<AuditedSlot>, Problem> {
    let (gate, id) = (app.gate.clone(), event_id.clone());
    let slot = app.finish(async move { gate.cancel_slot(&id).await }).await?;
    slot.map(AuditedSlot::of).map(Json).ok_or_else(|| unknown(&event_id))
}

fn unknown(event_id: &str) -> Problem {
    Problem::not_found(format!("event {event_id:?} has no slot; POST /api/v1/slots gives it one"))
}

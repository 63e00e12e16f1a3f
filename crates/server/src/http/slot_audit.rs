//! What schedules have given: slots in order of time, windows and their fill, and a recount.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use tollgate::{Instant, Slot, SlotQuery, SlotWindow, Tollgate};
use utoipa::ToSchema;

use crate::http::slots::{AuditedSlot, config_name};
use crate::http::{query, schema};
use crate::problem::Problem;
use crate::state::App;

const DEFAULT_SLOTS: u32 = 100;
const MAX_WINDOWS: u32 = 10_000;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SlotList {
    /// In order of their scheduled times, cancelled ones included.
    slots: Vec<AuditedSlot>,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// The slots of a config in order of time, for audit.
#[utoipa::path(get, path = "/api/v1/slots", tag = "slots", params(query::ListQuery),
    responses((status = 200, body = SlotList), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    query: Result<Query<query::ListQuery>, QueryRejection>,
) -> Result<Json<SlotList>, Problem> {
    let query::ListQuery { config_name: config, from, to, cursor, limit } = query::read(query)?;
    let (from, to) = query::interval(from.as_deref(), to.as_deref())?;
    let limit = limit.map_or(Ok(DEFAULT_SLOTS), |text| query::limit(&text))?;
    let after = cursor.map(|text| read_cursor(&text)).transpose()?;
    // One more than is shown says whether there is a next page.
    let query = SlotQuery { policy: config_name(config), from, to, after, limit: limit + 1 };
    let mut slots = app.gate.slots(query).await.map_err(|error| app.failed(error))?;
    let shown = limit as usize;
    let next_cursor =
        (slots.len() > shown).then(|| slots.get(shown - 1).map(cursor_after)).flatten();
    slots.truncate(shown);
    Ok(Json(SlotList { slots: slots.into_iter().map(AuditedSlot::of).collect(), next_cursor }))
}

/// The slot's instant in big-endian microseconds, then its id.
fn cursor_after(slot: &Slot) -> String {
    let micros = slot.scheduled_at.as_micros().to_be_bytes();
    URL_SAFE_NO_PAD.encode([&micros, slot.event_id.as_bytes()].concat())
}

pub(super) fn read_cursor(text: &str) -> Result<(Instant, String), Problem> {
    let read = || {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (micros, id) = bytes.split_first_chunk()?;
        let id = String::from_utf8(id.to_vec()).ok()?;
        Tollgate::check_event_id(&id).ok()?;
        Some((Instant::from_micros(i64::from_be_bytes(*micros)), id))
    };
    read().ok_or_else(|| {
        Problem::bad_field("cursor", "cursor is not one that an answer gave as nextCursor")
    })
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WindowList {
    config_name: String,
    window_size: String,
    /// Those in which something is given, in order; at most 10,000.
    windows: Vec<Window>,
    /// The `from` that lists the rest, if there is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    next_from: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Window {
    #[schema(format = DateTime)]
    start: String,
    /// The next window's start.
    #[schema(format = DateTime)]
    end: String,
    count: u64,
    /// As it is now; a window filled before it was lowered may hold more.
    max: u64,
}

impl Window {
    fn of(window: &SlotWindow) -> Self {
        Self {
            start: window.starts_at.to_string(),
            end: window.ends_at.to_string(),
            count: window.count,
            max: window.max,
        }
    }
}

/// The windows of a config and how full they are; empty ones are left out.
#[utoipa::path(get, path = "/api/v1/windows", tag = "slots", params(query::WindowQuery),
    responses((status = 200, body = WindowList), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn windows(
    State(app): State<Arc<App>>,
    query: Result<Query<query::WindowQuery>, QueryRejection>,
) -> Result<Json<WindowList>, Problem> {
    let query::WindowQuery { config_name: config, from, to } = query::read(query)?;
    let (from, to) = query::interval(from.as_deref(), to.as_deref())?;
    let config_name = config_name(config);
    // By the config as it is now, whoever changed it.
    app.gate.refresh().await.map_err(|error| app.failed(error))?;
    let windows = app.gate.slot_windows(&config_name, from, to, MAX_WINDOWS + 1).await;
    let mut windows = windows.map_err(|error| app.failed(error))?;
    let next_from = windows.get(MAX_WINDOWS as usize).map(|next| next.starts_at.to_string());
    windows.truncate(MAX_WINDOWS as usize);
    let policy = app.gate.policy(&config_name).map_err(|error| app.failed(error))?;
    let per = policy.policy().document().pointer("/limits/0/per");
    Ok(Json(WindowList {
        window_size: per.and_then(|per| per.as_str()).unwrap_or_default().to_owned(),
        windows: windows.iter().map(Window::of).collect(),
        config_name,
        next_from,
    }))
}

/// What a recount found.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recount {
    config_name: String,
    /// In which something is given.
    windows: u64,
    /// Those not cancelled.
    slots: u64,
    /// Windows whose count is not the number of their slots. There must be none.
    drifts: Vec<Drift>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Drift {
    #[schema(format = DateTime)]
    start: String,
    counted: u64,
    slots: u64,
}

/// Counts the slots of a config again and compares them with what its windows say.
#[utoipa::path(get, path = "/admin/slots/verify", tag = "slots", params(query::VerifyQuery),
    responses((status = 200, body = Recount), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn verify(
    State(app): State<Arc<App>>,
    query: Result<Query<query::VerifyQuery>, QueryRejection>,
) -> Result<Json<Recount>, Problem> {
    let config_name = config_name(query::read(query)?.config_name);
    let recount = app.gate.verify_slots(&config_name).await.map_err(|error| app.failed(error))?;
    let drifts = recount.drifts.iter().map(|drift| Drift {
        start: drift.starts_at.to_string(),
        counted: drift.counted,
        slots: drift.slots,
    });
    Ok(Json(Recount {
        config_name,
        windows: recount.windows,
        slots: recount.slots,
        drifts: drifts.collect(),
    }))
}

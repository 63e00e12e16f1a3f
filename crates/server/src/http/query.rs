//! Query strings and times: read strictly, with the parameter or field at fault named.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use serde::Deserialize;
use tollgate::Instant;
use utoipa::IntoParams;

use crate::problem::Problem;

const MICROSECOND_NANOS: i128 = 1_000;
/// From 1970 to 9900: inside them every window and horizon can be counted. What is kept is
/// at most ten years old, so nothing usable lies before.
const FIRST: Instant = Instant::from_secs(0);
pub(super) const LAST: Instant = Instant::from_secs(250_246_627_200);
const MAX_ROWS: u32 = 1_000;

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Defaults to `default`.
    pub(super) config_name: Option<String>,
    /// The first scheduled time to list; all that are kept if not said.
    #[param(format = DateTime)]
    pub(super) from: Option<String>,
    /// The scheduled time to stop before.
    #[param(format = DateTime)]
    pub(super) to: Option<String>,
    /// `nextCursor` of the page before.
    pub(super) cursor: Option<String>,
    /// 1 to 1000; 100 if not said.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    pub(super) limit: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WindowQuery {
    /// Defaults to `default`.
    pub(super) config_name: Option<String>,
    /// Windows that share an instant with `from` up to `to` are listed; all if not said.
    #[param(format = DateTime)]
    pub(super) from: Option<String>,
    #[param(format = DateTime)]
    pub(super) to: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct VerifyQuery {
    /// Defaults to `default`.
    pub(super) config_name: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OffenderQuery {
    /// How far back, up to `24h`; `1h` if not said.
    pub(super) since: Option<String>,
    /// 1 to 1000; 20 if not said.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    pub(super) limit: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AlertQuery {
    /// `next_cursor` of the page before.
    pub(super) cursor: Option<String>,
    /// 1 to 1000; 100 if not said.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    pub(super) limit: Option<String>,
}

/// The query, or a problem that names the parameter.
pub(crate) fn read<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    let Query(query) = query.map_err(|rejection| bad_query(&rejection))?;
    Ok(query)
}

/// How many rows to give.
pub(crate) fn limit(text: &str) -> Result<u32, Problem> {
    let limit = text.parse().ok().filter(|limit| (1..=MAX_ROWS).contains(limit));
    limit.ok_or_else(|| {
        let detail = format!("limit must be a whole number from 1 to {MAX_ROWS}, not {text:?}");
        Problem::bad_field("limit", detail)
    })
}

/// Names the parameter at fault, which stands between backticks.
fn bad_query(rejection: &QueryRejection) -> Problem {
    let text = rejection.body_text();
    // axum's own words, which every such text begins with, say nothing to who asks.
    let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
    match text.split('`').nth(1) {
        Some(parameter) => Problem::bad_field(parameter, text),
        None => Problem::bad_request(text),
    }
}

/// An RFC 3339 time. One finer than a microsecond is rounded up: what is given for it must not
/// come before it.
pub(crate) fn instant(field: &str, text: &str) -> Result<Instant, Problem> {
    let read = text.parse::<jiff::Timestamp>().ok().filter(|_| is_as_in_rfc_3339(text));
    let time = read.ok_or_else(|| {
        let detail = format!(
            "{field} {text:?} is not a time from {FIRST} to {LAST}; write it as 2025-06-01T12:00:00Z \
             (RFC 3339, without leap seconds)"
        );
        Problem::bad_field(field, detail)
    })?;
    let nanos = time.as_nanosecond();
    let micros =
        nanos.div_euclid(MICROSECOND_NANOS) + i128::from(nanos.rem_euclid(MICROSECOND_NANOS) > 0);
    let at = i64::try_from(micros).map_or(Instant::MAX, Instant::from_micros);
    if (FIRST..=LAST).contains(&at) {
        return Ok(at);
    }
    Err(Problem::bad_field(
        field,
        format!("{field} {text:?} is out of range: it must be from {FIRST} to {LAST}"),
    ))
}

/// Only what has one meaning: the parser takes all of ISO 8601, and a second that is not on our clocks for the one before.
fn is_as_in_rfc_3339(text: &str) -> bool {
    let is_shaped = |text: &str, shape: &str| {
        let matches = |(byte, wanted): (u8, u8)| match wanted {
            b'0' => byte.is_ascii_digit(),
            wanted => byte.eq_ignore_ascii_case(&wanted),
        };
        text.len() == shape.len() && text.bytes().zip(shape.bytes()).all(matches)
    };
    let Some((time, rest)) = text.split_at_checked("2025-06-01T12:00:00".len()) else {
        return false;
    };
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => fraction.trim_start_matches(|digit: char| digit.is_ascii_digit()),
        None => rest,
    };
    let is_zone = is_shaped(zone, "Z")
        || (["+00:00", "-00:00"].iter().any(|shape| is_shaped(zone, shape))
            && &zone[1..] < "24:00");
    is_shaped(time, "0000-00-00T00:00:00") && !time.ends_with("60") && is_zone
}

/// The instants from `from` up to, not including, `to`; all of them where nothing is said.
pub(crate) fn interval(
    from: Option<&str>,
    to: Option<&str>,
) -> Result<(Instant, Instant), Problem> {
    let from = from.map_or(Ok(FIRST), |text| instant("from", text))?;
    let to = to.map_or(Ok(Instant::MAX), |text| instant("to", text))?;
    if to < from {
        return Err(Problem::bad_field("to", format!("to ({to}) lies before from ({from})")));
    }
    Ok((from, to))
}

//! The `schedule` part of a policy: how its one limit is spread over events.

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use serde_json::Value;
use tollgate_core::schedule::{Calendar, DEFAULT_HORIZON, Hours, Plan, Spread};
use tollgate_core::{Instant, Limit, Rule, Span, Window};

use super::duration::parse_duration;
use super::fields::{Fault, Fields};

const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// How long slots are kept when nothing else is said: ten years, as for books.
const DEFAULT_RETENTION: Span = Span::from_secs(3650 * 86_400);

/// What the `schedule` table says, and what holds where it says nothing.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ScheduleSettings {
    spread: Spread,
    horizon: Span,
    pub(crate) retention: Span,
    calendar: Option<Calendar>,
}

impl Default for ScheduleSettings {
    fn default() -> Self {
        Self {
            spread: Spread::Even,
            horizon: DEFAULT_HORIZON,
            retention: DEFAULT_RETENTION,
            calendar: None,
        }
    }
}

impl ScheduleSettings {
    /// The plan for a policy of these limits, or why there is none.
    pub(crate) fn plan(&self, limits: &[Limit]) -> Result<Plan, String> {
        let [limit] = limits else {
            return Err("needs a policy of exactly one limit, without \"by\"".into());
        };
        if !limit.by.is_empty() {
            return Err("needs a policy of exactly one limit, without \"by\"".into());
        }
        let Rule::Fixed(Window::Span(per)) = limit.rule else {
            return Err("needs a \"fixed\" limit whose \"per\" is a duration, such as PT4S".into());
        };
        let plan = Plan::new(per, limit.max).map_err(|bad| bad.to_string())?;
        let plan = plan.with_spread(self.spread);
        let plan = plan.with_horizon(self.horizon).map_err(|bad| bad.to_string())?;
        Ok(match &self.calendar {
            Some(calendar) => plan.with_calendar(calendar.clone()),
            None => plan,
        })
    }
}

/// Reads a `schedule` table, noting every fault.
pub(crate) fn read_schedule(
    value: Value,
    place: String,
    faults: &mut Vec<Fault>,
) -> Option<ScheduleSettings> {
    let mut settings = ScheduleSettings::default();
    let mut fields = Fields::of(value, place, faults)?;
    if let Some(spread) = fields.text("spread") {
        let read = fields.parse("spread", &spread, |spread| match spread {
            "even" => Ok(Spread::Even),
            "random" => Ok(Spread::Random),
            _ => Err(format!("must be \"even\" or \"random\", not {spread:?}")),
        });
        settings.spread = read.unwrap_or_default();
    }
    for (name, setting) in
        [("horizon", &mut settings.horizon), ("retention", &mut settings.retention)]
    {
        if let Some(text) = fields.text(name)
            && let Some(span) = fields.parse(name, &text, parse_duration)
        {
            *setting = span;
        }
    }
    if let Some(calendar) = fields.take("calendar") {
        let place = fields.place_of("calendar");
        settings.calendar = read_calendar(calendar, place, fields.faults());
    }
    fields.finish();
    Some(settings)
}

fn read_calendar(value: Value, place: String, faults: &mut Vec<Fault>) -> Option<Calendar> {
    let mut fields = Fields::of(value, place, faults)?;
    let zone = fields.text("timezone");
    let zone = zone.and_then(|zone| fields.parse("timezone", &zone, parse_zone));
    let mut calendar = Calendar::new(zone.unwrap_or(TimeZone::UTC));
    for (days, hours) in fields.object("open").unwrap_or_default() {
        let place = format!("open.{days}");
        let days = fields.parse(&place, &days, parse_weekdays).unwrap_or_default();
        let ranges = match hours {
            Value::String(hours) => vec![Value::String(hours)],
            Value::Array(several) => several,
            _ => {
                fields.fault(&place, "must be text such as \"09:00-17:00\", or a list of such");
                continue;
            }
        };
        for range in ranges {
            let Value::String(range) = range else {
                fields.fault(&place, "must be text such as \"09:00-17:00\", or a list of such");
                continue;
            };
            let Some(hours) = fields.parse(&place, &range, parse_hours) else { continue };
            calendar = days.iter().fold(calendar, |calendar, day| calendar.open(*day, hours));
        }
    }
    for (position, date) in fields.texts("closed").unwrap_or_default().iter().enumerate() {
        let date = fields.parse(&format!("closed[{position}]"), date, |date| {
            let parsed: Result<Date, _> = date.parse();
            parsed.map_err(|_| format!("{date:?} is not a date; try \"2026-12-25\""))
        });
        calendar = date.into_iter().fold(calendar, Calendar::closed);
    }
    for (position, range) in fields.texts("blackouts").unwrap_or_default().iter().enumerate() {
        let range = fields.parse(&format!("blackouts[{position}]"), range, parse_blackout);
        calendar = range.into_iter().fold(calendar, Calendar::blackout);
    }
    fields.finish();
    Some(calendar)
}

/// The time zone of this name.
pub fn parse_zone(name: &str) -> Result<TimeZone, String> {
    // `Etc/Unknown` is found, and is no zone.
    let zone = TimeZone::get(name).ok().filter(|zone| !zone.is_unknown());
    zone.ok_or_else(|| format!("{name:?} is not an IANA time zone; try \"Europe/Rome\" or \"UTC\""))
}

/// `mon`, `mon-fri` or `sat-mon`.
fn parse_weekdays(text: &str) -> Result<Vec<Weekday>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let place = |name: &str| WEEKDAYS.iter().position(|day| *day == name);
    let (Some(first), Some(last)) = (place(first), place(last)) else {
        return Err(format!("{text:?} is not a weekday or a range of them; try \"mon-fri\""));
    };
    let count = (last + 7 - first) % 7 + 1;
    let days = (first..first + count).filter_map(|day| {
        Weekday::from_monday_zero_offset(i8::try_from(day % 7).unwrap_or_default()).ok()
    });
    Ok(days.collect())
}

/// `09:00-17:00`; `24:00` is the end of the day.
fn parse_hours(text: &str) -> Result<Hours, String> {
    Hours::parse(text).ok_or_else(|| {
        format!(
            "{text:?} is not a range of hours of one day; try \"09:00-17:00\", or for a night \
             [\"00:00-06:00\", \"22:00-24:00\"]"
        )
    })
}

/// Two instants with a slash between them, as ISO 8601 writes an interval.
fn parse_blackout(text: &str) -> Result<std::ops::Range<Instant>, String> {
    let bad = || {
        let example = "2026-12-24T18:00:00Z/2026-12-27T06:00:00Z";
        format!("{text:?} is not an interval; try {example:?}")
    };
    let (from, to) = text.split_once('/').ok_or_else(bad)?;
    let instant = |text: &str| text.parse::<jiff::Timestamp>().map(Instant::from_jiff).ok();
    let (from, to) = (instant(from).ok_or_else(bad)?, instant(to).ok_or_else(bad)?);
    if from < to { Ok(from..to) } else { Err(bad()) }
}

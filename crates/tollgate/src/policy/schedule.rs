//! The `schedule` part of a policy: read and checked here, used by schedules.

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use serde_json::Value;

use super::duration::parse_duration;
use super::fields::{Fault, Fields};

const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Notes every fault of a `schedule` table.
pub(crate) fn check_schedule(value: Value, place: String, faults: &mut Vec<Fault>) {
    let Some(mut fields) = Fields::of(value, place, faults) else { return };
    if let Some(spread) = fields.text("spread")
        && !["even", "random"].contains(&spread.as_str())
    {
        fields.fault("spread", format!("must be \"even\" or \"random\", not {spread:?}"));
    }
    if let Some(horizon) = fields.text("horizon") {
        fields.parse("horizon", &horizon, parse_duration);
    }
    if let Some(calendar) = fields.take("calendar") {
        let place = fields.place_of("calendar");
        check_calendar(calendar, place, fields.faults());
    }
    fields.finish();
}

fn check_calendar(value: Value, place: String, faults: &mut Vec<Fault>) {
    let Some(mut fields) = Fields::of(value, place, faults) else { return };
    if let Some(zone) = fields.text("timezone") {
        fields.parse("timezone", &zone, parse_zone);
    }
    for (days, hours) in fields.object("open").unwrap_or_default() {
        let place = format!("open.{days}");
        fields.parse(&place, &days, check_weekdays);
        match hours {
            Value::String(hours) => {
                fields.parse(&place, &hours, check_hours);
            }
            _ => fields.fault(&place, "must be text such as \"09:00-17:00\""),
        }
    }
    for (position, date) in fields.texts("closed").unwrap_or_default().iter().enumerate() {
        fields.parse(&format!("closed[{position}]"), date, |date| {
            let parsed: Result<Date, _> = date.parse();
            parsed.map_err(|_| format!("{date:?} is not a date; try \"2026-12-25\""))
        });
    }
    fields.finish();
}

pub(crate) fn parse_zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name)
        .map_err(|_| format!("{name:?} is not an IANA time zone; try \"Europe/Rome\" or \"UTC\""))
}

/// `mon`, `mon-fri` or `sat-sun`.
fn check_weekdays(text: &str) -> Result<(), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    if WEEKDAYS.contains(&first) && WEEKDAYS.contains(&last) {
        Ok(())
    } else {
        Err(format!("{text:?} is not a weekday or a range of them; try \"mon-fri\""))
    }
}

/// `09:00-17:00`; `24:00` is the end of the day.
fn check_hours(text: &str) -> Result<(), String> {
    let bad = || format!("{text:?} is not a range of hours; try \"09:00-17:00\"");
    let (from, to) = text.split_once('-').ok_or_else(bad)?;
    let time = |text: &str| Time::strptime("%H:%M", text).map_err(|_| bad());
    let from = time(from)?;
    if to == "24:00" || time(to)? > from { Ok(()) } else { Err(bad()) }
}

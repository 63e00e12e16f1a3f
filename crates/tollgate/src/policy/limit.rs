//! One entry of a policy's `limits`.

use serde_json::{Map, Value};
use tollgate_core::{Limit, MAX_BUCKETS, MAX_UNITS, MaxBy, Rule, Span, Unit, Window};

use super::check_name;
use super::duration::parse_duration;
use super::fields::{Fault, Fields};
use super::schedule::parse_zone;
use crate::subject::MAX_ATTRIBUTE_NAME_BYTES;

/// A limit counts by at most this many attributes.
const MAX_BY: usize = 8;

/// What `per` says before the algorithm is known.
enum Per {
    Span(Span),
    Unit(Unit),
}

pub(super) fn read_limit(value: Value, place: String, faults: &mut Vec<Fault>) -> Option<Limit> {
    let before = faults.len();
    let mut fields = Fields::of(value, place, faults)?;
    let name = fields.required_text("name");
    if let Some(Err(message)) = name.as_deref().map(check_name) {
        fields.fault("name", message);
    }
    let max = fields.required_number("max", 0, MAX_UNITS);
    let per = fields.required_text("per").and_then(|text| fields.parse("per", &text, parse_per));
    let rule = read_rule(&mut fields, per, max);
    let by = fields.texts("by").unwrap_or_default();
    check_by(&mut fields, &by);
    let max_by = fields.object("max_by").and_then(|object| read_max_by(&mut fields, object));
    let private = fields.flag("private").unwrap_or(false);
    if private && by.is_empty() {
        fields.fault("private", "has nothing to hide: the limit counts by no attribute");
    }
    let shadow = fields.flag("shadow").unwrap_or(false);
    let ipv6_prefix = fields.number("ipv6_prefix", 1, 128);
    fields.finish();
    if faults.len() > before {
        return None;
    }
    Some(Limit {
        name: name?,
        max: max?,
        rule: rule?,
        by,
        max_by,
        private,
        shadow,
        ipv6_prefix: ipv6_prefix.and_then(|bits| u8::try_from(bits).ok()).unwrap_or(64),
    })
}

fn parse_per(text: &str) -> Result<Per, String> {
    match Unit::parse(text) {
        Some(unit) => Ok(Per::Unit(unit)),
        None => parse_duration(text).map(Per::Span).map_err(|message| {
            format!("{message}, or a calendar unit: minute, hour, day, week, month")
        }),
    }
}

fn read_rule(fields: &mut Fields<'_>, per: Option<Per>, max: Option<u64>) -> Option<Rule> {
    let algorithm = fields.text("algorithm");
    let algorithm = algorithm.as_deref().unwrap_or("fixed");
    let zone = fields.text("timezone").and_then(|name| {
        if !matches!(per, Some(Per::Unit(_)) | None) {
            let message = "needs a calendar unit in \"per\": minute, hour, day, week or month";
            fields.fault("timezone", message);
        }
        fields.parse("timezone", &name, parse_zone)
    });
    let resolution = fields.text("resolution");
    if resolution.is_some() && algorithm != "sliding" {
        fields.fault("resolution", "belongs to the algorithm \"sliding\"");
    }
    let burst = fields.number("burst", 1, MAX_UNITS);
    if burst.is_some() && algorithm != "bucket" {
        fields.fault("burst", "belongs to the algorithm \"bucket\"");
    }
    if !["fixed", "sliding", "bucket"].contains(&algorithm) {
        let message = format!("must be \"fixed\", \"sliding\" or \"bucket\", not {algorithm:?}");
        fields.fault("algorithm", message);
        return None;
    }
    match (algorithm, per?) {
        ("fixed", Per::Span(span)) => Some(Rule::Fixed(Window::Span(span))),
        ("fixed", Per::Unit(unit)) => {
            let zone = zone.unwrap_or(jiff::tz::TimeZone::UTC);
            Some(Rule::Fixed(Window::Calendar(unit, zone)))
        }
        ("sliding", Per::Span(per)) => {
            let resolution = match resolution {
                None => Rule::default_resolution(per),
                Some(text) => {
                    let span = fields.parse("resolution", &text, parse_duration)?;
                    check_resolution(fields, per, span);
                    span
                }
            };
            Some(Rule::Sliding { per, resolution })
        }
        // A bucket: other names were refused above.
        (_, Per::Span(per)) => {
            // A unit must cost at least the finest time a bucket keeps.
            if max.is_some_and(|max| u128::from(max) > (per.as_micros() as u128) << 16) {
                fields.fault("max", "is too many for so short a \"per\"");
            }
            let rule = Rule::Bucket { per, burst };
            if let Some(max) = max.filter(|max| *max > 0)
                && rule.quota(max).max < burst.unwrap_or(max)
            {
                fields.fault(
                    "burst",
                    "takes more than a hundred thousand years to refill at this rate",
                );
            }
            Some(rule)
        }
        (_, Per::Unit(unit)) => {
            let message = format!(
                "is the calendar unit {:?}, which only \"fixed\" counts by; use a duration such \
                 as 1d",
                unit.as_str()
            );
            fields.fault("per", message);
            None
        }
    }
}

fn check_resolution(fields: &mut Fields<'_>, per: Span, resolution: Span) {
    if resolution > per {
        fields.fault("resolution", "is longer than \"per\"");
    } else if per.as_micros() > resolution.as_micros().saturating_mul(MAX_BUCKETS) {
        fields.fault("resolution", format!("cuts \"per\" into more than {MAX_BUCKETS} parts"));
    }
}

fn check_by(fields: &mut Fields<'_>, by: &[String]) {
    if by.len() > MAX_BY {
        fields.fault("by", format!("has {} attributes; {MAX_BY} are possible", by.len()));
    }
    for (position, attribute) in by.iter().enumerate() {
        let place = format!("by[{position}]");
        if attribute.is_empty() || attribute.len() > MAX_ATTRIBUTE_NAME_BYTES {
            let message = format!("must be 1 to {MAX_ATTRIBUTE_NAME_BYTES} characters long");
            fields.fault(&place, message);
        }
        if by[..position].contains(attribute) {
            fields.fault(&place, format!("{attribute:?} is there twice"));
        }
    }
}

fn read_max_by(fields: &mut Fields<'_>, object: Map<String, Value>) -> Option<MaxBy> {
    if object.len() != 1 {
        fields.fault("max_by", "must name exactly one attribute, such as { role = { pro = 50 } }");
        return None;
    }
    let (attribute, values) = object.into_iter().next()?;
    let place = format!("max_by.{attribute}");
    let Value::Object(values) = values else {
        fields.fault(&place, "must be a table of values, such as { free = 10, pro = 50 }");
        return None;
    };
    let mut listed = Vec::with_capacity(values.len());
    for (value, max) in values {
        let max = fields.as_number(&format!("{place}.{value}"), &max, 0, MAX_UNITS);
        listed.extend(max.map(|max| (value, max)));
    }
    listed.sort();
    Some(MaxBy { attribute, values: listed })
}

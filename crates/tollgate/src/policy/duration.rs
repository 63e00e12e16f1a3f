//! Durations as people write them: ISO-8601 (`PT4S`) or friendly (`60s`, `1h`, `1d`).

use jiff::Span as Written;
use tollgate_core::{MAX_PER, Span};

/// At least a microsecond, at most ten years. A day is 86,400 seconds, a week seven of them;
/// months and years have no fixed length and are refused.
pub fn parse_duration(text: &str) -> Result<Span, String> {
    let bad = |why: &str| format!("{text:?} is not a duration: {why}; try 60s, 1h, 1d or PT4S");
    let written: Written = text.trim().parse().map_err(|_| bad("it cannot be read"))?;
    if written.get_years() != 0 || written.get_months() != 0 {
        return Err(bad("months and years have no fixed length"));
    }
    if written.is_negative() {
        return Err(bad("it is negative"));
    }
    let parts: [(i64, i128); 8] = [
        (written.get_weeks().into(), 7 * 86_400_000_000_000),
        (written.get_days().into(), 86_400_000_000_000),
        (written.get_hours().into(), 3_600_000_000_000),
        (written.get_minutes(), 60_000_000_000),
        (written.get_seconds(), 1_000_000_000),
        (written.get_milliseconds(), 1_000_000),
        (written.get_microseconds(), 1_000),
        (written.get_nanoseconds(), 1),
    ];
    let nanos: i128 = parts.iter().map(|(count, nanos)| i128::from(*count) * nanos).sum();
    if nanos % 1_000 != 0 {
        return Err(bad("it is finer than a microsecond"));
    }
    let span = i64::try_from(nanos / 1_000).ok().and_then(Span::from_micros);
    match span {
        None if nanos == 0 => Err(bad("it is zero")),
        Some(span) if span <= MAX_PER => Ok(span),
        _ => Err(bad("it is longer than ten years")),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_duration;

    #[test]
    fn iso_and_friendly_durations_are_read() {
        for (text, micros) in [
            ("PT4S", 4_000_000),
            ("60s", 60_000_000),
            ("1h", 3_600_000_000),
            ("1d", 86_400_000_000),
            ("P1D", 86_400_000_000),
            ("1w", 604_800_000_000),
            ("1m", 60_000_000),
            ("1h 30m", 5_400_000_000),
            ("1.5s", 1_500_000),
            ("250ms", 250_000),
            ("1us", 1),
            ("365d", 31_536_000_000_000),
        ] {
            assert_eq!(parse_duration(text).map(|span| span.as_micros()), Ok(micros), "{text}");
        }
    }

    #[test]
    fn other_durations_are_refused_with_a_reason() {
        for (text, reason) in [
            ("0s", "zero"),
            ("PT0S", "zero"),
            ("-PT4S", "negative"),
            ("P1Y", "months and years"),
            ("P1M", "months and years"),
            ("1ns", "finer"),
            ("20000d", "ten years"),
            ("", "cannot be read"),
            ("soon", "cannot be read"),
            ("60", "cannot be read"),
        ] {
            let error = parse_duration(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}

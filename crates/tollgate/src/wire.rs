//! The one place that maps decisions to the wire: JSON, rate limit headers, sentences. The server
//! and the tower layer both write by it.
//!
//! Written by hand because it is most of the cost of a check; the server's tests parse what it writes with the
//! structured-fields library and a JSON parser. Names need no escaping: policies allow none that do.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tollgate_core::{Instant, LimitReport, Outcome, Rule, Verdict, Window};

use crate::answer::{Answer, Degraded};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The largest integer a structured field can hold.
const MAX_FIELD_INTEGER: u64 = 999_999_999_999_999;
/// The registered type of a refusal.
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const QUOTA_EXCEEDED_TITLE: &str =
    "Request cannot be satisfied as assigned quota has been exceeded";

/// The decision as JSON.
pub fn decision_json(answer: &Answer) -> Vec<u8> {
    let mut json = Vec::with_capacity(640);
    json.push(b'{');
    push_members(&mut json, answer);
    json.push(b'}');
    json
}

fn push_members(json: &mut Vec<u8>, answer: &Answer) {
    let decision = &answer.decision;
    push(json, "\"allowed\":");
    push(json, if decision.allowed() { "true" } else { "false" });
    push(json, ",\"policy\":\"");
    push(json, answer.policy.policy().name());
    push(json, "\",\"cost\":");
    push_number(json, u64::from(decision.cost.get()));
    push(json, ",\"limits\":[");
    for (position, (name, report)) in answer.limits().enumerate() {
        push(json, if position == 0 { "{\"name\":\"" } else { ",{\"name\":\"" });
        push(json, name);
        push(json, "\",\"max\":");
        push_number(json, report.standing.max);
        push(json, ",\"used\":");
        push_number(json, report.standing.used);
        push(json, ",\"remaining\":");
        push_number(json, report.standing.remaining());
        push(json, ",\"resets_at\":\"");
        push_instant(json, report.standing.resets_at);
        push(json, "\"");
        if let Verdict::At(at) = report.verdict {
            push(json, ",\"retry_after\":");
            push_number(json, at.whole_secs_since(decision.decided_at).max(1));
        }
        push(json, if report.shadow { ",\"shadow\":true}" } else { "}" });
    }
    push(json, "]");
    if let (Some(at), Some(secs)) = (decision.retry_at(), decision.retry_after_secs()) {
        push(json, ",\"retry_after\":");
        push_number(json, secs);
        push(json, ",\"retry_at\":\"");
        push_instant(json, at);
        push(json, "\"");
    }
    push(json, ",\"decided_at\":\"");
    push_instant(json, decision.decided_at);
    push(json, "\"");
    if let Some(receipt) = &answer.receipt {
        push(json, ",\"receipt\":\"");
        push(json, receipt);
        push(json, "\"");
    }
    match answer.degraded {
        None => {}
        Some(Degraded::Allowed) => push(json, ",\"degraded\":\"allow\""),
        Some(Degraded::Local) => push(json, ",\"degraded\":\"local\""),
    }
}

fn push(json: &mut Vec<u8>, text: &str) {
    json.extend_from_slice(text.as_bytes());
}

fn push_number(json: &mut Vec<u8>, number: u64) {
    push(json, itoa::Buffer::new().format(number));
}

/// RFC 3339, UTC, six digits: `2026-11-15T18:00:00.000000Z`.
fn push_instant(json: &mut Vec<u8>, at: Instant) {
    const PRINTER: jiff::fmt::temporal::DateTimePrinter =
        jiff::fmt::temporal::DateTimePrinter::new().precision(Some(6));
    PRINTER
        .print_timestamp(&at.to_jiff(), jiff::fmt::StdIoWrite(json))
        .expect("writing to memory does not fail");
}

/// Headers of every decision, allowed or not. Shadow limits do not bind, so they are told only where
/// there are no others.
pub fn rate_limit_headers(answer: &Answer) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(12);
    insert_rate_limit_headers(answer, &mut headers);
    headers
}

/// Headers as they can be kept.
pub fn header_texts(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = headers.iter().map(|(name, value)| (name.to_string(), value.to_str()));
    text.filter_map(|(name, value)| Some((name, value.ok()?.to_owned()))).collect()
}

/// The same among other headers; what was there of these names is replaced.
pub(crate) fn insert_rate_limit_headers(answer: &Answer, headers: &mut HeaderMap) {
    let mut policy = Vec::with_capacity(64);
    let mut state = Vec::with_capacity(64);
    let mut tightest: Option<&LimitReport> = None;
    let now = answer.decision.decided_at;
    let only_shadows = answer.decision.limits.iter().all(|report| report.shadow);
    let limits = answer.policy.policy().limits();
    for (limit, report) in limits.iter().zip(&answer.decision.limits) {
        if report.shadow && !only_shadows {
            continue;
        }
        if tightest.is_some() {
            push(&mut policy, ", ");
            push(&mut state, ", ");
        }
        push_item(&mut policy, &limit.name, ";q=", report.standing.max);
        push(&mut policy, ";w=");
        push_number(&mut policy, window_secs(&limit.rule, now));
        push_item(&mut state, &limit.name, ";r=", report.standing.remaining());
        push(&mut state, ";t=");
        push_number(&mut state, report.standing.resets_at.whole_secs_since(now));
        let rank = |report: &LimitReport| {
            (report.standing.remaining(), std::cmp::Reverse(report.standing.resets_at))
        };
        if tightest.is_none_or(|tightest| rank(report) < rank(tightest)) {
            tightest = Some(report);
        }
    }
    let Some(tightest) = tightest.map(|report| report.standing) else { return };
    headers.insert(RATELIMIT_POLICY, header_value(policy));
    headers.insert(RATELIMIT, header_value(state));
    headers.insert(X_LIMIT, tightest.max.into());
    headers.insert(X_REMAINING, tightest.remaining().into());
    let reset_secs = tightest.resets_at.whole_secs_since(Instant::default());
    headers.insert(X_RESET, reset_secs.into());
    if let Some(secs) = answer.decision.retry_after_secs() {
        headers.insert(header::RETRY_AFTER, secs.into());
    }
}

/// The same among those of limits further in: the lists grow, and `X-RateLimit-*` stays with the
/// tightest.
#[cfg(feature = "tower")]
pub(crate) fn add_rate_limit_headers(answer: &Answer, headers: &mut HeaderMap) {
    if !headers.contains_key(RATELIMIT) {
        return insert_rate_limit_headers(answer, headers);
    }
    let ours = rate_limit_headers(answer);
    let remaining = |headers: &HeaderMap| headers.get(X_REMAINING)?.to_str().ok()?.parse().ok();
    let theirs: Option<u64> = remaining(headers);
    let is_tighter = theirs.is_none_or(|theirs| remaining(&ours).is_some_and(|ours| ours < theirs));
    for (name, value) in &ours {
        if name == RATELIMIT || name == RATELIMIT_POLICY {
            headers.append(name, value.clone());
        } else if is_tighter {
            headers.insert(name, value.clone());
        }
    }
}

fn push_item(list: &mut Vec<u8>, name: &str, parameter: &str, value: u64) {
    push(list, "\"");
    push(list, name);
    push(list, "\"");
    push(list, parameter);
    push_number(list, value.min(MAX_FIELD_INTEGER));
}

fn header_value(bytes: Vec<u8>) -> HeaderValue {
    HeaderValue::try_from(bytes).expect("names of limits and numbers are visible ASCII")
}

/// The window's length in whole seconds; of a calendar window, of the present one.
fn window_secs(rule: &Rule, now: Instant) -> u64 {
    match rule {
        Rule::Fixed(Window::Span(per)) | Rule::Sliding { per, .. } | Rule::Bucket { per, .. } => {
            per.as_secs_ceil()
        }
        Rule::Fixed(window @ Window::Calendar(..)) => {
            let bounds = window.bounds(now);
            bounds.ends_at.whole_secs_since(bounds.starts_at)
        }
    }
}

/// A refusal as a problem document with the decision's members.
pub fn problem_json(answer: &Answer, status: StatusCode, request_id: Option<&str>) -> Vec<u8> {
    // Where it is not about a cost that the caller chose, it is a refusal like any other.
    let never_fits = status == StatusCode::UNPROCESSABLE_ENTITY;
    let (kind, title) = if never_fits {
        ("urn:tollgate:cost-never-fits", "Cost can never fit")
    } else {
        (QUOTA_EXCEEDED, QUOTA_EXCEEDED_TITLE)
    };
    let detail = refusal_sentence(answer);
    let mut json = Vec::with_capacity(1024);
    push(&mut json, "{\"type\":\"");
    push(&mut json, kind);
    push(&mut json, "\",\"title\":\"");
    push(&mut json, title);
    push(&mut json, "\",\"status\":");
    push(&mut json, status.as_str());
    push(&mut json, ",\"detail\":");
    push(&mut json, &serde_json::Value::String(detail).to_string());
    if let Some(request_id) = request_id {
        push(&mut json, ",\"request_id\":");
        push(&mut json, &serde_json::Value::from(request_id).to_string());
    }
    push(&mut json, ",\"violated-policies\":[");
    let violated = answer.limits().filter(|(_, report)| report.refuses());
    for (position, (name, _)) in violated.enumerate() {
        push(&mut json, if position == 0 { "\"" } else { ",\"" });
        push(&mut json, name);
        push(&mut json, "\"");
    }
    push(&mut json, if never_fits { "],\"field\":\"cost\"," } else { "]," });
    push_members(&mut json, answer);
    push(&mut json, "}");
    json
}

/// Why a decision refused, for a person: names the limit that holds longest.
pub(crate) fn refusal_sentence(answer: &Answer) -> String {
    if answer.decision.outcome == Outcome::NeverFits {
        return never_fits_sentence(answer);
    }
    let longest = answer.limits().filter(|(_, report)| report.refuses()).max_by_key(
        |(_, report)| match report.verdict {
            Verdict::At(at) => at,
            _ => Instant::MIN,
        },
    );
    let (name, used, max) = longest
        .map_or(("", 0, 0), |(name, report)| (name, report.standing.used, report.standing.max));
    format!(
        "limit {name:?} of policy {:?} is reached: {used} of {max} used, {} requested; try again \
         in {}",
        answer.policy.policy().name(),
        answer.decision.cost,
        wait(answer.decision.retry_after_secs().unwrap_or(1)),
    )
}

fn never_fits_sentence(answer: &Answer) -> String {
    let least = answer
        .limits()
        .filter(|(_, report)| !report.shadow && report.verdict == Verdict::Never)
        .min_by_key(|(_, report)| report.standing.max);
    let (name, max) = least.map_or(("", 0), |(name, report)| (name, report.standing.max));
    let policy = answer.policy.policy().name();
    if max == 0 {
        return format!("limit {name:?} of policy {policy:?} lets nothing through: its max is 0");
    }
    format!(
        "a cost of {} can never fit: limit {name:?} of policy {policy:?} holds at most {max}",
        answer.decision.cost
    )
}

/// Seconds up to two minutes, minutes up to two hours, then the two largest units; rounded up.
pub fn wait(secs: u64) -> String {
    let count = |number: u64, unit: &str| match number {
        1 => format!("1 {unit}"),
        number => format!("{number} {unit}s"),
    };
    let both = |number: u64, unit: &str, part: u64, of: &str| match part {
        0 => count(number, unit),
        part => format!("{} {}", count(number, unit), count(part, of)),
    };
    let (minutes, hours) = (secs.div_ceil(60), secs.div_ceil(3600));
    match secs {
        0..120 => count(secs, "second"),
        120..7200 => count(minutes, "minute"),
        7200..172_800 => both(minutes / 60, "hour", minutes % 60, "minute"),
        _ => both(hours / 24, "day", hours % 24, "hour"),
    }
}

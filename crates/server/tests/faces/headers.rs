//! Rate limit headers, read by a structured-fields parser.

use serde_json::{Value, json};
use sfv::{BareItem, ListEntry};

use crate::support::{FOREVER, Reply, Server, limit, micros};

/// One member of `RateLimit` or `RateLimit-Policy`: its name and two integer parameters.
type Member = (String, i64, i64);

/// Reads an RFC 9651 list of strings with exactly these two integer parameters.
fn list(reply: &Reply, name: &str, parameters: [&str; 2]) -> Vec<Member> {
    assert_eq!(reply.headers.get_all(name).iter().count(), 1, "{name}: {reply:?}");
    let text = reply.header(name).unwrap();
    let list: sfv::List = sfv::Parser::new(text)
        .parse()
        .unwrap_or_else(|error| panic!("{name}: {text} is no list: {error}"));
    let integer = |item: &BareItem| match item {
        BareItem::Integer(value) => i64::from(*value),
        other => panic!("{name}: {other:?} is not an integer"),
    };
    let member = |entry: ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("{name}: {text} has an inner list") };
        let BareItem::String(member) = item.bare_item else { panic!("{name}: {text}") };
        let given: Vec<&str> = item.params.keys().map(|key| key.as_str()).collect();
        assert_eq!(given, parameters, "{name}: {text}");
        let [first, second] = parameters.map(|key| integer(&item.params[key]));
        (member.as_str().to_owned(), first, second)
    };
    list.into_iter().map(member).collect()
}

fn quotas(reply: &Reply) -> Vec<Member> {
    list(reply, "ratelimit-policy", ["q", "w"])
}

fn states(reply: &Reply) -> Vec<Member> {
    list(reply, "ratelimit", ["r", "t"])
}

fn member(name: &str, first: i64, second: i64) -> Member {
    (name.to_owned(), first, second)
}

/// What the headers say is what the body says.
fn agree(reply: &Reply) {
    let decision = reply.json();
    let decided_at = micros(&decision["decided_at"]);
    let states = states(reply);
    let limits = decision["limits"].as_array().unwrap();
    assert_eq!(states.len(), limits.len(), "{reply:?}");
    for ((name, remaining, secs), limit) in states.iter().zip(limits) {
        assert_eq!(limit["name"], *name);
        assert_eq!(limit["remaining"], *remaining);
        let wait_micros = micros(&limit["resets_at"]) - decided_at;
        assert_eq!(wait_micros.unsigned_abs().div_ceil(1_000_000).cast_signed(), *secs);
    }
    let rank = |limit: &&Value| {
        let remaining = limit["remaining"].as_u64().unwrap();
        (remaining, std::cmp::Reverse(micros(&limit["resets_at"])))
    };
    let tightest = limits.iter().min_by_key(rank).unwrap();
    assert_eq!(reply.number("x-ratelimit-limit"), tightest["max"].as_i64(), "{reply:?}");
    assert_eq!(reply.number("x-ratelimit-remaining"), tightest["remaining"].as_i64(), "{reply:?}");
    let reset_secs = micros(&tightest["resets_at"]).unsigned_abs().div_ceil(1_000_000);
    assert_eq!(reply.number("x-ratelimit-reset"), Some(reset_secs.cast_signed()), "{reply:?}");
}

fn peek(server: &Server, policy: &str) -> Reply {
    server.post("/api/v1/peek", &json!({ "policy": policy }))
}

#[test]
fn allowed_refused_and_peeked_decisions_all_carry_the_headers() {
    let server = Server::memory();
    server.policy(
        "p",
        &json!([
            { "name": "minute", "max": 3, "per": "60s", "algorithm": "sliding" },
            { "name": "decade", "max": 10, "per": FOREVER },
        ]),
    );
    let quota = [member("minute", 3, 60), member("decade", 10, 3650 * 86_400)];
    let check = || server.check("p", &json!({}));
    for (reply, status, remaining) in [
        (peek(&server, "p"), 200, [3, 10]),
        (check(), 200, [2, 9]),
        (check(), 200, [1, 8]),
        (check(), 200, [0, 7]),
        (check(), 429, [0, 7]),
        (peek(&server, "p"), 200, [0, 7]),
        (server.check_cost("p", &json!({}), 4), 422, [0, 7]),
    ] {
        assert_eq!(reply.status, status, "{reply:?}");
        assert_eq!(quotas(&reply), quota);
        let left: Vec<_> = states(&reply).into_iter().map(|(_, left, _)| left).collect();
        assert_eq!(left, remaining);
        agree(&reply);
        // Whether a peek that would be refused has one is left open.
        if status != 200 || reply.json()["allowed"] == true {
            assert_eq!(reply.header("retry-after").is_some(), status == 429, "{reply:?}");
        }
    }
}

#[test]
fn a_bucket_tells_its_burst_as_quota() {
    let server = Server::memory();
    server.policy(
        "p",
        &json!([
            { "name": "b", "max": 60, "per": "1h", "algorithm": "bucket", "burst": 5 },
            { "name": "plain", "max": 60, "per": "1h", "algorithm": "bucket" },
        ]),
    );
    let reply = server.check_cost("p", &json!({}), 2);
    assert_eq!(quotas(&reply), [member("b", 5, 3600), member("plain", 60, 3600)]);
    let [(_, b, full_secs), (_, plain, _)] = &states(&reply)[..] else { panic!("{reply:?}") };
    assert_eq!((*b, *plain), (3, 58));
    assert_eq!(*full_secs, 120, "two units at one a minute");
    agree(&reply);
}

#[test]
fn the_tightest_limit_has_the_least_remaining_then_the_latest_reset() {
    let server = Server::memory();
    let sliding = |name: &str, max: u64, per: &str| json!({ "name": name, "max": max, "per": per, "algorithm": "sliding" });
    for (name, limits, tightest) in [
        ("least", [sliding("a", 9, "1h"), sliding("b", 2, "60s"), sliding("c", 5, "1d")], "b"),
        ("latest", [sliding("a", 2, "60s"), sliding("b", 2, "1d"), sliding("c", 2, "1h")], "b"),
        ("last", [sliding("a", 9, "1h"), sliding("b", 9, "60s"), sliding("c", 1, "60s")], "c"),
    ] {
        server.policy(name, &json!(limits));
        let reply = server.check(name, &json!({}));
        agree(&reply);
        let decision = reply.ok();
        let tightest = limit(&decision, tightest);
        let reset_secs = micros(&tightest["resets_at"]).unsigned_abs().div_ceil(1_000_000);
        assert_eq!(reply.number("x-ratelimit-reset"), Some(reset_secs.cast_signed()), "{name}");
        assert_eq!(reply.number("x-ratelimit-limit"), tightest["max"].as_i64(), "{name}");
    }
}

#[test]
fn a_window_shorter_than_a_second_is_told_as_one() {
    let server = Server::memory();
    server.policy("p", &json!([{ "name": "quick", "max": 100, "per": "250ms" }]));
    let reply = server.check("p", &json!({}));
    assert_eq!(quotas(&reply), [member("quick", 100, 1)]);
    agree(&reply);
}

#[test]
fn a_calendar_window_tells_its_present_length() {
    let server = Server::memory();
    server.policy(
        "p",
        &json!([
            { "name": "hour", "max": 9, "per": "hour" },
            { "name": "week", "max": 9, "per": "week" },
        ]),
    );
    let reply = server.check("p", &json!({}));
    assert_eq!(quotas(&reply), [member("hour", 9, 3600), member("week", 9, 7 * 86_400)]);
    agree(&reply);
}

#[test]
fn the_largest_max_still_makes_readable_headers() {
    let server = Server::memory();
    server.policy("p", &json!([{ "name": "huge", "max": 9_007_199_254_740_991_u64, "per": "1h" }]));
    let reply = server.check("p", &json!({}));
    quotas(&reply);
    states(&reply);
}

//! Routes and paths, and the addresses that proxies tell.

use std::net::IpAddr;

use serde_json::json;
use tollgate::fuzzing::{Routes, segments};
use tollgate::{Matched, Policy, TrustedProxies};

const MAX_ROUTES: usize = 12;
const MAX_TARGETS: usize = 8;

/// Lines of routes, an empty line, and lines of a method and a target.
pub fn routes(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (routes, targets) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut policies: Vec<Policy> = Vec::new();
    for route in routes.lines().take(MAX_ROUTES) {
        let limits = json!([{ "name": "l", "max": 1, "per": "1s" }]);
        let document = json!({ "routes": [route], "limits": limits });
        policies.extend(Policy::from_json(&format!("p{:02}", policies.len()), document));
    }
    let table = Routes::new(&policies);
    let singles: Vec<_> = policies.iter().map(|p| Routes::new(std::slice::from_ref(p))).collect();
    policies.reverse();
    let reversed = Routes::new(&policies);
    for line in targets.lines().take(MAX_TARGETS) {
        let (method, target) = line.split_once(' ').unwrap_or(("GET", line));
        let found = table.find(method, target);
        assert_eq!(named(&found), named(&reversed.find(method, target)), "the order mattered");
        if let Some(plain) = segments(target) {
            is_same_when_normal(&table, method, &plain, &found);
            is_most_specific(&singles, method, target, &found);
        }
    }
}

fn named(found: &Option<Matched>) -> Option<(String, String, bool)> {
    let found = found.as_ref()?;
    let policy = found.policy().policy().name().to_owned();
    Some((policy, found.pattern().to_owned(), found.is_deceptive()))
}

/// A path written out in full reads as itself, and leads to the same policy.
fn is_same_when_normal(table: &Routes, method: &str, plain: &[Vec<u8>], found: &Option<Matched>) {
    let escaped = |segment: &Vec<u8>| -> String {
        segment.iter().map(|byte| format!("%{byte:02X}")).collect()
    };
    let normal: String = plain.iter().map(|segment| format!("/{}", escaped(segment))).collect();
    // A backslash in a segment is something that servers disagree about once it is escaped.
    let Some(again) = segments(&normal) else { return };
    assert_eq!(again, plain, "{normal}");
    assert_eq!(named(&table.find(method, &normal)), named(found), "{normal}");
}

/// The table's choice by trying every route alone and comparing what matched.
fn is_most_specific(singles: &[Routes], method: &str, target: &str, found: &Option<Matched>) {
    let matching = singles.iter().filter_map(|single| single.find(method, target));
    let best = matching.map(|matched| rank(matched.pattern(), method)).min();
    assert_eq!(found.as_ref().map(|found| rank(found.pattern(), method)), best, "{target}");
}

/// Smaller is more specific: segment by segment, then the method.
fn rank(pattern: &str, method: &str) -> (Vec<u8>, u8) {
    let (own, path) = match pattern.split_once(' ') {
        Some((own, path)) => (Some(own), path),
        None => (None, pattern),
    };
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut steps: Vec<u8> = path
        .split('/')
        .skip(1)
        .map(|part| match part {
            "*" => 3,
            _ if part.starts_with('{') => 1,
            _ => 0,
        })
        .collect();
    if steps.last() != Some(&3) {
        steps.push(2);
    }
    let by_method = match own {
        Some(own) if own.eq_ignore_ascii_case(method) => 0,
        Some(_) => 1,
        None => 2,
    };
    (steps, by_method)
}

/// A line of networks, a line with the peer's address, and lines of a header's values.
pub fn proxies(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let mut lines = text.lines();
    let networks = lines.next().unwrap_or_default().split(',').filter(|text| !text.is_empty());
    let peer: Option<IpAddr> = lines.next().and_then(|peer| peer.parse().ok());
    let (Ok(trusted), Some(peer)) = (TrustedProxies::new(networks), peer) else { return };
    let values: Vec<&str> = lines.collect();
    let client = trusted.client(peer, values.iter().copied());
    if !trusted.contains(peer.to_canonical()) {
        assert_eq!(client, peer.to_canonical(), "somebody untrusted was believed");
    }
    // What a client writes before its proxies do changes nothing.
    if !trusted.contains(client) {
        let forged: Vec<&str> = ["6.6.6.6, ::6", "6.6.6.6"].into_iter().chain(values).collect();
        assert_eq!(trusted.client(peer, forged), client, "a forged entry was believed");
    }
}

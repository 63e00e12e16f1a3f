//! Routes: which policy a request falls under, by its method and path.
//!
//! A route is a path, with or without a method before it: `/orders`, `POST /orders`,
//! `/users/{id}`, `/api/*`. `{id}` stands for one segment; `*` may only be the last and stands for
//! whatever follows, also for nothing. A route without a method is for all of them; one with `GET`
//! is for `HEAD` too, because that is how servers answer it.
//!
//! One policy answers for a request: that of the most specific route. Paths are compared from the
//! left, and at the first segment that differs a literal goes before a parameter, and that before
//! `*`; so longer goes before shorter. Of two routes with the same path the one with a method goes
//! first. If even that is the same, the policy whose name sorts first has it; within one file this is a
//! fault, but policies change one at a time, and a route that moves must be able to.
//!
//! Deliberately absent: patterns inside a segment, hosts, queries, upper and lower case as one.

pub(crate) mod path;
pub(crate) mod table;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::compiled::Compiled;
use crate::subject::PARAMETER_PREFIX;

/// Long enough for any path that is written by hand, and short enough to be counted by.
const MAX_ROUTE_BYTES: usize = 512;
const MAX_SEGMENTS: usize = 32;
const MAX_METHOD_BYTES: usize = 32;
const MAX_PARAMETER_BYTES: usize = 32;

/// A route, valid by construction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// As it was given: what the attribute `route` holds.
    pattern: Arc<str>,
    method: Option<String>,
    segments: Vec<Segment>,
    /// Whether it ends in `*`.
    is_prefix: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Segment {
    Literal(String),
    /// The attribute it is: `param.id`.
    Parameter(String),
}

impl Route {
    /// Reads a route; the error says what to write instead.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_ROUTE_BYTES {
            return Err(format!("is longer than {MAX_ROUTE_BYTES} bytes"));
        }
        let (method, path) = match text.split_once(' ') {
            Some((method, path)) => (Some(parse_method(method)?), path),
            None => (None, text),
        };
        if !path.starts_with('/') {
            return Err("must begin with \"/\", or with a method and \" /\"".into());
        }
        let mut route =
            Self { pattern: text.into(), method, segments: Vec::new(), is_prefix: false };
        // A slash at the end makes no difference, neither here nor in a request.
        let path = path.strip_suffix('/').unwrap_or(path);
        for part in path.split('/').skip(1) {
            if route.is_prefix {
                return Err("may have \"*\" only at its end".into());
            }
            if part == "*" {
                route.is_prefix = true;
                continue;
            }
            let segment = parse_segment(part)?;
            if matches!(segment, Segment::Parameter(_)) && route.segments.contains(&segment) {
                return Err(format!("has the parameter {part} twice"));
            }
            route.segments.push(segment);
        }
        if route.segments.len() > MAX_SEGMENTS {
            return Err(format!("has more than {MAX_SEGMENTS} segments"));
        }
        Ok(route)
    }

    pub(crate) fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Whether both are for exactly the same requests.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same = |(a, b): (&Segment, &Segment)| match (a, b) {
            (Segment::Parameter(_), Segment::Parameter(_)) => true,
            (a, b) => a == b,
        };
        self.method == other.method
            && self.is_prefix == other.is_prefix
            && self.segments.len() == other.segments.len()
            && self.segments.iter().zip(&other.segments).all(same)
    }

    /// Where parameters stand, and the attributes they are.
    fn parameters(&self) -> impl Iterator<Item = (usize, &str)> {
        self.segments.iter().enumerate().filter_map(|(position, segment)| match segment {
            Segment::Parameter(attribute) => Some((position, attribute.as_str())),
            Segment::Literal(_) => None,
        })
    }
}

fn parse_method(method: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_uppercase() || byte == b'-';
    if method.is_empty() || method.len() > MAX_METHOD_BYTES || !method.bytes().all(plain) {
        return Err(
            "must be a path, or a method in capitals, one space and a path: \"POST /orders\""
                .into(),
        );
    }
    Ok(method.to_owned())
}

fn parse_segment(part: &str) -> Result<Segment, String> {
    if let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if name.is_empty() || name.len() > MAX_PARAMETER_BYTES || !name.bytes().all(plain) {
            return Err(format!(
                "has a parameter {part} whose name is not 1 to {MAX_PARAMETER_BYTES} letters, \
                 digits or _"
            ));
        }
        return Ok(Segment::Parameter(format!("{PARAMETER_PREFIX}{name}")));
    }
    match part {
        "" => return Err("has \"//\"; requests are matched with single slashes".into()),
        "." | ".." => return Err(format!("has the segment {part:?}; write where it leads to")),
        _ => {}
    }
    if part.contains('*') || part.contains(['{', '}']) {
        return Err(format!(
            "has {part:?}: {{name}} and * stand for whole segments, and * only for the last"
        ));
    }
    if part.contains(['?', '#']) {
        return Err("has a query; only paths are matched".into());
    }
    if part.contains('%') {
        return Err("has a % escape; write the character itself".into());
    }
    if part.contains(['\\', ';']) || part.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(format!("has {part:?}, which holds a character that no route can"));
    }
    Ok(Segment::Literal(part.to_owned()))
}

/// The policy that answers for a request, and by which route.
#[derive(Clone, Debug)]
pub struct Matched {
    policy: Arc<Compiled>,
    route: Arc<Route>,
    /// In the order of the route's parameters.
    values: SmallVec<[String; 2]>,
    is_deceptive: bool,
}

impl Matched {
    pub fn policy(&self) -> &Arc<Compiled> {
        &self.policy
    }

    /// The route as the policy has it: the value of the attribute `route`.
    pub fn pattern(&self) -> &str {
        &self.route.pattern
    }

    /// Whether the path is written so that different servers see different policies in it, by `..`
    /// behind an escaped slash and the like. No honest client does that: refuse it.
    pub fn is_deceptive(&self) -> bool {
        self.is_deceptive
    }

    /// The route's parameters with what stands in their places.
    fn params(&self) -> impl Iterator<Item = (&str, &str)> {
        self.param_attributes()
            .map(|(attribute, value)| (&attribute[PARAMETER_PREFIX.len()..], value))
    }

    /// The same as attributes: `param.id`.
    pub(crate) fn param_attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        let attributes = self.route.parameters().map(|(_, attribute)| attribute);
        attributes.zip(self.values.iter().map(String::as_str))
    }

    pub fn param(&self, name: &str) -> Option<&str> {
        self.params().find(|(given, _)| *given == name).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests;

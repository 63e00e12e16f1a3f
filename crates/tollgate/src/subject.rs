//! Who is asking: attributes, as the caller gives them and as they are counted.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use smallvec::SmallVec;
use tollgate_core::store::is_same;

use crate::error::BadSubject;
use crate::routes::Matched;

pub const MAX_ATTRIBUTES: usize = 32;
pub const MAX_ATTRIBUTE_NAME_BYTES: usize = 64;
pub const MAX_ATTRIBUTE_VALUE_BYTES: usize = 1024;

/// Before the name of a route's parameter, so that no path can pretend to be another attribute.
pub const PARAMETER_PREFIX: &str = "param.";

/// Attributes with their values, borrowed from the caller: `&[("user", "ada")]`.
pub type Attributes<'a> = &'a [(&'a str, &'a str)];

/// Attributes put together one by one, lent where they can be.
#[derive(Clone, Debug, Default)]
pub struct Subject<'a>(SmallVec<[(Cow<'a, str>, Cow<'a, str>); 6]>);

impl<'a> Subject<'a> {
    pub fn add(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) {
        self.0.push((name.into(), value.into()));
    }

    pub fn pairs(&self) -> SmallVec<[(&str, &str); 8]> {
        self.0.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    /// What a matched route says, as far as its policy looks at it: `route` is its pattern,
    /// `method` the request's, and `param.NAME` what stands in the place of a parameter. What is
    /// there already stays.
    pub fn add_route(&mut self, matched: &'a Matched, method: &'a str) {
        let policy = matched.policy().policy();
        let own = [("route", matched.pattern()), ("method", method)];
        for (attribute, value) in own.into_iter().chain(matched.param_attributes()) {
            let is_there = self.0.iter().any(|(given, _)| given == attribute);
            if !is_there && policy.looks_at(attribute) {
                self.add(attribute, value);
            }
        }
    }
}

#[inline]
pub(crate) fn find<'a>(attributes: Attributes<'a>, name: &str) -> Option<&'a str> {
    // Of one, which is what most give, without a loop.
    match attributes {
        [(given, value)] => is_same(given.as_bytes(), name.as_bytes()).then_some(*value),
        _ => find_among(attributes, name),
    }
}

fn find_among<'a>(attributes: Attributes<'a>, name: &str) -> Option<&'a str> {
    attributes
        .iter()
        .find(|(given, _)| is_same(given.as_bytes(), name.as_bytes()))
        .map(|(_, value)| *value)
}

/// Bounds on what a caller may send, so that every key is bounded too.
#[inline]
pub(crate) fn check(attributes: Attributes<'_>) -> Result<(), BadSubject> {
    let in_bounds = match attributes {
        [attribute] => is_in_bounds(attribute),
        _ => are_in_bounds(attributes),
    };
    if in_bounds { Ok(()) } else { Err(fault(attributes)) }
}

#[inline]
fn is_in_bounds((name, value): &(&str, &str)) -> bool {
    (1..=MAX_ATTRIBUTE_NAME_BYTES).contains(&name.len())
        && (1..=MAX_ATTRIBUTE_VALUE_BYTES).contains(&value.len())
}

fn are_in_bounds(attributes: Attributes<'_>) -> bool {
    attributes.len() <= MAX_ATTRIBUTES
        && attributes.iter().enumerate().all(|(position, attribute)| {
            let is_same_name =
                |earlier: &(&str, &str)| is_same(earlier.0.as_bytes(), attribute.0.as_bytes());
            is_in_bounds(attribute) && !attributes[..position].iter().any(is_same_name)
        })
}

/// What is wrong with attributes that are out of bounds.
#[cold]
fn fault(attributes: Attributes<'_>) -> BadSubject {
    if attributes.len() > MAX_ATTRIBUTES {
        let message = format!("has {} attributes; {MAX_ATTRIBUTES} are possible", attributes.len());
        return BadSubject { field: "subject".into(), message };
    }
    for (name, value) in attributes {
        let bad = |message: String| {
            let shown: String = name.chars().take(MAX_ATTRIBUTE_NAME_BYTES).collect();
            BadSubject { field: format!("subject.{shown}"), message }
        };
        if name.is_empty() || name.len() > MAX_ATTRIBUTE_NAME_BYTES {
            return bad(format!(
                "is no attribute: its name must be 1 to {MAX_ATTRIBUTE_NAME_BYTES} bytes long"
            ));
        }
        if value.is_empty() {
            return bad("is empty; leave it out or give it a value".into());
        }
        if value.len() > MAX_ATTRIBUTE_VALUE_BYTES {
            let length = value.len();
            return bad(format!(
                "is {length} bytes long; at most {MAX_ATTRIBUTE_VALUE_BYTES} are possible"
            ));
        }
        if attributes.iter().filter(|(other, _)| other == name).count() > 1 {
            return bad("is given twice".into());
        }
    }
    unreachable!("only asked about attributes that are out of bounds")
}

/// The form in which values of an attribute are counted, where they have one: one e-mail address or
/// one network is one subject however it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Ip,
    Email,
}

impl Form {
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "ip" => Some(Self::Ip),
            "email" => Some(Self::Email),
            _ => None,
        }
    }

    /// Whether `value` surely stands in this form already, as most do. All of it is looked at in
    /// any case: that is faster than looking for where to stop.
    #[inline]
    pub(crate) fn is_normal(self, value: &str) -> bool {
        let all = |is_normal: fn(u8) -> bool| {
            value.bytes().fold(true, |so_far, byte| so_far & is_normal(byte))
        };
        match self {
            // An IPv4 address has one form only; what else is made of these does not parse.
            Self::Ip => all(|byte| byte.is_ascii_digit() | (byte == b'.')),
            Self::Email => all(|byte| byte.is_ascii_graphic() & !byte.is_ascii_uppercase()),
        }
    }
}

/// `value` as it is counted. Attributes without a form, and what does not parse, count as they are.
pub(crate) fn normalise<'a>(name: &str, value: &'a str, ipv6_prefix: u8) -> Cow<'a, str> {
    match Form::of(name) {
        Some(form) if form.is_normal(value) => Cow::Borrowed(value),
        Some(Form::Ip) => normalise_ip(value, ipv6_prefix),
        Some(Form::Email) => Cow::Owned(value.trim().to_lowercase()),
        None => Cow::Borrowed(value),
    }
}

fn normalise_ip(value: &str, ipv6_prefix: u8) -> Cow<'_, str> {
    match value.trim().parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(IpAddr::V4(ip)) => Cow::Owned(ip.to_string()),
        Ok(IpAddr::V6(ip)) => {
            let host_bits = 128 - u32::from(ipv6_prefix);
            let network = u128::from(ip).checked_shr(host_bits).unwrap_or(0);
            let network = network.checked_shl(host_bits).unwrap_or(0);
            Cow::Owned(Ipv6Addr::from(network).to_string())
        }
        Err(_) => Cow::Borrowed(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_is_one_subject() {
        for (given, counted) in [
            ("203.0.113.7", "203.0.113.7"),
            (" 203.0.113.7 ", "203.0.113.7"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("2001:DB8:1:2::1", "2001:db8:1:2::"),
            ("203.0.113.07", "203.0.113.07"),
            ("not an address", "not an address"),
        ] {
            assert_eq!(normalise("ip", given, 64), counted);
        }
        assert_eq!(normalise("ip", "2001:db8::1", 128), "2001:db8::1");
        assert_eq!(normalise("ip", "2001:db8::1", 1), "::");
    }

    #[test]
    fn one_mailbox_is_one_subject() {
        assert_eq!(normalise("email", " Ada@Example.COM ", 64), "ada@example.com");
        assert_eq!(normalise("user", " Ada ", 64), " Ada ");
    }

    #[test]
    fn attributes_out_of_bounds_are_named() {
        let long = "x".repeat(MAX_ATTRIBUTE_VALUE_BYTES + 1);
        for (attributes, field) in [
            (vec![("user", "")], "subject.user"),
            (vec![("user", long.as_str())], "subject.user"),
            (vec![("user", "a"), ("user", "b")], "subject.user"),
            (vec![("", "a")], "subject."),
            (vec![("a", "b"); 33], "subject"),
        ] {
            assert_eq!(check(&attributes).unwrap_err().field, field);
        }
        assert!(check(&[("user", &long[1..])]).is_ok());
    }
}

//! Who a proxy asks for: the subject of a request to `/gate`, by the section `[gate]`.
//!
//! What a client can write itself is never believed: an address or an identity in a header counts
//! only if a trusted proxy sent the request, an API key or a token only if it is genuine. Only
//! what the policy looks at is read at all.

mod api_key;
pub(crate) mod config;
mod jwt;

use std::borrow::Cow;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tollgate::{Matched, PARAMETER_PREFIX, Policy, Subject, TrustedProxies};

use crate::problem::Problem;
use api_key::ApiKeys;
use config::{Gate, Name};
use jwt::Jwts;

/// Attributes that requests have by themselves; no identity may take their names.
const OWN_ATTRIBUTES: [&str; 3] = ["route", "method", "ip"];

/// The section `[gate]`, made ready.
#[derive(Debug)]
pub(crate) struct ForwardAuth {
    trusted: TrustedProxies,
    address_header: HeaderName,
    uri_headers: Vec<HeaderName>,
    method_headers: Vec<HeaderName>,
    identity: Vec<(HeaderName, String)>,
    api_keys: Option<ApiKeys>,
    jwts: Option<Jwts>,
}

/// What the proxy was asked for.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) method: Cow<'a, str>,
    pub(crate) uri: Cow<'a, str>,
}

impl ForwardAuth {
    /// The error names the key at fault.
    pub(crate) fn new(gate: Gate) -> Result<Self, String> {
        let identity: Vec<_> = gate
            .identity
            .into_iter()
            .map(|(Name(header), attribute)| (header, attribute))
            .collect();
        let api_keys = gate.api_key.map(ApiKeys::new).transpose()?;
        let jwts = gate.jwt.map(Jwts::new).transpose()?;
        let this = Self {
            trusted: gate.trusted_proxies.0,
            address_header: gate.address_header.0,
            uri_headers: gate.uri_headers.into_iter().map(|Name(header)| header).collect(),
            method_headers: gate.method_headers.into_iter().map(|Name(header)| header).collect(),
            identity,
            api_keys,
            jwts,
        };
        if this.uri_headers.is_empty() {
            return Err("gate.uri_headers: must name at least one header".into());
        }
        this.check_attributes()?;
        Ok(this)
    }

    fn check_attributes(&self) -> Result<(), String> {
        let given: Vec<&str> = self.attributes().collect();
        for (position, attribute) in given.iter().enumerate() {
            if attribute.is_empty() || attribute.len() > tollgate::MAX_ATTRIBUTE_NAME_BYTES {
                return Err(format!("gate: {attribute:?} is not a name for an attribute"));
            }
            if OWN_ATTRIBUTES.contains(attribute) || attribute.starts_with(PARAMETER_PREFIX) {
                return Err(format!(
                    "gate: the attribute {attribute:?} is the request's own; choose another name"
                ));
            }
            if given[..position].contains(attribute) {
                return Err(format!("gate: the attribute {attribute:?} has two sources"));
            }
        }
        Ok(())
    }

    /// The attributes that say who somebody is.
    fn attributes(&self) -> impl Iterator<Item = &str> {
        let headers = self.identity.iter().map(|(_, attribute)| attribute.as_str());
        let keys = self.api_keys.iter().map(ApiKeys::attribute);
        headers.chain(keys).chain(self.jwts.iter().flat_map(Jwts::attributes))
    }

    pub(crate) fn target<'a>(
        &self,
        own_method: &'a str,
        headers: &'a HeaderMap,
    ) -> Result<Target<'a>, Problem> {
        let uri = one_of(&self.uri_headers, headers)?.ok_or_else(|| {
            let name = self.uri_headers[0].as_str();
            let detail = format!("{name} is missing: the proxy says in it what was asked for");
            Problem::bad_field(name, detail)
        })?;
        let method = one_of(&self.method_headers, headers)?.unwrap_or(own_method.into());
        Ok(Target { method, uri })
    }

    /// Who asks, as far as the policy looks at it.
    pub(crate) fn subject<'a>(
        &'a self,
        matched: &'a Matched,
        target: &'a Target<'a>,
        peer: IpAddr,
        headers: &'a HeaderMap,
    ) -> Result<Subject<'a>, Problem> {
        let policy = matched.policy().policy();
        let mut subject = Subject::default();
        subject.add_route(matched, &target.method);
        if policy.looks_at("ip") {
            subject.add("ip", self.client(peer, headers).to_string());
        }
        if self.trusted.contains(peer.to_canonical()) {
            for (header, attribute) in &self.identity {
                if policy.looks_at(attribute)
                    && let Some(value) = single(header, headers)?
                {
                    subject.add(&**attribute, value);
                }
            }
        }
        if let Some(keys) = &self.api_keys
            && policy.looks_at(keys.attribute())
            && let Some(name) = keys.identify(headers)?
        {
            subject.add(keys.attribute(), name);
        }
        if let Some(jwts) = &self.jwts {
            jwts.identify(policy, headers, &mut subject)?;
        }
        self.must_be_complete(policy, &subject)?;
        Ok(subject)
    }

    fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let forwarded = headers.get_all(&self.address_header).iter();
        // What is not text is no address either.
        self.trusted.client(peer, forwarded.map(|value| value.to_str().unwrap_or("-")))
    }

    /// Who has not said who they are is told so; an attribute that this gate never knows is a
    /// fault of the policy, which the check itself names.
    fn must_be_complete(&self, policy: &Policy, subject: &Subject<'_>) -> Result<(), Problem> {
        match policy.missing_from(&subject.pairs()) {
            Some(missing) if self.attributes().any(|attribute| attribute == missing) => {
                Err(unidentified(format!(
                    "policy {:?} counts by {missing:?}, and this request does not say who asks",
                    policy.name()
                ))
                .field(format!("subject.{missing}")))
            }
            _ => Ok(()),
        }
    }
}

/// 401: the end user, not the proxy, has to say who they are.
fn unidentified(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "urn:tollgate:unidentified", detail)
        .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
}

/// The value that these headers agree on. A client can add the one that its proxy does not set, so
/// if they differ nobody knows which is true.
fn one_of<'a>(
    names: &[HeaderName],
    headers: &'a HeaderMap,
) -> Result<Option<Cow<'a, str>>, Problem> {
    let mut found: Option<(&HeaderName, &HeaderValue)> = None;
    for name in names {
        for value in headers.get_all(name) {
            match found {
                Some((first, before)) if before != value => {
                    let detail = format!(
                        "{name} and {first} differ; name in [gate] the one that the proxy sets"
                    );
                    return Err(Problem::bad_field(name.as_str(), detail));
                }
                _ => found = Some((name, value)),
            }
        }
    }
    Ok(found.map(|(_, value)| String::from_utf8_lossy(value.as_bytes())))
}

/// A header's only value; `None` if there is none or an empty one.
fn single<'a>(name: &HeaderName, headers: &'a HeaderMap) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::bad_field(name.as_str(), format!("{name} is given twice")));
    }
    let text = std::str::from_utf8(value.as_bytes())
        .map(str::trim)
        .map_err(|_| Problem::bad_field(name.as_str(), format!("{name} is not text in UTF-8")))?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

//! The section `[gate]` as it is written.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderName;
use serde::Deserialize;
use tollgate::TrustedProxies;

use crate::config::Timeout;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Gate {
    /// Whose word about addresses and identities is believed: nobody's unless named.
    pub(crate) trusted_proxies: Proxies,
    /// Where a trusted proxy says whom it speaks for.
    pub(crate) address_header: Name,
    /// Where the proxy says what was asked for. If two differ the request is refused.
    pub(crate) uri_headers: Vec<Name>,
    pub(crate) method_headers: Vec<Name>,
    /// Headers that a trusted proxy sets, and the attributes they are.
    pub(crate) identity: BTreeMap<Name, String>,
    pub(crate) api_key: Option<ApiKey>,
    pub(crate) jwt: Option<Jwt>,
}

/// A token that clients send themselves, signed by who knows them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Jwt {
    pub(crate) algorithm: JwtAlgorithm,
    /// A secret (HS256) or public keys in PEM; one of them has to fit.
    pub(crate) key_files: Vec<PathBuf>,
    #[serde(default = "authorization")]
    pub(crate) header: Name,
    /// Claims and the attributes they are.
    #[serde(default = "user_is_sub")]
    pub(crate) claims: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) issuer: Option<String>,
    #[serde(default)]
    pub(crate) audience: Option<String>,
    /// How far the clocks of the issuer and of this server may be apart.
    #[serde(default = "a_minute")]
    pub(crate) leeway: Timeout,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) enum JwtAlgorithm {
    HS256,
    RS256,
    ES256,
}

fn authorization() -> Name {
    Name::of("authorization")
}

fn user_is_sub() -> BTreeMap<String, String> {
    BTreeMap::from([("sub".into(), "user".into())])
}

fn a_minute() -> Timeout {
    Timeout(Duration::from_secs(60))
}

/// A key that clients send themselves.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ApiKey {
    pub(crate) header: Name,
    pub(crate) attribute: String,
    /// Lines of a name and the SHA-256 of its key in hex. Without a file any key is taken, and
    /// counts by its hash.
    pub(crate) file: Option<PathBuf>,
}

impl Default for Gate {
    fn default() -> Self {
        let names = |names: [&'static str; 2]| names.map(Name::of).into();
        Self {
            trusted_proxies: Proxies::default(),
            address_header: Name::of("x-forwarded-for"),
            uri_headers: names(["x-original-uri", "x-forwarded-uri"]),
            method_headers: names(["x-original-method", "x-forwarded-method"]),
            identity: BTreeMap::new(),
            api_key: None,
            jwt: None,
        }
    }
}

impl Default for ApiKey {
    fn default() -> Self {
        Self { header: Name::of("x-api-key"), attribute: "api_key".into(), file: None }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub(crate) struct Proxies(pub(crate) TrustedProxies);

impl TryFrom<Vec<String>> for Proxies {
    type Error = String;

    fn try_from(networks: Vec<String>) -> Result<Self, String> {
        TrustedProxies::new(networks).map(Self)
    }
}

/// The name of a header, in any case.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Name(pub(crate) HeaderName);

impl Name {
    fn of(name: &'static str) -> Self {
        Self(HeaderName::from_static(name))
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.as_str().cmp(other.0.as_str())
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse().map(Self).map_err(|_| format!("{name:?} is not the name of a header"))
    }
}

//! Access tokens: shown once, kept as a hash, compared in constant time.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;
use tollgate_core::store::{StoreError, StoreErrorKind, Token};

use crate::secret::sha256;

/// What a token may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Everything.
    Admin,
    /// Checks, peeks, refunds, slots and windows.
    Check,
}

/// Who a token belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bearer {
    pub name: String,
    pub scope: Scope,
}

impl Scope {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "admin" => Some(Self::Admin),
            "check" => Some(Self::Check),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Check => "check",
        }
    }
}

/// Tokens are random and long, so a plain hash hides them well.
pub(crate) fn hash(token: &str) -> Vec<u8> {
    sha256(&[token.as_bytes()]).to_vec()
}

/// A new token with 256 random bits.
pub(crate) fn generate() -> Result<String, StoreError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        StoreError::new(StoreErrorKind::Unavailable, "the system gave no random bytes")
            .with_source(error)
    })?;
    Ok(format!("tg_{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// Looks at every token, so that the time taken tells nothing.
pub(crate) fn find(tokens: &[Token], given: &str) -> Option<Bearer> {
    let given = hash(given);
    let mut found = None;
    for token in tokens {
        if bool::from(token.hash.ct_eq(&given)) {
            found =
                Scope::parse(&token.scope).map(|scope| Bearer { name: token.name.clone(), scope });
        }
    }
    found
}

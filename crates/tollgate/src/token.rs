//! Access tokens: shown once, kept as a hash, compared in constant time.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;
use tollgate_core::Instant;
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

/// A token that was just made: the only time that it is seen.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    /// To revoke it by; the same as in the list of tokens.
    pub id: String,
    pub token: String,
}

impl std::fmt::Debug for NewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewToken").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A token as it can be shown: by what it is called, never itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenInForce {
    /// The beginning of its hash.
    pub id: String,
    pub name: String,
    pub scope: String,
    pub created_at: Instant,
}

/// What came of revoking a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Revoked {
    Done,
    /// There is none of this id.
    Unknown,
    /// It is the last admin's: without one a server would be open again, or closed to everybody.
    LastAdmin,
}

/// Enough of a hash to tell tokens apart, and too little to be one.
const ID_BYTES: usize = 6;

impl TokenInForce {
    pub(crate) fn of(token: &Token) -> Self {
        let Token { hash, name, scope, created_at } = token;
        let id = hash.iter().take(ID_BYTES).map(|byte| format!("{byte:02x}")).collect();
        Self { id, name: name.clone(), scope: scope.clone(), created_at: *created_at }
    }
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

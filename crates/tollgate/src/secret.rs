//! What is done with the store's secret: signing receipts, hiding private values, hashing tokens.
//!
//! Each use has a key of its own, derived from the secret.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Half of a SHA-256: nobody guesses it, and two values do not meet by chance.
pub(crate) const MAC_BYTES: usize = 16;

#[derive(Clone)]
pub(crate) struct Keyed(Hmac<Sha256>);

impl Keyed {
    pub(crate) fn derive(secret: &[u8], purpose: &str) -> Self {
        let derived = mac(&keyed(secret), &[purpose.as_bytes()]);
        Self(keyed(&derived))
    }

    pub(crate) fn mac(&self, parts: &[&[u8]]) -> [u8; MAC_BYTES] {
        let full = mac(&self.0, parts);
        std::array::from_fn(|position| full[position])
    }
}

impl std::fmt::Debug for Keyed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keyed(secret)")
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes a key of any length")
}

fn mac(keyed: &Hmac<Sha256>, parts: &[&[u8]]) -> [u8; 32] {
    let mut hmac = keyed.clone();
    for part in parts {
        hmac.update(part);
    }
    hmac.finalize().into_bytes().into()
}

pub(crate) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        // Each with its length, so that the parts cannot run into each other.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

//! Parsers that nobody outside needs, opened for the fuzz targets in `fuzz/`. Not part of the
//! library's interface: without the feature `fuzzing` it is not there.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tollgate_core::Instant;
use tollgate_core::store::Receipt;

use crate::compiled::Compiled;
use crate::policy::Policy;
use crate::receipt;
use crate::routes::Matched;
use crate::routes::path::{self, Reading};
use crate::routes::table::Table;
use crate::secret::Keyed;

fn signer() -> Keyed {
    Keyed::derive(b"a secret of the fuzz targets", "receipt")
}

/// What a receipt says, if it is genuine.
pub fn receipt(token: &str) -> Option<Receipt> {
    receipt::verify(token, &signer()).ok()
}

/// Any bytes as a genuine receipt.
pub fn sign(bytes: &[u8]) -> String {
    let mac = signer().mac(&[bytes]);
    URL_SAFE_NO_PAD.encode([bytes, &mac].concat())
}

/// The routes of some policies, as a store with them in force would have them.
#[derive(Debug)]
pub struct Routes(Table);

impl Routes {
    pub fn new(policies: &[Policy]) -> Self {
        let compile =
            |policy: &Policy| Arc::new(Compiled::new(policy.clone(), 1, Instant::MIN, None));
        let compiled: Vec<_> = policies.iter().map(compile).collect();
        Self(Table::new(compiled.iter()))
    }

    pub fn find(&self, method: &str, target: &str) -> Option<Matched> {
        self.0.find(method, target)
    }
}

/// The segments of a target's path as RFC 3986 has it; `None` if servers disagree about it.
pub fn segments(target: &str) -> Option<Vec<Vec<u8>>> {
    let path = path::of_target(target);
    if path::is_ambiguous(path) {
        return None;
    }
    let read = path::read(path, Reading::Strict);
    Some(read.segments.iter().map(|segment| segment.to_vec()).collect())
}

//! Which store a URL names.

use std::sync::Arc;

use tollgate_core::store::Clock;
use tollgate_store_embedded::Embedded;

use crate::error::Error;

/// The one store there is so far.
pub(crate) type Store = Embedded;

/// `memory:` or `sqlite:PATH`.
pub(crate) fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Store, Error> {
    if url == "memory:" {
        return Ok(Embedded::memory(clock)?);
    }
    match url.strip_prefix("sqlite:") {
        Some("") => {
            Err(Error::BadStoreUrl("sqlite: needs a path, such as sqlite:tollgate.db".into()))
        }
        Some(path) => Ok(Embedded::open(path, clock)?),
        None => Err(Error::BadStoreUrl(format!(
            "{:?} is not a store; use sqlite:PATH or memory:",
            without_password(url)
        ))),
    }
}

/// A mistyped URL may hold a password; messages must not.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}

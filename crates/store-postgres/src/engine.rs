//! The one thread that lanes, clerks and sweeper run on.
//!
//! A batch passes from lane to connection and back several times. On a thread of their own these
//! steps wake nobody; on the callers' runtime each may wake another core. And a store then works
//! the same whatever runtime it is opened on.

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tollgate_core::store::{StoreError, StoreErrorKind};

/// Ends, with everything that runs on it, when it is dropped.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Engine {
    /// On the present runtime, which goes on when it is dropped.
    #[cfg(feature = "simulation")]
    pub(crate) fn here() -> Self {
        Self { handle: Handle::current(), _stop: oneshot::channel().0 }
    }

    pub(crate) fn start() -> Result<Self, StoreError> {
        let failed = |error: std::io::Error| {
            StoreError::new(StoreErrorKind::Unavailable, "the store's thread did not start")
                .with_source(error)
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        std::thread::Builder::new()
            .name("tollgate-lanes".into())
            .spawn(move || {
                // The sender is only ever dropped.
                let _ = runtime.block_on(stopped);
            })
            .map_err(failed)?;
        Ok(Self { handle, _stop: stop })
    }
}

//! What stands in for the network and for chance, so that the whole store runs unchanged in one
//! deterministic thread. Only with the feature `simulation`: for testkit.

use std::fmt::Debug;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{CancelToken, Client, Config, NoTls};
use tollgate_core::store::{StoreError, StoreErrorKind};

use crate::error::{failed, timed_out};

/// Everything around one instance.
pub trait World: Debug + Send + Sync {
    /// A line to a server that speaks PostgreSQL's protocol; `None`: nobody answers there.
    fn dial(&self) -> Option<Box<dyn Stream>>;
    /// Names a run of the store.
    fn number(&self) -> u64;
}

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub(crate) async fn connect(
    world: &dyn World,
    config: &Config,
    within: Duration,
) -> Result<Client, StoreError> {
    let Some(line) = world.dial() else {
        return Err(StoreError::new(StoreErrorKind::Unavailable, "nobody answers"));
    };
    let (client, connection) = tokio::time::timeout(within, config.connect_raw(line, NoTls))
        .await
        .map_err(|_| timed_out())?
        .map_err(|error| failed("PostgreSQL cannot be reached", error))?;
    tokio::spawn(async move {
        // The client reports it.
        let _ = connection.await;
    });
    Ok(client)
}

pub(crate) fn cancel(world: &dyn World, token: CancelToken) {
    if let Some(line) = world.dial() {
        tokio::spawn(async move {
            let _ = token.cancel_query_raw(line, NoTls).await;
        });
    }
}

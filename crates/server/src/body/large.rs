//! Bodies above the ordinary size: bounded all together, so that many at once leave memory to the
//! calls that need little of it.
//!
//! Counted as they arrive, not as they are announced: who announces much and sends nothing takes
//! nothing from the others. Nobody waits for room while holding some; whoever finds none is told
//! to come again, and what it held goes to the others.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode, header};
use hyper::body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{BodyLimits, read_counted};
use crate::problem::Problem;

/// The room that large bodies share.
#[derive(Debug)]
pub(crate) struct LargeBodies {
    /// In bytes.
    room: Arc<Semaphore>,
    /// What every body may hold without asking for room.
    ordinary_bytes: usize,
}

impl LargeBodies {
    pub(crate) fn new(room_bytes: usize, ordinary_bytes: usize) -> Self {
        let room = Arc::new(Semaphore::new(room_bytes.min(Semaphore::MAX_PERMITS)));
        Self { room, ordinary_bytes }
    }

    /// Like [`super::read`]. The room is given back when the last reference to the bytes goes.
    pub(crate) async fn read<B>(&self, body: B, limits: BodyLimits) -> Result<Bytes, Problem>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let mut held = None;
        let bytes = read_counted(body, limits, |bytes| self.hold(&mut held, bytes)).await?;
        Ok(match held {
            None => bytes,
            Some(_) => Bytes::from_owner(Held { bytes, _room: held }),
        })
    }

    /// Makes what is held enough for a body of so many bytes, or lets go of it all.
    fn hold(&self, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<(), Problem> {
        let has = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = bytes.saturating_sub(self.ordinary_bytes).saturating_sub(has);
        if more == 0 {
            return Ok(());
        }
        let found = u32::try_from(more).ok().and_then(|more| {
            let room = self.room.clone().try_acquire_many_owned(more);
            room.ok()
        });
        match (found, &mut *held) {
            (Some(found), Some(held)) => held.merge(found),
            (Some(found), None) => *held = Some(found),
            (None, _) => {
                *held = None;
                return Err(no_room());
            }
        }
        Ok(())
    }
}

/// Bytes and the room they take.
struct Held {
    bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn no_room() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "urn:tollgate:busy",
        "too many large bodies are being read now; send it again",
    )
    .header(header::RETRY_AFTER, HeaderValue::from_static("1"))
    .header(header::CONNECTION, HeaderValue::from_static("close"))
}

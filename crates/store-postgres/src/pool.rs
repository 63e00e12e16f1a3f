//! Connections that a few take turns with.

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tollgate_core::store::StoreError;

use crate::error::closed;

pub(crate) struct Pool<C> {
    turns: Semaphore,
    idle: Mutex<Vec<C>>,
}

impl<C> Pool<C> {
    /// So many may be in use at the same time.
    pub(crate) fn of(most: usize) -> Self {
        Self { turns: Semaphore::new(most), idle: Mutex::default() }
    }

    /// Waits until there is one to use, or to make.
    pub(crate) async fn turn(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        self.turns.acquire().await.map_err(|_| closed())
    }

    /// One that is kept, if any. Whose turn it is puts it back.
    pub(crate) fn take(&self) -> Option<C> {
        self.idle.lock().pop()
    }

    pub(crate) fn put(&self, connection: C) {
        self.idle.lock().push(connection);
    }

    /// Keeps none of those that nobody uses now.
    pub(crate) fn forget(&self) {
        self.idle.lock().clear();
    }
}

//! The threads that hold connections: one for each core, none sharing its work.
//!
//! A check is answered where its connection lives, from the read of the socket to the write, so that no other thread is woken
//! for it. What may take long is done elsewhere.

use std::io;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tollgate::Tollgate;

/// Ends its threads, and what still runs there, when it is dropped.
pub(crate) struct Threads {
    runtimes: Vec<Handle>,
    next: usize,
    _running: watch::Sender<()>,
}

impl Threads {
    pub(crate) fn start() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (running, stopped) = watch::channel(());
        let runtimes = (0..cores).map(|_| start(stopped.clone())).collect::<io::Result<_>>()?;
        Ok(Self { runtimes, next: 0, _running: running })
    }

    /// Nothing is ever waited for on them but what their tasks wait for.
    pub(crate) fn adopted_by(self, gate: &Tollgate) -> Self {
        self.runtimes.iter().for_each(|runtime| gate.adopt_runtime(runtime));
        self
    }

    /// Hands a client to the next thread in turn.
    pub(crate) fn hand_over<F: Future<Output = ()> + Send>(
        &mut self,
        stream: TcpStream,
        answer: impl FnOnce(TcpStream) -> F + Send + 'static,
    ) {
        self.next = (self.next + 1) % self.runtimes.len();
        // A socket is watched by the runtime in which it was made.
        let Ok(stream) = stream.into_std() else { return };
        self.runtimes[self.next].spawn(async move {
            match TcpStream::from_std(stream) {
                Ok(stream) => answer(stream).await,
                Err(error) => tracing::warn!(%error, "a connection could not be watched"),
            }
        });
    }
}

fn start(mut stopped: watch::Receiver<()>) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("connections".to_owned())
        .spawn(move || runtime.block_on(async move { while stopped.changed().await.is_ok() {} }))?;
    Ok(handle)
}

//! Accepts connections, bounded in number and time, and lets them end in good order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::client::{Client, Elsewhere};
use crate::state::App;
use crate::threads::Threads;
use crate::tls::Tls;

/// After an error in accepting (too many open files, say) there is no use in trying at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Told to stop, the server answers whoever asks within this, and says that it is the last answer.
const LAST_CALL: Duration = Duration::from_millis(300);
const LAST_CALL_POLL: Duration = Duration::from_millis(5);

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerLimits {
    pub(crate) max_connections: usize,
    /// For a TLS handshake, for the head of a request, between two requests on one connection, and
    /// for a client to take more of an answer.
    pub(crate) header_time: Duration,
    /// For requests under way when the server is told to stop.
    pub(crate) shutdown_time: Duration,
}

/// Serves until `stop` resolves, then lets requests under way finish.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    limits: ListenerLimits,
    threads: Threads,
    tls: Option<Arc<Tls>>,
    stop: impl Future<Output = ()>,
) {
    let router = Elsewhere::here(crate::http::router(app.clone()));
    let (running, stopping) = watch::channel(());
    let last_call = Arc::new(AtomicBool::new(false));
    let graceful = GracefulShutdown::new();
    let mut door = Door { app, router, limits, threads, tls, stopping, last_call, graceful };
    let places = Arc::new(Semaphore::new(limits.max_connections));
    let mut stop = std::pin::pin!(stop);
    loop {
        // Beyond the limit nobody is accepted: they wait in the system's queue.
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        tokio::select! {
            (Ok(place), accepted) = accepted => match accepted {
                Ok(client) => door.let_in(place, client),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            () = &mut stop => break,
        }
    }
    // Whoever has knocked already is let in: closing the door would cut them off.
    while let Ok(place) = places.clone().try_acquire_owned() {
        tokio::select! {
            biased;
            Ok(client) = listener.accept() => door.let_in(place, client),
            () = std::future::ready(()) => break,
        }
    }
    drop((listener, running));
    door.close().await;
}

/// Where clients come in, and what they share.
struct Door {
    app: Arc<App>,
    router: Elsewhere,
    limits: ListenerLimits,
    threads: Threads,
    tls: Option<Arc<Tls>>,
    /// Its other end goes away when nobody is let in any more.
    stopping: watch::Receiver<()>,
    last_call: Arc<AtomicBool>,
    graceful: GracefulShutdown,
}

impl Door {
    fn let_in(&mut self, place: OwnedSemaphorePermit, (stream, peer): (TcpStream, SocketAddr)) {
        let _ = stream.set_nodelay(true);
        let client = Client {
            app: self.app.clone(),
            router: self.router.clone(),
            address: peer.ip(),
            last_call: self.last_call.clone(),
        };
        let (limits, tls, stopping) = (self.limits, self.tls.clone(), self.stopping.clone());
        let watcher = self.graceful.watcher();
        self.threads.hand_over(stream, move |stream| async move {
            match tls {
                None => client.serve(stream, limits, watcher).await,
                Some(tls) => {
                    if let Some(stream) = secured(&tls, stream, limits.header_time, stopping).await
                    {
                        client.serve(stream, limits, watcher).await;
                    }
                }
            }
            drop(place);
        });
    }

    async fn close(self) {
        self.last_call.store(true, Ordering::Relaxed);
        all_gone(&self.graceful).await;
        let finished = self.graceful.shutdown();
        if tokio::time::timeout(self.limits.shutdown_time, finished).await.is_err() {
            tracing::warn!("some requests did not finish in time and were cut off");
        }
    }
}

/// Waits for those who still have something to ask, a moment at most: a request may be on its way on a connection
/// that seems idle, and cut off now, nobody would know whether it was counted.
async fn all_gone(graceful: &GracefulShutdown) {
    let gone = async {
        while graceful.count() > 0 {
            tokio::time::sleep(LAST_CALL_POLL).await;
        }
    };
    let _ = tokio::time::timeout(LAST_CALL, gone).await;
}

/// The stream behind a handshake. One that takes too long, fails, or is overtaken by the server's
/// stop ends here.
async fn secured(
    tls: &Tls,
    stream: TcpStream,
    within: Duration,
    mut stopping: watch::Receiver<()>,
) -> Option<impl AsyncRead + AsyncWrite + Unpin + Send + 'static> {
    let handshake = tokio::time::timeout(within, tls.handshake(stream));
    let done = tokio::select! {
        done = handshake => done,
        _ = stopping.changed() => return None,
    };
    match done {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
    None
}

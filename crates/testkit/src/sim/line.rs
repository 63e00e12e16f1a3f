//! A line between an instance and the simulated database that can be cut, or go silent.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};

const BUFFER_BYTES: usize = 1 << 16;

/// What became of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Condition {
    Open,
    /// Both ends notice; the server still reads what was sent before.
    Cut,
    /// Nobody notices: bytes go nowhere and none come.
    Silent,
}

/// Where a line can be pulled out.
#[derive(Debug)]
pub(super) struct Plug(Mutex<(Condition, Option<Waker>)>);

impl Plug {
    pub(super) fn condition(&self) -> Condition {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// A line that is cut stays so.
    pub(super) fn pull(&self, condition: Condition) {
        let mut plug = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if plug.0 != Condition::Cut {
            plug.0 = condition;
            if let Some(waker) = plug.1.take() {
                waker.wake();
            }
        }
    }

    fn watch(&self, context: &Context<'_>) -> Condition {
        let mut plug = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        plug.1 = Some(context.waker().clone());
        plug.0
    }
}

/// The end an instance holds.
#[derive(Debug)]
pub(super) struct ClientEnd {
    stream: DuplexStream,
    plug: Arc<Plug>,
}

/// The end the database holds.
#[derive(Debug)]
pub(super) struct ServerEnd {
    stream: DuplexStream,
    pub(super) plug: Arc<Plug>,
    received: Vec<u8>,
}

pub(super) fn line() -> (ClientEnd, ServerEnd) {
    let (near, far) = tokio::io::duplex(BUFFER_BYTES);
    let plug = Arc::new(Plug(Mutex::new((Condition::Open, None))));
    let server = ServerEnd { stream: far, plug: plug.clone(), received: Vec::new() };
    (ClientEnd { stream: near, plug }, server)
}

impl AsyncRead for ClientEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.plug.watch(context) {
            Condition::Open => Pin::new(&mut self.stream).poll_read(context, buffer),
            Condition::Cut => Poll::Ready(Ok(())),
            Condition::Silent => Poll::Pending,
        }
    }
}

impl AsyncWrite for ClientEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.plug.condition() {
            Condition::Open => Pin::new(&mut self.stream).poll_write(context, bytes),
            Condition::Cut => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Condition::Silent => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.plug.condition() {
            Condition::Silent => Poll::Ready(Ok(())),
            _ => Pin::new(&mut self.stream).poll_shutdown(context),
        }
    }
}

impl ServerEnd {
    /// The first message, which has no letter in front.
    pub(super) async fn opening(&mut self) -> Option<Vec<u8>> {
        self.fill(4).await?;
        let length = be_u32(&self.received) as usize;
        self.fill(length).await?;
        let message = self.received.drain(..length).skip(4).collect();
        Some(message)
    }

    /// The next message: its letter and its body. `None`: there will be none.
    pub(super) async fn message(&mut self) -> Option<(u8, Vec<u8>)> {
        self.fill(5).await?;
        let length = 1 + be_u32(&self.received[1..]) as usize;
        self.fill(length).await?;
        let letter = self.received[0];
        let body = self.received.drain(..length).skip(5).collect();
        Some((letter, body))
    }

    async fn fill(&mut self, length: usize) -> Option<()> {
        while self.received.len() < length {
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) | Err(_) if self.plug.condition() == Condition::Silent => {
                    std::future::pending::<()>().await;
                }
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
        Some(())
    }

    /// Whoever is gone does not read it.
    pub(super) async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }
}

fn be_u32(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

//! Whether a connection is to the server itself, or to a pooler that stands in between.
//!
//! A server tells each client the number of its process, for a later request to cancel. A pooler has no
//! process for a client, and tells a number of its own.

use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::{CancelToken, Client};

/// Codes of requests in PostgreSQL's protocol, each after a length of four bytes.
const ENCRYPT: i32 = 80_877_103;
const CANCEL: i32 = 80_877_102;

pub(crate) async fn is_direct(client: &Client) -> bool {
    let Some(told) = told_process(client.cancel_token()).await else { return false };
    let asked = client.query_typed_one("select pg_backend_pid()::bigint", &[]).await;
    asked.is_ok_and(|row| row.get::<_, i64>(0) == i64::from(told))
}

/// The process that a client was told of, as its request to cancel would name it.
async fn told_process(token: CancelToken) -> Option<i32> {
    let (written, mut read) = tokio::io::duplex(64);
    let reading = async {
        let (mut length, mut code) = (read.read_i32().await?, read.read_i32().await?);
        if code == ENCRYPT {
            read.write_u8(b'S').await?;
            (length, code) = (read.read_i32().await?, read.read_i32().await?);
        }
        let process = read.read_i32().await?;
        std::io::Result::Ok((length == 16 && code == CANCEL).then_some(process))
    };
    let (_, process) = tokio::join!(token.cancel_query_raw(Line(written), NoEncryption), reading);
    process.ok().flatten()
}

/// Says it encrypts, and does not: nothing of this leaves the process.
struct NoEncryption;

impl TlsConnect<Line> for NoEncryption {
    type Stream = Line;
    type Error = std::convert::Infallible;
    type Future = Ready<Result<Line, Self::Error>>;

    fn connect(self, line: Line) -> Self::Future {
        ready(Ok(line))
    }
}

struct Line(DuplexStream);

impl TlsStream for Line {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

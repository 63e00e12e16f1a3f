//! One connection through the proxy: two directions, each a reader and a writer with a queue
//! between them, so that latency delays bytes and does not thin them out.

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::Weather;
use super::trap::{Moment, Recent, Trap};

const PIECE_BYTES: usize = 16 * 1024;
/// A full queue stops the reader, as a full network would.
const QUEUED_PIECES: usize = 64;

struct Piece {
    due: Instant,
    bytes: Vec<u8>,
}

/// Why a connection ends before both sides have closed it.
enum End {
    Broken,
    /// The trap has gone off; the server has what it needs.
    Trapped,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Broken
    }
}

/// Returns when both sides have closed, or one has failed. Dropping it closes both.
pub(super) async fn carry(mut client: TcpStream, upstream: u16, weather: watch::Sender<Weather>) {
    clear(&weather).await;
    // To the client, a server that is down is a connection that closes.
    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)).await else { return };
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let trapped = {
        let (client_says, client_hears) = client.split();
        let (server_says, server_hears) = server.split();
        let line = Line { weather: &weather, awaits_answer: AtomicBool::new(false) };
        let done = tokio::try_join!(
            line.forward(client_says, server_hears),
            line.back(server_says, client_hears)
        );
        matches!(done, Err(End::Trapped))
    };
    drop(client);
    if trapped {
        // Closing with an answer unread would be a reset, which may overtake what was sent.
        let _ = server.shutdown().await;
        let _ = tokio::io::copy(&mut server, &mut tokio::io::sink()).await;
    }
}

struct Line<'a> {
    weather: &'a watch::Sender<Weather>,
    /// The trap has gone off, and the next that the server says is the answer to lose.
    awaits_answer: AtomicBool,
}

impl Line<'_> {
    async fn forward(&self, from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Result<(), End> {
        let (queue, mut pieces) = mpsc::channel(QUEUED_PIECES);
        let write = async {
            let mut recent = Recent::default();
            while let Some(bytes) = self.next(&mut pieces).await {
                let trap = self.spring(&recent, &bytes);
                recent.add(&bytes);
                match trap.map(|trap| trap.moment) {
                    None => to.write_all(&bytes).await?,
                    Some(Moment::BeforeTheServer) => return Err(End::Broken),
                    Some(Moment::OnceForwarded) => {
                        to.write_all(&bytes).await?;
                        return Err(End::Trapped);
                    }
                    Some(Moment::AtTheAnswer) => {
                        self.awaits_answer.store(true, Ordering::Relaxed);
                        to.write_all(&bytes).await?;
                    }
                }
            }
            Ok(to.shutdown().await?)
        };
        tokio::try_join!(self.read(from, queue), write).map(|_| ())
    }

    async fn back(&self, from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Result<(), End> {
        let (queue, mut pieces) = mpsc::channel(QUEUED_PIECES);
        let write = async {
            while let Some(bytes) = self.next(&mut pieces).await {
                if self.awaits_answer.load(Ordering::Relaxed) {
                    return Err(End::Trapped);
                }
                to.write_all(&bytes).await?;
            }
            Ok(to.shutdown().await?)
        };
        tokio::try_join!(self.read(from, queue), write).map(|_| ())
    }

    async fn read(&self, mut from: ReadHalf<'_>, queue: mpsc::Sender<Piece>) -> Result<(), End> {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let count = from.read(&mut buffer).await?;
            if count == 0 {
                return Ok(());
            }
            let due = Instant::now() + self.weather.borrow().latency;
            let piece = Piece { due, bytes: buffer[..count].to_vec() };
            queue.send(piece).await.map_err(|_| End::Broken)?;
        }
    }

    /// The next bytes when they are due and the way is clear.
    async fn next(&self, pieces: &mut mpsc::Receiver<Piece>) -> Option<Vec<u8>> {
        let piece = pieces.recv().await;
        if let Some(piece) = &piece {
            tokio::time::sleep_until(piece.due).await;
        }
        // A close is held up too: nothing gets through.
        clear(self.weather).await;
        piece.map(|piece| piece.bytes)
    }

    /// Takes the trap if these bytes complete its pattern: of two connections one has it.
    fn spring(&self, recent: &Recent, bytes: &[u8]) -> Option<Trap> {
        let mut sprung = None;
        self.weather.send_if_modified(|weather| {
            sprung = weather.trap.take_if(|trap| recent.completes(bytes, trap));
            sprung.is_some()
        });
        sprung
    }
}

/// Waits out a stall.
async fn clear(weather: &watch::Sender<Weather>) {
    // An error would mean that the sender is gone, and we hold it.
    let _ = weather.subscribe().wait_for(|weather| !weather.stalled).await;
}

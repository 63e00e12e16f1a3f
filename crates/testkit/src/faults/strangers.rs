//! Those who are in the way: sessions of others on PostgreSQL.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Version 3.0 of PostgreSQL's protocol.
const PROTOCOL: i32 = 196_608;

/// A session that does nothing. It ends when dropped.
#[derive(Debug)]
pub(super) struct Stranger {
    _stream: TcpStream,
}

impl Stranger {
    /// None if PostgreSQL has no connection left.
    pub(super) async fn enter(port: u16) -> Result<Option<Self>, String> {
        let said = |error: std::io::Error| format!("a stranger does not get in: {error}");
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(said)?;
        let names = b"user\0tollgate\0database\0tollgate\0application_name\0stranger\0\0";
        let length = i32::try_from(8 + names.len()).expect("it is short");
        let message = [&length.to_be_bytes()[..], &PROTOCOL.to_be_bytes(), names].concat();
        stream.write_all(&message).await.map_err(said)?;
        loop {
            let mut head = [0; 5];
            if stream.read_exact(&mut head).await.is_err() {
                return Ok(None);
            }
            let [kind, length @ ..] = head;
            let length = usize::try_from(i32::from_be_bytes(length)).unwrap_or(4);
            let mut body = vec![0; length.saturating_sub(4)];
            stream.read_exact(&mut body).await.map_err(said)?;
            match kind {
                b'Z' => return Ok(Some(Self { _stream: stream })),
                // `53300`: too many connections.
                b'E' if body.windows(5).any(|code| code == b"53300") => return Ok(None),
                b'E' => {
                    return Err(format!("a stranger: {}", String::from_utf8_lossy(&body)));
                }
                _ => {}
            }
        }
    }
}

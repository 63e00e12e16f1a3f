//! A server's answers, made fit for the library that reads them.
//!
//! Only the three digits of an answer decide anything, so whatever stands behind them must not make
//! the answer unreadable: a message that was taken would be sent again. Bytes that are not UTF-8 and
//! control characters are replaced, long lines cut, missing spaces and carriage returns added. What
//! begins with no code is no SMTP. An answer without end is not kept in memory.
//!
//! What is written to the server passes through untouched.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use lettre::transport::smtp::client::AsyncTokioStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// All that is said to one command.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Of the text of one line; lettre takes lines of 1000 bytes.
const MAX_TEXT_BYTES: usize = 900;
/// Of something that is no SMTP, in an error.
const MAX_SHOWN_CHARS: usize = 80;

/// A connection on which answers are plain.
pub(super) struct Answers<S> {
    stream: S,
    peer: SocketAddr,
    /// What came and is not read yet.
    raw: Vec<u8>,
    /// The rest of a line that is being read.
    line: Vec<u8>,
    /// Bytes that came since something was said.
    answer_bytes: usize,
}

impl<S> Answers<S> {
    pub(super) fn new(stream: S, peer: SocketAddr) -> Self {
        Self { stream, peer, raw: Vec::new(), line: Vec::new(), answer_bytes: 0 }
    }

    /// The same, greeted already: the server said it before TLS and will not say it again.
    pub(super) fn greeted(stream: S, peer: SocketAddr) -> Self {
        Self { line: b"220 \r\n".to_vec(), ..Self::new(stream, peer) }
    }

    /// Makes the next line ready, if it is there whole.
    fn next_line(&mut self) -> io::Result<()> {
        if let Some(end) = self.raw.iter().position(|byte| *byte == b'\n') {
            let raw: Vec<u8> = self.raw.drain(..=end).collect();
            self.line = plain(&raw)?.into_bytes();
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Answers<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.line.is_empty() {
            this.next_line()?;
        }
        while this.line.is_empty() {
            if this.answer_bytes > MAX_ANSWER_BYTES {
                return Poll::Ready(Err(unreadable(format!(
                    "the server's answer is longer than {MAX_ANSWER_BYTES} bytes"
                ))));
            }
            let mut chunk = [0; 4096];
            let mut space = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut space))?;
            if space.filled().is_empty() {
                // The end. Half a line is none.
                return Poll::Ready(Ok(()));
            }
            this.answer_bytes += space.filled().len();
            this.raw.extend_from_slice(space.filled());
            this.next_line()?;
        }
        let count = this.line.len().min(into.remaining());
        into.put_slice(&this.line[..count]);
        this.line.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Answers<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.answer_bytes = 0;
        Pin::new(&mut this.stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

impl<S> fmt::Debug for Answers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answers({})", self.peer)
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> AsyncTokioStream for Answers<S> {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}

/// One line as lettre reads it: three digits, a space or a hyphen, a text.
fn plain(raw: &[u8]) -> io::Result<String> {
    let said = String::from_utf8_lossy(raw);
    let said = said.trim_end_matches(['\r', '\n']).replace(char::is_control, "?");
    let (code, rest) = match said.as_bytes() {
        [b'2'..=b'5', b'0'..=b'9', b'0'..=b'9', ..] => said.split_at(3),
        _ => return Err(no_smtp(&said)),
    };
    let (mark, text) = match rest.chars().next() {
        None => (' ', ""),
        Some(mark @ (' ' | '-')) => (mark, &rest[1..]),
        Some(_) => return Err(no_smtp(&said)),
    };
    let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
    // The second digit is 0 to 5 by the book and by lettre; the first one decides.
    Ok(match code.as_bytes()[1] {
        b'0'..=b'5' => format!("{code}{mark}{text}\r\n"),
        _ => format!("{}50{mark}{code} {text}\r\n", &code[..1]),
    })
}

fn no_smtp(said: &str) -> io::Error {
    let shown: String = said.chars().take(MAX_SHOWN_CHARS).collect();
    unreadable(format!(
        "the server does not speak SMTP (check host, port and TLS); it said {shown:?}"
    ))
}

fn unreadable(message: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn the_code_counts_whatever_stands_behind_it() {
        for (raw, read) in [
            (&b"250 ok\r\n"[..], "250 ok\r\n"),
            (b"250-first\r\n", "250-first\r\n"),
            (b"250\r\n", "250 \r\n"),
            (b"250 ok\n", "250 ok\r\n"),
            (b"250 f\xfcr\r\n", "250 f\u{fffd}r\r\n"),
            ("250 für\r\n".as_bytes(), "250 für\r\n"),
            (b"550 a\0b\rc\r\n", "550 a?b?c\r\n"),
            (b"571 refused\r\n", "550 571 refused\r\n"),
        ] {
            assert_eq!(plain(raw).unwrap(), read);
        }
        let long = [&b"250 "[..], "é".repeat(2000).as_bytes(), b"\r\n"].concat();
        let read = plain(&long).unwrap();
        assert!(read.starts_with("250 é") && read.len() < 1000, "{}", read.len());
    }

    #[test]
    fn what_has_no_code_is_no_smtp() {
        for raw in ["HTTP/1.1 400 Bad Request\r\n", "\r\n", "25\r\n", "250_ok\r\n", "150 ok\r\n"] {
            let error = plain(raw.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("does not speak SMTP"), "{raw:?}: {error}");
        }
    }
}

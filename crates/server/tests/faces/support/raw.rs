//! HTTP by hand, for what no decent client sends.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::{DEADLINE, Server};

pub(crate) struct Raw(pub(crate) TcpStream);

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct RawReply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Raw {
    pub(crate) fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Self(stream)
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).unwrap();
    }

    /// One answer: a head, and as much body as it says.
    pub(crate) fn reply(&mut self) -> RawReply {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            let read = self.0.read(&mut byte).unwrap();
            assert_eq!(read, 1, "the connection ended in {:?}", String::from_utf8_lossy(&head));
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).unwrap();
        RawReply { status, head, body: String::from_utf8(body).unwrap() }
    }

    /// Everything until the server closes the connection; it may do so with a reset.
    pub(crate) fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        if let Err(error) = self.0.read_to_end(&mut bytes) {
            let kind = error.kind();
            assert_eq!(kind, std::io::ErrorKind::ConnectionReset, "the server did not hang up");
        }
        String::from_utf8(bytes).unwrap()
    }
}

/// A whole request without a body.
pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")
}

/// A whole request with one.
pub(crate) fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n{body}")
}

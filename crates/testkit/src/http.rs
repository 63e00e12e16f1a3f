//! As much of an HTTP client as this crate needs: one request, one answer, the connection kept.

mod decision;

use std::io::{Error, ErrorKind};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

pub(crate) use decision::{Decided, LIMITS, read_decision};

/// One connection to a server. After an error it is of no more use.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    address: String,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: &str) -> Result<Self, Error> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), address: address.to_owned() })
    }

    /// `head` is the method and path; `headers` are whole lines.
    pub(crate) async fn ask(
        &mut self,
        head: &str,
        headers: &str,
        body: &str,
    ) -> Result<Response, Error> {
        let (address, length) = (&self.address, body.len());
        let request = format!(
            "{head} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        );
        self.stream.get_mut().write_all(request.as_bytes()).await?;
        self.read_response().await
    }

    /// Whether the server has hung up since the last answer.
    pub(crate) fn is_closed(&self) -> bool {
        match self.stream.get_ref().try_read(&mut [0]) {
            Err(error) => error.kind() != ErrorKind::WouldBlock,
            // The end, or something that nobody asked for.
            Ok(_) => true,
        }
    }

    async fn read_response(&mut self) -> Result<Response, Error> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))?;
        let mut headers = Vec::new();
        loop {
            line.clear();
            self.stream.read_line(&mut line).await?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Response { status, headers, body: Vec::new() };
        if let Some(length) = response.header("content-length") {
            let length = length.parse().map_err(|_| Error::from(ErrorKind::InvalidData))?;
            response.body.resize(length, 0);
            self.stream.read_exact(&mut response.body).await?;
        }
        Ok(response)
    }
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

//! A webhook's other end: a small HTTP server that notes what it is sent and answers as it is told.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::eventually;

/// What it was sent.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) head: Vec<String>,
    pub(crate) body: String,
}

/// How it answers; the last answer stands for all that come after it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Manner {
    Status(u16),
    Hang,
}

#[derive(Clone)]
pub(crate) struct Receiver {
    address: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    pub(crate) fn start(manners: &[Manner]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let receiver = Self { address, received: Arc::default() };
        let (received, mut manners) =
            (receiver.received.clone(), VecDeque::from_iter(manners.to_vec()));
        std::thread::spawn(move || {
            let mut hung = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some(request) = read(&stream) else { continue };
                received.lock().unwrap().push(request);
                let manner = if manners.len() > 1 { manners.pop_front() } else { None };
                match manner.or(manners.front().copied()).unwrap() {
                    Manner::Status(status) => {
                        let answer = format!(
                            "HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                        );
                        let _ = stream.write_all(answer.as_bytes());
                    }
                    Manner::Hang => hung.push(stream),
                }
            }
        });
        receiver
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hooks/alerts?team=ops", self.address)
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Waits until it was sent so many.
    pub(crate) fn wait_for(&self, count: usize) -> Vec<Received> {
        eventually("the webhook is called", || {
            let received = self.received();
            (received.len() >= count).then_some(received)
        })
    }
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find_map(|line| {
            let (given, value) = line.split_once(':')?;
            given.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

fn read(stream: &TcpStream) -> Option<Received> {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            text => head.push(text.to_owned()),
        }
    }
    let mut received = Received { head, body: String::new() };
    let length = received.header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    received.body = String::from_utf8(body).unwrap();
    Some(received)
}

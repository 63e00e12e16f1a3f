//! An SMTP server that takes everything and keeps nothing but a count.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;

pub(crate) struct Sink {
    pub(crate) port: u16,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    messages: AtomicUsize,
    connections: AtomicUsize,
}

impl Sink {
    pub(crate) fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let counts = Arc::<Counts>::default();
        let shared = counts.clone();
        // Ends with the bench.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let counts = shared.clone();
                std::thread::spawn(move || {
                    // A client that hangs up is no concern of anybody.
                    let _ = serve(&stream, &counts);
                });
            }
        });
        Ok(Self { port, counts })
    }

    pub(crate) fn messages(&self) -> usize {
        self.counts.messages.load(Ordering::Relaxed)
    }

    pub(crate) fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::Relaxed)
    }
}

fn serve(stream: &TcpStream, counts: &Counts) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream);
    let mut output = stream;
    output.write_all(b"220 sink\r\n")?;
    let (mut line, mut in_data) = (String::new(), false);
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if in_data {
            if line == ".\r\n" {
                in_data = false;
                counts.messages.fetch_add(1, Ordering::Relaxed);
                output.write_all(b"250 taken\r\n")?;
            }
            continue;
        }
        let answer: &[u8] = match line.get(..4).map(str::to_ascii_uppercase).as_deref() {
            Some("EHLO" | "HELO") => b"250-sink\r\n250 8BITMIME\r\n",
            Some("DATA") => {
                in_data = true;
                b"354 go on\r\n"
            }
            Some("QUIT") => {
                output.write_all(b"221 bye\r\n")?;
                return Ok(());
            }
            _ => b"250 yes\r\n",
        };
        output.write_all(answer)?;
    }
}

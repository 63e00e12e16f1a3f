//! A mail server that takes everything and remembers the subjects.

use std::collections::BTreeMap;
use std::io::Error;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How often each subject came.
type Taken = Arc<Mutex<BTreeMap<String, u32>>>;

/// Ends when dropped.
#[derive(Debug)]
pub(super) struct Smtp {
    port: u16,
    taken: Taken,
    task: JoinHandle<()>,
}

impl Smtp {
    pub(super) async fn start() -> Result<Self, Error> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let (port, taken) = (listener.local_addr()?.port(), Taken::default());
        let taking = taken.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let taken = taking.clone();
                // Whoever breaks off has not delivered what was not acknowledged.
                tokio::spawn(async move { serve(stream, taken).await });
            }
        });
        Ok(Self { port, taken, task })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn taken(&self) -> BTreeMap<String, u32> {
        self.taken.lock().expect("no task panicked while it held it").clone()
    }
}

impl Drop for Smtp {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, taken: Taken) -> Result<(), Error> {
    let mut stream = BufReader::new(stream);
    stream.get_mut().write_all(b"220 faults\r\n").await?;
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let word = line.trim_end().get(..4).unwrap_or_default().to_ascii_uppercase();
        let answer: &[u8] = match word.as_str() {
            "DATA" => {
                stream.get_mut().write_all(b"354 go on\r\n").await?;
                let subject = read_message(&mut stream).await?;
                let mut taken = taken.lock().expect("no task panicked while it held it");
                *taken.entry(subject).or_default() += 1;
                b"250 taken\r\n"
            }
            "QUIT" => return stream.get_mut().write_all(b"221 bye\r\n").await,
            _ => b"250 ok\r\n",
        };
        stream.get_mut().write_all(answer).await?;
    }
}

/// Reads to the end of a message; its subject.
async fn read_message(stream: &mut BufReader<TcpStream>) -> Result<String, Error> {
    let (mut subject, mut line) = (String::new(), String::new());
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end() {
            "." => return Ok(subject),
            text => {
                if let Some(found) = text.strip_prefix("Subject: ") {
                    found.clone_into(&mut subject);
                }
            }
        }
    }
}

//! A tenant's web server that takes delivery reports, or does not.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

pub(crate) struct Webhook {
    pub(crate) url: String,
    posts: Arc<Mutex<Vec<Post>>>,
    /// Answers 503 to so many.
    pub(crate) failing: Arc<AtomicU32>,
    /// Never answers.
    pub(crate) hanging: Arc<AtomicBool>,
}

/// What came in one request.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
    pub(crate) taken: bool,
}

impl Post {
    pub(crate) fn reports(&self) -> Vec<Value> {
        let body: Value = serde_json::from_str(&self.body).unwrap();
        body["reports"].as_array().unwrap().clone()
    }

    /// In Unix seconds, by the relay's clock.
    pub(crate) fn signed_at(&self) -> i64 {
        let signature = self.headers["x-tollgate-signature"].strip_prefix("t=").unwrap();
        signature.split(',').next().unwrap().parse().unwrap()
    }
}

impl Webhook {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let webhook = Self {
            url: format!("http://{}/reports", listener.local_addr().unwrap()),
            posts: Arc::default(),
            failing: Arc::default(),
            hanging: Arc::default(),
        };
        let (posts, failing, hanging) =
            (webhook.posts.clone(), webhook.failing.clone(), webhook.hanging.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (posts, failing, hanging) = (posts.clone(), failing.clone(), hanging.clone());
                std::thread::spawn(move || answer(stream, &posts, &failing, &hanging));
            }
        });
        webhook
    }

    pub(crate) fn posts(&self) -> Vec<Post> {
        self.posts.lock().clone()
    }

    /// The ids of messages whose report was taken.
    pub(crate) fn taken(&self) -> Vec<String> {
        let posts = self.posts();
        let taken = posts.iter().filter(|post| post.taken).flat_map(Post::reports);
        taken.map(|report| report["id"].as_str().unwrap().to_owned()).collect()
    }
}

fn answer(
    mut stream: TcpStream,
    posts: &Mutex<Vec<Post>>,
    failing: &AtomicU32,
    hanging: &AtomicBool,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut headers = BTreeMap::new();
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
        if let Some((name, value)) = line.trim_end().split_once(": ") {
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        line.clear();
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    let fewer = |left: u32| left.checked_sub(1);
    let fails = failing.try_update(SeqCst, SeqCst, fewer).is_ok();
    let hangs = hanging.load(SeqCst);
    let body = String::from_utf8(body).unwrap();
    posts.lock().push(Post { headers, body, taken: !fails && !hangs });
    if hangs {
        std::thread::sleep(Duration::from_secs(600));
    }
    let status = if fails { "503 Service Unavailable" } else { "204 No Content" };
    let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

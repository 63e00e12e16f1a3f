//! A real SMTP server for tests: aiosmtpd, run by `sink.py`, which says how it is told to answer.
//!
//! Its Python packages lie beside what cargo builds, and are fetched once.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

const PACKAGES: &str = "aiosmtpd==1.4.6";
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const USER: &str = "ada";
pub(crate) const PASSWORD: &str = "open sesame";

pub(crate) struct Sink {
    pub(crate) plain: u16,
    pub(crate) starttls: u16,
    pub(crate) implicit: u16,
    /// The authority its certificate is from, in PEM.
    pub(crate) authority: String,
    events: Arc<Mutex<Vec<Value>>>,
    child: Child,
    /// It ends when this is closed: also when the test is killed.
    _input: Option<ChildStdin>,
    _folder: tempfile::TempDir,
}

impl Sink {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        make_certificate(folder.path());
        let mut child = Command::new(python())
            .args(["-W", "ignore"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../mail/tests/support/sink.py"))
            .args([folder.path().join("server.crt"), folder.path().join("server.key")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready: Value = match lines.next() {
            Some(Ok(line)) => serde_json::from_str(&line).unwrap(),
            _ => panic!("sink.py ended at once; its error is above"),
        };
        let port = |name: &str| u16::try_from(ready[name].as_u64().unwrap()).unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = events.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                heard.lock().push(serde_json::from_str(&line).unwrap());
            }
        });
        Self {
            plain: port("plain"),
            starttls: port("starttls"),
            implicit: port("implicit"),
            authority: std::fs::read_to_string(folder.path().join("ca.crt")).unwrap(),
            events,
            child,
            _input: input,
            _folder: folder,
        }
    }

    /// What happened so far, of one kind.
    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        self.events.lock().iter().filter(|event| event["event"] == kind).cloned().collect()
    }

    /// Messages taken so far, in order.
    pub(crate) fn messages(&self) -> Vec<Value> {
        self.events("message")
    }

    /// The subjects of messages taken so far, in order.
    pub(crate) fn subjects(&self) -> Vec<String> {
        let subject = |event: &Value| event["headers"]["subject"].as_str().unwrap_or("").to_owned();
        self.messages().iter().map(subject).collect()
    }

    /// The same, once there are so many.
    pub(crate) async fn arrived(&self, count: usize) -> Vec<String> {
        self.wait_for("message", count).await;
        self.subjects()
    }

    pub(crate) async fn wait_for(&self, kind: &str, count: usize) -> Vec<Value> {
        let begun = Instant::now();
        loop {
            let events = self.events(kind);
            if events.len() >= count {
                return events;
            }
            let so_far = events.len();
            assert!(begun.elapsed() < PATIENCE, "{so_far} of {count} events {kind:?} came");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An interpreter that has what the server needs: made once, whoever comes first.
fn python() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(find_python).clone()
}

fn find_python() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(target).unwrap();
    let lock = std::fs::File::create(target.join("mail-sink-venv.lock")).unwrap();
    lock.lock().unwrap();
    let folder = target.join("mail-sink-venv");
    let python = folder.join("bin/python");
    // Written last: half an installation is none.
    let ready = folder.join("ready");
    if std::fs::read_to_string(&ready).is_ok_and(|packages| packages == PACKAGES) {
        return python;
    }
    let _ = std::fs::remove_dir_all(&folder);
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder));
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", PACKAGES]));
    std::fs::write(ready, PACKAGES).unwrap();
    python
}

fn run(command: &mut Command) {
    let program = command.get_program().to_owned();
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!(
            "{command:?} failed (the mail tests need python3 with venv and pip, and openssl):\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => panic!("{program:?} is missing: install it to run the mail tests: {error}"),
    }
}

/// An authority, and a certificate for `localhost` and `127.0.0.1` by it.
fn make_certificate(folder: &Path) {
    let openssl = |line: &str| {
        run(Command::new("openssl").args(line.split_whitespace()).current_dir(folder));
    };
    std::fs::write(folder.join("openssl.cnf"), "[req]\ndistinguished_name = name\n[name]\n")
        .unwrap();
    std::fs::write(
        folder.join("server.ext"),
        "basicConstraints = critical,CA:false\nextendedKeyUsage = serverAuth\n\
         subjectAltName = DNS:localhost,IP:127.0.0.1\n",
    )
    .unwrap();
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!(
        "req -config openssl.cnf -x509 {new_key} -keyout ca.key -out ca.crt -days 2 \
         -subj /CN=tollgate-test-ca -addext basicConstraints=critical,CA:true \
         -addext keyUsage=critical,keyCertSign"
    ));
    openssl(&format!(
        "req -config openssl.cnf {new_key} -keyout server.key -out server.csr -subj /CN=sink"
    ));
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -set_serial 1 -days 2 \
         -extfile server.ext -out server.crt",
    );
}

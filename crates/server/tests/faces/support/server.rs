//! A running server, killed when its test ends.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::command::clean;
use super::http::{Call, Reply, agent};
use super::{Ended, eventually};

/// How a server is to be started, and the folder it may use.
pub(crate) struct Setup {
    pub(crate) home: TempDir,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    stdout: Output,
    stderr: Output,
    agent: ureq::Agent,
    /// Kept as long as the server needs its folder.
    _setup: Option<Setup>,
}

type Output = Arc<Mutex<String>>;

impl Setup {
    /// In memory, on a port of its own.
    pub(crate) fn memory() -> Self {
        let home = tempfile::tempdir().unwrap();
        let args = ["serve", "--listen", "127.0.0.1:0", "--store", "memory:"];
        Self { home, args: args.map(String::from).to_vec(), env: Vec::new() }
    }

    /// On a file in a folder of its own, the same at every start.
    pub(crate) fn sqlite() -> Self {
        let mut setup = Self::memory();
        setup.args.truncate(3);
        let store = setup.store_url();
        setup.arg("--store").arg(&store)
    }

    /// On a database.
    pub(crate) fn postgres(url: &str) -> Self {
        let mut setup = Self::memory();
        setup.args.truncate(3);
        setup.arg("--store").arg(url)
    }

    /// The same folder, other arguments.
    pub(crate) fn with_args(self, args: &[&str]) -> Self {
        Self { args: args.iter().map(|arg| (*arg).to_owned()).collect(), ..self }
    }

    pub(crate) fn store_path(&self) -> PathBuf {
        self.home.path().join("counts.db")
    }

    pub(crate) fn store_url(&self) -> String {
        format!("sqlite:{}", self.store_path().display())
    }

    pub(crate) fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With this configuration file.
    pub(crate) fn config(self, text: &str) -> Self {
        let path = self.write("tollgate.toml", text);
        self.arg("--config").arg(&path.display().to_string())
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.home.path());
        command
    }

    /// Starts a server that is expected to live; the setup can start another afterwards.
    pub(crate) fn start(&self) -> Server {
        Server::spawn(self.command(), None)
    }

    /// Starts a server that owns this setup.
    pub(crate) fn into_server(self) -> Server {
        Server::spawn(self.command(), Some(self))
    }

    /// Starts a server that is expected to give up.
    pub(crate) fn start_in_vain(&self) -> Ended {
        Ended::of(self.command())
    }
}

impl Server {
    pub(crate) fn memory() -> Self {
        Setup::memory().into_server()
    }

    pub(crate) fn spawn(command: Command, setup: Option<Setup>) -> Self {
        Self::attempt(command, setup).unwrap_or_else(|why| panic!("the server ended: {why}"))
    }

    /// A server that listens, or what it said when it ended.
    pub(crate) fn attempt(mut command: Command, setup: Option<Setup>) -> Result<Self, String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = collect(child.stdout.take().unwrap());
        let stderr = collect(child.stderr.take().unwrap());
        let (address, agent) = (String::new(), agent());
        let mut server = Self { child, address, stdout, stderr, agent, _setup: setup };
        let address = eventually("the line that says where the server listens", || {
            if server.child.try_wait().unwrap().is_some() {
                return Some(Err(server.said()));
            }
            let said = server.stdout.lock().unwrap();
            let line = said.lines().find(|line| line.starts_with("tollgate listens on http"))?;
            let (_, rest) = line.split_once("://")?;
            // A line that is not complete has no comma yet.
            rest.split_once(',').map(|(address, _)| Ok(address.to_owned()))
        });
        server.address = address?;
        Ok(server)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything it said so far, on both outputs.
    pub(crate) fn said(&self) -> String {
        format!("{}{}", self.stdout.lock().unwrap(), self.stderr.lock().unwrap())
    }

    /// Sends a signal once the server watches for it.
    pub(crate) fn signal(&self, name: &str) {
        let number = match name {
            "HUP" => 1,
            "INT" => 2,
            _ => 15,
        };
        let status = format!("/proc/{}/status", self.id());
        eventually("the signal is watched for", || {
            let Ok(status) = std::fs::read_to_string(&status) else { return Some(()) };
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
            let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
            (caught >> (number - 1) & 1 == 1).then_some(())
        });
        self.signal_at_once(name);
    }

    pub(crate) fn signal_at_once(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Waits for the end of the process.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        eventually("the server ends", || self.child.try_wait().unwrap())
    }

    /// Stops it in good order.
    pub(crate) fn terminate(mut self) {
        self.signal("TERM");
        let status = self.ended();
        assert_eq!(status.code(), Some(0), "{}", self.said());
    }

    /// Stops it in the middle of everything.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn send(&self, call: Call) -> Reply {
        call.send(&self.agent, &self.address)
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send(Call::new("GET", path))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(Call::new("POST", path).json(body))
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Reply {
        self.send(Call::new("PUT", path).json(body))
    }

    pub(crate) fn delete(&self, path: &str) -> Reply {
        self.send(Call::new("DELETE", path))
    }

    /// Puts a policy of these limits in force.
    pub(crate) fn policy(&self, name: &str, limits: &Value) {
        let reply = self.put(&format!("/admin/policies/{name}"), &json!({ "limits": limits }));
        assert!([200, 201].contains(&reply.status), "{reply:?}");
    }

    pub(crate) fn check(&self, policy: &str, subject: &Value) -> Reply {
        self.post("/api/v1/check", &json!({ "policy": policy, "subject": subject }))
    }

    pub(crate) fn check_cost(&self, policy: &str, subject: &Value, cost: u64) -> Reply {
        let body = json!({ "policy": policy, "subject": subject, "cost": cost });
        self.post("/api/v1/check", &body)
    }

    /// An allowed check's decision.
    pub(crate) fn spend(&self, policy: &str, subject: &Value) -> Value {
        self.check(policy, subject).ok()
    }

    /// How it stands, as a decision.
    pub(crate) fn peek(&self, policy: &str, subject: &Value) -> Value {
        self.post("/api/v1/peek", &json!({ "policy": policy, "subject": subject })).ok()
    }

    /// What each limit has counted.
    pub(crate) fn used(&self, policy: &str, subject: &Value) -> Vec<u64> {
        super::used(&self.peek(policy, subject))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(source: impl Read + Send + 'static) -> Output {
    let output = Output::default();
    let sink = output.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(source).lines().map_while(Result::ok) {
            let mut sink = sink.lock().unwrap();
            sink.push_str(&line);
            sink.push('\n');
        }
    });
    output
}

/// The folder's files, by name.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

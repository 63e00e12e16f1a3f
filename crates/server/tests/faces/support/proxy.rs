//! The machine's own nginx and Caddy with the examples' configurations, in folders of their own.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::http::{Call, Reply, agent};
use super::{Server, eventually};

const NGINX: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/nginx/tollgate.conf"));
const CADDY: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/caddy/Caddyfile"));
/// How often a port may turn out to be taken between its choice and its use.
const PORT_TRIES: u32 = 10;

/// A proxy in front of a server, and of an application that greets.
pub(crate) struct Proxy {
    child: Child,
    address: String,
    agent: ureq::Agent,
    _home: TempDir,
}

/// Ports of the proxy and of the application.
struct Ports {
    proxy: u16,
    application: u16,
}

impl Proxy {
    /// `edits` are made to the example, each at its only place.
    pub(crate) fn nginx(server: &Server, edits: &[(&str, &str)]) -> Self {
        Self::start(|home, ports| {
            let listen = ("listen 8000", format!("listen 127.0.0.1:{}", ports.proxy));
            let example = edited(NGINX, server, ports, listen, edits);
            std::fs::write(home.join("tollgate.conf"), example).unwrap();
            std::fs::write(home.join("nginx.conf"), around_nginx(ports)).unwrap();
            let mut command = Command::new(program("nginx"));
            command.arg("-p").arg(home).args(["-e", "stderr", "-c", "nginx.conf"]);
            command
        })
    }

    /// The same by Caddy.
    pub(crate) fn caddy(server: &Server, edits: &[(&str, &str)]) -> Self {
        Self::start(|home, ports| {
            let listen = ("\n:8000 {", format!("\nhttp://127.0.0.1:{} {{", ports.proxy));
            let example = edited(CADDY, server, ports, listen, edits);
            let greet = "respond \"hello from the application\"";
            let application = ports.application;
            let text = format!(
                "{{\n\tadmin off\n}}\n{example}\nhttp://127.0.0.1:{application} {{\n\t{greet}\n}}\n"
            );
            std::fs::write(home.join("Caddyfile"), text).unwrap();
            let mut command = Command::new(program("caddy"));
            command.args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"]);
            command.env("HOME", home).env("XDG_DATA_HOME", home).env("XDG_CONFIG_HOME", home);
            command
        })
    }

    fn start(prepare: impl Fn(&Path, &Ports) -> Command) -> Self {
        (0..PORT_TRIES)
            .find_map(|_| Self::attempt(&prepare))
            .unwrap_or_else(|| panic!("the proxy did not start on any of {PORT_TRIES} ports"))
    }

    fn attempt(prepare: impl Fn(&Path, &Ports) -> Command) -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        let ports = free_ports();
        let said = home.path().join("said");
        let mut child = prepare(home.path(), &ports)
            .current_dir(home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&said).unwrap())
            .spawn()
            .unwrap();
        let address = format!("127.0.0.1:{}", ports.proxy);
        let application = format!("127.0.0.1:{}", ports.application);
        let listens = eventually("the proxy listens", || {
            if child.try_wait().unwrap().is_some() {
                return Some(false);
            }
            let all = [&address, &application];
            all.iter().all(|address| TcpStream::connect(address).is_ok()).then_some(true)
        });
        if !listens {
            let said = std::fs::read_to_string(&said).unwrap().to_lowercase();
            assert!(said.contains("address already in use"), "the proxy ended: {said}");
            return None;
        }
        Some(Self { child, address, agent: agent(), _home: home })
    }

    pub(crate) fn send(&self, call: Call) -> Reply {
        call.send(&self.agent, &self.address)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn edited(
    example: &str,
    server: &Server,
    ports: &Ports,
    listen: (&str, String),
    edits: &[(&str, &str)],
) -> String {
    let application = format!("127.0.0.1:{}", ports.application);
    let all = [("127.0.0.1:8080", server.address.clone()), ("127.0.0.1:3000", application), listen];
    let edits = edits.iter().map(|(from, to)| (*from, (*to).to_owned()));
    all.into_iter().chain(edits).fold(example.to_owned(), |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "{from} in the example");
        text.replace(from, &to)
    })
}

/// One process, nothing outside its folder, and the application that is protected.
fn around_nginx(ports: &Ports) -> String {
    let application = ports.application;
    format!(
        r#"
daemon off;
master_process off;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include tollgate.conf;
    server {{
        listen 127.0.0.1:{application};
        location / {{ return 200 "hello from the application"; }}
    }}
}}
"#
    )
}

fn free_ports() -> Ports {
    let listeners = [0; 2].map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let [proxy, application] = listeners.map(|listener| listener.local_addr().unwrap().port());
    Ports { proxy, application }
}

/// Servers lie outside an ordinary user's path on Debian.
fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let mut programs = folders.map(|folder| folder.join(name));
    programs.find(|program| program.is_file()).unwrap_or_else(|| {
        panic!(
            "{name} is missing: install it (on Debian: apt-get install {name}), or run ./test edge"
        )
    })
}

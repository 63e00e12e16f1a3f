//! The machine's own nginx with the example's configuration, in a folder of its own.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::http::{Call, Reply, agent};
use super::{Server, eventually};

const EXAMPLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/nginx/tollgate.conf"));
/// How often a port may turn out to be taken between its choice and its use.
const PORT_TRIES: u32 = 10;

pub(crate) struct Nginx {
    child: Child,
    address: String,
    agent: ureq::Agent,
    _home: TempDir,
}

impl Nginx {
    /// In front of this server. `edits` are made to the example, each at its only place.
    pub(crate) fn before(server: &Server, edits: &[(&str, &str)]) -> Self {
        for _ in 0..PORT_TRIES {
            if let Some(nginx) = Self::attempt(&server.address, edits) {
                return nginx;
            }
        }
        panic!("nginx did not start on any of {PORT_TRIES} ports");
    }

    fn attempt(tollgate: &str, edits: &[(&str, &str)]) -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        let [port, application] = free_ports();
        let ports = [
            ("127.0.0.1:8080".to_owned(), tollgate.to_owned()),
            ("127.0.0.1:3000".to_owned(), format!("127.0.0.1:{application}")),
            ("listen 8000".to_owned(), format!("listen 127.0.0.1:{port}")),
        ];
        let mut example = EXAMPLE.to_owned();
        let edits = edits.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned()));
        for (from, to) in ports.into_iter().chain(edits) {
            assert_eq!(example.matches(&from).count(), 1, "{from} in the example");
            example = example.replace(&from, &to);
        }
        std::fs::write(home.path().join("tollgate.conf"), example).unwrap();
        std::fs::write(home.path().join("nginx.conf"), around(application)).unwrap();
        let log = std::fs::File::create(home.path().join("said")).unwrap();
        let mut child = Command::new(program())
            .arg("-p")
            .arg(home.path())
            .args(["-e", "stderr", "-c", "nginx.conf"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let address = format!("127.0.0.1:{port}");
        let listens = eventually("nginx listens", || {
            if child.try_wait().unwrap().is_some() {
                return Some(false);
            }
            TcpStream::connect(&address).is_ok().then_some(true)
        });
        if !listens {
            let said = std::fs::read_to_string(home.path().join("said")).unwrap();
            assert!(said.contains("Address already in use"), "nginx ended: {said}");
            return None;
        }
        Some(Self { child, address, agent: agent(), _home: home })
    }

    pub(crate) fn send(&self, call: Call) -> Reply {
        call.send(&self.agent, &self.address)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One process, nothing outside its folder, and the application that is protected.
fn around(application: u16) -> String {
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
        merge_slashes off;
        location / {{ return 200 "hello from the application"; }}
        location = /broken {{ return 500; }}
    }}
}}
"#
    )
}

fn free_ports() -> [u16; 2] {
    let listeners = [0; 2].map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// It lies outside an ordinary user's path on Debian.
fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let mut programs = folders.map(|folder| folder.join("nginx"));
    programs.find(|program| Path::is_file(program)).expect(
        "nginx is missing: install it (on Debian: apt-get install nginx), or run ./test edge, \
         which does",
    )
}

//! TLS on the listener: who is answered, who is not, and what a renewed certificate does.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use testkit::servers::Certificates;

use crate::support::command::clean;
use crate::support::raw::{Raw, get, post};
use crate::support::{DEADLINE, Ended, Server, Setup, eventually};

struct House {
    files: Certificates,
    setup: Setup,
}

impl House {
    fn new() -> Self {
        let setup = Setup::memory();
        let folder = setup.home.path().join("tls");
        std::fs::create_dir(&folder).unwrap();
        let files = Certificates::make(&folder);
        let path = |path: &Path| path.display().to_string();
        let setup = setup.arg("--tls-cert").arg(&path(&files.certificate));
        let setup = setup.arg("--tls-key").arg(&path(&files.key));
        Self { setup, files }
    }

    /// A client command that trusts the house's authority.
    fn command(&self, server: &Server, args: &[&str]) -> Ended {
        let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
        command.args(args).env("TOLLGATE_SERVER", format!("https://{}", server.address));
        command.env("TOLLGATE_CA_FILE", &self.files.authority);
        Ended::of(command)
    }

    fn connect(&self, server: &Server) -> Secure {
        Secure::connect(server, &self.files.authority).unwrap()
    }

    /// Makes another authority and certificate, and tells the server.
    fn renew(&self, server: &Server) {
        Certificates::make(self.files.key.parent().unwrap());
        server.signal("HUP");
    }
}

/// A connection that is kept.
struct Secure(StreamOwned<ClientConnection, TcpStream>);

impl Secure {
    fn connect(server: &Server, authority: &Path) -> Result<Self, std::io::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        while client.is_handshaking() {
            client.complete_io(&mut stream)?;
        }
        Ok(Self(StreamOwned::new(client, stream)))
    }

    /// The status and body of one request.
    fn ask(&mut self, request: &str) -> (u16, Value) {
        self.0.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        self.0.read_exact(&mut body).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }
}

const CHECK: &str = r#"{"policy":"default"}"#;

#[test]
fn requests_are_answered_over_tls_and_the_greeting_says_so() {
    let house = House::new();
    let server = house.setup.start();
    let address = &server.address;
    for greeting in ["tollgate listens on https://", "curl -i https://"] {
        let greeting = format!("{greeting}{address}");
        eventually("it greets", || server.said().contains(&greeting).then_some(()));
    }
    let mut client = house.connect(&server);
    assert_eq!(client.0.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    for remaining in [99, 98, 97] {
        let (status, decision) = client.ask(&post("/api/v1/check", CHECK));
        assert_eq!((status, &decision["limits"][0]["remaining"]), (200, &json!(remaining)));
    }
    assert_eq!(client.ask(&get("/nope")).0, 404);
    server.terminate();
}

#[test]
fn the_command_line_trusts_whom_it_is_told_to() {
    let house = House::new();
    let server = house.setup.start();
    let checked = house.command(&server, &["check", "default", "--json"]).expect(0);
    assert_eq!(checked.json()["allowed"], true);
    // By the name in the certificate too, and by the option.
    let authority = house.files.authority.display().to_string();
    let (_, port) = server.address.rsplit_once(':').unwrap();
    let by_name = |args: &[&str]| {
        let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["policy", "list"]).args(args);
        command.env("TOLLGATE_SERVER", format!("https://localhost:{port}"));
        Ended::of(command)
    };
    by_name(&["--ca-file", &authority]).expect(0);
    // An authority nobody knows is not trusted, and the next step is said.
    let refused = by_name(&[]).expect(3);
    assert!(refused.err.contains("--ca-file"), "{refused:?}");
    // A file without certificates, and one that is not there.
    for file in [house.files.key.display().to_string(), "nowhere.pem".into()] {
        let refused = by_name(&["--ca-file", &file]).expect(2);
        assert!(refused.err.contains(&file) && !refused.err.contains("BEGIN"), "{refused:?}");
    }
}

#[test]
fn who_speaks_plain_http_is_told_to_use_https() {
    let house = House::new();
    let server = house.setup.start();
    let mut raw = Raw::connect(&server);
    raw.send(post("/api/v1/check", CHECK));
    let reply = raw.reply();
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("https://"), "{reply:?}");
    assert_eq!(raw.rest(), "");
    let by_command = crate::support::tollgate(&server, &["check", "default"]).expect(2);
    assert!(by_command.err.contains("https://"), "{by_command:?}");
    // Nothing of it was counted.
    let (_, peeked) = house.connect(&server).ask(&post("/api/v1/peek", CHECK));
    assert_eq!(peeked["limits"][0]["used"], 0);
}

#[test]
fn a_slow_handshake_holds_up_nobody_and_ends() {
    let house = House::new();
    let setup = house.setup.config("[server]\nheader_timeout = \"2s\"\nmax_connections = 8");
    let house = House { setup, files: house.files };
    let server = house.setup.start();
    let started = Instant::now();
    let mut slow: Vec<_> = (0..6).map(|_| Raw::connect(&server)).collect();
    for (n, raw) in slow.iter_mut().enumerate() {
        // Nothing at all, the first byte of a record, and a record that promises more.
        raw.send(&b"\x16\x03\x01\x02\x00\x01"[..[0, 1, 6][n % 3]]);
    }
    assert_eq!(house.connect(&server).ask(&get("/healthz")).0, 200);
    assert!(started.elapsed() < DEADLINE);
    // Each is cut off in its time, and its place is free again.
    for raw in &mut slow {
        raw.rest();
    }
    assert!(started.elapsed() >= Duration::from_millis(1_900), "{:?}", started.elapsed());
    let mut all: Vec<_> = (0..8).map(|_| house.connect(&server)).collect();
    for client in &mut all {
        assert_eq!(client.ask(&get("/healthz")).0, 200);
    }
}

#[test]
fn handshakes_count_as_connections() {
    let house = House::new();
    let setup = house.setup.config("[server]\nmax_connections = 1");
    let house = House { setup, files: house.files };
    let server = house.setup.start();
    let slow = Raw::connect(&server);
    // The only place is taken by who has not even begun to shake hands.
    let mut second = Raw::connect(&server);
    second.send(get("/healthz"));
    second.0.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    second.0.read(&mut [0]).expect_err("the second was let in");
    drop(slow);
    second.0.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(second.reply().status, 400, "it is heard now, and it speaks no TLS");
}

#[test]
fn a_handshake_under_way_does_not_hold_up_the_stop() {
    let house = House::new();
    let setup = house.setup.config("[server]\nheader_timeout = \"1h\"\nshutdown_timeout = \"1h\"");
    let house = House { setup, files: house.files };
    let server = house.setup.start();
    let mut slow = Raw::connect(&server);
    slow.send([0x16, 3, 1]);
    // Connections are taken in order: who comes later and is answered shows that the first is in.
    assert_eq!(house.connect(&server).ask(&get("/healthz")).0, 200);
    server.terminate();
}

#[test]
fn a_renewed_certificate_is_in_force_after_sighup_and_connections_live_on() {
    let house = House::new();
    let server = house.setup.start();
    let old_authority = house.setup.home.path().join("old.crt");
    std::fs::copy(&house.files.authority, &old_authority).unwrap();
    let mut before = house.connect(&server);
    assert_eq!(before.ask(&get("/healthz")).0, 200);
    house.renew(&server);
    let mut after = eventually("the new certificate is shown", || {
        Secure::connect(&server, &house.files.authority).ok()
    });
    assert_eq!(after.ask(&get("/healthz")).0, 200);
    assert!(Secure::connect(&server, &old_authority).is_err(), "the old one is shown no more");
    assert_eq!(before.ask(&get("/healthz")).0, 200, "who was connected stays so");
    // One that cannot be used leaves the last good one in force, and is complained about.
    std::fs::write(&house.files.certificate, "no certificate").unwrap();
    server.signal("HUP");
    eventually("the complaint", || server.said().contains("stays as it was").then_some(()));
    assert_eq!(house.connect(&server).ask(&get("/healthz")).0, 200);
}

#[test]
fn a_bad_certificate_or_key_ends_the_start_and_says_what_to_do() {
    let house = House::new();
    let home = house.setup.home.path();
    let write = |name: &str, text: &str| {
        std::fs::write(home.join(name), text).unwrap();
        home.join(name).display().to_string()
    };
    let (cert, key) = (&house.files.certificate, &house.files.key);
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let other_key = home.join("tls/ca.key").display().to_string();
    let missing = home.join("missing.pem").display().to_string();
    let empty = write("empty.pem", "");
    let broken =
        write("broken.pem", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n");
    for (cert, key, says) in [
        (&cert, None, "tls_key"),
        (&missing, Some(&key), "cannot be read"),
        (&cert, Some(&missing), "cannot be read"),
        (&empty, Some(&key), "holds no certificate"),
        (&cert, Some(&empty), "holds no private key"),
        (&cert, Some(&cert), "holds no private key"),
        (&broken, Some(&key), "tls_cert"),
        (&cert, Some(&other_key), "is not the key of"),
    ] {
        let args = ["serve", "--store", "memory:", "--listen", "127.0.0.1:0", "--tls-cert", cert];
        let mut args = args.to_vec();
        args.extend(key.into_iter().flat_map(|key| ["--tls-key", key]));
        let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
        command.args(&args).current_dir(home);
        let ended = Ended::of(command).expect(2);
        assert!(ended.err.contains(says), "{says}: {ended:?}");
        assert!(!ended.err.contains("BEGIN EC") && ended.out.is_empty(), "{ended:?}");
    }
}

#[test]
fn the_configuration_file_can_name_the_files_too() {
    let house = House::new();
    let (cert, key) = (&house.files.certificate, &house.files.key);
    let config =
        format!("[server]\ntls_cert = \"{}\"\ntls_key = \"{}\"\n", cert.display(), key.display());
    let server = Setup::memory().config(&config).into_server();
    assert_eq!(house.connect(&server).ask(&get("/healthz")).0, 200);
}

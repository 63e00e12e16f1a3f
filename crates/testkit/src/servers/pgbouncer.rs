//! pgbouncer in transaction mode: what many PostgreSQL are reached through.
//!
//! Each transaction may come to another session of the server, so whatever a store leaves in a
//! session (a prepared statement, a setting, an advisory lock) is lost or met by a stranger.

use std::path::Path;
use std::time::Instant;

use super::postgres::Postgres;
use super::watcher::{Watcher, Word};
use super::{POLL, PORT_TRIES, START_LIMIT, account, free_port, programs};

/// A running pgbouncer in front of one [`Postgres`]. Ended and removed when dropped, or when this
/// process ends in whatever way.
#[derive(Debug)]
pub struct PgBouncer {
    watcher: Watcher,
    port: u16,
    url: String,
}

impl PgBouncer {
    pub fn start(postgres: &Postgres) -> PgBouncer {
        PgBouncer::start_with(postgres, &[])
    }

    /// With further lines of the section `[pgbouncer]`; they win over ours.
    pub fn start_with(postgres: &Postgres, lines: &[&str]) -> PgBouncer {
        let program = programs::pgbouncer();
        for _ in 0..PORT_TRIES {
            let port = free_port();
            let watcher = Watcher::new(&program, &["../pgbouncer.ini"]);
            configure(watcher.folder(), postgres, port, lines);
            let bouncer = PgBouncer { watcher, port, url: postgres.url_at(port) };
            if bouncer.listens() {
                return bouncer;
            }
        }
        panic!("{PORT_TRIES} ports in a row were taken before pgbouncer had them");
    }

    /// As the same role as [`Postgres::url`], without TLS.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Holds its configuration and its log.
    pub fn folder(&self) -> &Path {
        self.watcher.folder()
    }

    /// What it wrote to its log.
    pub fn log(&self) -> String {
        self.watcher.log()
    }

    /// False if the port was taken.
    fn listens(&self) -> bool {
        self.watcher.order(Word::Start);
        let began = Instant::now();
        // Its own word for it: on the port it might be another who answers.
        let sign = format!("listening on 127.0.0.1:{}", self.port);
        while !self.log().contains(&sign) {
            if !self.watcher.ask(Word::Runs) {
                let taken = self.log().contains("Address already in use");
                assert!(taken, "pgbouncer does not start: {}", self.watcher.report());
                return false;
            }
            assert!(began.elapsed() < START_LIMIT, "no sign yet: {}", self.watcher.report());
            std::thread::sleep(POLL);
        }
        true
    }
}

fn configure(folder: &Path, postgres: &Postgres, port: u16, lines: &[&str]) {
    let (roles, password) = postgres.logins();
    let password = password.unwrap_or_default();
    let users = roles.map(|role| format!("\"{role}\" \"{password}\"\n")).concat();
    account::write(&folder.join("users"), &users);
    let text = format!(
        "[databases]
* = host=127.0.0.1 port={upstream}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
pool_mode = transaction
auth_type = {auth}
auth_file = {users}
server_tls_sslmode = {tls}
max_client_conn = 500
default_pool_size = 20
{lines}
",
        upstream = postgres.port(),
        auth = if postgres.settings().password { "scram-sha-256" } else { "trust" },
        users = folder.join("users").display(),
        tls = if postgres.settings().tls { "require" } else { "disable" },
        lines = lines.join("\n"),
    );
    account::write(&folder.join("pgbouncer.ini"), &text);
}

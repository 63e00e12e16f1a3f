//! A PostgreSQL of our own: one that all tests of a process share, or one to be cruel to.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use super::watcher::{Watcher, Word};
use super::{POLL, PORT_TRIES, START_LIMIT, account, certificates, free_port, programs};
use crate::random;

/// Owns the database of the same name and is nothing more: no superuser, no replication.
const ROLE: &str = "tollgate";
const SUPERUSER: &str = "postgres";

/// How a server is set up. The default is fast: no `fsync`, no TLS, everybody on the loopback in.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Wait for the disk at each commit. Without, a killed server still keeps what it committed:
    /// only a killed machine would not.
    pub fsync: bool,
    /// Nothing but TLS over TCP, with a certificate for `localhost` and `127.0.0.1`.
    pub tls: bool,
    /// SCRAM-SHA-256 over TCP, with random passwords that stand in the URLs.
    pub password: bool,
    /// Further lines of `postgresql.conf`; they win over ours.
    pub lines: Vec<String>,
}

/// A running PostgreSQL, the newest that is installed or the one that was chosen. Ended and removed when dropped, or when
/// this process ends in whatever way.
#[derive(Debug)]
pub struct Postgres {
    watcher: Watcher,
    settings: Settings,
    port: u16,
    /// The same for both roles.
    password: Option<String>,
}

impl Postgres {
    /// The one server of this test process, started at first use with the default settings.
    pub fn shared() -> &'static Postgres {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(Postgres::start)
    }

    /// A server of its own, for tests that stop, pause or kill it.
    pub fn start() -> Postgres {
        Postgres::start_with(Settings::default())
    }

    pub fn start_with(settings: Settings) -> Postgres {
        let watcher = Watcher::new(&programs::of_postgres("postgres"), &["-D", "."]);
        let password = settings.password.then(|| random::name("secret"));
        let mut postgres = Postgres { watcher, settings, port: 0, password };
        postgres.make_cluster();
        postgres.start_on_a_free_port();
        postgres.make_roles();
        postgres
    }

    /// As the ordinary role that owns the database: `postgres://tollgate@127.0.0.1:PORT/tollgate`.
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Into the same database.
    pub fn superuser_url(&self) -> String {
        self.url_as(SUPERUSER, self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Holds the data, the log and the unix socket. It belongs to the account the server runs as.
    pub fn folder(&self) -> &Path {
        self.watcher.folder()
    }

    /// Its own certificate authority, in PEM.
    pub fn ca_file(&self) -> PathBuf {
        assert!(self.settings.tls, "this server was started without TLS, so it has no CA");
        self.folder().join(certificates::AUTHORITY)
    }

    /// What it wrote to its log, over all its starts.
    pub fn log(&self) -> String {
        self.watcher.log()
    }

    /// Fast shutdown: sessions are ended, transactions rolled back. Returns when it is down.
    pub fn stop(&self) {
        self.watcher.order(Word::Stop);
    }

    /// Immediate shutdown: nobody is asked, and the next start replays the log. Returns when it is down.
    pub fn stop_immediately(&self) {
        self.watcher.order(Word::Quit);
    }

    /// After [`Postgres::stop`] or [`Postgres::kill`], on the same port. Returns when it answers.
    pub fn start_again(&self) {
        assert!(!self.watcher.ask(Word::Runs), "the server already runs");
        let began = Instant::now();
        while let Err(Taken) = self.try_start() {
            assert!(began.elapsed() < START_LIMIT, "port {} stays taken", self.port);
            std::thread::sleep(POLL);
        }
    }

    pub fn restart(&self) {
        self.stop();
        self.start_again();
    }

    /// SIGKILL to all its processes at once: a crash.
    pub fn kill(&self) {
        self.watcher.order(Word::Kill);
    }

    /// SIGSTOP to all its processes: connections stay open and nothing answers.
    pub fn pause(&self) {
        self.watcher.order(Word::Pause);
    }

    pub fn resume(&self) {
        self.watcher.order(Word::Resume);
    }

    /// Runs statements as the superuser in the database `tollgate`, each in a transaction of its
    /// own. Returns the rows, one per line, columns parted by `|`. For setting up and looking.
    pub fn psql(&self, sql: &str) -> String {
        self.psql_in(ROLE, sql)
    }

    /// The same through a URL, as whoever it names, with everything libpq knows about TLS. The
    /// error is what psql says.
    pub fn psql_through(&self, url: &str, sql: &str) -> Result<String, String> {
        let output = account::output(&mut self.psql_command(url), sql);
        let text = |bytes| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}

/// The port was taken between its choice and its use.
struct Taken;

impl Postgres {
    /// As the ordinary role, through something that listens on another port.
    pub(super) fn url_at(&self, port: u16) -> String {
        self.url_as(ROLE, port)
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The roles and the password they share; none where nobody asks for it.
    pub(super) fn logins(&self) -> ([&'static str; 2], Option<&str>) {
        ([ROLE, SUPERUSER], self.password.as_deref())
    }

    fn url_as(&self, role: &str, port: u16) -> String {
        let password = self.password.as_ref().map(|it| format!(":{it}")).unwrap_or_default();
        format!("postgres://{role}{password}@127.0.0.1:{port}/{ROLE}")
    }

    fn make_cluster(&self) {
        let mut initdb = account::command(&programs::of_postgres("initdb"), self.folder());
        initdb.args(["--pgdata=data", "--no-sync", "--auth=trust"]);
        initdb.args(["--username", SUPERUSER, "--encoding=UTF8", "--locale=C"]);
        account::run(&mut initdb);
        if self.settings.tls {
            certificates::make(self.folder());
        }
        let host = if self.settings.tls { "hostssl" } else { "host" };
        let method = if self.settings.password { "scram-sha-256" } else { "trust" };
        // The socket lies in a folder that only the servers' account may enter.
        let doors = format!("local all all trust\n{host} all all 127.0.0.1/32 {method}\n");
        account::write(&self.folder().join("data/pg_hba.conf"), &doors);
    }

    fn start_on_a_free_port(&mut self) {
        for _ in 0..PORT_TRIES {
            self.port = free_port();
            self.configure();
            if self.try_start().is_ok() {
                return;
            }
        }
        panic!("{PORT_TRIES} ports in a row were taken: {}", self.watcher.report());
    }

    fn configure(&self) {
        let on_off = |on| if on { "on" } else { "off" };
        let mut lines = vec![
            "listen_addresses = '127.0.0.1'".to_owned(),
            format!("port = {}", self.port),
            format!("unix_socket_directories = '{}'", self.folder().display()),
            "max_connections = 200".to_owned(),
            "shared_buffers = 32MB".to_owned(),
            format!("fsync = {}", on_off(self.settings.fsync)),
            "password_encryption = 'scram-sha-256'".to_owned(),
            // In the data folder: in /dev/shm a killed server would leave it behind.
            "dynamic_shared_memory_type = mmap".to_owned(),
            format!("ssl = {}", on_off(self.settings.tls)),
            format!("ssl_cert_file = '../{}'", certificates::CERTIFICATE),
            format!("ssl_key_file = '../{}'", certificates::KEY),
        ];
        lines.extend(self.settings.lines.iter().cloned());
        let conf = lines.join("\n") + "\n";
        account::write(&self.folder().join("data/postgresql.conf"), &conf);
    }

    fn try_start(&self) -> Result<(), Taken> {
        let said_before = self.log().len();
        self.watcher.order(Word::Start);
        let began = Instant::now();
        while !self.answers() {
            if !self.watcher.ask(Word::Runs) {
                let sign = "could not create any TCP/IP sockets";
                let taken = self.log().get(said_before..).is_some_and(|said| said.contains(sign));
                assert!(taken, "PostgreSQL does not start: {}", self.watcher.report());
                return Err(Taken);
            }
            assert!(began.elapsed() < START_LIMIT, "no answer yet: {}", self.watcher.report());
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Asked through the socket in our folder: on the port it might be another who answers.
    fn answers(&self) -> bool {
        let mut command =
            account::command(&programs::of_postgres_client("pg_isready"), self.folder());
        command.arg("--quiet").arg("--host").arg(self.folder());
        command.arg("--port").arg(self.port.to_string());
        command.status().expect("pg_isready runs").success()
    }

    fn make_roles(&self) {
        let mut sql = format!("create role {ROLE} login;\ncreate database {ROLE} owner {ROLE};\n");
        if let Some(password) = &self.password {
            for role in [ROLE, SUPERUSER] {
                sql += &format!("alter role {role} password '{password}';\n");
            }
        }
        self.psql_in("postgres", &sql);
    }

    fn psql_in(&self, database: &str, sql: &str) -> String {
        let mut psql = self.psql_command(database);
        psql.args(["-U", SUPERUSER, "-p", &self.port.to_string(), "-h"]).arg(self.folder());
        let output = account::run_with(&mut psql, sql);
        String::from_utf8(output.stdout).expect("the database is UTF-8").trim_end().to_owned()
    }

    fn psql_command(&self, database: &str) -> Command {
        let mut psql = account::command(&programs::of_postgres_client("psql"), self.folder());
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database]);
        psql
    }
}

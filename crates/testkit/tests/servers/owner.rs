//! A test process that ends, in whatever way, leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::servers::{PgBouncer, Postgres};

const ROLE: &str = "TOLLGATE_TEST_OWNER";

/// What a PostgreSQL takes of the machine.
struct Traces {
    folder: PathBuf,
    processes: Vec<u32>,
    /// Of System V shared memory.
    segment: String,
}

impl Traces {
    fn of(folder: &Path) -> Traces {
        let file = std::fs::read_to_string(folder.join("data/postmaster.pid")).unwrap();
        let server: u32 = file.lines().next().unwrap().parse().unwrap();
        let segment = file.lines().nth(6).unwrap().split_whitespace().last().unwrap().to_owned();
        let processes: Vec<u32> = ids()
            .filter(|id| *id == server || status(*id, "PPid") == Some(server.to_string()))
            .collect();
        assert!(processes.len() > 3, "{processes:?}");
        let traces = Traces { folder: folder.to_owned(), processes, segment };
        assert!(traces.segment_exists());
        traces
    }

    fn are_gone(&self) -> bool {
        // A zombie is only a number that its parent has not asked for.
        let lives = |id: &u32| status(*id, "State").is_some_and(|state| !state.starts_with('Z'));
        !self.folder.exists() && !self.processes.iter().any(lives) && !self.segment_exists()
    }

    fn segment_exists(&self) -> bool {
        let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
        table.lines().any(|line| line.split_whitespace().nth(1) == Some(&self.segment))
    }
}

/// Of all processes.
fn ids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// A field of a process that there is.
fn status(id: u32, field: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(":\t")?.to_owned()))
}

fn soon(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < limit, "not after ten seconds: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_dropped_server_leaves_nothing_behind() {
    let postgres = Postgres::start();
    let traces = Traces::of(postgres.folder());
    drop(postgres);
    assert!(traces.are_gone(), "dropping waits");
}

#[test]
fn a_killed_server_that_is_dropped_leaves_nothing_behind() {
    let postgres = Postgres::start();
    let traces = Traces::of(postgres.folder());
    postgres.kill();
    drop(postgres);
    assert!(traces.are_gone());
}

#[test]
fn an_owner_that_is_killed_leaves_nothing_behind() {
    let mut owner = Owner::start("shared");
    let postgres = Traces::of(&owner.postgres);
    assert!(owner.bouncer_listens());
    owner.kill();
    soon("PostgreSQL is gone", || postgres.are_gone());
    soon("pgbouncer is gone", || !owner.bouncer_listens() && !owner.bouncer.exists());
}

#[test]
fn an_owner_that_is_killed_while_its_server_is_paused_leaves_nothing_behind() {
    let mut owner = Owner::start("paused");
    let postgres = Traces::of(&owner.postgres);
    owner.kill();
    soon("PostgreSQL is gone", || postgres.are_gone());
}

#[test]
fn an_owner_that_exits_leaves_nothing_behind() {
    let mut owner = Owner::start("shared");
    let postgres = Traces::of(&owner.postgres);
    drop(owner.process.stdin.take());
    assert!(owner.process.wait().unwrap().success());
    soon("PostgreSQL is gone", || postgres.are_gone());
}

#[test]
fn an_owner_that_is_killed_while_its_server_starts_leaves_nothing_behind() {
    // Its folder, what initdb makes first and later, the server's first word, and its open door.
    let signs = ["data", "data/PG_VERSION", "data/global/pg_control", "log", ".s.PGSQL."];
    for sign in signs {
        // On a loaded machine we may look away until it has started.
        assert!((0..5).any(|_| is_killed_at(sign)), "five times too late for {sign}");
    }
}

/// Kills an owner as soon as there is something in its server's folder that begins so; whether the
/// server was still starting. What is left in either case must go.
fn is_killed_at(sign: &str) -> bool {
    let home = tempfile::tempdir().unwrap();
    open_to_all(home.path());
    let mut owner = owner("shared").env("TMPDIR", home.path()).spawn().unwrap();
    let folders = || home.path().read_dir().unwrap().map(|entry| entry.unwrap().path());
    let limit = Instant::now() + Duration::from_secs(10);
    while !folders().any(|folder| has(&folder, sign)) {
        assert!(Instant::now() < limit, "not after ten seconds: {sign}");
        std::thread::sleep(Duration::from_millis(1));
    }
    owner.kill().unwrap();
    let said = owner.wait_with_output().unwrap().stdout;
    soon("its folder is gone", || folders().next().is_none());
    !String::from_utf8(said).unwrap().contains("servers ")
}

fn has(folder: &Path, sign: &str) -> bool {
    let path = folder.join(sign);
    let (parent, start) = (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap());
    let entries = parent.read_dir().into_iter().flatten();
    entries.flatten().any(|entry| entry.file_name().to_str().unwrap().starts_with(start))
}

/// Root's servers are another account's.
fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
}

/// This test binary, as a process to be killed. It ends when its input does.
fn owner(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "owner::be_an_owner", "--ignored", "--nocapture"]).env(ROLE, role);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

struct Owner {
    process: Child,
    postgres: PathBuf,
    bouncer: PathBuf,
    bouncer_port: u16,
}

impl Owner {
    /// Returns when its servers run.
    fn start(role: &str) -> Owner {
        let mut process = owner(role).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let servers =
            lines.find_map(|line| Some(line.unwrap().split_once("servers ")?.1.to_owned()));
        let servers = servers.expect("it says what it started");
        let [postgres, bouncer, port] = servers.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let (postgres, bouncer) = (postgres.into(), bouncer.into());
        Owner { process, postgres, bouncer, bouncer_port: port.parse().unwrap() }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn bouncer_listens(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.bouncer_port)).is_ok()
    }
}

#[test]
#[ignore = "not a test: what the others here start and kill"]
fn be_an_owner() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let own = (role == "paused").then(Postgres::start);
    let postgres = own.as_ref().unwrap_or_else(|| Postgres::shared());
    let bouncer = PgBouncer::start(postgres);
    if own.is_some() {
        postgres.pause();
    }
    let folders = format!("{} {}", postgres.folder().display(), bouncer.folder().display());
    println!("servers {folders} {}", bouncer.port());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    // Nothing is dropped.
    std::process::exit(0);
}

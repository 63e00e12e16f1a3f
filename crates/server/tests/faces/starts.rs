//! Starts that cannot succeed: each ends at once with a code and a message that says what to do.

use std::net::TcpListener;

use crate::support::command::alone;
use crate::support::server::files;
use crate::support::{Ended, Setup};

/// `serve` on this store, expected to fail with one of the codes for a bad store.
fn refuses_store(setup: &Setup, url: &str, code: i32) -> Ended {
    let args = ["serve", "--listen", "127.0.0.1:0", "--store", url];
    let ended = alone(setup.home.path(), &args).expect(code);
    assert!(ended.err.starts_with("error: "), "{ended:?}");
    assert!(!ended.out.contains("listens"), "{ended:?}");
    ended
}

fn says(ended: &Ended, parts: &[&str]) {
    for part in parts {
        assert!(ended.err.contains(part), "{part:?} is not in {}", ended.err);
    }
}

#[test]
fn a_folder_that_is_not_there_or_not_writable_is_named() {
    let setup = Setup::memory();
    for path in ["nowhere/counts.db", "/proc/counts.db", "."] {
        let ended = refuses_store(&setup, &format!("sqlite:{path}"), 3);
        says(&ended, &[path, "folder", "--store"]);
    }
    assert_eq!(files(setup.home.path()), [""; 0]);
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let setup = Setup::memory();
    let text = "this is somebody's diary, not a database\n".repeat(100);
    let path = setup.write("diary.txt", &text);
    let ended = refuses_store(&setup, "sqlite:diary.txt", 3);
    says(&ended, &["diary.txt", "not a sound tollgate database", "backup"]);
    assert_eq!(std::fs::read_to_string(path).unwrap(), text);
    assert_eq!(files(setup.home.path()), ["diary.txt"]);
}

#[test]
fn a_damaged_file_is_refused() {
    let setup = Setup::sqlite();
    setup.start().terminate();
    let mut bytes = std::fs::read(setup.store_path()).unwrap();
    assert!(bytes.len() > 4096, "{}", bytes.len());
    // The header stays; everything else is noise.
    for (position, byte) in bytes.iter_mut().enumerate().skip(100) {
        *byte = (position * 31 % 251) as u8;
    }
    std::fs::write(setup.store_path(), &bytes).unwrap();
    let ended = setup.start_in_vain().expect(3);
    says(&ended, &["counts.db", "backup"]);
    assert_eq!(std::fs::read(setup.store_path()).unwrap(), bytes, "left as it was");
}

#[test]
fn another_programs_database_is_refused_and_left_alone() {
    let setup = Setup::memory();
    let path = setup.home.path().join("other.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other
        .execute_batch("create table diary (day text); insert into diary values ('monday')")
        .unwrap();
    drop(other);
    let before = std::fs::read(&path).unwrap();
    let ended = refuses_store(&setup, "sqlite:other.db", 3);
    says(&ended, &["other.db", "another program", "--store"]);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let migrated = alone(setup.home.path(), &["migrate", "--store", "sqlite:other.db"]).expect(3);
    says(&migrated, &["another program"]);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_store_that_is_not_known_is_bad_usage() {
    let setup = Setup::memory();
    for url in
        ["sqlite:", "counts.db", "mysql://localhost", "", "memory", "memory:x", "sqlite::memory:"]
    {
        refuses_store(&setup, url, 2);
    }
    let ended = refuses_store(&setup, "mysql://ada:hush-hush@db.example.com/x", 2);
    assert!(!ended.err.contains("hush-hush"), "a password is in {ended:?}");
    says(&ended, &["sqlite:PATH", "memory:"]);
    let path = refuses_store(&setup, "counts.db", 2);
    says(&path, &["did you mean sqlite:counts.db?"]);
}

#[test]
fn a_fault_in_the_configuration_is_bad_usage_and_names_the_key() {
    for (text, named) in [
        ("[server]\nlisen = \"127.0.0.1:0\"", "lisen"),
        ("[sever]\nlisten = \"127.0.0.1:0\"", "sever"),
        ("[store]\npath = \"x\"", "path"),
        ("colour = 1", "colour"),
        ("[server]\nmax_connections = -1", "max_connections"),
        ("[server]\nmax_connections = \"many\"", "max_connections"),
        ("[server]\nheader_timeout = \"0s\"", "header_timeout"),
        ("[server]\nbody_timeout = \"soon\"", "body_timeout"),
        ("[server]\nshutdown_timeout = 5", "shutdown_timeout"),
        ("[server\n", "line 1"),
        ("[policy.a]\nlimits = []\nroute = []", "policy.a.route"),
        (
            "[policy.a]\nlimits = [{ name = \"x\", max = 1, per = \"0s\" }]",
            "policy.a.limits[0].per",
        ),
        ("[policy.\"a b\"]\nlimits = [{ name = \"x\", max = 1, per = \"1s\" }]", "a b"),
    ] {
        let setup = Setup::memory().config(text);
        let ended = setup.start_in_vain().expect(2);
        says(&ended, &[named, "tollgate.toml"]);
    }
}

#[test]
fn every_fault_of_every_policy_in_a_file_is_listed_and_none_is_applied() {
    let text = "[policy.good]\nlimits = [{ name = \"x\", max = 1, per = \"1h\" }]\n\
                [policy.a]\nlimits = [{ name = \"x\", max = -1, per = \"0s\" }]\n\
                [policy.b]\ndurability = \"never\"\nlimits = [{ name = \"x\", max = 1, per = \"day\", \
                timezone = \"Mars/Base\" }]\n";
    let setup = Setup::sqlite().config(text);
    let ended = setup.start_in_vain().expect(2);
    says(&ended, &["policy.a.limits[0].max", "policy.a.limits[0].per", "policy.b.durability"]);
    says(&ended, &["policy.b.limits[0].timezone"]);
    assert!(!setup.store_path().exists(), "nothing was touched");
}

#[test]
fn a_configuration_that_is_not_there_is_bad_usage() {
    let setup = Setup::memory().arg("--config").arg("missing.toml");
    says(&setup.start_in_vain().expect(2), &["missing.toml", "cannot be read"]);
}

#[test]
fn a_server_for_no_connections_at_all_is_bad_usage() {
    let setup = Setup::memory().config("[server]\nmax_connections = 0");
    says(&setup.start_in_vain().expect(2), &["max_connections"]);
}

#[test]
fn more_connections_than_can_be_counted_are_bad_usage() {
    let setup = Setup::memory().config("[server]\nmax_connections = 9223372036854775807");
    says(&setup.start_in_vain().expect(2), &["max_connections"]);
}

#[test]
fn a_port_in_use_is_said_clearly() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let setup = Setup::sqlite();
    let url = setup.store_url();
    let args = ["serve", "--listen", &address, "--store", &url];
    let ended = alone(setup.home.path(), &args);
    assert_ne!(ended.code, 0);
    says(&ended, &[&address, "--listen", "in use"]);
    // The file is let go of, and sound.
    setup.start().terminate();
}

#[test]
fn an_address_that_is_none_is_bad_usage() {
    let setup = Setup::memory();
    for address in ["nonsense", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:99999", "", ":"] {
        let args = ["serve", "--store", "memory:", "--listen", address];
        let ended = alone(setup.home.path(), &args).expect(2);
        says(&ended, &["127.0.0.1:8080"]);
    }
}

#[test]
fn a_public_address_needs_a_token() {
    let public = |setup: Setup| setup.arg("--listen").arg("0.0.0.0:0");
    let without_listen = || {
        let setup = Setup::memory();
        Setup::with_args(setup, &["serve", "--store", "memory:"])
    };
    let ended = public(without_listen()).start_in_vain().expect(2);
    says(&ended, &["TOLLGATE_ADMIN_TOKEN", "127.0.0.1"]);
    assert!(!ended.err.contains("token create"), "of no use for a store in memory: {ended:?}");
    let empty = public(without_listen()).env("TOLLGATE_ADMIN_TOKEN", "");
    empty.start_in_vain().expect(2);
    let server = public(without_listen()).env("TOLLGATE_ADMIN_TOKEN", "secret").into_server();
    let port = server.address.rsplit_once(':').unwrap().1.to_owned();
    let status = |token: &str| {
        let call = crate::support::Call::new("GET", "/admin/policies").token(token);
        call.send(&crate::support::http::agent(), &format!("127.0.0.1:{port}")).status
    };
    assert_eq!((status("secret"), status("wrong")), (200, 401));
}

#[test]
fn a_token_in_the_store_opens_a_public_address_too() {
    let setup = Setup::sqlite();
    let url = setup.store_url();
    let setup = Setup::with_args(setup, &["serve", "--listen", "0.0.0.0:0", "--store", &url]);
    let refused = setup.start_in_vain().expect(2);
    // The message is a recipe: what it says to run works.
    let recipe = format!("tollgate token create --scope admin --store {url}");
    says(&refused, &[&recipe]);
    let args = ["token", "create", "--scope", "admin", "--store", &url];
    alone(setup.home.path(), &args).expect(0);
    setup.start().terminate();
}

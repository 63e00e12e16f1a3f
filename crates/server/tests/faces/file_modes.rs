//! Files that hold secrets are their owner's alone, whatever the umask of whoever starts the server.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::json;

use crate::support::mail::{CLOSED_PORT, account_body};
use crate::support::server::files;
use crate::support::{Server, Setup};

/// The same command under a umask that lets everybody read and write.
fn generous(setup: &Setup) -> Command {
    let command = setup.command();
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 000; exec \"$0\" \"$@\""]).arg(command.get_program());
    shell.args(command.get_args()).current_dir(setup.home.path());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

#[test]
fn every_file_the_server_makes_is_readable_by_its_owner_only() {
    let setup = Setup::sqlite();
    let server = Server::spawn(generous(&setup), None);
    // An account with a password, so that the key file is made.
    server.post("/tenant", &json!({ "id": "acme" })).ok();
    let mut account = account_body("acme", "main", CLOSED_PORT);
    account["user"] = "ada".into();
    account["password"] = "secret".into();
    server.post("/account", &account).ok();
    server.spend("default", &json!({}));
    let modes = || {
        let mut found = Vec::new();
        for name in files(setup.home.path()) {
            let mode = setup.home.path().join(&name).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}: {mode:o}");
            found.push(name);
        }
        found
    };
    let running = modes();
    for wanted in ["counts.db", "counts.db-wal", "counts-mail.db", "counts-mail.db-wal"] {
        assert!(running.iter().any(|name| name == wanted), "{wanted} is not in {running:?}");
    }
    assert!(running.iter().any(|name| name.contains("key")), "{running:?}");
    server.terminate();
    modes();
}

#[test]
fn a_file_that_is_there_keeps_the_mode_it_was_given() {
    let setup = Setup::sqlite();
    setup.start().terminate();
    let path = setup.store_path();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    setup.start().terminate();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
}

//! Output that cannot be written, on a full disk or into a closed pipe: the work goes on, and the
//! exit code says what came of it.

use std::fs::File;
use std::process::{Output, Stdio};

use serde_json::json;

use crate::support::command::clean;
use crate::support::{Server, Setup, eventually};

/// Where every write fails because there is no room.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// Where every write fails because nobody reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn run(server: &Server, args: &[&str], stdout: Stdio, stderr: Stdio) -> Output {
    let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
    command.args(args).env("TOLLGATE_SERVER", server.url(""));
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).output().unwrap()
}

#[test]
fn a_command_ends_with_its_own_exit_code_whoever_reads() {
    let server = Server::memory();
    server.policy("spent", &json!([{ "name": "a", "max": 1, "per": "3650d" }]));
    server.spend("spent", &json!({}));
    for (args, code) in [
        (["check", "spent"].as_slice(), 1),
        (&["check", "spent", "--json"], 1),
        (&["check", "default"], 0),
        (&["check", "nobody-knows-it"], 2),
        (&["policy", "list"], 0),
        (&["top", "--once"], 0),
        (&["sql"], 0),
        (&["completions", "bash"], 0),
        (&["man"], 0),
        (&["policy", "list", "--server", "http://127.0.0.1:1"], 3),
    ] {
        let unread = run(&server, args, closed(), Stdio::piped());
        assert_eq!(unread.status.code(), Some(code), "{args:?}: {unread:?}");
        assert!(code > 1 || unread.stderr.is_empty(), "{args:?}: {unread:?}");
        let mute = run(&server, args, full(), full());
        assert_eq!(mute.status.code(), Some(code), "{args:?}: {mute:?}");
    }
}

#[test]
fn what_is_shown_once_must_be_seen() {
    let server = Server::memory();
    for stdout in [full(), closed()] {
        let ended =
            run(&server, &["mail", "tenants", "add", "acme"], Stdio::null(), Stdio::piped());
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        let ended = run(&server, &["mail", "tenants", "token", "acme"], stdout, Stdio::piped());
        assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    }
}

#[test]
fn a_full_disk_is_told_of_once() {
    let server = Server::memory();
    server.policy("spent", &json!([{ "name": "a", "max": 1, "per": "3650d" }]));
    server.spend("spent", &json!({}));
    let ended = run(&server, &["check", "spent"], full(), Stdio::piped());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.lines().count() == 1 && said.contains("standard output"), "{said}");
}

#[test]
fn a_server_without_outputs_serves_and_stops_in_good_order() {
    for (stdout, stderr) in [(full(), full()), (closed(), closed())] {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let listen = format!("127.0.0.1:{port}");
        let setup = Setup::memory()
            .with_args(&["serve", "--store", "memory:", "--listen", &listen, "--log", "trace"])
            .config("[policy.file]\nlimits = [{ name = \"a\", max = 1, per = \"1h\" }]");
        let mut command = setup.command();
        let mut child = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().unwrap();
        let url = format!("http://{listen}/readyz");
        let answered = eventually("an answer, or the end", || match child.try_wait().unwrap() {
            Some(ended) => Some(Err(ended)),
            None => ureq::get(&url).call().ok().map(|answer| Ok(answer.status())),
        });
        assert_eq!(answered.unwrap(), 200);
        let killed = std::process::Command::new("kill").arg(child.id().to_string()).status();
        assert!(killed.unwrap().success());
        let ended = eventually("the end", || child.try_wait().unwrap());
        assert_eq!(ended.code(), Some(0));
    }
}

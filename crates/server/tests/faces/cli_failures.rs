//! The command line when the server or the store is not what it should be; and the rest of it.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::support::command::{alone, clean};
use crate::support::server::files;
use crate::support::{Ended, Server, Setup, tollgate};

#[test]
fn a_server_that_cannot_be_reached_exits_3_and_says_what_to_do() {
    let setup = Setup::memory();
    for args in [
        vec!["check", "p"],
        vec!["peek", "p"],
        vec!["refund", "r"],
        vec!["slot", "e"],
        vec!["slot", "list"],
        vec!["slot", "cancel", "e"],
        vec!["slot", "verify"],
        vec!["slot", "timeline"],
        vec!["policy", "list"],
        vec!["policy", "show", "p"],
        vec!["policy", "history", "p"],
        vec!["policy", "delete", "p"],
        vec!["token", "create", "--scope", "admin"],
    ] {
        let args = [args.as_slice(), &["--server", "http://127.0.0.1:1"]].concat();
        let ended = alone(setup.home.path(), &args).expect(3);
        for part in ["http://127.0.0.1:1", "tollgate serve", "--server"] {
            assert!(ended.err.contains(part), "{args:?}: {}", ended.err);
        }
        assert_eq!(ended.out, "");
    }
}

#[test]
fn programs_read_on_standard_output_what_the_server_refused() {
    let server = Server::memory();
    for (args, status) in [
        (vec!["check", "nope"], 404),
        (vec!["check", "default", "--cost", "101"], 422),
        (vec!["refund", "nonsense"], 400),
        (vec!["slot", "e", "--config", "nope"], 404),
        (vec!["policy", "show", "nope"], 404),
    ] {
        let for_people = tollgate(&server, &args).expect(2);
        assert_eq!(for_people.out, "", "{args:?}");
        let for_programs = tollgate(&server, &[&args[..], &["--json"]].concat()).expect(2);
        assert_eq!(for_programs.json()["status"], status, "{args:?}: {for_programs:?}");
        assert_eq!(for_programs.err, for_people.err, "{args:?}");
    }
}

#[test]
fn a_url_of_postgresql_without_a_server_is_bad_usage() {
    let setup = Setup::memory();
    for url in ["postgres://", "postgres:///shop", "postgresql://ada@/shop"] {
        let ended = alone(setup.home.path(), &["serve", "--store", url]).expect(2);
        assert!(ended.err.contains("names no server"), "{url}: {ended:?}");
    }
}

#[test]
fn something_else_that_answers_is_no_server_of_ours() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").unwrap();
    });
    let setup = Setup::memory();
    let ended = alone(setup.home.path(), &["check", "p", "--server", &url]).expect(3);
    assert!(ended.err.contains("tollgate server"), "{ended:?}");
    other.join().unwrap();
}

/// Answers one call with a document of so many MiB.
fn long_winded(mebibytes: usize) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        let document = format!("{{\"policies\":[]{}}}", " ".repeat((mebibytes << 20) - 15));
        let length = document.len();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").unwrap();
        // Whoever has read enough goes away.
        let _ = stream.write_all(document.as_bytes());
    });
    (url, answering)
}

#[test]
fn a_long_answer_is_read_and_one_without_end_is_not() {
    let setup = Setup::memory();
    for (mebibytes, code) in [(20, 0), (65, 3)] {
        let (url, answering) = long_winded(mebibytes);
        let args = ["policy", "list", "--json", "--server", &url];
        let ended = alone(setup.home.path(), &args).expect(code);
        answering.join().unwrap();
        let is_told = ended.err.contains("longer than 64 MiB") && ended.err.contains("for less");
        assert_eq!(is_told, code == 3, "{}", ended.err);
    }
}

#[test]
fn an_address_that_is_none_exits_2() {
    let setup = Setup::memory();
    for url in ["nonsense", "localhost:8080", "http://", "ftp://127.0.0.1", ""] {
        let ended = alone(setup.home.path(), &["check", "p", "--server", url]).expect(2);
        let is_told = ended.err.contains("is not a server address (");
        let what_then = ended.err.contains("write it as http://127.0.0.1:8080");
        assert!(ended.err.starts_with("error: ") && is_told && what_then, "{url}: {ended:?}");
    }
}

#[test]
fn the_store_that_is_down_exits_3() {
    let setup = Setup::sqlite();
    let server = setup.start();
    let url = setup.store_url();
    for args in [
        vec!["migrate", "--store", &url],
        vec!["token", "create", "--scope", "admin", "--store", &url],
    ] {
        let ended = alone(setup.home.path(), &args).expect(3);
        assert!(ended.err.contains("in use"), "{ended:?}");
    }
    drop(server);
}

#[test]
fn migrate_makes_a_store_that_serve_opens_and_may_be_repeated() {
    let setup = Setup::sqlite();
    let url = setup.store_url();
    for _ in 0..2 {
        let ended = alone(setup.home.path(), &["migrate", "--store", &url]).expect(0);
        assert!(ended.out.contains("up to date"), "{ended:?}");
    }
    let server = setup.start();
    assert_eq!(server.get("/admin/policies/default").status, 200, "still a first start");
    server.terminate();
    alone(setup.home.path(), &["migrate", "--store", &url]).expect(0);
    let ended = alone(setup.home.path(), &["migrate", "--store", "sqlite:no/such/x.db"]).expect(3);
    assert!(ended.err.contains("folder"), "{ended:?}");
    alone(setup.home.path(), &["migrate", "--store", "nonsense"]).expect(2);
}

#[test]
fn migrate_without_a_store_uses_the_default_file() {
    let setup = Setup::memory();
    alone(setup.home.path(), &["migrate"]).expect(0);
    assert_eq!(files(setup.home.path()), ["tollgate-mail.db", "tollgate.db"]);
}

#[test]
fn completions_are_printed_for_each_shell() {
    let setup = Setup::memory();
    for (shell, sign) in
        [("bash", "complete -F"), ("zsh", "#compdef tollgate"), ("fish", "complete -c tollgate")]
    {
        let ended = alone(setup.home.path(), &["completions", shell]).expect(0);
        assert!(ended.out.contains(sign), "{shell}: {}", ended.out);
        for command in ["serve", "check", "peek", "refund", "slot", "policy", "token", "migrate"] {
            assert!(ended.out.contains(command), "{shell}: {command}");
        }
        assert_eq!(ended.err, "");
    }
    alone(setup.home.path(), &["completions", "tcsh"]).expect(2);
    // Bash can read its own.
    let path = setup.home.path().join("completions.bash");
    std::fs::write(&path, alone(setup.home.path(), &["completions", "bash"]).out).unwrap();
    let mut bash = clean("bash");
    bash.args(["-n"]).arg(path);
    Ended::of(bash).expect(0);
}

#[test]
fn the_manual_page_is_printed_or_one_for_each_command_is_written() {
    let setup = Setup::memory();
    let page = alone(setup.home.path(), &["man"]).expect(0);
    for part in [".TH tollgate 1", "Exit codes", "tollgate\\-check(1)"] {
        assert!(page.out.contains(part), "{part}: {}", page.out);
    }
    alone(setup.home.path(), &["man", "--dir", "man/man1"]).expect(0);
    let written = files(&setup.home.path().join("man/man1"));
    for name in ["tollgate.1", "tollgate-serve.1", "tollgate-slot-list.1", "tollgate-mail-keys.1"] {
        assert!(written.contains(&name.to_owned()), "{written:?}");
    }
    let ended = alone(setup.home.path(), &["man", "--dir", "/proc/nowhere"]).expect(2);
    assert!(ended.err.contains("--dir"), "{ended:?}");
}

#[test]
fn a_name_that_is_nearly_right_is_asked_back() {
    let server = Server::memory();
    for args in [
        vec!["check", "defualt"],
        vec!["peek", "Default"],
        vec!["slot", "e", "--config", "defalt"],
        vec!["slot", "timeline", "--config", "deflaut"],
        vec!["policy", "show", "defaults"],
        vec!["policy", "history", "efault"],
        vec!["policy", "delete", "defauld"],
    ] {
        let ended = tollgate(&server, &args).expect(2);
        assert!(ended.err.contains("did you mean \"default\"?"), "{args:?}: {ended:?}");
    }
    let far = tollgate(&server, &["check", "nothing-like-it"]).expect(2);
    assert!(far.err.contains("tollgate policy list") && !far.err.contains("did you"), "{far:?}");
    let missing = {
        server.policy(
            "u",
            &serde_json::json!([{ "name": "a", "max": 1, "per": "1h", "by": ["user"] }]),
        );
        tollgate(&server, &["check", "u", "usr=ada"]).expect(2)
    };
    assert!(missing.err.contains("user=VALUE"), "{missing:?}");
}

#[test]
fn help_and_version_exit_0_and_tell_the_exit_codes() {
    let setup = Setup::memory();
    let help = alone(setup.home.path(), &["--help"]).expect(0);
    for part in [
        "Exit codes",
        "serve",
        "check",
        "peek",
        "refund",
        "slot",
        "policy",
        "token",
        "migrate",
        "completions",
    ] {
        assert!(help.out.contains(part), "{part}: {}", help.out);
    }
    let version = alone(setup.home.path(), &["--version"]).expect(0);
    assert_eq!(version.out.trim(), format!("tollgate {}", env!("CARGO_PKG_VERSION")));
    for command in
        ["serve", "check", "peek", "refund", "slot", "policy", "token", "migrate", "completions"]
    {
        let help = alone(setup.home.path(), &[command, "--help"]).expect(0);
        assert!(help.out.contains("Usage"), "{command}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let server = Server::memory();
    let mut bash = clean("bash");
    // The reader is gone before anything is written.
    let script = "set -o pipefail; { sleep 0.2; exec \"$0\" policy show default; } | true";
    bash.args(["-c", script, env!("CARGO_BIN_EXE_tollgate")])
        .env("TOLLGATE_SERVER", server.url(""));
    let ended = Ended::of(bash);
    assert!(ended.code != 101 && !ended.err.contains("panicked"), "{ended:?}");
}

//! The first minute: `tollgate serve` in an empty folder, and the line it says to paste.

use serde_json::{Value, json};

use crate::support::command::clean;
use crate::support::server::files;
use crate::support::{Ended, Server, Setup, eventually};

/// The line to paste, alone on its line.
fn curl_line(server: &Server) -> String {
    eventually("a line with curl", || {
        server.said().lines().find(|line| line.starts_with("curl ")).map(str::to_owned)
    })
}

fn paste(line: &str, env: &[(&str, &str)]) -> (String, Value) {
    let mut bash = clean("bash");
    bash.args(["-c", line]).envs(env.iter().copied());
    let ended = Ended::of(bash).expect(0);
    let text = ended.out.replace('\r', "");
    let (head, body) = text.split_once("\n\n").unwrap_or_else(|| panic!("{ended:?}"));
    (head.lines().next().unwrap().to_owned(), serde_json::from_str(body).unwrap())
}

#[test]
fn serve_in_an_empty_folder_makes_a_store_a_policy_and_a_line_that_works() {
    let setup = Setup::memory().with_args(&["serve", "--listen", "127.0.0.1:0"]);
    let server = setup.start();
    assert!(files(setup.home.path()).contains(&"tollgate.db".to_owned()));
    let (status, decision) = paste(&curl_line(&server), &[]);
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert_eq!((&decision["allowed"], &decision["policy"]), (&json!(true), &json!("default")));
    assert_eq!(decision["limits"][0]["max"], 100);
    let policy = server.get("/admin/policies/default").ok();
    assert_eq!(policy["limits"][0]["per"], "PT4S");
    server.terminate();
    assert_eq!(files(setup.home.path()), ["tollgate-mail.db", "tollgate.db"]);
}

#[test]
fn without_any_argument_it_listens_on_127_0_0_1_8080() {
    let setup = Setup::memory().with_args(&["serve"]);
    let server = match Server::attempt(setup.command(), None) {
        Ok(server) => server,
        // If somebody else has the port, what it says then shows which one it wanted.
        Err(said) => {
            assert!(said.is_empty() || said.contains("127.0.0.1:8080"), "{said}");
            return;
        }
    };
    assert_eq!(server.address, "127.0.0.1:8080");
    let (status, _) = paste(&curl_line(&server), &[]);
    assert_eq!(status, "HTTP/1.1 200 OK");
    // And so do the client commands.
    crate::support::command::alone(setup.home.path(), &["check", "default"]).expect(0);
    server.terminate();
    assert_eq!(files(setup.home.path()), ["tollgate-mail.db", "tollgate.db"]);
}

#[test]
fn with_tokens_the_line_sends_the_one_of_the_environment() {
    let setup = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", "hush-hush");
    let server = setup.start();
    let line = curl_line(&server);
    assert!(!line.contains("hush-hush"), "{line}");
    let (status, _) = paste(&line, &[("TOLLGATE_TOKEN", "hush-hush")]);
    assert_eq!(status, "HTTP/1.1 200 OK");
    let (status, _) = paste(&line, &[]);
    assert_eq!(status, "HTTP/1.1 401 Unauthorized");
}

#[test]
fn it_says_where_it_listens_what_it_keeps_and_whether_it_is_open() {
    let setup = Setup::sqlite();
    let server = setup.start();
    curl_line(&server);
    let said = server.said();
    let first = said.lines().next().unwrap();
    assert!(first.starts_with(&format!("tollgate listens on http://{}", server.address)), "{said}");
    assert!(first.contains(&setup.store_url()) && first.contains("default"), "{said}");
    assert!(said.contains("(new)") && said.contains("no token"), "{said}");
    server.terminate();
    let again = setup.start();
    curl_line(&again);
    assert!(!again.said().contains("(new)"), "{}", again.said());
    let closed = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", "x").into_server();
    curl_line(&closed);
    let said = closed.said();
    assert!(said.contains("a token is needed") && !said.contains("open to everybody"), "{said}");
}

#[test]
fn the_line_works_also_when_the_default_policy_is_gone() {
    let setup = Setup::sqlite();
    let server = setup.start();
    server.policy("other", &json!([{ "name": "all", "max": 5, "per": "1h" }]));
    server.delete("/admin/policies/default");
    server.terminate();
    let server = setup.start();
    let (status, _) = paste(&curl_line(&server), &[]);
    assert_eq!(status, "HTTP/1.1 200 OK");
}

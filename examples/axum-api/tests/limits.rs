//! The example does what it says, over real HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use ureq::http::{HeaderMap, Request};

struct App {
    child: Child,
    url: String,
}

impl App {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_axum-api"))
            .env("LISTEN", "127.0.0.1:0")
            .env_remove("TOLLGATE_STORE")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listens on ").unwrap().to_owned();
        Self { child, url }
    }

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap, String) {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        let request = headers.iter().fold(request, |r, (name, value)| r.header(*name, *value));
        let mut answer = agent.run(request.body(()).unwrap()).unwrap();
        let body = answer.body_mut().read_to_string().unwrap();
        (answer.status().as_u16(), answer.headers().clone(), body)
    }

    fn tags(&self, path: &str, token: &str) -> (u16, HeaderMap, String) {
        self.send("GET", path, &[("Authorization", &format!("Bearer {token}"))])
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_role_has_its_own_limit_and_a_route_its_own_count() {
    let app = App::start();
    for (token, max) in [("token-of-ada", 3), ("token-of-eve", 20), ("token-of-bob", 50)] {
        for left in (0..max).rev() {
            let (status, headers, body) = app.tags("/tag-categorize", token);
            assert_eq!(status, 200, "{body}");
            assert_eq!(headers["x-ratelimit-remaining"], left.to_string());
        }
        let (status, headers, body) = app.tags("/tag-categorize", token);
        assert_eq!(status, 429);
        let said: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(said["ok"], false);
        assert_eq!(said["retry_after"].to_string(), headers["retry-after"].to_str().unwrap());
        assert_eq!(app.tags("/tag-categorize-dryrun", token).0, 200, "a count of its own");
    }
}

#[test]
fn a_failed_request_costs_nothing() {
    let app = App::start();
    for _ in 0..5 {
        assert_eq!(app.tags("/tag-categorize?fail", "token-of-ada").0, 500);
    }
    let (_, headers, _) = app.tags("/tag-categorize", "token-of-ada");
    assert_eq!(headers["x-ratelimit-remaining"], "2");
}

#[test]
fn nobody_passes_where_users_are_counted_and_everybody_where_nothing_is() {
    let app = App::start();
    assert_eq!(app.send("GET", "/tag-categorize", &[]).0, 401);
    assert_eq!(app.tags("/tag-categorize", "token-of-nobody").0, 401);
    let (status, headers, body) = app.send("GET", "/health", &[]);
    assert_eq!((status, body.as_str(), headers.get("ratelimit")), (200, "ok", None));
}

#[test]
fn an_address_is_not_what_a_client_says_it_is() {
    let app = App::start();
    let login = |count: usize| {
        let forwarded = format!("203.0.113.{count}");
        app.send("POST", "/login", &[("X-Forwarded-For", &forwarded)]).0
    };
    let statuses: Vec<_> = (0..6).map(login).collect();
    assert_eq!(statuses, [401, 401, 401, 401, 401, 429]);
}

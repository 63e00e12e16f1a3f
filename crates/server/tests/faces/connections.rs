//! Bounds on connections, heads and time; and HTTP/1.1 as clients really use it.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::command::clean;
use crate::support::raw::{Raw, get, post};
use crate::support::{FOREVER, Server, Setup, used};

const BODY: &str = r#"{"policy":"p"}"#;

fn server(config: &str) -> Server {
    let server = Setup::memory().config(config).into_server();
    server.policy("p", &json!([{ "name": "all", "max": 100, "per": FOREVER }]));
    server
}

fn count(body: &str) -> u64 {
    used(&serde_json::from_str::<Value>(body).unwrap())[0]
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = server("");
    let mut raw = Raw::connect(&server);
    raw.send(
        post("/api/v1/check", BODY).repeat(3) + &get("/healthz") + &post("/api/v1/check", BODY),
    );
    for expected in [1, 2, 3] {
        let reply = raw.reply();
        assert_eq!((reply.status, count(&reply.body)), (200, expected));
    }
    assert_eq!(raw.reply().body, r#"{"status":"ok"}"#);
    assert_eq!(count(&raw.reply().body), 4);
}

#[test]
fn one_connection_serves_many_requests_also_after_refusals_and_faults() {
    let server = server("");
    let mut raw = Raw::connect(&server);
    for _ in 0..20 {
        for (request, status) in [
            (post("/api/v1/check", BODY), 200),
            (post("/api/v1/check", "{"), 400),
            (post("/api/v1/check", r#"{"policy":"nope"}"#), 404),
            (post("/api/v1/check", r#"{"policy":"p","cost":101}"#), 422),
            (get("/nope"), 404),
            (get("/api/v1/check"), 405),
        ] {
            raw.send(request);
            assert_eq!(raw.reply().status, status);
        }
    }
    assert_eq!(server.used("p", &json!({})), [20]);
}

#[test]
fn a_connection_is_closed_when_asked_to() {
    let server = server("");
    let mut raw = Raw::connect(&server);
    raw.send(get("/healthz").replace("Host: test", "Host: test\r\nConnection: close"));
    assert_eq!(raw.reply().status, 200);
    assert_eq!(raw.rest(), "");
}

#[test]
fn a_client_that_asks_before_it_sends_is_told_to_go_on() {
    let server = server("");
    let mut raw = Raw::connect(&server);
    let request =
        post("/api/v1/check", BODY).replace("Host: test", "Host: test\r\nExpect: 100-continue");
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    raw.send(format!("{head}\r\n\r\n"));
    assert_eq!(raw.reply().status, 100);
    raw.send(body);
    assert_eq!(raw.reply().status, 200);
}

#[test]
fn a_head_that_is_too_large_is_refused_and_the_server_lives() {
    let server = server("");
    let many = "X-Many: 1\r\n".repeat(1_000);
    let long = format!("X-Long: {}\r\n", "x".repeat(1 << 20));
    let path = format!("GET /{} HTTP/1.1\r\nHost: test\r\n\r\n", "x".repeat(1 << 20));
    for request in [
        format!("GET /healthz HTTP/1.1\r\nHost: test\r\n{many}\r\n"),
        format!("GET /healthz HTTP/1.1\r\nHost: test\r\n{long}\r\n"),
        path,
    ] {
        let mut raw = Raw::connect(&server);
        // The server may hang up while there is more to send.
        let _ = std::io::Write::write_all(&mut raw.0, request.as_bytes());
        let mut start = [0; 12];
        if raw.0.read_exact(&mut start).is_ok() {
            let status = std::str::from_utf8(&start[9..]).unwrap();
            assert!(["400", "414", "431"].contains(&status), "{status}");
        }
        assert_eq!(server.get("/healthz").status, 200);
    }
    assert_eq!(server.used("p", &json!({})), [0]);
}

#[test]
fn what_is_no_http_is_refused_and_the_server_lives() {
    let server = server("");
    for nonsense in
        ["\0\0\0\0\r\n\r\n", "hello\r\n\r\n", "GET  / HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02"]
    {
        let mut raw = Raw::connect(&server);
        raw.send(nonsense);
        raw.0.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = raw.rest();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        assert_eq!(server.get("/healthz").status, 200);
    }
}

#[test]
fn a_slow_sender_of_a_head_is_disconnected() {
    let server = server("[server]\nheader_timeout = \"1s\"");
    let started = Instant::now();
    let mut raw = Raw::connect(&server);
    raw.send("POST /api/v1/check HTTP/1.1\r\nHost: te");
    raw.rest();
    assert!(started.elapsed() >= Duration::from_millis(900), "{:?}", started.elapsed());
    // One that sends nothing at all, too.
    Raw::connect(&server).rest();
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn a_slow_sender_of_a_body_gets_408() {
    let server = server("[server]\nbody_timeout = \"1s\"");
    for path in ["/api/v1/check", "/api/v1/peek"] {
        let started = Instant::now();
        let mut raw = Raw::connect(&server);
        let request = post(path, BODY);
        raw.send(&request[..request.len() - 1]);
        let reply = raw.reply();
        assert_eq!(reply.status, 408, "{reply:?}");
        let took = started.elapsed();
        // At once when its time is over: nobody waits ten more seconds for the rest.
        assert!(took >= Duration::from_millis(900) && took < Duration::from_secs(9), "{took:?}");
        let problem: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!((&problem["status"], problem["request_id"].is_string()), (&json!(408), true));
        assert_eq!(raw.rest(), "", "and the connection is closed");
    }
    assert_eq!(server.used("p", &json!({})), [0]);
}

#[test]
fn a_small_limit_on_open_files_is_raised_as_far_as_it_may_be() {
    let plain = Setup::memory();
    let mut command = clean("bash");
    command.args(["-c", "ulimit -S -n 128; exec \"$0\" \"$@\""]);
    command.arg(plain.command().get_program()).args(plain.command().get_args());
    let server = Server::spawn(command, None);
    let mut held: Vec<_> = (0..200).map(|_| Raw::connect(&server)).collect();
    for raw in &mut held {
        raw.send(get("/healthz"));
        assert_eq!(raw.reply().status, 200);
    }
}

#[test]
fn the_third_of_two_connections_waits_until_one_closes() {
    let server = Setup::memory().config("[server]\nmax_connections = 2").into_server();
    let mut held: Vec<_> = (0..2).map(|_| Raw::connect(&server)).collect();
    for raw in &mut held {
        raw.send(get("/healthz"));
        assert_eq!(raw.reply().status, 200);
    }
    let mut third = Raw::connect(&server);
    third.send(get("/healthz"));
    third.0.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let waiting = loop {
        match third.0.read(&mut [0]).expect_err("the third was let in").kind() {
            ErrorKind::Interrupted => {}
            waiting => break waiting,
        }
    };
    assert!([ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&waiting), "{waiting}");
    // Those inside are not disturbed.
    held[0].send(get("/healthz"));
    assert_eq!(held[0].reply().status, 200);
    held.pop();
    third.0.set_read_timeout(Some(crate::support::DEADLINE)).unwrap();
    assert_eq!(third.reply().status, 200);
}

#[test]
fn a_client_that_reads_no_answers_loses_its_place() {
    let config = "[server]\nheader_timeout = \"1s\"\nmax_connections = 1";
    let server = Setup::memory().config(config).into_server();
    let greedy = Raw::connect(&server);
    greedy.0.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    // Far more than all buffers between us hold, asked for and never read.
    let ask = get("/openapi.json");
    let mut sink = &greedy.0;
    for _ in 0..2_000 {
        if std::io::Write::write_all(&mut sink, ask.as_bytes()).is_err() {
            break;
        }
    }
    let mut next = Raw::connect(&server);
    next.send(get("/healthz"));
    assert_eq!(next.reply().status, 200);
    drop(greedy);
}

#[test]
fn a_body_limit_of_the_configuration_holds() {
    let server = server("[server]\nmax_body_bytes = 100");
    let mut raw = Raw::connect(&server);
    raw.send(post("/api/v1/check", &format!("{BODY}{}", " ".repeat(100 - BODY.len()))));
    assert_eq!(raw.reply().status, 200);
    raw.send(post("/api/v1/check", &format!("{BODY}{}", " ".repeat(101 - BODY.len()))));
    let reply = raw.reply();
    assert_eq!(reply.status, 413);
    assert!(reply.body.contains("100 bytes"), "{}", reply.body);
}

//! Told to stop, the server finishes what is under way and forgets nothing.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::http::agent;
use crate::support::mail::message_body;
use crate::support::raw::{Raw, get, post};
use crate::support::server::files;
use crate::support::{DEADLINE, FOREVER, Server, Setup, eventually};

fn policy(server: &Server) {
    server.policy("p", &json!([{ "name": "all", "max": 1_000_000, "per": FOREVER }]));
}

/// A request whose head was read and whose body is not there yet; the rest of it.
fn begin(raw: &mut Raw) -> String {
    let request = post("/api/v1/check", r#"{"policy":"p"}"#);
    let request = request.replace("Host: test", "Host: test\r\nExpect: 100-continue");
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    raw.send(format!("{head}\r\n\r\n"));
    assert_eq!(raw.reply().status, 100);
    body.to_owned()
}

fn no_longer_accepts(server: &Server) {
    eventually("the door is shut", || TcpStream::connect(&server.address).err());
}

#[test]
fn a_request_under_way_is_finished_and_counted() {
    let setup = Setup::sqlite();
    let mut server = setup.start();
    policy(&server);
    let mut raw = Raw::connect(&server);
    let body = begin(&mut raw);
    server.signal("TERM");
    no_longer_accepts(&server);
    raw.send(body);
    assert_eq!(raw.reply().status, 200);
    assert_eq!(server.ended().code(), Some(0));
    assert_eq!(setup.start().used("p", &json!({})), [1]);
}

#[test]
fn everything_allowed_before_a_sigterm_is_there_after_a_restart() {
    let setup = Setup::sqlite();
    for (round, signal) in ["TERM", "INT"].into_iter().enumerate() {
        let mut server = setup.start();
        policy(&server);
        for _ in 0..50 {
            server.spend("p", &json!({}));
        }
        server.signal(signal);
        assert_eq!(server.ended().code(), Some(0), "{}", server.said());
        // A closed store is one file, and so is the mail relay's.
        assert_eq!(files(setup.home.path()), ["counts-mail.db", "counts.db"]);
        assert_eq!(setup.start().used("p", &json!({})), [50 * (round as u64 + 1)]);
    }
}

#[test]
fn no_answer_is_lost_when_a_sigterm_comes_in_the_middle_of_traffic() {
    let setup = Setup::sqlite();
    let mut server = setup.start();
    policy(&server);
    let (answered, stopping) = (AtomicU64::new(0), AtomicBool::new(false));
    let address = &server.address.clone();
    let clients = 4;
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let agent = agent();
                let uri = format!("http://{address}/api/v1/check");
                loop {
                    match agent.post(&uri).send(r#"{"policy":"p"}"#) {
                        Ok(reply) => {
                            assert_eq!(reply.status(), 200);
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            assert!(stopping.load(Ordering::Relaxed), "{error}");
                            return;
                        }
                    }
                }
            });
        }
        eventually("some traffic", || (answered.load(Ordering::Relaxed) > 200).then_some(()));
        stopping.store(true, Ordering::Relaxed);
        server.signal("TERM");
        assert_eq!(server.ended().code(), Some(0));
    });
    let answered = answered.into_inner();
    let used = setup.start().used("p", &json!({}))[0];
    // At most the one each client had in flight was counted and not heard of.
    assert!((answered..=answered + clients).contains(&used), "{used} for {answered} answers");
}

/// A request that is on its way when the server is told to stop is answered, and told that it was the last: only
/// so does its client know that the next must go elsewhere.
#[test]
fn a_request_on_an_idle_connection_is_still_answered_after_a_sigterm() {
    let answered = (0..20).any(|_| {
        let mut server = Server::memory();
        let mut raw = Raw::connect(&server);
        raw.send(get("/healthz"));
        assert_eq!(raw.reply().status, 200);
        server.signal("TERM");
        no_longer_accepts(&server);
        // The connection stays open for a moment only, which a busy machine may miss.
        let sent = std::io::Write::write_all(&mut raw.0, get("/healthz").as_bytes());
        let mut answer = String::new();
        let read = std::io::Read::read_to_string(&mut raw.0, &mut answer);
        assert_eq!(server.ended().code(), Some(0));
        let last = answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close");
        sent.is_ok() && read.is_ok() && last
    });
    assert!(answered, "20 requests in a row were cut off");
}

#[test]
fn idle_connections_do_not_hold_up_a_stop() {
    let mut server = Server::memory();
    let mut idle = Raw::connect(&server);
    idle.send(get("/healthz"));
    assert_eq!(idle.reply().status, 200);
    let _silent = Raw::connect(&server);
    let started = Instant::now();
    server.signal("TERM");
    assert_eq!(server.ended().code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(idle.rest(), "");
}

#[test]
fn a_request_that_does_not_end_is_cut_off_in_time() {
    let mut server = Setup::memory().config("[server]\nshutdown_timeout = \"1s\"").into_server();
    policy(&server);
    let mut raw = Raw::connect(&server);
    begin(&mut raw);
    let started = Instant::now();
    server.signal("TERM");
    assert_eq!(server.ended().code(), Some(0));
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(900) && took < DEADLINE / 2, "{took:?}");
}

#[test]
fn a_sigterm_right_after_the_first_line_stops_in_good_order() {
    for _ in 0..30 {
        let mut server = Server::memory();
        server.signal_at_once("TERM");
        assert_eq!(server.ended().code(), Some(0), "{}", server.said());
    }
}

/// A mail server that takes a connection and says nothing: its client waits for as long as it may.
#[test]
fn a_second_signal_does_not_wait_for_mail_that_is_being_sent() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut server = Setup::sqlite().into_server();
    server.mail_tenant("acme", mute.local_addr().unwrap().port());
    server.queue(&[message_body("acme", "m")]);
    let _sending = mute.accept().unwrap();
    server.signal("TERM");
    no_longer_accepts(&server);
    server.signal("TERM");
    assert_eq!(server.ended().code(), Some(0));
    assert!(server.said().contains("stopping at once"), "{}", server.said());
}

/// Without a certificate there is nothing to read again, and no reason to stop.
#[test]
fn a_sighup_leaves_a_server_without_tls_as_it_is() {
    let mut server = Server::memory();
    server.signal("HUP");
    server.get("/healthz").ok();
    server.signal("TERM");
    assert_eq!(server.ended().code(), Some(0));
}

//! What an attacker sends: two readings of one request, values that would become headers, tricks with
//! paths, receipts of elsewhere. Each is one clear refusal, and nothing is counted by it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::raw::{Raw, get, post};
use crate::support::{Call, FOREVER, Server, Setup};

const BODY: &str = r#"{"policy":"p"}"#;

fn server() -> Server {
    let server = Server::memory();
    server.policy("p", &json!([{ "name": "all", "max": 100, "per": FOREVER }]));
    server
}

/// The statuses of all answers to these bytes. Behind them comes a last request, which is answered
/// only if they left the connection in order.
fn statuses(server: &Server, bytes: &str) -> Vec<u16> {
    let mut raw = Raw::connect(server);
    let last = get("/healthz").replace("Host: test", "Host: test\r\nConnection: close");
    raw.send(format!("{bytes}{last}"));
    let answers = raw.rest();
    let heads = answers.split("HTTP/1.1 ").skip(1);
    heads.map(|head| head[..3].parse().unwrap()).collect()
}

#[test]
fn a_request_with_two_lengths_is_one_refusal_and_hides_no_second_request() {
    let server = server();
    let hidden = post("/api/v1/check", BODY);
    let length = hidden.len();
    for head in [
        // What a proxy would end by one and we by the other.
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n\r\n0\r\n\r\n"),
        format!("Content-Length: 0\r\nContent-Length: {length}\r\n\r\n"),
        format!("Content-Length: 0, {length}\r\n\r\n"),
        format!("Content-Length: +{length}\r\n\r\n"),
        format!("Content-Length : {length}\r\n\r\n"),
        "Content-Length: -1\r\n\r\n".to_owned(),
        "Content-Length: 18446744073709551616\r\n\r\n".to_owned(),
        "Transfer-Encoding: xchunked\r\n\r\n".to_owned(),
        "Transfer-Encoding: chunked, identity\r\n\r\n".to_owned(),
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "X-Folded: a\r\n Transfer-Encoding: chunked\r\n\r\n".to_owned(),
        "X-Bare: a\rTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        "X-Nul: a\0b\r\n\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\n\r\n0;x\n\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n".to_owned(),
    ] {
        let bytes = format!("POST /api/v1/peek HTTP/1.1\r\nHost: test\r\n{head}{hidden}");
        assert_eq!(statuses(&server, &bytes), [400], "{head:?}");
    }
    // A body nobody asked for is a body, not the next request.
    let bytes =
        format!("GET /healthz HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n{hidden}");
    assert_eq!(statuses(&server, &bytes), [200, 200]);
    let bytes = format!("POST /api/v1/peek HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n{hidden}");
    assert_eq!(statuses(&server, &bytes), [400]);
    assert_eq!(server.used("p", &json!({})), [0]);
}

#[test]
fn two_hosts_are_refused_and_other_protocols_are_not_spoken() {
    let server = server();
    let two = get("/healthz").replace("Host: test", "Host: test\r\nHost: other");
    assert_eq!(statuses(&server, &two), [400, 200]);
    assert_eq!(statuses(&server, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Vec::<u16>::new());
    let upgrade = get("/healthz").replace(
        "Host: test",
        "Host: test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
    );
    assert_eq!(statuses(&server, &upgrade), [200, 200], "and not 101");
    assert_eq!(statuses(&server, "CONNECT 10.0.0.1:80 HTTP/1.1\r\nHost: test\r\n\r\n"), [404, 200]);
    let trace = get("/healthz")
        .replace("GET", "TRACE")
        .replace("Host: test", "Host: test\r\nX-API-Token: t");
    let mut raw = Raw::connect(&server);
    raw.send(trace);
    let reply = raw.reply();
    assert_eq!(reply.status, 405);
    assert!(!format!("{reply:?}").contains("x-api-token"), "nothing is echoed: {reply:?}");
}

#[test]
fn nothing_that_was_sent_becomes_a_header_of_the_answer() {
    let server = Setup::memory().config("[gate]\n[policy.odd]\nroutes = [\"/odd/{x}\"]\nlimits = [{ name = \"x\", max = 1, per = \"1h\", by = [\"param.x\"] }]").into_server();
    let evil = "a%0d%0aX-Evil:%201";
    for path in [
        format!("/{evil}"),
        format!("/admin/policies/{evil}"),
        format!("/api/v1/slots/{evil}"),
        format!("/gate?refuse=403{evil}"),
        format!("/api/v1/windows?configName={evil}"),
        format!("/messages?tenant_id={evil}"),
    ] {
        let mut raw = Raw::connect(&server);
        raw.send(
            get(&path).replace("Host: test", "Host: test\r\nX-Original-URI: /odd/a%0d%0aX-Evil:1"),
        );
        let reply = raw.reply();
        assert!(!reply.head.contains("\r\nx-evil"), "{path}: {reply:?}");
    }
    // An id that is not plain is not repeated, in the header or in the body.
    for id in ["a\"b", "<script>", "a b", &"x".repeat(129)] {
        let reply = server.send(Call::new("GET", "/nope").header("X-Request-ID", id));
        assert_ne!(reply.header("x-request-id"), Some(id));
        reply.problem(404);
    }
    // Names of limits are in headers: what would break one is no name.
    for name in ["a\"b", "a\\b", "a\r\nb", "a\tb"] {
        let body = json!({ "limits": [{ "name": name, "max": 1, "per": "1h" }] });
        let reply = server.put("/admin/policies/n", &body);
        if reply.status != 400 {
            let reply = server.check("n", &json!({}));
            let policy = reply.header("ratelimit-policy").unwrap();
            sfv::Parser::new(policy).parse::<sfv::List>().unwrap();
        }
    }
}

#[test]
fn no_spelling_of_a_path_gets_past_the_tokens() {
    let server = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", "admin").into_server();
    for path in [
        "/admin/policies",
        "//admin/policies",
        "/%61dmin/policies",
        "/healthz/../admin/policies",
        "/healthz/..%2fadmin/policies",
        "/admin/policies/",
        "/admin/policies;x",
        "/ADMIN/policies",
        "/api/v1/check/../../../admin/policies",
        "http://test/admin/policies",
        "/admin/policies?token=admin&api_token=admin&access_token=admin",
    ] {
        let mut raw = Raw::connect(&server);
        raw.send(get(path));
        let reply = raw.reply();
        assert!([401, 404].contains(&reply.status), "{path}: {reply:?}");
    }
    // The check that goes past the router asks for a token in every spelling too.
    for path in ["/api/v1/check", "/api/v1/check?x", "http://test/api/v1/check"] {
        let mut raw = Raw::connect(&server);
        raw.send(post(path, r#"{"policy":"default"}"#));
        assert_eq!(raw.reply().status, 401, "{path}");
    }
}

#[test]
fn a_receipt_is_worthless_in_another_store() {
    let (one, other) = (server(), server());
    let receipt = one.spend("p", &json!({}))["receipt"].clone();
    other.spend("p", &json!({}));
    other.post("/api/v1/refund", &json!({ "receipt": receipt })).fault(400, "receipt");
    assert_eq!(other.used("p", &json!({})), [1]);
    let given = one.post("/api/v1/refund", &json!({ "receipt": receipt })).ok();
    assert_eq!(given["refunded"], true);
    // Each byte of it is signed.
    let text = one.spend("p", &json!({}))["receipt"].as_str().unwrap().to_owned();
    for at in [0, text.len() / 2, text.len() - 3] {
        let mut forged = text.clone().into_bytes();
        forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(forged).unwrap();
        one.post("/api/v1/refund", &json!({ "receipt": forged })).fault(400, "receipt");
    }
    assert_eq!(one.used("p", &json!({})), [1]);
}

#[test]
fn the_command_line_follows_nobody_with_its_token() {
    use std::io::{Read, Write};
    let target = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let there = target.local_addr().unwrap();
    target.set_nonblocking(true).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let answer = format!(
            "HTTP/1.1 302 X\r\nLocation: http://{there}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let mut command = crate::support::command::clean(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["policy", "list", "--server", &format!("http://{here}")]);
    command.env("TOLLGATE_TOKEN", "secret");
    crate::support::Ended::of(command).expect(3);
    answering.join().unwrap();
    let came = target.accept();
    assert!(came.is_err(), "somebody came: {came:?}");
}

/// A proxy may hand on the head of a request and keep its body.
#[test]
fn a_body_that_was_announced_and_never_comes_does_not_hold_up_the_answer() {
    let server = Server::memory();
    for path in ["/gate", "/healthz", "/nowhere"] {
        let mut raw = Raw::connect(&server);
        let started = Instant::now();
        raw.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 5000\r\n\r\n"));
        raw.reply();
        assert!(started.elapsed() < Duration::from_secs(8), "{path}: {:?}", started.elapsed());
    }
}

//! Receipts and refunds.

use serde_json::{Value, json};

use crate::support::{Call, FOREVER, Server, Setup, members, used};

fn server() -> Server {
    let server = Server::memory();
    server.policy(
        "p",
        &json!([
            { "name": "all", "max": 9, "per": FOREVER },
            { "name": "user", "max": 3, "per": "1h", "algorithm": "sliding", "by": ["user"] },
        ]),
    );
    server
}

fn refund(server: &Server, receipt: &Value) -> Value {
    server.post("/api/v1/refund", &json!({ "receipt": receipt })).ok()
}

#[test]
fn a_refund_gives_back_exactly_what_was_spent_and_only_once() {
    let server = server();
    let ada = json!({ "user": "ada" });
    server.spend("p", &ada);
    let decision = server.check_cost("p", &ada, 2).ok();
    assert_eq!(used(&decision), [3, 3]);
    server.check("p", &ada).problem(429);
    let first = refund(&server, &decision["receipt"]);
    assert_eq!(first, json!({ "refunded": true }));
    assert_eq!(server.used("p", &ada), [1, 1]);
    for _ in 0..3 {
        let again = refund(&server, &decision["receipt"]);
        assert_eq!(members(&again), ["reason", "refunded"]);
        assert_eq!(again["refunded"], false);
        assert!(again["reason"].as_str().unwrap().contains("already"), "{again}");
    }
    assert_eq!(server.used("p", &ada), [1, 1]);
    server.check_cost("p", &ada, 2).ok();
}

#[test]
fn a_forged_or_altered_receipt_is_refused_and_gives_nothing() {
    let server = server();
    let ada = json!({ "user": "ada" });
    let decision = server.spend("p", &ada);
    let receipt = decision["receipt"].as_str().unwrap();
    // Another server's receipt is signed with another secret.
    let foreign = self::server().spend("p", &ada);
    let altered = |position: usize| {
        let mut bytes = receipt.as_bytes().to_vec();
        bytes[position] = if bytes[position] == b'A' { b'B' } else { b'A' };
        String::from_utf8(bytes).unwrap()
    };
    for forged in [
        altered(0),
        altered(receipt.len() / 2),
        altered(receipt.len() - 3),
        receipt[..receipt.len() - 4].to_owned(),
        format!("{receipt}AAAA"),
        foreign["receipt"].as_str().unwrap().to_owned(),
        "nonsense".to_owned(),
        "\u{1f600}".to_owned(),
        String::new(),
        "A".repeat(10_000),
    ] {
        let reply = server.post("/api/v1/refund", &json!({ "receipt": forged }));
        reply.fault(400, "receipt");
    }
    for bad in [json!({}), json!({ "receipt": 7 }), json!({ "receipt": null })] {
        server.post("/api/v1/refund", &bad).fault(400, "receipt");
    }
    let unknown = json!({ "receipt": receipt, "reason": "mood" });
    server.post("/api/v1/refund", &unknown).fault(400, "reason");
    assert_eq!(server.used("p", &ada), [1, 1]);
    assert_eq!(refund(&server, &decision["receipt"])["refunded"], true);
}

#[test]
fn a_spend_that_has_left_its_window_is_not_refunded() {
    let server = Server::memory();
    server.policy("p", &json!([{ "name": "quick", "max": 9, "per": "100ms" }]));
    let decision = server.spend("p", &json!({}));
    let resets_at = crate::support::micros(&decision["limits"][0]["resets_at"]);
    crate::support::eventually("the window ends", || {
        (jiff::Timestamp::now().as_microsecond() > resets_at).then_some(())
    });
    let late = refund(&server, &decision["receipt"]);
    assert_eq!(late, json!({ "refunded": false, "reason": "expired" }));
}

#[test]
fn a_receipt_survives_a_restart_and_so_does_its_refund() {
    let setup = Setup::sqlite();
    let server = setup.start();
    server.policy("p", &json!([{ "name": "all", "max": 9, "per": FOREVER }]));
    let early = server.spend("p", &json!({}));
    let late = server.spend("p", &json!({}));
    assert_eq!(refund(&server, &early["receipt"])["refunded"], true);
    server.terminate();
    let server = setup.start();
    assert_eq!(refund(&server, &early["receipt"])["refunded"], false);
    assert_eq!(server.used("p", &json!({})), [1]);
    assert_eq!(refund(&server, &late["receipt"])["refunded"], true);
    assert_eq!(server.used("p", &json!({})), [0]);
}

#[test]
fn a_refund_under_a_key_is_replayed_as_done() {
    let server = server();
    let decision = server.spend("p", &json!({ "user": "ada" }));
    let other = server.spend("p", &json!({ "user": "ada" }));
    let send = |receipt: &Value| {
        let call = Call::post("/api/v1/refund", &json!({ "receipt": receipt }));
        server.send(call.header("Idempotency-Key", "k-1"))
    };
    let first = send(&decision["receipt"]);
    assert_eq!(first.ok(), json!({ "refunded": true }));
    assert_eq!(send(&decision["receipt"]).body, first.body, "replayed, not refused");
    send(&other["receipt"]).fault(422, "Idempotency-Key");
    assert_eq!(server.used("p", &json!({ "user": "ada" })), [1, 1]);
    // Without the key it is the second time.
    assert_eq!(refund(&server, &decision["receipt"])["refunded"], false);
}

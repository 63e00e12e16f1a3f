//! The file cannot be written any more: what each policy said should happen then, happens.
//!
//! A limit on the size of files stands in for a full disk.

use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::command::clean;
use crate::support::{Call, FOREVER, Reply, Server, Setup, eventually};

/// Enough for the schema and a few policies.
const BLOCKS: u32 = 400;

fn limited(setup: &Setup) -> Server {
    let plain = setup.command();
    let mut command: Command = clean("bash");
    let script = format!("trap '' XFSZ; ulimit -f {BLOCKS}; exec \"$0\" \"$@\"");
    command.args(["-c", &script]).arg(plain.get_program()).args(plain.get_args());
    command.current_dir(setup.home.path());
    Server::spawn(command, None)
}

fn policy(server: &Server, name: &str, on_store_error: &str) {
    let limits = json!([{ "name": "all", "max": 3, "per": FOREVER }]);
    let policy = json!({
        "limits": limits, "on_store_error": on_store_error, "durability": "sync",
    });
    assert_eq!(server.put(&format!("/admin/policies/{name}"), &policy).status, 201);
}

/// Grows the file until it can grow no more.
fn fill(server: &Server) -> Reply {
    eventually("the file is full", || {
        let subject = json!({ "user": "x".repeat(1_000) });
        let body = json!({ "policy": "refuses", "subject": subject });
        let key = format!("{}", jiff::Timestamp::now().as_nanosecond());
        let reply = server.send(Call::post("/api/v1/check", &body).header("Idempotency-Key", &key));
        (reply.status == 503).then_some(reply)
    })
}

fn big(server: &Server) {
    let limits = json!([{ "name": "all", "max": 1_000_000, "per": FOREVER, "by": ["user"] }]);
    let policy = json!({ "limits": limits, "durability": "sync" });
    server.put("/admin/policies/refuses", &policy);
}

#[test]
fn a_store_that_cannot_write_refuses_allows_or_counts_locally_as_the_policy_says() {
    let setup = Setup::sqlite();
    let server = limited(&setup);
    policy(&server, "allows", "allow");
    policy(&server, "local", "local");
    policy(&server, "strict", "refuse");
    big(&server);
    for name in ["allows", "local", "strict"] {
        server.spend(name, &json!({}));
    }
    let down = fill(&server);
    down.problem(503);
    assert!(down.number("retry-after").unwrap() >= 1);
    // Refuse: an error, not a refusal.
    let strict = server.check("strict", &json!({}));
    strict.problem(503);
    // Allow: passes, uncounted, without a receipt.
    for _ in 0..5 {
        let decision = server.spend("allows", &json!({}));
        assert_eq!((&decision["allowed"], &decision["receipt"]), (&json!(true), &Value::Null));
        assert_eq!(decision["degraded"], "allow");
    }
    // A cost that never fits still does not.
    server.check_cost("allows", &json!({}), 4).problem(422);
    // Local: counted in memory, from nothing.
    for used in 1..=3 {
        let decision = server.spend("local", &json!({}));
        assert_eq!(
            (&decision["degraded"], &decision["limits"][0]["used"]),
            (&json!("local"), &json!(used))
        );
    }
    server.check("local", &json!({})).problem(429);
    server.get("/readyz").problem(503);
    assert_eq!(server.get("/healthz").status, 200);
    let changed = json!({ "limits": [{ "name": "all", "max": 4, "per": FOREVER }] });
    server.put("/admin/policies/strict", &changed).problem(503);
    let metrics = server.get("/metrics").body;
    let errors = metrics.lines().find_map(|line| line.strip_prefix("tollgate_store_errors_total "));
    assert!(errors.unwrap().parse::<u64>().unwrap() >= 2, "{metrics}");
    eventually("it is in the log", || server.said().contains("ERROR").then_some(()));
    the_log_does_not_grow_with_the_requests(&server);
}

fn the_log_does_not_grow_with_the_requests(server: &Server) {
    const LINES: [&str; 3] =
        ["the store could not answer", "decided without the store", "commit failed"];
    let said = || LINES.map(|line| server.said().matches(line).count() as u64);
    let (before, started) = (said(), Instant::now());
    for _ in 0..100 {
        server.check("strict", &json!({})).problem(503);
        server.spend("allows", &json!({}));
    }
    // Two more: one when it began, and what was on its way before.
    let most = started.elapsed().as_secs() + 3;
    let more = said().into_iter().zip(before).map(|(after, before)| after - before);
    assert!(more.max() <= Some(most), "{:?} from {before:?} in {most} s", said());
    eventually("what was left out is counted", || {
        server.check("strict", &json!({})).problem(503);
        let said = server.said();
        let mut lines = said.lines().filter(|line| line.contains(LINES[0]));
        lines.any(|line| line.contains("left_out=") && !line.contains("left_out=0")).then_some(())
    });
}

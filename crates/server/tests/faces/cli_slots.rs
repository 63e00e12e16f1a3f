//! `slot` and its subcommands on the command line.

use serde_json::json;

use crate::support::slots::NOON;
use crate::support::{Server, Setup, members, tollgate};

fn filled() -> Server {
    let server = Server::memory();
    server.slot_config("c", 5, "PT4S");
    for number in 0..12 {
        server.ask_slot(&format!("e-{number}"), "c", NOON).ok();
    }
    server
}

#[test]
fn slot_tells_when_and_asking_again_tells_the_same() {
    let server = Server::memory();
    server.slot_config("c", 5, "PT4S");
    let ask = || tollgate(&server, &["slot", "pay-1", "--config", "c", "--at", NOON]).expect(0);
    let told = ask();
    assert!(told.out.contains("pay-1 at 2026-12-01T12:00:0"), "{told:?}");
    assert_eq!(ask().out, told.out);
    let shown = server.get("/api/v1/slots/pay-1").ok();
    assert!(told.out.contains(shown["scheduledTime"].as_str().unwrap()), "{told:?}");
    let json = tollgate(&server, &["slot", "pay-1", "--config", "c", "--at", NOON, "--json"]);
    assert_eq!(members(&json.expect(0).json()), ["delayMs", "eventId", "scheduledTime"]);
    tollgate(&server, &["slot", "soon"]).expect(0);
    assert_eq!(server.get("/api/v1/slots/soon").ok()["configName"], "default");
}

#[test]
fn an_event_may_be_called_like_a_subcommand_or_anything() {
    let server = Server::memory();
    for id in ["list", "cancel", "-x", "a/b?", "..", "batch"] {
        tollgate(&server, &["slot", "--at", NOON, "--", id]).expect(0);
        let cancelled = tollgate(&server, &["slot", "cancel", "--json", "--", id]).expect(0);
        assert_eq!(cancelled.json()["eventId"], id);
    }
}

#[test]
fn a_refusal_exits_1() {
    let server = Server::memory();
    server.short_config("c", 1);
    let ask = |id: &str, at: &str| tollgate(&server, &["slot", id, "--config", "c", "--at", at]);
    ask("a", NOON).expect(0);
    let full = ask("b", NOON).expect(1);
    assert!(full.out.contains("refused") && full.out.contains("horizon"), "{full:?}");
    let differs = ask("a", "2026-12-02T12:00:00Z").expect(1);
    assert!(differs.out.contains("2026-12-01T12:00:00"), "{differs:?}");
    tollgate(&server, &["slot", "cancel", "a"]).expect(0);
    assert!(ask("a", NOON).expect(1).out.contains("cancelled"));
    let json = tollgate(&server, &["slot", "a", "--config", "c", "--at", NOON, "--json"]);
    assert_eq!(json.expect(1).json()["status"], 409);
}

#[test]
fn bad_input_exits_2_and_says_what_is_wrong() {
    let server = Server::memory();
    server.policy("p", &json!([{ "name": "a", "max": 5, "per": "60s", "by": ["user"] }]));
    for (args, said) in [
        (vec!["slot"], "EVENT_ID"),
        (vec!["slot", ""], "eventId"),
        (vec!["slot", "e", "--at", "soon"], "requestedTime"),
        (vec!["slot", "e", "--config", "unknown"], "unknown"),
        (vec!["slot", "e", "--config", "p"], "cannot schedule"),
        (vec!["slot", "e", "f"], "f"),
        (vec!["slot", "e", "--limit", "5"], "--limit"),
        (vec!["slot", "list", "--limit", "0"], "limit"),
        (vec!["slot", "list", "--from", "x"], "from"),
        (vec!["slot", "list", "--cursor", "x"], "cursor"),
        (vec!["slot", "cancel"], "EVENT_ID"),
        (vec!["slot", "cancel", "unknown"], "unknown"),
        (vec!["slot", "verify", "--config", "unknown"], "unknown"),
        (vec!["slot", "timeline", "--rows", "0"], "rows"),
        (vec!["slot", "import"], "FILE"),
        (vec!["slot", "import", "/no/such/file"], "/no/such/file"),
    ] {
        let ended = tollgate(&server, &args).expect(2);
        assert!(ended.err.contains(said), "{args:?}: {said} is not in {}", ended.err);
        assert_eq!(ended.out, "", "{args:?}");
    }
}

#[test]
fn list_is_a_table_with_a_cursor_for_more() {
    let server = filled();
    tollgate(&server, &["slot", "cancel", "e-3"]).expect(0);
    let all = tollgate(&server, &["slot", "list", "--config", "c"]).expect(0);
    for number in 0..12 {
        assert!(all.out.contains(&format!("e-{number} ")), "{}", all.out);
    }
    assert!(all.out.contains("cancelled") && !all.out.contains("--cursor"), "{}", all.out);
    let first = tollgate(&server, &["slot", "list", "--config", "c", "--limit", "7"]).expect(0);
    let (_, cursor) = first.out.trim().rsplit_once("--cursor ").unwrap();
    let arguments = ["slot", "list", "--config", "c", "--cursor", cursor, "--json"];
    assert_eq!(
        tollgate(&server, &arguments).expect(0).json()["slots"].as_array().unwrap().len(),
        5
    );
    let arguments = [
        "slot",
        "list",
        "--config",
        "c",
        "--from",
        "2026-12-01T12:00:04Z",
        "--to",
        "2026-12-01T14:00:08+02:00",
        "--json",
    ];
    assert_eq!(
        tollgate(&server, &arguments).expect(0).json()["slots"].as_array().unwrap().len(),
        5
    );
}

#[test]
fn an_event_cannot_move_the_cursor_of_a_terminal() {
    let server = Server::memory();
    server.ask_slot("evil\u{1b}[2J", "default", NOON).ok();
    let listed = tollgate(&server, &["slot", "list"]).expect(0);
    assert!(listed.out.contains("evil") && !listed.out.contains('\u{1b}'), "{listed:?}");
}

#[test]
fn an_option_before_a_subcommand_books_no_event_of_its_name() {
    let server = Server::memory();
    for name in ["list", "cancel", "verify", "import", "timeline"] {
        let ended = tollgate(&server, &["slot", "--config", "default", name]).expect(2);
        assert!(ended.err.contains(&format!("tollgate slot -- {name}")), "{ended:?}");
        assert_eq!(server.get(&format!("/api/v1/slots/{name}")).status, 404);
    }
    tollgate(&server, &["slot", "--config", "default", "--", "verify"]).expect(0);
    assert_eq!(server.get("/api/v1/slots/verify").status, 200);
}

#[test]
fn verify_exits_0_when_clean_and_1_when_a_window_was_tampered_with() {
    let setup = Setup::sqlite();
    let server = setup.start();
    server.slot_config("c", 5, "PT4S");
    for number in 0..12 {
        server.ask_slot(&format!("e-{number}"), "c", NOON).ok();
    }
    let clean = tollgate(&server, &["slot", "verify", "--config", "c"]).expect(0);
    assert_eq!(clean.out.trim(), "config c: 12 slots in 3 windows, no drift");
    server.terminate();
    let file = rusqlite::Connection::open(setup.store_path()).unwrap();
    file.execute("delete from slot where event_id = 'e-6'", []).unwrap();
    drop(file);
    let server = setup.start();
    let drifted = tollgate(&server, &["slot", "verify", "--config", "c"]).expect(1);
    assert!(drifted.out.contains("2026-12-01T12:00:04.000000Z"), "{drifted:?}");
    let json = tollgate(&server, &["slot", "verify", "--config", "c", "--json"]).expect(1).json();
    let drift = json!({ "start": "2026-12-01T12:00:04.000000Z", "counted": 5, "slots": 4 });
    assert_eq!(json["drifts"], json!([drift]));
}

#[test]
fn timeline_draws_a_bar_for_each_window_and_names_what_is_empty() {
    let server = filled();
    server.ask_slot("late", "c", "2026-12-01T13:00:00Z").ok();
    let drawn = tollgate(&server, &["slot", "timeline", "--config", "c"]).expect(0);
    let lines: Vec<_> = drawn.out.lines().collect();
    assert_eq!(lines[0], "config c: 13 slots in 4 windows of PT4S");
    let bar = |full: usize| "█".repeat(full) + &"░".repeat(40 - full);
    for (line, start, full, count) in [
        (1, "2026-12-01 12:00:00", 40, "5/5"),
        (2, "2026-12-01 12:00:04", 40, "5/5"),
        (3, "2026-12-01 12:00:08", 16, "2/5"),
        (5, "2026-12-01 13:00:00", 8, "1/5"),
    ] {
        assert!(lines[line].starts_with(start), "{}", drawn.out);
        assert!(lines[line].contains(&format!(" {} ", bar(full))), "{}", drawn.out);
        assert!(lines[line].ends_with(count), "{}", drawn.out);
    }
    assert!(lines[4].contains("nothing until 2026-12-01 13:00:00"), "{}", drawn.out);
    let few = tollgate(&server, &["slot", "timeline", "--config", "c", "--rows", "2"]).expect(0);
    assert!(few.out.contains("10/10") && few.out.contains("3/10"), "{}", few.out);
    server.slot_config("c", 3, "PT4S");
    let over = tollgate(&server, &["slot", "timeline", "--config", "c"]).expect(0);
    assert!(over.out.contains("5/3 over"), "{}", over.out);
    let arguments = ["slot", "timeline", "--config", "c", "--to", "2026-12-01T12:30:00Z", "--json"];
    assert_eq!(
        tollgate(&server, &arguments).expect(0).json()["windows"].as_array().unwrap().len(),
        3
    );
}

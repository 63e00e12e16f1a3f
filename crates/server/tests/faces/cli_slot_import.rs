//! `slot import`: a slot for every line of a file.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::support::slots::NOON;
use crate::support::{Ended, Server, Setup, tollgate};

struct Desk {
    server: Server,
    files: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        let server = Server::memory();
        server.slot_config("c", 7, "PT4S");
        Self { server, files: tempfile::tempdir().unwrap() }
    }

    fn import(&self, name: &str, content: impl AsRef<[u8]>, args: &[&str]) -> Ended {
        let path = self.files.path().join(name);
        std::fs::write(&path, content).unwrap();
        tollgate(&self.server, &[&["slot", "import", path.to_str().unwrap()], args].concat())
    }

    fn slots(&self, config: &str) -> u64 {
        self.server.verified(config)["slots"].as_u64().unwrap()
    }
}

fn csv(count: usize) -> String {
    let mut text = "eventId,configName,requestedTime\n".to_owned();
    for number in 0..count {
        writeln!(text, "e-{number},c,{NOON}").unwrap();
    }
    text
}

#[test]
fn a_csv_file_of_several_batches_is_imported_and_again_changes_nothing() {
    let desk = Desk::new();
    let first = desk.import("events.csv", csv(2_500), &[]).expect(0);
    assert_eq!(first.out.trim(), "2500 assigned, 0 already, 0 failed");
    assert_eq!(first.err, "", "no bar where nobody looks");
    assert_eq!(desk.slots("c"), 2_500);
    let again = desk.import("events.csv", csv(2_500), &[]).expect(0);
    assert_eq!(again.out.trim(), "0 assigned, 2500 already, 0 failed");
    let more = desk.import("events.csv", csv(2_600), &["--json"]).expect(0).json();
    let counts = json!({ "assigned": 100, "already": 2500, "failed": 0, "failures": [] });
    assert_eq!(more, counts);
    assert_eq!(desk.slots("c"), 2_600);
}

#[test]
fn json_lines_are_imported_and_columns_may_be_missing() {
    let desk = Desk::new();
    let lines = "{\"eventId\":\"a\",\"configName\":\"c\"}\n\n  {\"eventId\":\"b\"}\r\n\
                 {\"requestedTime\":\"2026-12-01T12:00:00Z\",\"eventId\":\"d\",\"configName\":null}";
    let ended = desk.import("events.txt", lines, &[]).expect(0);
    assert_eq!(ended.out.trim(), "3 assigned, 0 already, 0 failed");
    assert_eq!((desk.slots("c"), desk.slots("default")), (1, 2));
    let ended = desk.import("ids.csv", "eventId\nx\n\"y,z\"\n", &["--config", "c"]).expect(0);
    assert_eq!(ended.out.trim(), "2 assigned, 0 already, 0 failed");
    assert_eq!(desk.server.get("/api/v1/slots/y%2Cz").ok()["configName"], "c");
    let mixed = format!("requestedTime, eventId ,configName\r\n{NOON}, p , default \r\n,q,\r\n");
    desk.import("mixed.csv", format!("\u{feff}{mixed}"), &["--config", "c"]).expect(0);
    assert_eq!(desk.server.get("/api/v1/slots/%20p%20").ok()["configName"], "default");
    assert_eq!(desk.server.get("/api/v1/slots/q").ok()["configName"], "c");
}

#[test]
fn lines_that_fail_are_reported_by_number_and_hold_up_no_other() {
    let desk = Desk::new();
    let long = "x".repeat(70_000);
    let text = format!(
        "eventId,configName,requestedTime\ngood,c,{NOON}\n,c,{NOON}\n\nbad-time,c,soon\n\
         few,c\nno-config,unknown,{NOON}\n\"two\nlines\",c,{NOON}\n{long},c,{NOON}\ngood,c,\n\
         last,c,{NOON}\n"
    );
    let ended = desk.import("events.csv", &text, &[]).expect(2);
    assert_eq!(ended.out.trim(), "3 assigned, 0 already, 6 failed");
    for (line, said) in [
        (3, "eventId"),
        (5, "requestedTime"),
        (6, "2 cells"),
        (7, "unknown"),
        (10, "longer"),
        (11, "inputs"),
    ] {
        let wanted = format!("line {line}: ");
        let found = ended.err.lines().find(|found| found.starts_with(&wanted));
        let found = found.unwrap_or_else(|| panic!("{wanted} is not in {}", ended.err));
        assert!(found.contains(said), "{found}");
    }
    assert_eq!(ended.err.lines().count(), 6, "{}", ended.err);
    let again = desk.import("events.csv", &text, &["--json"]).expect(2).json();
    assert_eq!((&again["already"], &again["failed"]), (&json!(3), &json!(6)));
    let numbers: Vec<_> = again["failures"].as_array().unwrap().iter().collect();
    let mut numbers: Vec<_> = numbers.iter().map(|one| one["line"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [3, 5, 6, 7, 10, 11]);
}

#[test]
fn what_is_no_csv_is_reported_and_the_rest_is_imported() {
    let desk = Desk::new();
    let mut text = b"eventId\r\na\r\n\r\nb\"x\r\ny\"\r\n\xff\r\nc\r\n\"d\"\"\r\ne\"\r\n".to_vec();
    text.extend(b"f\r\n\"open\r\ng");
    let ended = desk.import("events.csv", text, &["--config", "c"]).expect(2);
    assert_eq!(ended.out.trim(), "4 assigned, 0 already, 3 failed");
    for (line, said) in [(4, "quote"), (6, "UTF-8"), (11, "not closed")] {
        let found = ended
            .err
            .lines()
            .any(|found| found.starts_with(&format!("line {line}: ")) && found.contains(said));
        assert!(found, "line {line}: {said} is not in {}", ended.err);
    }
    desk.server.get("/api/v1/slots/d%22%0D%0Ae").ok();
}

#[test]
fn bad_json_lines_are_reported_by_number() {
    let desk = Desk::new();
    let long = "x".repeat(70_000);
    let text = format!(
        "{{\"eventId\":\"a\"}}\nnonsense\n{{\"eventId\":7}}\n{{\"eventid\":\"b\"}}\n{{\"eventId\":\
         \"{long}\"}}\n{{}}\n{{\"eventId\":\"z\"}}\n"
    );
    let ended = desk.import("events.jsonl", text, &[]).expect(2);
    assert_eq!(ended.out.trim(), "2 assigned, 0 already, 5 failed");
    for line in 2..=6 {
        assert!(ended.err.contains(&format!("line {line}: ")), "{}", ended.err);
    }
}

#[test]
fn a_file_that_cannot_be_imported_exits_2_and_nothing_is_asked_for() {
    let desk = Desk::new();
    for (content, said) in [
        ("", "empty"),
        (" \n\n", "empty"),
        ("id,configName\na,c\n", "\"id\""),
        ("configName,requestedTime\nc,\n", "eventId"),
        ("eventId,eventId\na,b\n", "twice"),
    ] {
        let ended = desk.import("events.csv", content, &[]).expect(2);
        assert!(ended.err.contains(said), "{content:?}: {}", ended.err);
        assert_eq!(ended.out, "");
    }
    assert_eq!(desk.slots("default"), 0);
}

#[test]
fn long_ids_are_sent_in_batches_the_server_takes() {
    let desk = Desk::new();
    let mut text = String::new();
    for number in 0..1_000 {
        let id: String = format!("{number:04}") + &"\u{1}".repeat(251);
        writeln!(text, "{}", json!({ "eventId": id, "configName": "c" })).unwrap();
    }
    assert!(text.len() > 1 << 20);
    let ended = desk.import("events.jsonl", text, &[]).expect(0);
    assert_eq!(ended.out.trim(), "1000 assigned, 0 already, 0 failed");
}

#[test]
fn an_import_that_was_cut_off_goes_on_when_it_is_run_again() {
    let setup = Setup::sqlite();
    let server = setup.start();
    server.slot_config("c", 7, "PT4S");
    let path = setup.write("events.csv", &csv(20_000));
    let arguments = ["slot", "import", path.to_str().unwrap()];
    let cut = std::thread::scope(|scope| {
        let import = scope.spawn(|| tollgate(&server, &arguments));
        crate::support::eventually("some of it is assigned", || {
            (server.verified("c")["slots"].as_u64().unwrap() >= 2_000).then_some(())
        });
        server.signal_at_once("KILL");
        import.join().unwrap()
    });
    let cut = cut.expect(3);
    assert!(cut.err.contains("run it again"), "{cut:?}");
    let server = setup.start();
    let kept = server.verified("c")["slots"].as_u64().unwrap();
    assert!((2_000..20_000).contains(&kept), "{kept}");
    let counts: Value = tollgate(&server, &[&arguments[..], &["--json"]].concat()).expect(0).json();
    assert_eq!((&counts["already"], &counts["assigned"]), (&json!(kept), &json!(20_000 - kept)));
    assert_eq!(server.verified("c")["slots"], 20_000);
}

#[test]
fn an_import_of_which_some_is_refused_and_nothing_bad_exits_1() {
    let desk = Desk::new();
    let event = |id: &str, time: &str| format!("eventId,configName,requestedTime\n{id},c,{time}\n");
    desk.import("events.csv", event("a", NOON), &[]).expect(0);
    // The same event at another time: a conflict.
    desk.import("events.csv", event("a", ""), &[]).expect(1);
}

//! `GET /admin/offenders` and `tollgate top`: who is refused most.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::random;
use testkit::servers::Postgres;

use crate::support::command::clean;
use crate::support::{
    Call, DEADLINE, FOREVER, Server, Setup, eventually, members, micros, tollgate,
};

const OFFENDERS: &str = "/admin/offenders";

fn by(attribute: &str, max: u64) -> Value {
    json!([{ "name": attribute, "max": max, "per": FOREVER, "by": [attribute] }])
}

/// Checks so often that so many are refused.
fn refuse(server: &Server, policy: &str, subject: &Value, times: usize) {
    let mut refused = 0;
    while refused < times {
        refused += usize::from(server.check(policy, subject).status == 429);
    }
}

fn top(server: &Server) -> Vec<(String, Value, u64)> {
    let list = server.get(OFFENDERS).ok();
    let offenders = list["offenders"].as_array().unwrap().iter();
    let row = |offender: &Value| {
        let place = format!("{}/{}", offender["policy"], offender["limit"]).replace('"', "");
        (place, offender["subject"].clone(), offender["refused"].as_u64().unwrap())
    };
    offenders.map(row).collect()
}

#[test]
fn the_most_refused_come_first_with_their_policy_and_limit() {
    let server = Server::memory();
    server.policy("api", &by("user", 1));
    server.policy("mail", &by("to", 2));
    refuse(&server, "api", &json!({ "user": "ada", "route": "/x" }), 3);
    refuse(&server, "api", &json!({ "user": "bob" }), 1);
    refuse(&server, "mail", &json!({ "to": "eve" }), 2);
    server.spend("api", &json!({ "user": "quiet" }));
    server.peek("api", &json!({ "user": "ada" }));
    assert_eq!(
        top(&server),
        [
            ("api/user".into(), json!({ "user": "ada" }), 3),
            ("mail/to".into(), json!({ "to": "eve" }), 2),
            ("api/user".into(), json!({ "user": "bob" }), 1),
        ]
    );
    let list = server.get("/admin/offenders?since=1h&limit=1").ok();
    assert_eq!(members(&list), ["offenders", "since"]);
    let [first] = &list["offenders"].as_array().unwrap()[..] else { panic!("{list}") };
    let names = ["error", "first_seen", "last_seen", "limit", "policy", "refused", "subject"];
    assert_eq!(members(first), names);
    assert_eq!(first["error"], 0);
    let (since, seen) = (micros(&list["since"]), micros(&first["first_seen"]));
    assert!(since < seen && seen <= micros(&first["last_seen"]), "{list}");
    assert!(seen - since < 66 * 60 * 1_000_000, "{list}");
}

#[test]
fn a_check_refused_by_two_limits_counts_in_both_and_shadows_in_neither() {
    let server = Server::memory();
    let limits = json!([
        { "name": "all", "max": 1, "per": FOREVER },
        { "name": "user", "max": 1, "per": FOREVER, "by": ["user"] },
        { "name": "shadow", "max": 0, "per": FOREVER, "by": ["user"], "shadow": true },
    ]);
    server.policy("p", &limits);
    refuse(&server, "p", &json!({ "user": "ada" }), 2);
    let mut found = top(&server);
    found.sort_by(|one, other| one.0.cmp(&other.0));
    let ada = json!({ "user": "ada" });
    assert_eq!(found, [("p/all".into(), json!({}), 2), ("p/user".into(), ada, 2)]);
}

#[test]
fn private_values_are_shown_as_short_keyed_hashes_only() {
    let server = Server::memory();
    let limits = json!([
        { "name": "ip", "max": 1, "per": FOREVER, "by": ["ip"], "private": true }]);
    server.policy("p", &limits);
    refuse(&server, "p", &json!({ "ip": "192.0.2.77" }), 2);
    refuse(&server, "p", &json!({ "ip": "192.0.2.78" }), 1);
    let body = server.get(OFFENDERS).body;
    assert!(!body.contains("192.0.2"), "{body}");
    let found = top(&server);
    let shown: Vec<_> =
        found.iter().map(|(_, subject, _)| subject["ip"].as_str().unwrap()).collect();
    assert!(shown.iter().all(|ip| ip.starts_with("hmac:") && ip.len() == 17), "{shown:?}");
    assert_ne!(shown[0], shown[1]);
    let said = server.said();
    assert!(!said.contains("192.0.2"), "{said}");
}

#[test]
fn a_question_that_cannot_be_meant_is_a_400_that_names_it() {
    let server = Server::memory();
    for (query, field) in [
        ("since=soon", "since"),
        ("since=", "since"),
        ("since=-1h", "since"),
        ("since=0s", "since"),
        ("since=25h", "since"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=many", "limit"),
        ("limit=-1", "limit"),
        ("sinse=1h", "sinse"),
    ] {
        server.get(&format!("{OFFENDERS}?{query}")).fault(400, field);
    }
    assert_eq!(server.get("/admin/offenders?since=24h&limit=1000").ok()["offenders"], json!([]));
    assert_eq!(server.get("/admin/offenders?since=PT5M").status, 200);
}

#[test]
fn only_admins_may_ask() {
    let setup = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", "s3cret");
    let server = setup.into_server();
    let made = Call::post("/admin/tokens", &json!({ "scope": "check" })).token("s3cret");
    let token = server.send(made).json()["token"].as_str().unwrap().to_owned();
    for path in [OFFENDERS, "/admin/alerts"] {
        server.get(path).problem(401);
        server.send(Call::new("GET", path).token(&token)).problem(403);
        assert_eq!(server.send(Call::new("GET", path).token("s3cret")).status, 200);
    }
}

#[test]
fn top_shows_the_list_once() {
    let server = Server::memory();
    let nobody = tollgate(&server, &["top", "--once"]).expect(0);
    assert!(nobody.out.starts_with("nobody was refused since "), "{nobody:?}");
    server.policy("api", &by("user", 1));
    refuse(&server, "api", &json!({ "user": "ada\u{1b}[2J" }), 3);
    let shown = tollgate(&server, &["top", "--once", "--since", "30m", "--limit", "5"]).expect(0);
    for part in ["refused", "api", "user=ada", "3", "last seen"] {
        assert!(shown.out.contains(part), "{part}: {shown:?}");
    }
    assert!(!shown.out.contains('\u{1b}'), "{shown:?}");
    // A program that reads the answer need not say that it wants it once.
    for arguments in [&["top", "--once", "--json"][..], &["top", "--json"]] {
        let document = tollgate(&server, arguments).expect(0).json();
        assert_eq!(document["offenders"][0]["refused"], 3);
    }
    assert!(tollgate(&server, &["top"]).expect(0).out.contains("user=ada"));
    tollgate(&server, &["top", "--once", "--since", "soon"]).expect(2);
    tollgate(&server, &["top", "--once", "--limit", "0"]).expect(2);
    tollgate(&server, &["top", "--interval", "1ms"]).expect(2);
    let mut alone = clean(env!("CARGO_BIN_EXE_tollgate"));
    alone.args(["top", "--server", "http://127.0.0.1:1"]);
    crate::support::Ended::of(alone).expect(3);
}

#[test]
fn top_refreshes_until_it_is_interrupted() {
    let server = Server::memory();
    server.policy("api", &by("user", 1));
    let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["top", "--interval", "100ms", "--json"]).env("TOLLGATE_SERVER", server.url(""));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut lists, mut counted) = (0, 0);
    for line in lines.map_while(Result::ok) {
        let list: Value = serde_json::from_str(&line).unwrap();
        counted = list["offenders"][0]["refused"].as_u64().unwrap_or_default();
        lists += 1;
        match lists {
            1 => refuse(&server, "api", &json!({ "user": "ada" }), 2),
            _ if counted == 2 => {
                let id = child.id().to_string();
                assert!(Command::new("kill").args(["-s", "INT", &id]).status().unwrap().success());
            }
            _ => assert!(lists < 200, "it never noticed"),
        }
    }
    let status = eventually("top ends", || child.try_wait().unwrap());
    assert_eq!((status.code(), counted), (Some(0), 2));
}

/// On a terminal that `script` (of every Debian) makes; what is typed there reaches the program, and no
/// shell in between.
#[test]
fn top_gives_the_terminal_back_when_it_is_interrupted() {
    let server = Server::memory();
    let top = format!("exec {} top --interval 100ms", env!("CARGO_BIN_EXE_tollgate"));
    let mut command = clean("script");
    command.args(["-qec", &top, "/dev/null"]).env("TOLLGATE_SERVER", server.url(""));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut keyboard = child.stdin.take().unwrap();
    let mut screen = child.stdout.take().unwrap();
    let (mut shown, mut more, mut typed) = (String::new(), [0; 4096], false);
    loop {
        let length = screen.read(&mut more).unwrap();
        if length == 0 {
            break;
        }
        shown.push_str(&String::from_utf8_lossy(&more[..length]));
        if shown.matches("nobody was refused").count() >= 2 && !typed {
            typed = true;
            keyboard.write_all(b"\x03").unwrap();
        }
    }
    let status = eventually("top ends", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0), "{shown:?}");
    assert!(shown.starts_with("\x1b[?1049h\x1b[?25l\x1b[H"), "{shown:?}");
    assert!(shown.trim_end().ends_with("\x1b[?25h\x1b[?1049l"), "{shown:?}");
    // Drawn over, never wiped.
    assert!(!shown.contains("\x1b[2J"), "{shown:?}");
}

#[test]
fn servers_on_one_database_add_up_what_they_refused() {
    let schema = random::name("s").replace('-', "_");
    let (postgres, secs) = (Postgres::shared(), DEADLINE.as_secs());
    let url = format!("{}?schema={schema}&deadline={secs}s", postgres.url());
    let (one, other) = (Setup::postgres(&url).into_server(), Setup::postgres(&url).into_server());
    one.policy("p", &by("user", 1));
    refuse(&one, "p", &json!({ "user": "ada" }), 3);
    refuse(&other, "p", &json!({ "user": "ada" }), 2);
    refuse(&other, "p", &json!({ "user": "bob" }), 1);
    let wanted = [
        ("p/user".to_owned(), json!({ "user": "ada" }), 5),
        ("p/user".to_owned(), json!({ "user": "bob" }), 1),
    ];
    for server in [&one, &other] {
        eventually("both are merged", || (top(server) == wanted).then_some(()));
    }
    // Who asks does not make it more.
    assert_eq!(top(&one), wanted);
    let list = one.get(OFFENDERS).ok();
    assert_eq!(list["offenders"][0]["error"], 0);
    assert!(micros(&list["since"]) < micros(&list["offenders"][0]["first_seen"]));
}

//! Alerts: raised once, listed, counted, and sent to a webhook that may fail or hang.

use std::time::Instant;

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use testkit::random;
use testkit::servers::Postgres;

use crate::support::receiver::{Manner, Received, Receiver};
use crate::support::{DEADLINE, FOREVER, Server, Setup, eventually, members, micros};

const ALERTS: &str = "/admin/alerts";
const SECRET: &str = "whsec-5up3r";

fn limits() -> Value {
    json!([{ "name": "user", "max": 1, "per": FOREVER, "by": ["user"] }])
}

fn refuse(server: &Server, user: &str, times: usize) {
    let mut refused = 0;
    while refused < times {
        refused += usize::from(server.check("p", &json!({ "user": user })).status == 429);
    }
}

fn alerts(server: &Server) -> Vec<Value> {
    server.get(ALERTS).ok()["alerts"].as_array().unwrap().clone()
}

/// A server that tells this receiver.
fn with_webhook(receiver: &Receiver, more: &str) -> Server {
    let url = receiver.url();
    let text = format!("[alerts]\nwebhook = \"{url}\"\nsecret = \"{SECRET}\"\n{more}");
    let server = Setup::memory().config(&text).into_server();
    server.policy("p", &limits());
    server
}

fn metric(server: &Server, name: &str) -> u64 {
    let text = server.get("/metrics").body;
    let value = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    value.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
}

fn assert_signed(received: &Received) {
    let signature = received.header("x-tollgate-signature").unwrap();
    let (time, given) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    let age = jiff::Timestamp::now().as_second() - time.parse::<i64>().unwrap();
    assert!((-1..=300).contains(&age), "{signature}");
    let mut mac: Hmac<Sha256> = Hmac::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(format!("{time}.{}", received.body).as_bytes());
    let wanted: String =
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(given, wanted);
}

#[test]
fn five_refusals_raise_one_alert_and_a_signed_call() {
    let receiver = Receiver::start(&[Manner::Status(204)]);
    let server = with_webhook(&receiver, "");
    refuse(&server, "ada", 4);
    assert_eq!(alerts(&server), Vec::<Value>::new());
    refuse(&server, "bob", 4);
    refuse(&server, "ada", 20);
    let listed = alerts(&server);
    let [alert] = &listed[..] else { panic!("{listed:?}") };
    let names = [
        "first_seen",
        "id",
        "limit",
        "policy",
        "raised_at",
        "refused",
        "rule",
        "subject",
        "within",
    ];
    assert_eq!(members(alert), names);
    assert_eq!((&alert["policy"], &alert["limit"]), (&json!("p"), &json!("user")));
    assert_eq!(alert["subject"], json!({ "user": "ada" }));
    assert!(alert["refused"].as_u64().unwrap() >= 5 && alert["within"] == "PT10M", "{alert}");
    assert!(micros(&alert["first_seen"]) <= micros(&alert["raised_at"]));
    let call = receiver.wait_for(1)[0].clone();
    assert!(call.head[0].starts_with("POST /hooks/alerts?team=ops HTTP/1.1"), "{call:?}");
    assert_eq!(call.header("content-type"), Some("application/json"));
    assert_eq!(call.json(), *alert);
    assert_signed(&call);
    refuse(&server, "ada", 10);
    assert_eq!(alerts(&server).len(), 1);
    eventually("it is counted", || {
        (metric(&server, "tollgate_alert_deliveries_total") == 1).then_some(())
    });
    assert_eq!(metric(&server, "tollgate_alerts_total"), 1);
    assert_eq!(metric(&server, "tollgate_alert_delivery_failures_total"), 0);
    assert_eq!(receiver.received().len(), 1);
    let (said, metrics) = (server.said(), server.get("/metrics").body);
    assert!(!said.contains(SECRET) && !said.contains("ada"), "{said}");
    assert!(!metrics.contains("ada"), "{metrics}");
}

#[test]
fn a_webhook_that_fails_twice_is_told_a_third_time() {
    let manners = [Manner::Status(500), Manner::Status(302), Manner::Status(200)];
    let receiver = Receiver::start(&manners);
    let server = with_webhook(&receiver, "");
    refuse(&server, "ada", 5);
    let calls = receiver.wait_for(3);
    assert!(calls.iter().all(|call| call.body == calls[0].body), "{calls:?}");
    calls.iter().for_each(assert_signed);
    eventually("it is counted", || {
        (metric(&server, "tollgate_alert_deliveries_total") == 1).then_some(())
    });
    assert_eq!(metric(&server, "tollgate_alert_delivery_failures_total"), 2);
    assert_eq!(metric(&server, "tollgate_alerts_undelivered_total"), 0);
}

#[test]
fn a_webhook_that_never_takes_it_is_given_up() {
    let receiver = Receiver::start(&[Manner::Status(404)]);
    let server = with_webhook(&receiver, "webhook_attempts = 2");
    refuse(&server, "ada", 5);
    eventually("it is given up", || {
        (metric(&server, "tollgate_alerts_undelivered_total") == 1).then_some(())
    });
    assert_eq!((receiver.received().len(), alerts(&server).len()), (2, 1));
}

#[test]
fn a_webhook_that_hangs_delays_nobody() {
    let receiver = Receiver::start(&[Manner::Hang]);
    let server = with_webhook(&receiver, "webhook_timeout = \"1h\"");
    refuse(&server, "ada", 5);
    receiver.wait_for(1);
    // While it hangs: checks, lists and more alerts.
    refuse(&server, "bob", 5);
    server.spend("p", &json!({ "user": "eve" }));
    assert_eq!(alerts(&server).len(), 2);
    assert_eq!(metric(&server, "tollgate_alerts_total"), 2);
    assert_eq!(receiver.received().len(), 1);
    let stopping = Instant::now();
    server.terminate();
    assert!(stopping.elapsed() < DEADLINE / 2, "{:?}", stopping.elapsed());
}

#[test]
fn what_is_unsaid_when_the_server_stops_is_said() {
    let receiver = Receiver::start(&[Manner::Status(200)]);
    let server = with_webhook(&receiver, "");
    refuse(&server, "ada", 5);
    server.terminate();
    assert_eq!(receiver.received().len(), 1);
}

#[test]
fn rules_can_be_about_policies_or_none() {
    let rules = r#"rules = [{ name = "busy", refusals = 3, within = "1h", per = "policy" }]"#;
    let server = Setup::memory().config(&format!("[alerts]\n{rules}")).into_server();
    server.policy("p", &limits());
    for user in ["ada", "bob", "eve"] {
        refuse(&server, user, 1);
    }
    let listed = alerts(&server);
    let [alert] = &listed[..] else { panic!("{listed:?}") };
    let names = ["first_seen", "id", "policy", "raised_at", "refused", "rule", "within"];
    assert_eq!(members(alert), names);
    assert_eq!((&alert["rule"], &alert["refused"]), (&json!("busy"), &json!(3)));
    for (text, offenders) in [("rules = []", 1), ("watch = false", 0)] {
        let server = Setup::memory().config(&format!("[alerts]\n{text}")).into_server();
        server.policy("p", &limits());
        refuse(&server, "ada", 10);
        assert_eq!(alerts(&server), Vec::<Value>::new());
        let list = server.get("/admin/offenders").ok();
        assert_eq!(list["offenders"].as_array().unwrap().len(), offenders);
    }
}

#[test]
fn alerts_are_listed_newest_first_in_pages() {
    let server = Server::memory();
    server.policy("p", &limits());
    for user in ["one", "two", "three"] {
        refuse(&server, user, 5);
        // A list collects, so these come one after the other.
        alerts(&server);
    }
    let users = |list: &Value| -> Vec<String> {
        let alerts = list["alerts"].as_array().unwrap().iter();
        alerts.map(|alert| alert["subject"]["user"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(users(&server.get(ALERTS).ok()), ["three", "two", "one"]);
    assert_eq!(members(&server.get(ALERTS).ok()), ["alerts"]);
    let page = server.get("/admin/alerts?limit=2").ok();
    assert_eq!(users(&page), ["three", "two"]);
    let cursor = page["next_cursor"].as_str().unwrap();
    let page = server.get(&format!("/admin/alerts?limit=2&cursor={cursor}")).ok();
    assert_eq!((users(&page), members(&page)), (vec!["one".to_owned()], vec!["alerts"]));
    for (query, field) in
        [("limit=0", "limit"), ("limit=x", "limit"), ("cursor=x", "cursor"), ("page=2", "page")]
    {
        server.get(&format!("{ALERTS}?{query}")).fault(400, field);
    }
}

#[test]
fn a_section_that_cannot_be_used_ends_the_start() {
    for (text, named) in [
        ("[alerts]\nweb_hook = \"https://x.org\"", "web_hook"),
        ("[alerts]\nwebhook = \"x.org\"", "webhook"),
        ("[alerts]\nrules = [{ refusals = 0 }]", "refusals"),
        ("[alerts]\nrules = [{ within = \"2d\" }]", "within"),
        ("[alerts]\nrules = [{ per = \"user\" }]", "per"),
    ] {
        let ended = Setup::memory().config(text).start_in_vain().expect(2);
        assert!(ended.err.contains(named), "{named}: {ended:?}");
    }
}

#[test]
fn servers_on_one_database_raise_one_alert_for_the_sum() {
    let receiver = Receiver::start(&[Manner::Status(200)]);
    let schema = random::name("s").replace('-', "_");
    let (postgres, secs) = (Postgres::shared(), DEADLINE.as_secs());
    let url = format!("{}?schema={schema}&deadline={secs}s", postgres.url());
    let config = format!("[alerts]\nwebhook = \"{}\"\nsecret = \"{SECRET}\"", receiver.url());
    let start = || Setup::postgres(&url).config(&config).into_server();
    let (one, other) = (start(), start());
    one.policy("p", &limits());
    refuse(&one, "ada", 3);
    assert_eq!(alerts(&one), Vec::<Value>::new());
    refuse(&other, "ada", 2);
    // Neither saw five of them.
    let seen = eventually("both list it", || {
        let (one, other) = (alerts(&one), alerts(&other));
        (!one.is_empty() && !other.is_empty()).then_some((one, other))
    });
    assert_eq!(seen.0, seen.1);
    assert_eq!((seen.0.len(), &seen.0[0]["refused"]), (1, &json!(5)));
    for server in [&one, &other, &one, &other] {
        refuse(server, "ada", 5);
        assert_eq!(alerts(server).len(), 1);
    }
    let call = receiver.wait_for(1)[0].clone();
    assert_signed(&call);
    assert_eq!(call.json(), seen.0[0]);
    let total = metric(&one, "tollgate_alerts_total") + metric(&other, "tollgate_alerts_total");
    assert_eq!((total, receiver.received().len()), (1, 1));
    // What was raised is there for whoever comes next.
    one.terminate();
    other.terminate();
    assert_eq!(alerts(&start()), seen.0);
}

#[test]
fn refusals_wait_for_a_database_that_is_away() {
    let postgres = Postgres::start();
    let server = Setup::postgres(&format!("{}?deadline=2s", postgres.url())).into_server();
    let policy = json!({ "limits": [{ "name": "user", "max": 1, "per": "1h", "by": ["user"] }],
        "on_store_error": "local" });
    assert_eq!(server.put("/admin/policies/p", &policy).status, 201);
    refuse(&server, "ada", 3);
    postgres.stop();
    refuse(&server, "ada", 2);
    server.get(ALERTS).problem(503);
    postgres.start_again();
    let listed = eventually("it is told when it is back", || {
        let reply = server.get(ALERTS);
        let listed =
            (reply.status == 200).then(|| reply.ok()["alerts"].as_array().unwrap().clone());
        listed.filter(|listed| !listed.is_empty())
    });
    assert_eq!(listed.len(), 1);
    assert!(listed[0]["refused"].as_u64().unwrap() >= 5, "{listed:?}");
}

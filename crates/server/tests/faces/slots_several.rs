//! Slots on several servers of one PostgreSQL, and on a file through kill -9.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::random;
use testkit::servers::{Postgres, Proxy};

use crate::support::slots::{NOON, SLOTS, event_body};
use crate::support::{DEADLINE, Server, Setup, eventually, tollgate};

fn two_servers() -> (Server, Server) {
    let schema = random::name("s").replace('-', "_");
    let (base, secs) = (Postgres::shared().url(), DEADLINE.as_secs());
    let url = format!("{base}?schema={schema}&deadline={secs}s");
    (Setup::postgres(&url).into_server(), Setup::postgres(&url).into_server())
}

#[test]
fn one_event_on_two_servers_has_one_slot() {
    let (one, other) = two_servers();
    one.slot_config("c", 5, "PT4S");
    let first = one.ask_slot("e", "c", NOON).ok();
    assert_eq!(other.ask_slot("e", "c", NOON).ok(), first);
    assert_eq!(other.get("/api/v1/slots/e").ok(), one.get("/api/v1/slots/e").ok());
    other.ask_slot("e", "default", NOON).fault(409, "eventId");
    assert_eq!((one.fill("c"), other.fill("c")), (vec![1], vec![1]));
}

#[test]
fn racing_servers_fill_every_window_exactly_and_give_each_event_one_slot() {
    let (one, other) = two_servers();
    one.slot_config("c", 5, "PT4S");
    let answers = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for server in [&one, &other, &one, &other] {
            let answers = &answers;
            scope.spawn(move || {
                for number in 0..20 {
                    let slot = server.ask_slot(&format!("e-{number}"), "c", NOON).ok();
                    answers.lock().unwrap().push(slot.to_string());
                }
            });
        }
    });
    let distinct: HashSet<String> = answers.into_inner().unwrap().into_iter().collect();
    assert_eq!(distinct.len(), 20);
    assert_eq!(one.fill("c"), [5, 5, 5, 5]);
    assert_eq!(other.verified("c")["slots"], 20);
}

/// Each config costs some round trips of its own, and a batch may name a thousand.
#[test]
fn a_batch_of_many_configs_is_answered_in_time_also_by_a_slow_database() {
    let schema = random::name("s").replace('-', "_");
    let proxy = Proxy::start(Postgres::shared().port());
    let url = format!("{}?schema={schema}&deadline=3s", proxy.through(&Postgres::shared().url()));
    let server = Setup::postgres(&url).into_server();
    server.slot_config("c", 5, "PT4S");
    server.ask_slot("before", "c", NOON).ok();
    proxy.latency(Duration::from_millis(100));
    let configs =
        ["c".to_owned()].into_iter().chain((0..60).map(|number| format!("none-{number}")));
    let events = configs.map(|config| event_body(&format!("of {config}"), &config, NOON));
    let batch = json!({ "events": events.collect::<Vec<_>>() });
    let started = Instant::now();
    let results = server.post(&format!("{SLOTS}/batch"), &batch).ok()["results"].take();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(results[0]["eventId"], "of c");
    assert_eq!(results[1]["status"], 404, "{results}");
    assert_eq!(results[60]["status"], 503, "{results}");
}

#[test]
fn configs_set_on_two_servers_at_once_each_answer_for_themselves_and_keep_the_schedule() {
    let (one, other) = two_servers();
    one.slot_config("c", 1, "PT4S");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Each horizon is longer than the one before, so a version with a shorter one undid another.
        let schedules = scope.spawn(|| {
            let mut days = 1;
            while !stop.load(Ordering::Relaxed) {
                days += 1;
                let limits = json!([{ "name": "window", "max": 1, "per": "4s" }]);
                let body =
                    json!({ "limits": limits, "schedule": { "horizon": format!("{days}d") } });
                other.put("/admin/policies/c", &body).ok();
            }
        });
        for max in 100..160 {
            let body = json!({ "configName": "c", "maxPerWindow": max, "windowSize": "PT4S" });
            let answer = one.post("/admin/rate-limit/config", &body);
            assert_eq!(answer.status, 201, "{answer:?}");
            assert_eq!(answer.json()["maxPerWindow"], max);
        }
        stop.store(true, Ordering::Relaxed);
        schedules.join().unwrap();
    });
    let versions = one.get("/admin/policies/c/versions").ok();
    let horizon = |version: &Value| -> Option<u64> {
        version["policy"]["schedule"]["horizon"].as_str()?.trim_end_matches('d').parse().ok()
    };
    let mut horizons: Vec<_> =
        versions["versions"].as_array().unwrap().iter().map(horizon).collect();
    horizons.reverse();
    assert!(horizons.len() > 60 && horizons.iter().any(|days| *days > Some(2)), "{horizons:?}");
    assert!(horizons.is_sorted(), "{horizons:?}");
}

#[test]
fn a_schedule_that_somebody_else_has_locked_holds_up_no_other() {
    let postgres = Postgres::shared();
    let schema = random::name("s").replace('-', "_");
    let url = format!("{}?schema={schema}&deadline={}s", postgres.url(), DEADLINE.as_secs());
    let server = Setup::postgres(&url).into_server();
    for config in ["locked", "free"] {
        server.slot_config(config, 5, "PT4S");
        server.ask_slot(config, config, NOON).ok();
    }
    let locker = format!(
        "from pg_stat_activity where query like '%pg_sleep%{schema}%' \
         and wait_event = 'PgSleep'"
    );
    std::thread::scope(|scope| {
        let lock = format!(
            "begin; select 1 from {schema}.schedule where policy = 'locked' for update; \
             select pg_sleep(60) /* {schema} */"
        );
        scope.spawn(move || postgres.psql_through(&postgres.superuser_url(), &lock).unwrap_err());
        let is_locked = format!("select count(*) {locker}");
        eventually("the schedule is locked", || (postgres.psql(&is_locked) == "1").then_some(()));
        let held_up = scope.spawn(|| server.ask_slot("waits", "locked", NOON));
        let is_waiting = format!(
            "select count(*) from pg_stat_activity \
             where wait_event_type = 'Lock' and query like '%{schema}%'"
        );
        eventually("somebody waits", || (postgres.psql(&is_waiting) != "0").then_some(()));
        for number in 0..3 {
            server.ask_slot(&format!("free-{number}"), "free", NOON).ok();
        }
        assert!(!held_up.is_finished(), "slots of another policy came only after this one");
        postgres.psql(&format!("select pg_terminate_backend(pid) {locker}"));
    });
}

#[test]
fn a_cancel_on_one_server_frees_the_place_for_another() {
    let (one, other) = two_servers();
    one.slot_config("c", 1, "PT4S");
    let first = one.ask_slot("a", "c", NOON).ok();
    other.ask_slot("b", "c", NOON).ok();
    one.delete("/api/v1/slots/a").ok();
    let next = other.ask_slot("d", "c", NOON).ok();
    assert_eq!(next["scheduledTime"], first["scheduledTime"]);
    other.ask_slot("a", "c", NOON).fault(409, "eventId");
    assert_eq!(one.verified("c")["slots"], 2);
}

#[test]
fn a_config_changed_on_one_server_is_in_force_at_the_next_slot_of_another() {
    let (one, other) = two_servers();
    one.slot_config("c", 1, "PT4S");
    other.ask_slot("a", "c", NOON).ok();
    one.slot_config("c", 3, "PT4S");
    other.ask_slot("b", "c", NOON).ok();
    other.ask_slot("c", "c", NOON).ok();
    assert_eq!(other.fill("c"), [3]);
    one.slot_config("c", 1, "PT8S");
    assert_eq!(other.get("/api/v1/windows?configName=c").ok()["windowSize"], "PT8S");
    other.ask_slot("d", "c", NOON).ok();
    assert_eq!((one.fill("c"), other.fill("c")), (vec![3, 1], vec![3, 1]));
    one.delete("/admin/policies/c");
    other.ask_slot("e", "c", NOON).problem(404);
    one.verified("default");
}

#[test]
fn a_batch_and_pages_are_the_same_on_every_store() {
    let (postgres, _other) = two_servers();
    let memory = Server::memory();
    let seen = [&postgres, &memory].map(|server| {
        server.slot_config("c", 7, "PT4S");
        let events: Vec<_> =
            (0..60).map(|number| event_body(&format!("é/{number}"), "c", NOON)).collect();
        let body = json!({ "events": events });
        let batch = server.post("/api/v1/slots/batch", &body).ok();
        let again = server.post("/api/v1/slots/batch", &body).ok();
        assert_eq!(again["repeated"], 60);
        server.delete("/api/v1/slots/%C3%A9%2F7").ok();
        let mut pages = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = server.get(&format!("{SLOTS}?configName=c&limit=17{cursor}")).ok();
            let slots = page["slots"].as_array().unwrap();
            pages.extend(slots.iter().map(|slot| slot["scheduledTime"].clone()));
            let Some(next) = page["nextCursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        (batch, pages, server.fill("c"))
    });
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0].1.len(), 60);
}

#[test]
fn kill_9_under_load_loses_no_slot_that_was_answered() {
    let setup = Setup::sqlite();
    let answered: Mutex<Vec<Value>> = Mutex::default();
    for round in 0..3 {
        let server = setup.start();
        server.slot_config("c", 50, "PT4S");
        let address = server.address.clone();
        let before = answered.lock().unwrap().len();
        let load = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    let (address, answered) = (&address, &answered);
                    scope.spawn(move || write(address, &format!("{round}-{writer}"), answered))
                })
                .collect();
            let started = Instant::now();
            let has_load = || answered.lock().unwrap().len() >= before + 20;
            while !has_load() && started.elapsed() < DEADLINE {
                std::thread::sleep(Duration::from_millis(1));
            }
            server.kill();
            writers.into_iter().map(|writer| writer.join().unwrap()).sum::<usize>()
        });
        assert!(load >= 20, "round {round}: {load} answers are no load");
        let server = setup.start();
        let verified = tollgate(&server, &["slot", "verify", "--config", "c"]).expect(0);
        assert!(verified.out.contains("no drift"), "{verified:?}");
        let answered = answered.lock().unwrap();
        for slot in answered.iter() {
            let id = slot["eventId"].as_str().unwrap();
            let kept = server.get(&format!("/api/v1/slots/{id}")).ok();
            assert_eq!(kept["scheduledTime"], slot["scheduledTime"], "{id}");
        }
        assert!(server.verified("c")["slots"].as_u64().unwrap() >= answered.len() as u64);
        server.terminate();
    }
}

/// Asks until nobody answers; how many did.
fn write(address: &str, name: &str, answered: &Mutex<Vec<Value>>) -> usize {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(DEADLINE))
        .build()
        .into();
    for number in 0.. {
        let body = event_body(&format!("{name}-{number}"), "c", NOON).to_string();
        let asked = agent.post(format!("http://{address}{SLOTS}")).send(body);
        let Ok(mut reply) = asked else { return number };
        let Ok(text) = reply.body_mut().read_to_string() else { return number };
        assert_eq!(reply.status(), 200, "{text}");
        answered.lock().unwrap().push(serde_json::from_str(&text).unwrap());
    }
    unreachable!("the server is killed before the numbers end")
}

//! Several servers on one PostgreSQL: what one is told, the others do at their next decision.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::random;
use testkit::servers::{Postgres, Proxy, Settings};
use tollgate::{IdempotencyKey, Policy, Tollgate};

use crate::support::command::alone;
use crate::support::{Call, DEADLINE, FOREVER, Server, Setup, eventually};

/// A schema nobody else uses.
fn url(postgres: &Postgres) -> String {
    // A loaded machine is not what these tests are about.
    let schema = random::name("s").replace('-', "_");
    format!("{}?schema={schema}&deadline={}s", postgres.url(), DEADLINE.as_secs())
}

fn schema_of(url: &str) -> &str {
    let (_, schema) = url.split_once("schema=").unwrap();
    schema.split('&').next().unwrap()
}

fn two_servers() -> (Server, Server) {
    let url = url(Postgres::shared());
    (Setup::postgres(&url).into_server(), Setup::postgres(&url).into_server())
}

fn limits(max: u64) -> Value {
    json!([{ "name": "user", "max": max, "per": FOREVER, "by": ["user"] }])
}

#[test]
fn the_first_start_has_a_decision_to_show() {
    let server = Setup::postgres(&url(Postgres::shared())).into_server();
    assert_eq!(server.spend("default", &json!({}))["limits"][0]["used"], 1);
    assert_eq!(server.get("/readyz").status, 200);
}

#[test]
fn two_servers_share_every_count() {
    let (one, other) = two_servers();
    one.policy("p", &limits(5));
    let ada = json!({ "user": "ada" });
    for server in [&one, &other, &one, &other, &one] {
        server.spend("p", &ada);
    }
    assert_eq!(one.check("p", &ada).status, 429);
    assert_eq!(other.check("p", &ada).status, 429);
    assert_eq!((one.used("p", &ada), other.used("p", &ada)), (vec![5], vec![5]));
}

#[test]
fn a_change_on_one_server_is_in_force_at_the_next_decision_of_another() {
    let (one, other) = two_servers();
    let ada = json!({ "user": "ada" });
    for max in [1, 3, 2, 9] {
        one.policy("p", &limits(max));
        assert_eq!(other.peek("p", &ada)["limits"][0]["max"], max);
    }
    let body = json!({ "policy": "p", "subject": ada, "limit": "user", "max": 77 });
    assert_eq!(other.put("/admin/overrides", &body).status, 200);
    assert_eq!(one.peek("p", &ada)["limits"][0]["max"], 77);
    assert_eq!(one.delete("/admin/policies/p").status, 200);
    assert_eq!(other.check("p", &ada).status, 404);
    let names = |server: &Server| server.get("/admin/policies").ok().to_string();
    assert_eq!(names(&one), names(&other));
}

#[test]
fn a_route_made_on_one_server_is_soon_known_to_the_gate_of_another() {
    let (one, other) = two_servers();
    let ask = |server: &Server| {
        server.send(Call::new("GET", "/gate").header("X-Original-URI", "/shut")).status
    };
    assert_eq!((ask(&one), ask(&other)), (200, 200));
    let limits = json!([{ "name": "none", "max": 0, "per": FOREVER }]);
    let policy = json!({ "routes": ["/shut"], "limits": limits });
    assert_eq!(one.put("/admin/policies/p", &policy).status, 201);
    assert_eq!(ask(&one), 429);
    eventually("the other one knows the route", || (ask(&other) == 429).then_some(()));
    assert_eq!(one.delete("/admin/policies/p").status, 200);
    assert_eq!(ask(&other), 200, "the decision itself finds that the policy is gone");
}

#[test]
fn a_flush_reads_everything_again() {
    let (one, other) = two_servers();
    one.policy("p", &json!([{ "name": "all", "max": 4, "per": FOREVER }]));
    let flushed = other.post("/admin/rate-limit/cache/flush", &json!({})).ok();
    assert_eq!(flushed, json!({ "status": "cache flushed" }));
    assert_eq!(other.get("/admin/rate-limit/config?name=p").ok()["maxPerWindow"], 4);
}

#[test]
fn a_token_made_on_one_server_opens_and_closes_the_other() {
    let (one, other) = two_servers();
    let made = one.post("/admin/tokens", &json!({ "scope": "admin", "name": "ops" })).json();
    let token = made["token"].as_str().unwrap();
    // The other one was open until now.
    assert_eq!(other.get("/admin/policies").status, 401);
    assert_eq!(other.send(Call::new("GET", "/admin/policies").token(token)).status, 200);
    let call = Call::post("/admin/tokens", &json!({ "scope": "check" })).token(token);
    let check = other.send(call).json();
    let body = json!({ "policy": "default", "subject": {} });
    let call = Call::post("/api/v1/check", &body);
    let token = check["token"].as_str().unwrap();
    assert_eq!(one.send(call.clone().token(token)).status, 200);
    assert_eq!(one.send(call.token("wrong")).status, 401);
}

#[test]
fn a_token_revoked_on_one_server_is_refused_by_another_that_nobody_asked_meanwhile() {
    let (one, other) = two_servers();
    let made = one.post("/admin/tokens", &json!({ "scope": "admin" })).json();
    let admin = made["token"].as_str().unwrap();
    let call = Call::post("/api/v1/check", &json!({ "policy": "default", "subject": {} }));
    for round in 0..3 {
        let make = Call::post("/admin/tokens", &json!({ "scope": "check", "name": "ci" }));
        let made = one.send(make.token(admin)).json();
        let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
        assert_eq!(other.send(call.clone().token(token)).status, 200);
        let revoke = Call::new("DELETE", &format!("/admin/tokens/{id}"));
        assert_eq!(one.send(revoke.token(admin)).status, 200);
        // Made after that, so whoever knows of this knows of that; and metrics ask nobody.
        let path = format!("/admin/policies/after-{round}");
        let after = Call::new("PUT", &path).json(&json!({ "limits": limits(1) }));
        assert_eq!(one.send(after.token(admin)).status, 201);
        let name = format!("policy=\"after-{round}\"");
        eventually("the other one looked by itself", || {
            other.get("/metrics").body.contains(&name).then_some(())
        });
        assert_eq!(other.send(call.clone().token(token)).status, 401);
    }
}

/// Six round trips to find out about the policy and two to ask by it: either has time enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_about_a_policy_that_another_just_made_has_the_deadline_once() {
    let (deadline, round_trip) = ("deadline=1s", Duration::from_millis(140));
    let url = url(Postgres::shared());
    let url = url.replace(&format!("deadline={}s", DEADLINE.as_secs()), deadline);
    let proxy = Proxy::start(Postgres::shared().port());
    let one = Tollgate::open(&url).await.unwrap();
    let far = Tollgate::open(&proxy.through(&url)).await.unwrap();
    let make = async |name: &str| {
        let policy = r#"limits = [{ name = "all", max = 9, per = "1d" }]"#;
        one.apply(&Policy::from_toml(name, policy).unwrap(), "me").await.unwrap();
    };
    make("known").await;
    far.check("known", &[], 1).await.unwrap();
    for name in ["new", "once"] {
        make(name).await;
        proxy.latency(round_trip / 2);
        let late = if name == "new" {
            far.check(name, &[], 1).await.err()
        } else {
            let key = IdempotencyKey { scope: b"me", key: "k" };
            far.check_once(key, name, &[], 1, |_| Vec::new()).await.err()
        };
        let late = late.unwrap_or_else(|| panic!("{name}: answered after the deadline"));
        assert!(matches!(late, tollgate::Error::Store(_)), "{name}: {late}");
        proxy.latency(Duration::ZERO);
        far.check(name, &[], 1).await.unwrap();
    }
}

#[test]
fn an_idempotency_key_is_known_to_all_servers() {
    let (one, other) = two_servers();
    one.policy("p", &limits(5));
    let body = json!({ "policy": "p", "subject": { "user": "ada" } });
    let call = Call::post("/api/v1/check", &body).header("Idempotency-Key", "\"k-1\"");
    let (first, second) = (one.send(call.clone()), other.send(call));
    assert_eq!((first.status, second.status), (200, 200));
    assert_eq!(first.body, second.body);
    assert_eq!(second.headers["idempotency-replayed"], "true");
    assert_eq!(one.used("p", &json!({ "user": "ada" })), [1]);
}

#[test]
fn a_receipt_of_one_server_is_taken_back_by_another_once() {
    let (one, other) = two_servers();
    one.policy("p", &limits(5));
    let receipt = one.spend("p", &json!({ "user": "ada" }))["receipt"].clone();
    let refund = json!({ "receipt": receipt });
    assert_eq!(other.post("/api/v1/refund", &refund).ok()["refunded"], true);
    assert_eq!(one.post("/api/v1/refund", &refund).ok()["refunded"], false);
    assert_eq!(one.used("p", &json!({ "user": "ada" })), [0]);
}

#[test]
fn a_store_that_stops_is_503_and_not_ready_and_both_end_when_it_is_back() {
    let postgres = Postgres::start();
    let server = Setup::postgres(&url(&postgres)).into_server();
    server.spend("default", &json!({}));
    postgres.stop();
    let down = server.check("default", &json!({}));
    assert_eq!(down.status, 503, "{down:?}");
    assert_eq!(server.get("/readyz").status, 503);
    assert_eq!(server.get("/healthz").status, 200);
    assert!(!server.get("/metrics").body.contains("tollgate_store_errors_total 0"));
    postgres.start_again();
    eventually("it answers again", || {
        (server.check("default", &json!({})).status == 200).then_some(())
    });
    assert_eq!(server.get("/readyz").status, 200);
}

#[test]
fn refusals_repeated_from_memory_are_counted() {
    let (server, _) = two_servers();
    server.policy("p", &limits(1));
    let ada = json!({ "user": "ada" });
    server.spend("p", &ada);
    let text = eventually("a refusal comes from memory", || {
        let refused = server.check("p", &ada);
        assert_eq!(refused.status, 429);
        assert!(refused.headers.contains_key("retry-after"));
        let text = server.get("/metrics").body;
        (!text.contains("tollgate_shielded_total 0")).then_some(text)
    });
    assert!(text.contains("tollgate_shielded_total "), "{text}");
}

#[test]
fn a_password_is_never_shown() {
    let postgres = Postgres::start_with(Settings { password: true, ..Settings::default() });
    let url = postgres.url();
    let password = url.split_once("://").unwrap().1.split_once('@').unwrap().0;
    let (_, password) = password.split_once(':').unwrap();
    let patient = format!("{url}?deadline={}s", DEADLINE.as_secs());
    let setup = Setup::postgres(&patient).env("TOLLGATE_LOG", "trace");
    let server = setup.start();
    server.spend("default", &json!({}));
    assert!(server.said().contains("postgres://tollgate@"), "{}", server.said());
    assert!(!server.said().contains(password), "{}", server.said());
    postgres.stop();
    server.check("default", &json!({}));
    assert!(!server.said().contains(password), "{}", server.said());
    let ended = setup.start_in_vain().expect(3);
    assert!(ended.err.contains("cannot be reached"), "{ended:?}");
    assert!(!ended.err.contains(password) && !ended.out.contains(password), "{ended:?}");
}

#[test]
fn commands_that_open_the_store_themselves_do() {
    let home = tempfile::tempdir().unwrap();
    let url = url(Postgres::shared());
    let migrated = alone(home.path(), &["migrate", "--store", &url]).expect(0);
    assert!(migrated.out.contains("is up to date"), "{migrated:?}");
    let arguments = ["token", "create", "--scope", "admin", "--store", &url, "--json"];
    let made = alone(home.path(), &arguments).expect(0).json();
    let server = Setup::postgres(&url).into_server();
    let call = Call::new("GET", "/admin/policies").token(made["token"].as_str().unwrap());
    assert_eq!(server.send(call).status, 200);
    alone(home.path(), &["migrate", "--store", "postgres://127.0.0.1:1/nowhere"]).expect(3);
    alone(home.path(), &["migrate", "--store", "postgres://127.0.0.1/x?lanes=none"]).expect(2);
}

#[test]
fn a_server_that_waits_for_its_schema_says_so_and_can_be_stopped() {
    let postgres = Postgres::start();
    let url = format!("{}?deadline={}s", postgres.url(), DEADLINE.as_secs());
    Setup::postgres(&url).into_server().terminate();
    std::thread::scope(|scope| {
        let lock = "begin; lock table tollgate.migration; select pg_sleep(60) /* held */";
        scope.spawn(|| postgres.psql_through(&postgres.superuser_url(), lock).unwrap_err());
        let locker = "from pg_stat_activity where query like '%held%' and wait_event = 'PgSleep'";
        let is_locked = format!("select count(*) {locker}");
        eventually("the list is locked", || (postgres.psql(&is_locked) == "1").then_some(()));
        let setup = Setup::postgres(&url);
        let mut command = setup.command();
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = lines.find_map(|line| line.ok().filter(|line| line.contains("pg_locks")));
        let kill = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
        let ended = eventually("the server ends", || child.try_wait().unwrap());
        postgres.psql(&format!("select pg_terminate_backend(pid) {locker}"));
        assert!(said.is_some() && kill.unwrap().success(), "it never said what it waits for");
        assert_eq!(ended.code(), Some(0));
    });
}

#[test]
fn mail_tables_of_a_later_version_are_used_unless_it_says_that_they_must_not() {
    let postgres = Postgres::shared();
    let url = url(postgres);
    let schema = schema_of(&url);
    let setup = Setup::postgres(&url);
    setup.start().terminate();
    let later = |version: u32, breaking: bool| {
        postgres.psql(&format!(
            "insert into {schema}.mail_migration (version, name, breaking) \
             values ({version}, 'later', {breaking})"
        ))
    };
    later(900, false);
    setup.start().terminate();
    later(901, true);
    let ended = setup.start_in_vain().expect(3);
    assert!(ended.err.contains("newer Tollgate (version 901)"), "{ended:?}");
}

#[test]
fn mail_tables_that_never_said_what_breaks_are_used() {
    let postgres = Postgres::shared();
    let url = url(postgres);
    let schema = schema_of(&url);
    let setup = Setup::postgres(&url);
    setup.start().terminate();
    postgres.psql(&format!("alter table {schema}.mail_migration drop column breaking"));
    setup.start().terminate();
}

#[test]
fn the_printed_sql_doors_can_be_installed_and_installed_again() {
    let home = tempfile::tempdir().unwrap();
    let postgres = Postgres::start();
    let doors = alone(home.path(), &["sql"]).expect(0).out;
    for _ in 0..2 {
        postgres.psql_through(&postgres.url(), &doors).unwrap();
    }
    let check = "select * from tollgate.check_rate_limit(p_key => 'k', p_limit => 1, p_window_seconds => 60)";
    let answer = |_| postgres.psql_through(&postgres.url(), check).unwrap();
    let answers: Vec<String> = (0..2).map(answer).collect();
    assert!(answers[0].starts_with("t|1|0") && answers[1].starts_with("f|1|"), "{answers:?}");
    // A server that comes later finds them, and leaves their counts alone.
    alone(home.path(), &["migrate", "--store", &postgres.url()]).expect(0);
    assert!(postgres.psql_through(&postgres.url(), check).unwrap().starts_with("f|1|"));
}

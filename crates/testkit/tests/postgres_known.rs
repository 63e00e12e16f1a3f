//! Batches decided on remembered states: one round trip, and never by a state, a policy or a time
//! that is not the database's.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::{Duration, Instant as Stopwatch};

use testkit::random;
use testkit::servers::{Moment, Postgres, Proxy};
use tollgate::{Instant, Policy, SlotAnswer, SlotAsk, Tollgate};

fn policy(max: u64) -> Policy {
    let limits = format!(
        r#"limits = [
            {{ name = "all", max = {max}, per = "1h" }},
            {{ name = "user", max = 1000, per = "1h", by = ["user"], algorithm = "sliding" }},
        ]"#
    );
    Policy::from_toml("p", &limits).unwrap()
}

/// What the statement for one key is for.
fn one_limit() -> Policy {
    let limits = r#"limits = [{ name = "user", max = 1000, per = "1h", by = ["user"] }]"#;
    Policy::from_toml("p", limits).unwrap()
}

struct Ground {
    schema: String,
    url: String,
    gate: Tollgate,
}

async fn open(server: &str, max: u64) -> Ground {
    // Not prepared: a proxy finds statements by their text.
    open_with(server, &policy(max), "prepare=off").await
}

async fn open_with(server: &str, policy: &Policy, parameters: &str) -> Ground {
    let schema = random::name("s").replace('-', "_");
    let url = format!("{server}?schema={schema}&deadline=10s&lanes=1&shield=off&{parameters}");
    let gate = Tollgate::open(&url).await.unwrap();
    gate.apply(policy, "test").await.unwrap();
    Ground { schema, url, gate }
}

async fn check(gate: &Tollgate, user: &str) -> bool {
    gate.check("p", &[("user", user)], 1).await.unwrap().allowed()
}

async fn used(gate: &Tollgate, user: &str) -> Vec<u64> {
    let answer = gate.peek("p", &[("user", user)], 1).await.unwrap();
    answer.limits().map(|(_, limit)| limit.standing.used).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_check_of_a_key_takes_one_round_trip() {
    let postgres = Postgres::shared();
    let proxy = Proxy::start(postgres.port());
    let ground = open(&proxy.through(&postgres.url()), 1000).await;
    assert!(check(&ground.gate, "ada").await);
    // Whatever locks first would be cut off.
    proxy.cut_at(b"lock_batch", Moment::BeforeTheServer);
    for _ in 0..10 {
        assert!(check(&ground.gate, "ada").await);
    }
    assert!(proxy.is_armed(), "nothing was locked in a round trip of its own");
    // A key that was never seen has to be; once cut off, it is asked for on a new connection.
    assert!(check(&ground.gate, "bob").await);
    assert!(!proxy.is_armed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_instance_counted_is_not_written_over() {
    let ground = open(&Postgres::shared().url(), 12).await;
    let other = Tollgate::open(&ground.url).await.unwrap();
    for round in 1..=6 {
        assert!(check(&ground.gate, "ada").await && check(&other, "ada").await);
        assert_eq!(used(&ground.gate, "ada").await, [2 * round, 2 * round]);
    }
    assert!(!check(&ground.gate, "ada").await && !check(&other, "ada").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_by_another_instance_is_in_force_at_the_next_check() {
    let ground = open(&Postgres::shared().url(), 1000).await;
    let other = Tollgate::open(&ground.url).await.unwrap();
    assert!(check(&ground.gate, "ada").await && check(&ground.gate, "ada").await);
    other.apply(&policy(2), "test").await.unwrap();
    assert!(!check(&ground.gate, "ada").await);
}

/// Calls the function itself, with the one row there is and every way to be wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_unless_everything_is_as_it_was_thought_to_be() {
    let postgres = Postgres::shared();
    let ground = open(&postgres.url(), 1000).await;
    let schema = &ground.schema;
    postgres.psql(&format!(
        r"insert into {schema}.counter values ('\x01', '\xaa', 9), ('\x02', '\xbb', 9)"
    ));
    let epoch = postgres.psql(&format!("select epoch from {schema}.gate"));
    let epoch: i64 = epoch.parse().unwrap();
    let call = |keys: &str, known: &str, epoch: i64, now: &str| {
        let states = "array['\\xc1', '\\xc2']::bytea[]";
        let states = format!("({states})[1:cardinality(array[{keys}]::bytea[])]");
        let sql = format!(
            "select {schema}.write_known(array[{keys}]::bytea[], array[{known}]::bytea[], \
             {states}, array[10, 10]::bigint[], {epoch}, {now}, 250000) is not null"
        );
        postgres.psql_through(&postgres.url(), &sql)
    };
    let differs = |said: Result<String, String>| match said {
        Ok(written) => written.trim() == "f",
        Err(error) => error.contains("a remembered state is not what is kept"),
    };
    let is_written = |said: Result<String, String>| said.is_ok_and(|said| said.trim() == "t");
    let now = format!("{schema}.clock_micros()");
    for (keys, known, epoch, now) in [
        (r"'\x01'", r"'\xab'", epoch, now.clone()),
        (r"'\x03'", "''", epoch, now.clone()),
        (r"'\x01', '\x02'", r"'\xaa', '\xbc'", epoch, now.clone()),
        (r"'\x01', '\x03'", r"'\xaa', '\xbb'", epoch, now.clone()),
        (r"'\x01'", r"'\xaa'", epoch - 1, now.clone()),
        (r"'\x01'", r"'\xaa'", epoch, format!("{now} + 1000000")),
        (r"'\x01'", r"'\xaa'", epoch, format!("{now} - 1000000")),
    ] {
        assert!(differs(call(keys, known, epoch, &now)), "{keys} {known} {epoch} {now}");
    }
    postgres.psql(&format!("update {schema}.gate set swept_at = {now} + 60000000"));
    assert!(differs(call(r"'\x01'", r"'\xaa'", epoch, &now)), "before what was swept");
    postgres.psql(&format!("update {schema}.gate set swept_at = 0"));
    let states = format!("select string_agg(state::text, ' ' order by key) from {schema}.counter");
    assert_eq!(postgres.psql(&states), r"\xaa \xbb", "nothing was written");
    assert!(is_written(call(r"'\x01'", r"'\xaa'", epoch, &now)));
    assert!(is_written(call(r"'\x01', '\x02'", r"'\xc1', '\xbb'", epoch, &now)));
    assert_eq!(postgres.psql(&states), r"\xc1 \xc2");
}

/// The same of the statement for one key that sessions of ours prepare.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_is_not_written_unless_everything_is_as_it_was_thought_to_be() {
    let postgres = Postgres::shared();
    let ground = open(&postgres.url(), 1000).await;
    let schema = &ground.schema;
    postgres.psql(&format!(r"insert into {schema}.counter values ('\x01', '\xaa', 9)"));
    let epoch = postgres.psql(&format!("select epoch from {schema}.gate"));
    let epoch: i64 = epoch.parse().unwrap();
    let write_one = include_str!("../../store-postgres/queries/write_one.sql");
    let write_one = write_one.replace("tollgate.", &format!("{schema}."));
    let call = |key: &str, known: &str, epoch: i64, now: &str, behind: &str| {
        postgres.psql(&format!(
            "prepare w (bytea, bytea, bytea, bigint, bigint, bigint, bigint) as {write_one};
             execute w('{key}', '{known}', '\\xc1', 10, {epoch}, {now}, {behind})"
        ))
    };
    // The statement's own beginning is its clock, and this is read a little later.
    let now = format!("{schema}.clock_micros() - 100000");
    let differs = |key, known, epoch, now: &str| {
        let said = call(key, known, epoch, now, "250000");
        assert!(!said.contains(char::is_numeric), "{key} {known} {epoch} {now}: {said}");
    };
    differs(r"\x01", r"\xab", epoch, &now);
    differs(r"\x03", "", epoch, &now);
    differs(r"\x01", r"\xaa", epoch - 1, &now);
    differs(r"\x01", r"\xaa", epoch, &format!("{now} + 1000000"));
    differs(r"\x01", r"\xaa", epoch, &format!("{now} - 1000000"));
    postgres.psql(&format!("update {schema}.gate set swept_at = {now} + 60000000"));
    differs(r"\x01", r"\xaa", epoch, &now);
    postgres.psql(&format!("update {schema}.gate set swept_at = 0"));
    let row = format!("select state::text, expires_at from {schema}.counter");
    assert_eq!(postgres.psql(&row), r"\xaa|9", "nothing was written");
    let said = call(r"\x01", r"\xaa", epoch, &now, "250000");
    assert!(said.contains(char::is_numeric), "{said}");
    assert_eq!(postgres.psql(&row), r"\xc1|10");
    // Tests that say what time it is are behind by any time.
    assert!(call(r"\x01", r"\xc1", epoch, "7", "null").contains(char::is_numeric));
}

/// Plans are kept by a session. One made while the table was tiny must not read all of it once it
/// is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_grows_is_never_read_whole() {
    never_reads_all(open(&Postgres::shared().url(), 1_000_000).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_grows_is_never_read_whole_by_what_is_prepared() {
    let ground = open_with(&Postgres::shared().url(), &one_limit(), "prepare=on").await;
    never_reads_all(ground).await;
}

async fn never_reads_all(ground: Ground) {
    let postgres = Postgres::shared();
    let schema = &ground.schema;
    let spend = async |name: &str| {
        for number in 0..20 {
            // Alone, then together: batches of one key and of several.
            assert!(check(&ground.gate, &format!("{name} {number}")).await);
            let several: Vec<_> = (0..8)
                .map(|other| {
                    let (gate, user) = (ground.gate.clone(), format!("{name} {number} {other}"));
                    tokio::spawn(async move { check(&gate, &user).await })
                })
                .collect();
            for one in several {
                assert!(one.await.unwrap());
            }
        }
    };
    spend("tiny").await;
    postgres.psql(&format!("vacuum analyze {schema}.counter"));
    // Now every plan is made for a table of a page or two, of both ways.
    spend("tiny").await;
    spend("tiny too").await;
    postgres.psql(&format!(
        "insert into {schema}.counter select sha256(n::text::bytea), '', 9223372036854775807 \
         from generate_series(1, 50000) n"
    ));
    let scans = format!(
        "select seq_tup_read from pg_stat_user_tables \
         where schemaname = '{schema}' and relname = 'counter'"
    );
    let read = || postgres.psql(&scans).parse::<i64>().unwrap();
    let before = read();
    // Keys that are remembered, and keys that are not.
    spend("tiny").await;
    spend("large").await;
    // Closing the sessions sends their last statistics.
    ground.gate.close();
    drop(ground.gate);
    let sessions = format!(
        "select count(*) from pg_stat_activity where application_name = 'tollgate' \
         and query like '%{schema}%'"
    );
    let started = Stopwatch::now();
    while postgres.psql(&sessions) != "0" {
        assert!(started.elapsed() < Duration::from_secs(20), "a closed store keeps its sessions");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let rows = read() - before;
    assert!(rows < 50_000, "{rows} rows were read by scans");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_given_by_memory_are_those_the_database_would_have_given() {
    let postgres = Postgres::shared();
    let proxy = Proxy::start(postgres.port());
    let ground = open(&proxy.through(&postgres.url()), 1000).await;
    let schedule = r#"limits = [{ name = "window", max = 10, per = "4s" }]"#;
    let schedule = Policy::from_toml("s", schedule).unwrap();
    ground.gate.apply(&schedule, "test").await.unwrap();
    let direct = format!("{}?schema={}&deadline=10s", postgres.url(), ground.schema);
    let other = Tollgate::open(&direct).await.unwrap();
    let at = Instant::from_micros(1_900_000_000_000_000);
    let ask = async |gate: &Tollgate, ids: std::ops::Range<u32>| {
        let event = |id: u32| SlotAsk { event_id: format!("e{id}"), requested_at: Some(at) };
        gate.assign_slots("s", ids.map(event).collect()).await.unwrap()
    };
    // The first goes the long way; the next one is kept by one statement.
    ask(&ground.gate, 0..1).await;
    proxy.cut_at(b"for update", Moment::BeforeTheServer);
    ask(&ground.gate, 1..30).await;
    assert!(proxy.is_armed(), "nothing was locked in a round trip of its own");
    proxy.cut_at(b"never said", Moment::BeforeTheServer);
    // Another instance, ids from before among new ones, a cancel by the other.
    for round in 0..10 {
        let first = 30 + round * 20;
        ask(&other, first..first + 5).await;
        let mixed = ask(&ground.gate, first + 3..first + 10).await;
        let repeated = mixed.iter().filter(|answer| matches!(answer, SlotAnswer::Repeated(_)));
        assert_eq!(repeated.count(), 2, "{mixed:?}");
        let freed = other.cancel_slot(&format!("e{first}")).await.unwrap().unwrap();
        let next = ask(&ground.gate, first + 10..first + 11).await;
        let [SlotAnswer::Given(next)] = &next[..] else { panic!("{next:?}") };
        assert_eq!(next.scheduled_at, freed.scheduled_at, "the place that was freed");
    }
    let recount = ground.gate.verify_slots("s").await.unwrap();
    assert_eq!((recount.slots, recount.drifts.len()), (30 + 10 * 10, 0), "{recount:?}");
    assert_eq!(recount.windows, 13, "no window was left before it was full");
}

/// Windows that were changed to another length and back are not those that were remembered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_changed_there_and_back_by_another_instance_is_read_again() {
    let ground = open(&Postgres::shared().url(), 1000).await;
    let other = Tollgate::open(&ground.url).await.unwrap();
    let windows = async |per: &str| {
        let limits = format!(r#"limits = [{{ name = "window", max = 2, per = "{per}" }}]"#);
        other.apply(&Policy::from_toml("s", &limits).unwrap(), "test").await.unwrap();
    };
    let at = Instant::from_micros(1_900_000_000_000_000);
    let ask = async |gate: &Tollgate, id: &str| {
        let event = SlotAsk { event_id: id.to_owned(), requested_at: Some(at) };
        let answers = gate.assign_slots("s", vec![event]).await.unwrap();
        let [SlotAnswer::Given(slot)] = &answers[..] else { panic!("{answers:?}") };
        slot.scheduled_at
    };
    windows("4s").await;
    let first = [ask(&ground.gate, "a").await, ask(&ground.gate, "b").await];
    windows("8s").await;
    ask(&other, "c").await;
    for id in ["a", "b", "c"] {
        other.cancel_slot(id).await.unwrap().unwrap();
    }
    windows("4s").await;
    // Nothing is left of the first window, not even a row.
    let later = at.plus(tollgate::Span::from_secs(3600));
    let event = SlotAsk { event_id: "d".to_owned(), requested_at: Some(later) };
    other.assign_slots("s", vec![event]).await.unwrap();
    assert_eq!([ask(&ground.gate, "e").await, ask(&ground.gate, "f").await], first);
    let recount = ground.gate.verify_slots("s").await.unwrap();
    assert_eq!((recount.slots, recount.drifts.len()), (3, 0), "{recount:?}");
}

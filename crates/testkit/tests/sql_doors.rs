//! The SQL doors: what they promise, and that the usual SQL does not keep it.
//!
//! Each test has the doors in a schema of its own, and a clock that stands still until it is told
//! otherwise: the doors' one function that reads the time is replaced, nothing else. What is shown
//! of the usual SQL is shown without luck: by instants, by rows put in place, or by two sessions of
//! which one is seen to wait. Deliberately absent: how fast any of them is (see `bench`).

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use testkit::servers::Postgres;
use testkit::{ManualClock, random};
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, NoTls, Row};
use tollgate::{Instant, Policy, Tollgate};

const DOORS: &str = include_str!("../../store-postgres/migrations/V2__doors.sql");
const USUAL_UPSERT: &str = include_str!("../../../bench/sql/usual_upsert.sql");
const USUAL_UPSERT_STATEMENT: &str = include_str!("../../../bench/sql/usual_upsert_statement.sql");
const USUAL_QUOTA: &str = include_str!("../../../bench/sql/usual_quota.sql");
const USUAL_SLIDING: &str = include_str!("../../../bench/sql/usual_sliding.sql");

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;
/// 2027-01-15 08:00:00 UTC: the start of a minute and of an hour.
const START: i64 = 1_800_000_000 * SECOND;
const DAY: &str = "2027-01-15";
/// How many race.
const TASKS: usize = 16;

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];
/// Allowed, current count, retry after.
type Answer = (bool, i32, i32);

/// A connection that finds the doors of its schema without naming it.
struct Session {
    client: Client,
    schema: String,
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Session {
    /// The doors and the usual SQL in a new schema, on a clock that stands at `START`.
    async fn install() -> Session {
        let schema = random::name("doors").replace('-', "_");
        let client = connect(&Postgres::shared().url()).await;
        client.batch_execute(&format!("create schema {schema}")).await.unwrap();
        let session = Session { client, schema }.into_schema().await;
        for sql in [DOORS, USUAL_UPSERT, USUAL_QUOTA, USUAL_SLIDING] {
            session.run(sql).await;
        }
        session
            .run(
                "create table test_clock (us bigint not null); insert into test_clock values (0); \
                 create or replace function door_now_us() returns bigint language sql volatile \
                 as 'select us from test_clock'",
            )
            .await;
        session.at(START).await;
        session
    }

    /// Another connection to the same doors.
    async fn another(&self) -> Session {
        let client = connect(&Postgres::shared().url()).await;
        Session { client, schema: self.schema.clone() }.into_schema().await
    }

    async fn into_schema(self) -> Session {
        let path = format!("set search_path to {}, pg_temp", self.schema);
        self.run(&format!("set client_min_messages to warning; {path}")).await;
        self
    }

    /// Sets the clock, for every session of these doors.
    async fn at(&self, us: i64) {
        self.client.execute("update test_clock set us = $1", &[&us]).await.unwrap();
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    async fn ask(&self, sql: &str, parameters: Parameters<'_>) -> Result<Row, Error> {
        self.client.query_one(sql, parameters).await
    }

    async fn number(&self, sql: &str) -> i64 {
        self.ask(&format!("select ({sql})::bigint"), &[]).await.unwrap().get(0)
    }

    async fn flag(&self, sql: &str) -> bool {
        self.ask(&format!("select ({sql})"), &[]).await.unwrap().get(0)
    }

    /// `check_rate_limit`, by the names of its parameters, as a prepared statement.
    async fn sliding(&self, key: &str, limit: i32, window: i32) -> Answer {
        let sql =
            "select * from check_rate_limit(p_window_seconds => $3, p_limit => $2, p_key => $1)";
        answer(&self.ask(sql, &[&key, &limit, &window]).await.unwrap())
    }

    async fn usual_sliding(&self, key: &str, limit: i32, window: i32) -> Answer {
        let sql = "select * from usual_sliding($1, $2, $3)";
        answer(&self.ask(sql, &[&key, &limit, &window]).await.unwrap())
    }

    /// `check_and_consume_quota` for the route `/r`.
    async fn quota(&self, user: &str, limit: i32, window: i32) -> bool {
        let sql = "select check_and_consume_quota(p_user_id => $1, p_route => '/r', \
                   p_limit => $2, p_window_sec => $3)";
        self.ask(sql, &[&user, &limit, &window]).await.unwrap().get(0)
    }

    async fn usual_quota(&self, user: &str, limit: i32) -> bool {
        let sql = "select usual_quota($1, '/r', $2, 60)";
        self.ask(sql, &[&user, &limit]).await.unwrap().get(0)
    }

    /// `check_and_increment_usage` on `DAY`.
    async fn daily(&self, key: &str, amount: i32, limit: i32) -> (bool, i32) {
        self.daily_on(DAY, key, amount, limit).await.unwrap()
    }

    async fn daily_on(
        &self,
        day: &str,
        key: &str,
        amount: i32,
        limit: i32,
    ) -> Result<(bool, i32), Error> {
        let sql = "select * from check_and_increment_usage(p_key => $1, p_day => $2::text::date, \
                   p_amount => $3, p_limit => $4)";
        let row = self.ask(sql, &[&key, &day, &amount, &limit]).await?;
        Ok((row.get("allowed"), row.get("count")))
    }

    /// The new count; none if refused.
    async fn usual_upsert(&self, key: &str, amount: i32, limit: i32) -> Option<i32> {
        let sql = USUAL_UPSERT_STATEMENT.replace("values ($1, $2,", "values ($1, $2::text::date,");
        let row = self.client.query_opt(&sql, &[&key, &DAY, &amount, &limit]).await.unwrap();
        row.map(|row| row.get(0))
    }

    async fn cleanup(&self) -> i32 {
        self.ask("select cleanup_old_rate_limit_buckets()", &[]).await.unwrap().get(0)
    }

    /// Whether the open transaction has written anything, be it a lock.
    async fn has_written(&self) -> bool {
        self.flag("pg_current_xact_id_if_assigned() is not null").await
    }

    /// Asks `sql`, whose one column is a boolean, in a session and task of its own.
    async fn start(&self, sql: &'static str) -> Started {
        let session = self.another().await;
        let pid = session.ask("select pg_backend_pid()", &[]).await.unwrap().get(0);
        let task = tokio::spawn(async move { session.ask(sql, &[]).await.unwrap().get(0) });
        Started { pid, task }
    }

    /// Returns when `started` waits for a lock, or has ended.
    async fn until_it_waits(&self, started: &Started) {
        let waits = "select exists (select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock')";
        while !started.task.is_finished() {
            if self.ask(waits, &[&started.pid]).await.unwrap().get(0) {
                return;
            }
        }
    }
}

struct Started {
    pid: i32,
    task: JoinHandle<bool>,
}

fn answer(row: &Row) -> Answer {
    (row.get("allowed"), row.get("current_count"), row.get("retry_after"))
}

/// A door asked once for one unit under a key, whichever door it is.
#[derive(Clone, Copy, Debug)]
enum Door {
    Sliding,
    Fixed,
    Daily,
}

impl Door {
    const ALL: [Door; 3] = [Door::Sliding, Door::Fixed, Door::Daily];

    async fn ask(self, session: &Session, key: &str, limit: i32) -> Result<bool, Error> {
        let sql = match self {
            Door::Sliding => "select allowed from check_rate_limit($1, $2, 60)",
            Door::Fixed => "select check_and_consume_quota($1, '/r', $2, 60)",
            Door::Daily => "select allowed from check_and_increment_usage($1, '2027-01-15', 1, $2)",
        };
        Ok(session.ask(sql, &[&key, &limit]).await?.get(0))
    }
}

// ---- daily usage (SEEDS.md 0) ------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_request_above_the_limit_is_refused_where_the_usual_upsert_passes_it() {
    let doors = Session::install().await;
    assert_eq!(doors.usual_upsert("ada", 500, 100).await, Some(500), "the usual mistake");
    assert_eq!(doors.daily("ada", 500, 100).await, (false, 0));
    assert_eq!(doors.number("select count(*) from door_daily").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_at_the_daily_limit_passes_and_one_more_does_not() {
    let doors = Session::install().await;
    assert_eq!(doors.daily("ada", 60, 100).await, (true, 60));
    assert_eq!(doors.daily("ada", 41, 100).await, (false, 60), "all or nothing");
    assert_eq!(doors.daily("ada", 40, 100).await, (true, 100));
    assert_eq!(doors.daily("ada", 1, 100).await, (false, 100));
    assert_eq!(doors.daily_on("2027-01-16", "ada", 100, 100).await.unwrap(), (true, 100));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_reports_the_true_count_where_the_usual_upsert_reports_none() {
    let doors = Session::install().await;
    assert_eq!(doors.usual_upsert("ada", 100, 100).await, Some(100));
    assert_eq!(doors.usual_upsert("ada", 1, 100).await, None, "the usual mistake");
    assert_eq!(doors.daily("ada", 100, 100).await, (true, 100));
    assert_eq!(doors.daily("ada", 1, 100).await, (false, 100));
    assert_eq!(doors.daily("ada", 1, 50).await, (false, 100), "also above a lowered limit");
    assert_eq!(doors.daily("ada", 70, 50).await, (false, 100), "also for what can never fit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_writes_nothing_where_the_usual_upsert_locks() {
    let doors = Session::install().await;
    assert_eq!(doors.usual_upsert("ada", 1, 1).await, Some(1));
    doors.run("begin").await;
    assert_eq!(doors.usual_upsert("ada", 1, 1).await, None);
    assert!(doors.has_written().await, "the usual mistake");
    doors.run("rollback").await;
    for door in Door::ALL {
        assert!(door.ask(&doors, "ada", 1).await.unwrap());
        doors.run("begin").await;
        assert!(!door.ask(&doors, "ada", 1).await.unwrap());
        assert!(!doors.has_written().await, "{door:?}");
        doors.run("commit").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_an_error_that_names_the_parameter_and_says_what_to_do() {
    let doors = Session::install().await;
    let long = format!("'{}'", "x".repeat(1025));
    let texts: &[&str] = &["null", "''", &long];
    let counts: &[&str] = &["null", "0", "-1", "'-2147483648'"];
    let days: &[&str] = &["null", "'infinity'", "'-infinity'"];
    let sliding =
        [("p_key", "'k'", texts), ("p_limit", "1", counts), ("p_window_seconds", "60", counts)];
    let fixed = [
        ("p_user_id", "'u'", texts),
        ("p_route", "'/r'", texts),
        ("p_limit", "1", counts),
        ("p_window_sec", "60", counts),
    ];
    let daily = [
        ("p_key", "'k'", texts),
        ("p_day", "'2027-01-15'", days),
        ("p_amount", "1", counts),
        ("p_limit", "1", counts),
    ];
    let doors_and_parameters = [
        ("check_rate_limit", sliding.as_slice()),
        ("check_and_consume_quota", fixed.as_slice()),
        ("check_and_increment_usage", daily.as_slice()),
    ];
    for (door, parameters) in doors_and_parameters {
        for (wrong, &(name, _, bad_values)) in parameters.iter().enumerate() {
            for &bad in bad_values {
                let mut values: Vec<&str> =
                    parameters.iter().map(|parameter| parameter.1).collect();
                values[wrong] = bad;
                let sql = format!("select {door}({})", values.join(", "));
                let error = doors.ask(&sql, &[]).await.unwrap_err();
                assert_eq!(
                    error.code(),
                    Some(&SqlState::INVALID_PARAMETER_VALUE),
                    "{sql}: {error}"
                );
                let error = error.as_db_error().unwrap();
                assert!(error.message().starts_with(&format!("{name} is ")), "{sql}: {error}");
                assert!(error.hint().is_some(), "{sql}");
            }
        }
    }
}

// ---- fixed windows (SEEDS.md 2) ----------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_has_one_counter_where_the_usual_rounding_makes_two() {
    let doors = Session::install().await;
    let start = |us: i64| {
        format!("usual_quota_start('epoch'::timestamptz + {us} * interval '1 microsecond', 60)")
    };
    let (first_half, second_half) = (START + 30_400_000, START + 30_600_000);
    let same = format!("{} = {}", start(first_half), start(second_half));
    assert!(!doors.flag(&same).await, "the usual mistake");
    doors.at(first_half).await;
    assert!(doors.quota("ada", 1, 60).await);
    for us in [second_half, START, START + 60 * SECOND - 1] {
        doors.at(us).await;
        assert!(!doors.quota("ada", 1, 60).await, "{us} lies in the same window");
    }
    doors.at(START + 60 * SECOND).await;
    assert!(doors.quota("ada", 1, 60).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_pass_the_twenty_first_does_not_and_a_new_window_does() {
    let doors = Session::install().await;
    for _ in 0..20 {
        assert!(doors.quota("ada", 20, 60).await);
    }
    assert!(!doors.quota("ada", 20, 60).await);
    assert!(doors.quota("bob", 20, 60).await, "another user");
    doors.at(START + 60 * SECOND).await;
    assert!(doors.quota("ada", 20, 60).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_calls_count_nowhere_where_the_usual_quota_counts_them() {
    let doors = Session::install().await;
    // One transaction, so that its now() stays in one window.
    doors.run("begin").await;
    assert!(doors.usual_quota("ada", 1).await);
    assert!(!doors.usual_quota("ada", 1).await && !doors.usual_quota("ada", 1).await);
    assert!(!doors.usual_quota("ada", 3).await, "the usual mistake");
    doors.run("commit").await;
    for door in Door::ALL {
        assert!(door.ask(&doors, "ada", 1).await.unwrap());
        for _ in 0..5 {
            assert!(!door.ask(&doors, "ada", 1).await.unwrap());
        }
        assert!(door.ask(&doors, "ada", 3).await.unwrap(), "{door:?}");
        assert!(door.ask(&doors, "ada", 3).await.unwrap(), "{door:?}");
        assert!(!door.ask(&doors, "ada", 3).await.unwrap(), "{door:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_at_a_boundary_passes_a_fixed_window_and_not_a_sliding_one() {
    let doors = Session::install().await;
    for (us, fixed_passes, sliding_passes) in
        [(START + 60 * SECOND - 1, 5, 5), (START + 60 * SECOND, 5, 0)]
    {
        doors.at(us).await;
        let mut passed = (0, 0);
        for _ in 0..10 {
            passed.0 += i32::from(doors.quota("ada", 5, 60).await);
            passed.1 += i32::from(doors.sliding("ada", 5, 60).await.0);
        }
        assert_eq!(passed, (fixed_passes, sliding_passes));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_string_is_a_user_id() {
    let doors = Session::install().await;
    let long = "ä".repeat(512);
    let names =
        ["o'hara", "\"; drop table door_fixed; --", " ", "\t\n", "日本", "null", "%s", "\\", &long];
    for name in names {
        for door in Door::ALL {
            assert!(door.ask(&doors, name, 1).await.unwrap(), "{name:?}");
            assert!(!door.ask(&doors, name, 1).await.unwrap(), "{name:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doors_are_safe_to_grant_where_the_usual_function_is_not() {
    let doors = Session::install().await;
    let schema = &doors.schema;
    let role = random::name("app").replace('-', "_");
    let postgres = Postgres::shared();
    postgres.psql(&format!("create role {role} login; grant usage on schema {schema} to {role}"));
    let url = format!("postgres://{role}@127.0.0.1:{}/tollgate", postgres.port());
    let app = Session { client: connect(&url).await, schema: schema.clone() }.into_schema().await;

    let all = "select p.oid::regprocedure::text from pg_proc p where p.pronamespace = $1::text::regnamespace \
               and p.proname not like 'usual%'";
    let functions = doors.client.query(all, &[schema]).await.unwrap();
    assert!(functions.len() >= 4);
    for function in &functions {
        let function: String = function.get(0);
        let may = format!("has_function_privilege('{role}', '{function}', 'execute')");
        assert!(!doors.flag(&may).await, "{function} is for everyone");
    }
    let called = ["check_rate_limit", "check_and_consume_quota", "check_and_increment_usage"];
    for door in called.into_iter().chain(["cleanup_old_rate_limit_buckets"]) {
        doors.run(&format!("grant execute on function {door} to {role}")).await;
        let fixed = format!(
            "select prosecdef and proconfig::text like '%search_path={schema}, pg\\_temp%' \
             from pg_proc where oid = '{door}'::regproc"
        );
        assert!(doors.flag(&fixed).await, "{door}");
    }
    // Who may call needs no right on any table, and gets none.
    for door in Door::ALL {
        assert!(door.ask(&app, "ada", 1).await.unwrap(), "{door:?}");
    }
    assert_eq!(app.cleanup().await, 0);
    for table in ["door_sliding", "door_sliding_chunk", "door_fixed", "door_daily", "door_floor"] {
        for verb in ["select from", "delete from"] {
            let error = app.client.batch_execute(&format!("{verb} {table}")).await.unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{verb} {table}");
        }
    }
    // A caller's own temporary table, found first, would count instead.
    app.run(
        "create temp table door_fixed (user_id text, route text, window_seconds int, window_number bigint, \
             used int, sweep_s bigint, primary key (user_id, route, window_seconds)); \
         create temp table usual_quota_window (user_id text, route text, window_start timestamptz, used int, \
             primary key (user_id, route, window_start)); \
         grant all on pg_temp.door_fixed, pg_temp.usual_quota_window to public",
    )
    .await;
    app.run(&format!("set search_path to {schema}")).await;
    assert!(app.usual_quota("ada", 1).await);
    assert_eq!(
        doors.number("select count(*) from usual_quota_window").await,
        0,
        "the usual mistake"
    );
    assert!(!Door::Fixed.ask(&app, "ada", 1).await.unwrap());
}

// ---- sliding windows (SEEDS.md 4) --------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_window_leaves_a_long_one_alone_where_the_usual_delete_erases_it() {
    let doors = Session::install().await;
    doors.run("begin; insert into usual_sliding_bucket values ('email', now() - interval '10 minutes', 3)").await;
    assert!(!doors.usual_sliding("email", 3, 3600).await.0);
    doors.usual_sliding("ip", 5, 60).await;
    assert!(doors.usual_sliding("email", 3, 3600).await.0, "the usual mistake");
    doors.run("commit").await;
    for _ in 0..3 {
        assert!(doors.sliding("email", 3, 3600).await.0);
    }
    doors.at(START + 600 * SECOND).await;
    doors.sliding("ip", 5, 60).await;
    doors.cleanup().await;
    assert_eq!(doors.sliding("email", 3, 3600).await, (false, 3, 3001));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_length_of_the_window_is_part_of_the_key() {
    let doors = Session::install().await;
    doors.run("begin").await;
    assert!(doors.usual_sliding("ada", 1, 3600).await.0);
    assert!(!doors.usual_sliding("ada", 1, 60).await.0, "the usual mistake");
    doors.run("commit").await;
    for window in [3600, 60] {
        assert!(doors.sliding("ada", 1, window).await.0 && doors.quota("ada", 1, window).await);
        assert!(!doors.sliding("ada", 1, window).await.0 && !doors.quota("ada", 1, window).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_session_waits_and_is_refused_where_the_usual_one_passes() {
    let doors = Session::install().await;
    let first = doors.another().await;
    first.run("begin").await;
    assert!(first.usual_sliding("ada", 1, 60).await.0);
    let second = doors.start("select allowed from usual_sliding('ada', 1, 60)").await;
    doors.until_it_waits(&second).await;
    first.run("commit").await;
    assert!(second.task.await.unwrap(), "the usual mistake: two of one");

    for (door, sql) in [
        (Door::Sliding, "select allowed from check_rate_limit('ada', 1, 60)"),
        (Door::Fixed, "select check_and_consume_quota('ada', '/r', 1, 60)"),
        (Door::Daily, "select allowed from check_and_increment_usage('ada', '2027-01-15', 1, 1)"),
    ] {
        first.run("begin").await;
        assert!(door.ask(&first, "ada", 1).await.unwrap());
        let second = doors.start(sql).await;
        doors.until_it_waits(&second).await;
        assert!(!second.task.is_finished(), "{door:?} does not answer before it knows");
        first.run("commit").await;
        assert!(!second.task.await.unwrap(), "{door:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_limit_passes_when_many_sessions_race_for_a_new_key() {
    let doors = Session::install().await;
    for door in Door::ALL {
        let mut sessions = Vec::new();
        for _ in 0..TASKS {
            sessions.push(doors.another().await);
        }
        let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(TASKS));
        let mut racing = tokio::task::JoinSet::new();
        for session in sessions {
            let barrier = barrier.clone();
            racing.spawn(async move {
                barrier.wait().await;
                let mut allowed = 0;
                for _ in 0..10 {
                    allowed += i32::from(door.ask(&session, "ada", 100).await.unwrap());
                }
                allowed
            });
        }
        assert_eq!(racing.join_all().await.into_iter().sum::<i32>(), 100, "{door:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wait_ends_when_enough_has_left_and_is_never_zero() {
    let doors = Session::install().await;
    doors
        .run(
            "begin; insert into usual_sliding_bucket values ('zero', now() - interval '59.7 s', 1), \
             ('enough', now() - interval '50 s', 1), ('enough', now() - interval '10 s', 4)",
        )
        .await;
    assert_eq!(doors.usual_sliding("zero", 1, 60).await, (false, 1, 0), "the usual mistake");
    assert_eq!(
        doors.usual_sliding("enough", 3, 60).await,
        (false, 5, 10),
        "4 of 3 stay: the usual mistake"
    );
    doors.run("commit").await;

    assert!(doors.sliding("ada", 5, 60).await.0);
    doors.at(START + 40 * SECOND).await;
    for _ in 0..4 {
        assert!(doors.sliding("ada", 5, 60).await.0);
    }
    doors.at(START + 50 * SECOND).await;
    assert_eq!(doors.sliding("ada", 5, 60).await, (false, 5, 11));
    assert_eq!(doors.sliding("ada", 3, 60).await, (false, 5, 51));
    doors.at(START + 100 * SECOND).await;
    assert_eq!(doors.sliding("ada", 3, 60).await, (false, 4, 1), "a second before");
    doors.at(START + 101 * SECOND).await;
    assert_eq!(doors.sliding("ada", 3, 60).await, (true, 1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_counts_until_its_end_has_left() {
    let doors = Session::install().await;
    doors
        .run("begin; insert into usual_sliding_bucket values ('ada', date_trunc('second', now()) - interval '60 s', 1)")
        .await;
    assert!(
        doors.usual_sliding("ada", 1, 60).await.0,
        "counted up to 59.0 s ago: the usual mistake"
    );
    doors.run("commit").await;
    doors.at(START + 900_000).await;
    assert!(doors.sliding("ada", 1, 60).await.0);
    doors.at(START + 61 * SECOND - 2).await;
    assert_eq!(doors.sliding("ada", 1, 60).await, (false, 1, 1));
    doors.at(START + 61 * SECOND - 1).await;
    assert_eq!(doors.sliding("ada", 1, 60).await, (true, 1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiers_in_one_transaction_are_all_or_none() {
    let doors = Session::install().await;
    assert!(doors.sliding("email", 1, 3600).await.0);
    doors.run("begin").await;
    assert!(doors.sliding("global", 1000, 60).await.0 && doors.sliding("ip", 5, 60).await.0);
    assert!(!doors.sliding("email", 1, 3600).await.0);
    doors.run("rollback").await;
    assert_eq!(doors.sliding("global", 1000, 60).await, (true, 1, 0));
    assert_eq!(doors.sliding("ip", 5, 60).await, (true, 1, 0));
}

/// The same script on a door and on the core, through the library: the answers are equal.
async fn answers_as_the_core(window: i32, limits: &[i32], steps: u32, longest_pause_us: u64) {
    let doors = Session::install().await;
    doors.run("set synchronous_commit to off").await;
    let clock = ManualClock::at(Instant::from_micros(START));
    let gate = Tollgate::open_with_clock("memory:", clock.shared()).await.unwrap();
    let (mut now, mut limit) = (START, 0);
    let mut refused = 0;
    for step in 0..steps {
        if step % 150 == 0 {
            limit = limits[usize::try_from(random::below(limits.len() as u64)).unwrap()];
            let policy = format!(
                r#"limits = [{{ name = "l", max = {limit}, per = "{window}s", resolution = "1s", algorithm = "sliding", by = ["key"] }}]"#
            );
            gate.apply(&Policy::from_toml("p", &policy).unwrap(), "test").await.unwrap();
        }
        now += match random::below(8) {
            0 => SECOND - now % SECOND - 1,
            1 => 1,
            _ => i64::try_from(random::below(longest_pause_us)).unwrap(),
        };
        clock.set(Instant::from_micros(now));
        doors.at(now).await;
        let core = gate.check("p", &[("key", "ada")], 1).await.unwrap().decision;
        let expected = (
            core.allowed(),
            i32::try_from(core.limits[0].standing.used).unwrap(),
            core.retry_after_secs().map_or(0, |secs| i32::try_from(secs).unwrap()),
        );
        let door = doors.sliding("ada", limit, window).await;
        assert_eq!(door, expected, "step {step} at {now}: {limit} per {window} s");
        refused += u32::from(!door.0);
    }
    assert!(refused > 0, "the script never reached a limit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_sliding_windows_answer_as_the_core_does() {
    answers_as_the_core(1, &[1, 2], 300, 600_000).await;
    answers_as_the_core(60, &[5, 20, 60], 900, 2_000_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_sliding_windows_answer_as_the_core_does() {
    // More seconds than one row holds, and limits that fall below what older rows hold.
    answers_as_the_core(1000, &[100, 300, 500], 2400, 2_500_000).await;
}

// ---- time --------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_is_read_once_the_lock_is_held() {
    let doors = Session::install().await;
    for end in ["commit", "rollback"] {
        for (door, sql) in [
            (Door::Sliding, "select allowed from check_rate_limit('ada', 1, 60)"),
            (Door::Fixed, "select check_and_consume_quota('ada', '/r', 1, 60)"),
        ] {
            doors.run("truncate door_sliding, door_fixed").await;
            // Once with the row new, once with it long there.
            for start in [START, START + 10 * HOUR] {
                doors.at(start).await;
                let first = doors.another().await;
                first.run("begin").await;
                assert!(door.ask(&first, "ada", 1).await.unwrap());
                let second = doors.start(sql).await;
                doors.until_it_waits(&second).await;
                doors.at(start + 61 * SECOND).await;
                first.run(end).await;
                assert!(
                    second.task.await.unwrap(),
                    "{door:?} after {end}: decided on the time before the wait"
                );
                // Counted at that time, too.
                assert!(!door.ask(&doors, "ada", 1).await.unwrap(), "{door:?} after {end}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_steps_back_mints_nothing_and_the_wait_is_the_clocks() {
    let doors = Session::install().await;
    doors.at(START + 2 * HOUR).await;
    assert!(doors.sliding("ada", 1, 60).await.0 && doors.quota("ada", 1, 60).await);
    doors.at(START + HOUR).await;
    assert!(!doors.quota("ada", 1, 60).await);
    assert_eq!(doors.sliding("ada", 1, 60).await, (false, 1, 3661));
    doors.at(START + HOUR + 3660 * SECOND).await;
    assert!(!doors.sliding("ada", 1, 60).await.0);
    doors.at(START + HOUR + 3661 * SECOND).await;
    assert!(doors.sliding("ada", 1, 60).await.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_is_the_servers_in_microseconds() {
    let doors = Session::install().await;
    doors.run(DOORS).await; // puts the real one back
    let between = "(select a.us between b.us - 60000000 and b.us + 60000000 from (select door_now_us() as us) a, \
                   (select (extract(epoch from now()) * 1000000)::bigint as us) b)";
    assert!(doors.flag(between).await);
    for door in Door::ALL {
        assert!(door.ask(&doors, "ada", 1).await.unwrap(), "{door:?}");
    }
}

// ---- transactions ------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_one_transaction_see_each_other_and_go_with_it() {
    let doors = Session::install().await;
    for door in Door::ALL {
        doors.run("begin").await;
        assert!(
            door.ask(&doors, "ada", 2).await.unwrap() && door.ask(&doors, "ada", 2).await.unwrap()
        );
        assert!(!door.ask(&doors, "ada", 2).await.unwrap(), "{door:?}");
        doors.run("rollback; begin").await;
        assert!(door.ask(&doors, "ada", 2).await.unwrap());
        doors.run("savepoint s").await;
        assert!(door.ask(&doors, "ada", 2).await.unwrap());
        doors.run("rollback to savepoint s; commit").await;
        assert!(door.ask(&doors, "ada", 2).await.unwrap(), "{door:?} counted what was rolled back");
        assert!(!door.ask(&doors, "ada", 2).await.unwrap(), "{door:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_snapshot_never_passes_above_the_limit() {
    let doors = Session::install().await;
    for level in ["repeatable read", "serializable"] {
        for door in Door::ALL {
            for new in [true, false] {
                let key = format!("{level} {new}");
                if !new {
                    assert!(door.ask(&doors, &key, 3).await.unwrap());
                }
                let old = doors.another().await;
                old.run(&format!("begin isolation level {level}")).await;
                old.number("select count(*) from door_sliding").await;
                while door.ask(&doors, &key, 3).await.unwrap() {}
                let case = format!("{door:?}, {level}, new: {new}");
                match door.ask(&old, &key, 3).await {
                    Ok(allowed) => assert!(!allowed, "{case}"),
                    Err(error) => {
                        assert_eq!(
                            error.code(),
                            Some(&SqlState::T_R_SERIALIZATION_FAILURE),
                            "{case}: {error}"
                        );
                    }
                }
            }
        }
    }
}

// ---- bounds ------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_integers_refuse_and_do_not_wrap() {
    const MAX: i32 = i32::MAX;
    let doors = Session::install().await;
    assert_eq!(doors.daily("ada", MAX - 7, MAX).await, (true, MAX - 7));
    assert_eq!(doors.daily("ada", 8, MAX).await, (false, MAX - 7));
    assert_eq!(doors.daily("ada", MAX, MAX).await, (false, MAX - 7));
    assert_eq!(doors.daily("ada", 7, MAX).await, (true, MAX));
    assert_eq!(doors.daily("ada", 1, MAX).await, (false, MAX));

    assert!(doors.sliding("ada", 1, 60).await.0 && doors.quota("ada", 1, 60).await);
    doors
        .run(
            "update door_sliding set used = 2147483646, total = 2147483646, totals = array[2147483646::bigint]; \
             update door_fixed set used = 2147483646",
        )
        .await;
    assert_eq!(doors.sliding("ada", MAX, 60).await, (true, MAX, 0));
    assert_eq!(doors.sliding("ada", MAX, 60).await, (false, MAX, 61));
    assert!(doors.quota("ada", MAX, 60).await && !doors.quota("ada", MAX, 60).await);

    assert_eq!(doors.sliding("bob", 1, MAX).await, (true, 1, 0));
    assert_eq!(doors.sliding("bob", 1, MAX).await, (false, 1, MAX));
    assert!(doors.quota("bob", 1, MAX).await && !doors.quota("bob", 1, MAX).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_updates_its_row_in_place() {
    let doors = Session::install().await;
    // Statistics of one transaction are there at once.
    doors.run("begin").await;
    for second in 0..10 {
        doors.at(START + second * SECOND).await;
        for door in Door::ALL {
            assert!(door.ask(&doors, "ada", 100).await.unwrap());
        }
    }
    for table in ["door_sliding", "door_fixed", "door_daily"] {
        let counted = |what: &str| format!("pg_stat_get_xact_tuples_{what}('{table}'::regclass)");
        let updated = doors.number(&counted("updated")).await;
        assert!(updated >= 9, "{table}: {updated}");
        assert_eq!(doors.number(&counted("hot_updated")).await, updated, "{table}");
    }
    doors.run("commit").await;
}

// ---- cleanup -----------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleanup_removes_what_is_over_in_small_batches() {
    let doors = Session::install().await;
    doors.run("select check_rate_limit('k' || n, 1, 60) from generate_series(1, 2500) n").await;
    doors
        .run("select check_and_consume_quota('k' || n, '/r', 1, 60) from generate_series(1, 700) n")
        .await;
    doors.at(START + 60 * SECOND + HOUR - 1).await;
    assert_eq!(doors.cleanup().await, 0);
    doors.at(START + 60 * SECOND + HOUR).await;
    assert_eq!(doors.cleanup().await, 700, "a window ends a second before its last one has left");
    doors.at(START + 61 * SECOND + HOUR).await;
    for expected in [1000, 1000, 500, 0] {
        assert_eq!(doors.cleanup().await, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleanup_removes_a_long_window_with_all_it_holds() {
    let doors = Session::install().await;
    for second in 0..300 {
        doors.at(START + second * SECOND).await;
        assert!(doors.sliding("ada", 300, 86_400).await.0);
    }
    assert_eq!(doors.number("select count(*) from door_sliding_chunk").await, 4);
    assert_eq!(doors.sliding("ada", 300, 86_400).await, (false, 300, 86_400 + 1 - 299));
    assert_eq!(doors.sliding("ada", 100, 86_400).await, (false, 300, 86_400 + 1 - 99));
    let over = START + (299 + 86_400 + 1) * SECOND + HOUR;
    doors.at(over - 1).await;
    assert_eq!(doors.cleanup().await, 0);
    doors.at(over).await;
    assert_eq!(doors.cleanup().await, 5, "four chunks and their row");
    assert_eq!(doors.number("select count(*) from door_sliding_chunk").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleanup_passes_by_what_is_in_use_or_held() {
    let doors = Session::install().await;
    assert!(doors.sliding("ada", 5, 60).await.0 && doors.quota("ada", 5, 60).await);
    let due = START + 61 * SECOND + HOUR;
    doors.at(due).await;
    assert!(doors.sliding("ada", 5, 60).await.0 && doors.quota("ada", 5, 60).await);
    assert_eq!(doors.cleanup().await, 0, "in use");
    doors.at(due + 61 * SECOND + HOUR).await;
    let holder = doors.another().await;
    holder
        .run("begin; select from door_sliding for update; select from door_fixed for update")
        .await;
    // It would wait for ever otherwise: nobody ends the holder's transaction.
    assert_eq!(doors.cleanup().await, 0, "held");
    holder.run("rollback").await;
    assert_eq!(doors.cleanup().await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleanup_and_a_clock_that_steps_back_mint_nothing() {
    let doors = Session::install().await;
    assert!(doors.sliding("ada", 1, 60).await.0 && doors.quota("ada", 1, 60).await);
    assert!(doors.sliding("ada", 1, 7200).await.0);
    doors.at(START + 61 * SECOND + HOUR).await;
    assert_eq!(doors.cleanup().await, 2);
    doors.at(START + 30 * SECOND).await;
    // A unit passes, but it counts as of when the removed ones had left.
    assert!(doors.sliding("ada", 1, 60).await.0 && doors.quota("ada", 1, 60).await);
    assert_eq!(doors.sliding("ada", 1, 60).await, (false, 1, 61 + 61 - 30));
    assert!(!doors.quota("ada", 1, 60).await);
    assert_eq!(
        doors.number("select latest_us from door_sliding where window_seconds = 60").await,
        START + 61 * SECOND
    );
    assert_eq!(
        doors.number("select window_number * 60 from door_fixed").await,
        START / SECOND + 60
    );
    // Other lengths of window are not held up.
    assert!(doors.sliding("bob", 1, 59).await.0);
    assert_eq!(doors.sliding("bob", 1, 59).await, (false, 1, 60));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleanup_keeps_35_days_and_a_removed_day_is_not_begun_anew() {
    let doors = Session::install().await;
    for day in ["2026-12-10", "2026-12-11"] {
        assert_eq!(doors.daily_on(day, "ada", 1, 1).await.unwrap(), (true, 1));
    }
    assert_eq!(doors.cleanup().await, 1);
    let error = doors.daily_on("2026-12-10", "ada", 1, 1).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::INVALID_PARAMETER_VALUE));
    assert!(error.as_db_error().unwrap().message().starts_with("p_day is "), "{error}");
    assert_eq!(doors.daily_on("2026-12-11", "ada", 1, 1).await.unwrap(), (false, 1));
    assert_eq!(doors.daily_on("2026-12-11", "bob", 1, 1).await.unwrap(), (true, 1));
}

// ---- installing --------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doors_can_be_installed_again_over_themselves_and_keep_their_counts() {
    let doors = Session::install().await;
    doors.run(DOORS).await;
    for door in Door::ALL {
        assert!(door.ask(&doors, "ada", 1).await.unwrap());
    }
    doors.run(DOORS).await;
    assert!(!Door::Daily.ask(&doors, "ada", 1).await.unwrap());
    assert_eq!(doors.number("select count(*) from door_sliding").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doors_refuse_a_search_path_that_is_not_safe() {
    let doors = Session::install().await;
    let schema = &doors.schema;
    let paths = ["public", "SCHEMA", "pg_temp, SCHEMA", "SCHEMA, public, pg_temp"];
    for path in paths.map(|path| path.replace("SCHEMA", schema)) {
        doors.run(&format!("begin; set local search_path to {path}")).await;
        let error = doors.client.batch_execute(DOORS).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::INVALID_PARAMETER_VALUE), "{path}: {error}");
        doors.run("rollback").await;
    }
}

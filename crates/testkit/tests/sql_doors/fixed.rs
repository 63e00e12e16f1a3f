//! Fixed windows (SEEDS.md 2).

use super::*;

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

//! Daily usage (SEEDS.md 0).

use super::*;

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

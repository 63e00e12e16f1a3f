//! Removing what is over.

use super::*;

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

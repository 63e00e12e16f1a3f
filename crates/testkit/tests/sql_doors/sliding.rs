//! Sliding windows (SEEDS.md 4).

use super::*;

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

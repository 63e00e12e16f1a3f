//! The clock: the server's, read once the lock is held, and it may step back.

use super::*;

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

//! The largest integers, and rows updated in place.

use super::*;

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

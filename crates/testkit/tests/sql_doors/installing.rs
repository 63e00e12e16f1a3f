//! Installing the doors, again and in an unsafe place.

use super::*;

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

//! Calls within one transaction, and under an old snapshot.

use super::*;

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

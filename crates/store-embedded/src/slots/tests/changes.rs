//! Schedules made ready in parts: read back, or counted again in windows of another length.

use super::*;

/// Every window that counts is what its slots make it.
async fn windows_are_right(store: &Embedded) {
    let run = store.run(|txn| {
        let kept = kept(txn, "p")?.expect("it has a schedule");
        let read = || {
            let sql = "select s.scheduled_at, s.per, s.position from slot s where not exists \
                       (select 1 from slot_cancel c where c.event_id = s.event_id)";
            let mut statement = txn.read().prepare(sql)?;
            let slots = statement.query_map([], |row| {
                let per = Span::from_micros(row.get(1)?).unwrap();
                Ok((Instant::from_micros(row.get(0)?), per, row.get::<_, i64>(2)?.cast_unsigned()))
            })?;
            slots.collect::<Result<Vec<_>, _>>()
        };
        let mut expected = count_again(kept.per, read().map_err(|error| txn.fail(error))?);
        let expected = expected.split_off(&kept.first_counted());
        let stored = windows(txn, "p", kept.first_counted(), i64::MAX, i64::MAX)?;
        assert_eq!(stored, Vec::from_iter(expected), "from {}", kept.first_counted());
        if let Some(schedule) = txn.books.schedules.get("p") {
            let known = schedule.windows().map(|(number, state)| (number, state.clone()));
            let first = schedule.first();
            let stored = stored.into_iter().filter(|(number, _)| *number >= first);
            assert_eq!(known.collect::<Vec<_>>(), Vec::from_iter(stored), "from {first}");
        }
        Ok(())
    });
    run.await.unwrap();
}

#[tokio::test]
async fn others_are_served_while_windows_of_another_length_are_made() {
    let store = store();
    assign(&store, MANY).await;
    let late = ask(3, 3, "late", [0]);
    assert!(is_served_between(&store, store.assign_slots(late)).await);
    // Nobody waits for it any more. Who asks next goes on.
    windows_are_right(&store).await;
    let answers = store.assign_slots(ask(3, 3, "next", [0])).await.unwrap();
    let window = |at: Instant| at.as_micros() / 3_000_000;
    assert_eq!(window(given(&answers)[0]), window(at(MANY)));
    windows_are_right(&store).await;
}

#[tokio::test]
async fn others_are_served_while_windows_are_read() {
    let store = store();
    assign(&store, MANY).await;
    forget_books(&store).await;
    let late = ask(1, 1, "late", [0]);
    assert!(is_served_between(&store, store.assign_slots(late)).await);
    let answers = store.assign_slots(ask(1, 1, "next", [0])).await.unwrap();
    assert_eq!(given(&answers), [at(MANY)]);
    windows_are_right(&store).await;
}

/// As after a restart.
async fn forget_books(store: &Embedded) {
    let run = store.run(|txn| {
        txn.books.clear();
        Ok(())
    });
    run.await.unwrap();
}

/// One job of an ask for slots; whether it was answered.
async fn part(store: &Embedded, ask: &ScheduleAsk, patience: Patience) -> bool {
    let ask = ask.clone();
    let run = store.run(move |txn| assign_or_prepare(txn, &ask, patience));
    run.await.unwrap().is_some()
}

/// After every part there may be a restart, a cancel, or somebody who asks for a later time or by
/// the other plan.
#[tokio::test]
async fn a_change_of_windows_may_be_cut_short_anywhere() {
    for cut_at in 0..60 {
        let store = store();
        assign(&store, 12).await;
        store.assign_slots(ask(1, 1, "far", (0..9).map(|number| number * 500))).await.unwrap();
        let change = ask(7, 8, "late", [0, 20]);
        let mut parts = 0;
        while !part(&store, &change, Patience::Fresh).await {
            windows_are_right(&store).await;
            if parts == cut_at {
                forget_books(&store).await;
            }
            if parts == cut_at + 1 {
                for event_id in ["event 5", "far 1500", "far 4000"] {
                    store.cancel_slot(event_id.into()).await.unwrap().unwrap();
                }
                windows_are_right(&store).await;
            }
            if parts == cut_at + 2 {
                part(&store, &ask(7, 8, "later", [3_000]), Patience::Fresh).await;
                windows_are_right(&store).await;
            }
            if parts == cut_at + 3 {
                part(&store, &ask(1, 1, "event", [0]), Patience::Fresh).await;
                windows_are_right(&store).await;
            }
            parts += 1;
            assert!(parts < 200, "it ends");
        }
        assert!(parts > 10, "{parts} parts");
        windows_are_right(&store).await;
        let fills = counts(&store, 7, 1000).await;
        assert!(fills.iter().all(|(_, count)| *count <= 8), "{fills:?}");
        assert_eq!(store.recount_slots("p".into()).await.unwrap().drifts, []);
    }
}

/// Two who ask by different plans do not undo each other's work for ever.
#[tokio::test]
async fn callers_with_other_windows_both_come_to_an_end() {
    let store = store();
    assign(&store, 60).await;
    let (one, other) = (ask(3, 3, "one", [0, 90]), ask(5, 5, "other", [0, 90]));
    let mut patience = Patience::Fresh;
    let mut answered = (false, false);
    for _ in 0..10 {
        answered.0 = answered.0 || part(&store, &one, patience).await;
        answered.1 = answered.1 || part(&store, &other, patience).await;
        windows_are_right(&store).await;
        patience = Patience::OneWait;
    }
    assert_eq!(answered, (true, true));
    let (one, other) = tokio::join!(
        store.assign_slots(ask(7, 7, "two", [0, 90])),
        store.assign_slots(ask(9, 9, "both", [0, 90])),
    );
    assert_eq!((one.unwrap().len(), other.unwrap().len()), (2, 2));
    windows_are_right(&store).await;
}

/// Numbers of short windows are larger than any number a long one can have.
#[tokio::test]
async fn windows_can_become_very_long() {
    let store = store();
    let far = 1_700_000_000;
    store.assign_slots(ask(1, 1, "event", (0..5).map(|second| far + second))).await.unwrap();
    let per = 100 * 86_400;
    store.assign_slots(ask(per, 50, "late", [far])).await.unwrap();
    windows_are_right(&store).await;
    assert_eq!(counts(&store, per, 9).await.iter().map(|(_, count)| count).sum::<u64>(), 6);
}

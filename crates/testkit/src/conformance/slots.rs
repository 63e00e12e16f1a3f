//! Schedules: a slot for every event.

use std::collections::{BTreeMap, HashSet};

use tollgate::{Clock, Error, Instant, Slot, SlotAnswer, SlotAsk, SlotQuery, Span};

use crate::random;
use crate::stage::{Stage, Trial};

const PT4S: &str = r#"limits = [{ name = "window", max = 100, per = "PT4S" }]"#;
const SECOND: i64 = 1_000_000;

impl Trial {
    fn event(&self, number: u32) -> String {
        format!("{}/{number}", self.name)
    }

    async fn ask(&self, events: Vec<SlotAsk>) -> Vec<SlotAnswer> {
        self.gate.assign_slots(&self.name, events).await.expect("the store answers")
    }

    async fn ask_one(&self, event_id: &str, at: Instant) -> SlotAnswer {
        let event = SlotAsk { event_id: event_id.to_owned(), requested_at: Some(at) };
        self.ask(vec![event]).await.pop().expect("one event, one answer")
    }

    async fn slot(&self, event_id: &str, at: Instant) -> Slot {
        match self.ask_one(event_id, at).await {
            SlotAnswer::Given(slot) | SlotAnswer::Repeated(slot) => slot,
            other => panic!("{event_id} at {at}: {other:?}"),
        }
    }

    /// Slots for events of these numbers, all at one instant.
    async fn burst(&self, numbers: std::ops::Range<u32>, at: Instant) -> Vec<Slot> {
        let events = numbers
            .map(|number| SlotAsk { event_id: self.event(number), requested_at: Some(at) })
            .collect();
        let given = self.ask(events).await.into_iter().map(|answer| match answer {
            SlotAnswer::Given(slot) => slot,
            other => panic!("{other:?}"),
        });
        given.collect()
    }

    /// Counts equal rows, always.
    async fn verify(&self, slots: u64) {
        let recount = self.gate.verify_slots(&self.name).await.expect("the store answers");
        assert_eq!((recount.slots, recount.drifts), (slots, Vec::new()));
    }
}

/// The start of the next window of four seconds.
fn window_start(stage: &Stage) -> Instant {
    stage.clock.now().floor_to(Span::from_secs(4)).plus(Span::from_secs(4))
}

fn by_window(slots: &[Slot]) -> BTreeMap<i64, usize> {
    let mut counts = BTreeMap::new();
    for slot in slots {
        *counts.entry(slot.scheduled_at.as_micros() / (4 * SECOND)).or_default() += 1;
    }
    counts
}

pub async fn a_burst_fills_window_after_window_in_order(stage: Stage) {
    let trial = stage.trial(PT4S).await;
    let at = window_start(&stage);
    let slots = trial.burst(0..250, at).await;
    assert_eq!(by_window(&slots).into_values().collect::<Vec<_>>(), [100, 100, 50]);
    let instants: HashSet<_> = slots.iter().map(|slot| slot.scheduled_at).collect();
    assert_eq!(instants.len(), 250, "each has an instant of its own");
    assert!(slots.iter().all(|slot| slot.scheduled_at >= at));
    let windows = trial
        .gate
        .slot_windows(&trial.name, at, at.plus(Span::from_secs(12)), 100)
        .await
        .expect("the store answers");
    assert_eq!(windows.iter().map(|window| window.count).collect::<Vec<_>>(), [100, 100, 50]);
    assert!(windows.iter().all(|window| window.max == 100));
    trial.verify(250).await;
}

pub async fn an_id_is_one_slot_however_often_it_is_asked_for(stage: Stage) {
    let trial = stage.trial(PT4S).await;
    let (at, id) = (window_start(&stage), trial.event(1));
    let first = trial.slot(&id, at).await;
    stage.clock.advance(Span::from_secs(100));
    assert_eq!(trial.slot(&id, at).await, first);
    assert_eq!(trial.gate.slot(&id).await.expect("the store answers"), Some(first.clone()));
    // In one batch, too.
    let twice = SlotAsk { event_id: id.clone(), requested_at: Some(at) };
    let answers = trial.ask(vec![twice.clone(), twice]).await;
    assert_eq!(answers, [SlotAnswer::Repeated(first.clone()), SlotAnswer::Repeated(first)]);
    trial.verify(1).await;
}

pub async fn an_id_without_a_time_is_repeated_without_one(stage: Stage) {
    let trial = stage.trial(PT4S).await;
    let ask = || vec![SlotAsk { event_id: trial.event(1), requested_at: None }];
    let first = trial.ask(ask()).await;
    let SlotAnswer::Given(slot) = &first[0] else { panic!("{first:?}") };
    assert_eq!(slot.requested_at, stage.clock.now());
    stage.clock.advance(Span::from_secs(60));
    assert_eq!(trial.ask(ask()).await, [SlotAnswer::Repeated(slot.clone())]);
}

pub async fn an_id_with_other_inputs_is_refused(stage: Stage) {
    let (trial, other) = (stage.trial(PT4S).await, stage.trial(PT4S).await);
    let (at, id) = (window_start(&stage), trial.event(1));
    let first = trial.slot(&id, at).await;
    let later = trial.ask_one(&id, at.plus_micros(1)).await;
    assert_eq!(later, SlotAnswer::Differs(first.clone()));
    assert_eq!(other.ask_one(&id, at).await, SlotAnswer::Differs(first.clone()));
    let unnamed = trial.ask(vec![SlotAsk { event_id: id, requested_at: None }]).await;
    assert_eq!(unnamed, [SlotAnswer::Differs(first)]);
    trial.verify(1).await;
    other.verify(0).await;
}

pub async fn a_bad_id_or_policy_is_an_error_and_nothing_is_counted(stage: Stage) {
    let trial = stage.trial(PT4S).await;
    let at = window_start(&stage);
    for id in [String::new(), "x".repeat(256)] {
        let event = SlotAsk { event_id: id, requested_at: Some(at) };
        let good = SlotAsk { event_id: trial.event(1), requested_at: Some(at) };
        let asked = trial.gate.assign_slots(&trial.name, vec![good, event]).await;
        assert!(matches!(asked, Err(Error::BadEvent(_))), "{asked:?}");
    }
    trial.slot(&"é".repeat(255), at).await;
    let asked = trial.gate.assign_slots("no such policy", Vec::new()).await;
    assert!(matches!(asked, Err(Error::NoSuchPolicy(_))), "{asked:?}");
    let by = r#"limits = [{ name = "user", max = 1, per = "60s", by = ["user"] }]"#;
    let sliding = r#"limits = [{ name = "all", max = 1, per = "60s", algorithm = "sliding" }]"#;
    for toml in [by, sliding] {
        let cannot = stage.trial(toml).await;
        let asked = cannot.gate.assign_slots(&cannot.name, Vec::new()).await;
        assert!(matches!(asked, Err(Error::NotASchedule { .. })), "{asked:?}");
    }
    trial.verify(1).await;
}

pub async fn a_policy_that_gives_no_more_repeats_what_it_gave(stage: Stage) {
    let (trial, at) = (stage.trial(PT4S).await, window_start(&stage));
    let (id, new) = (trial.event(1), trial.event(2));
    let first = trial.slot(&id, at).await;
    let event = |id: &str| SlotAsk { event_id: id.to_owned(), requested_at: Some(at) };
    let unschedulable = r#"limits = [{ name = "window", max = 100, per = "PT4S", by = ["user"] }]"#;
    trial.apply(unschedulable).await;
    for is_deleted in [false, true] {
        if is_deleted {
            trial.gate.delete_policy(&trial.name, "test").await.expect("the store answers");
        }
        assert_eq!(trial.ask_one(&id, at).await, SlotAnswer::Repeated(first.clone()));
        let later = trial.ask_one(&id, at.plus_micros(1)).await;
        assert_eq!(later, SlotAnswer::Differs(first.clone()));
        for events in [vec![event(&new)], vec![event(&id), event(&new)]] {
            let asked = trial.gate.assign_slots(&trial.name, events).await;
            let is_right = match asked {
                Err(Error::NotASchedule { .. }) => !is_deleted,
                Err(Error::NoSuchPolicy(_)) => is_deleted,
                _ => false,
            };
            assert!(is_right, "{asked:?}");
        }
        let asked = trial.gate.assign_slots("another policy", vec![event(&id)]).await;
        assert!(matches!(asked, Err(Error::NoSuchPolicy(_))), "{asked:?}");
    }
}

pub async fn a_request_in_mid_window_gets_its_share(stage: Stage) {
    let trial = stage.trial(PT4S).await;
    let at = window_start(&stage).plus(Span::from_secs(1));
    let slots = trial.burst(0..80, at).await;
    assert_eq!(by_window(&slots).into_values().collect::<Vec<_>>(), [75, 5]);
    assert!(slots.iter().all(|slot| slot.scheduled_at >= at));
}

pub async fn a_cancel_frees_its_place_and_not_its_id(stage: Stage) {
    let trial = stage.trial(PT4S).await;
    let at = window_start(&stage);
    let slots = trial.burst(0..150, at).await;
    let cancelled = trial
        .gate
        .cancel_slot(&slots[42].event_id)
        .await
        .expect("the store answers")
        .expect("there is one");
    assert_eq!(cancelled.cancelled_at, Some(stage.clock.now()));
    trial.verify(149).await;
    stage.clock.advance(Span::from_secs(1));
    let again = trial.gate.cancel_slot(&slots[42].event_id).await.expect("the store answers");
    assert_eq!(again, Some(cancelled.clone()), "again changes nothing");
    assert_eq!(trial.ask_one(&slots[42].event_id, at).await, SlotAnswer::Cancelled(cancelled));
    let next = trial.slot(&trial.event(900), at).await;
    assert_eq!(next.scheduled_at, slots[42].scheduled_at, "the place that was given back");
    assert_eq!(
        trial.gate.cancel_slot("nobody has this id").await.expect("the store answers"),
        None
    );
    trial.verify(150).await;
}

pub async fn a_raised_max_opens_the_rest_of_a_window_and_a_lowered_one_closes_it(stage: Stage) {
    let trial = stage.trial(PT4S).await;
    let at = window_start(&stage);
    let max = |max: u32| format!(r#"limits = [{{ name = "window", max = {max}, per = "PT4S" }}]"#);
    trial.burst(0..100, at).await;
    assert!(trial.apply(&max(220)).await.restarted.is_empty());
    let more = trial.burst(100..221, at).await;
    assert_eq!(by_window(&more).into_values().collect::<Vec<_>>(), [120, 1]);
    trial.apply(&max(50)).await;
    let later = trial.burst(300..400, at).await;
    let first = at.as_micros() / (4 * SECOND);
    assert_eq!(
        by_window(&later),
        BTreeMap::from([(first + 1, 49), (first + 2, 50), (first + 3, 1)])
    );
    assert_eq!(later[0].version, 3, "it says which version gave it");
    trial.verify(321).await;
}

pub async fn a_changed_per_counts_what_was_given_before(stage: Stage) {
    let trial = stage.trial(PT4S).await;
    let at = window_start(&stage).floor_to(Span::from_secs(8)).plus(Span::from_secs(8));
    trial.burst(0..130, at).await;
    trial.apply(r#"limits = [{ name = "window", max = 150, per = "PT8S" }]"#).await;
    // 130 are in the first 8 seconds already.
    let more = trial.burst(200..240, at).await;
    let first = at.plus(Span::from_secs(8));
    assert_eq!(more.iter().filter(|slot| slot.scheduled_at < first).count(), 20);
    trial.verify(170).await;
    trial.gate.cancel_slot(&trial.event(7)).await.expect("the store answers");
    trial.verify(169).await;
    let freed = trial.slot(&trial.event(900), at).await;
    assert!(freed.scheduled_at < first, "a cancelled guest makes room");
    // And back: the old ones stand where they stood.
    trial.apply(PT4S).await;
    trial.burst(1000..1001, at).await;
    trial.verify(171).await;
    trial.gate.cancel_slot(&trial.event(8)).await.expect("the store answers");
    trial.gate.cancel_slot(&trial.event(200)).await.expect("the store answers");
    trial.verify(169).await;
}

pub async fn a_changed_per_counts_what_lies_behind_when_somebody_asks_for_it(stage: Stage) {
    let trial = stage.trial(PT4S).await;
    let at = window_start(&stage).floor_to(Span::from_secs(8)).plus(Span::from_secs(8));
    let past = at.minus(Span::from_secs(86_400));
    trial.burst(0..130, past).await;
    trial.apply(r#"limits = [{ name = "window", max = 150, per = "PT8S" }]"#).await;
    trial.burst(200..210, at).await;
    trial.verify(10).await;
    trial.gate.cancel_slot(&trial.event(7)).await.expect("the store answers");
    // 129 are in those 8 seconds.
    let more = trial.burst(300..340, past).await;
    let end = past.plus(Span::from_secs(8));
    assert_eq!(more.iter().filter(|slot| slot.scheduled_at < end).count(), 21);
    trial.verify(179).await;
    trial.gate.cancel_slot(&trial.event(8)).await.expect("the store answers");
    trial.verify(178).await;
    assert!(trial.slot(&trial.event(900), past).await.scheduled_at < end, "it made room");
    // Still further back, and what lies between is not counted twice.
    trial.burst(1000..1010, past.minus(Span::from_secs(80))).await;
    trial.verify(189).await;
}

pub async fn a_longer_retention_holds_at_once(stage: Stage) {
    let kept = |retention: &str| format!("{PT4S}\nschedule = {{ retention = \"{retention}\" }}");
    let trial = stage.trial(&kept("1h")).await;
    let at = window_start(&stage);
    trial.burst(0..1, at).await;
    trial.apply(&kept("10h")).await;
    let past = at.minus(Span::from_secs(5 * 3600));
    let given = trial.slot(&trial.event(50), past).await;
    stage.gate.sweep().await.expect("the store sweeps");
    stage.gate.sweep().await.expect("the store sweeps");
    assert_eq!(trial.ask_one(&trial.event(50), past).await, SlotAnswer::Repeated(given));
}

pub async fn a_full_horizon_is_said_and_nothing_is_counted(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [{ name = "window", max = 2, per = "PT4S" }]
               schedule = { horizon = "PT8S" }"#,
        )
        .await;
    let at = window_start(&stage);
    // At 0, 2, 4, 6 and 8 s; the other place of the last window lies behind the horizon.
    trial.burst(0..5, at).await;
    assert_eq!(trial.ask_one(&trial.event(7), at).await, SlotAnswer::HorizonFull);
    trial.verify(5).await;
    // Measured from the time that is asked for.
    trial.slot(&trial.event(7), at.plus(Span::from_secs(4))).await;
}

pub async fn old_slots_go_and_none_is_given_so_far_back(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [{ name = "window", max = 100, per = "PT4S" }]
               schedule = { retention = "1h" }"#,
        )
        .await;
    let at = window_start(&stage);
    trial.burst(0..20, at).await;
    let past = at.minus(Span::from_secs(3000));
    assert!(trial.slot(&trial.event(50), past).await.scheduled_at < stage.clock.now());
    let older = trial.ask_one(&trial.event(51), at.minus(Span::from_secs(4000))).await;
    assert!(matches!(older, SlotAnswer::TooOld { .. }), "{older:?}");
    stage.clock.advance(Span::from_secs(7200));
    stage.gate.sweep().await.expect("the store sweeps");
    stage.gate.sweep().await.expect("the store sweeps");
    trial.verify(0).await;
}

pub async fn an_office_hours_policy_never_gives_a_closed_hour(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [{ name = "window", max = 50, per = "1m" }]
               schedule = { calendar = { timezone = "America/New_York", open = { mon-fri = "09:00-17:00" }, closed = ["2026-12-25"] } }"#,
        )
        .await;
    // A Thursday afternoon before Christmas; 2026-12-24 17:00 in New York is 22:00 UTC.
    let at = Instant::from_secs(1_798_149_540);
    let slots = trial.burst(0..60, at).await;
    let monday = Instant::from_secs(1_798_149_600 + 3 * 86_400 + 16 * 3600);
    let closing = Instant::from_secs(1_798_149_600);
    assert!(slots.iter().all(|slot| slot.scheduled_at < closing || slot.scheduled_at >= monday));
    assert_eq!(slots.iter().filter(|slot| slot.scheduled_at >= monday).count(), 10);
    trial.verify(60).await;
}

pub async fn listings_go_page_by_page_in_order(stage: Stage) {
    let trial = stage.trial(PT4S).await;
    let at = window_start(&stage);
    let mut given = trial.burst(0..130, at).await;
    given.sort_by(|a, b| (a.scheduled_at, &a.event_id).cmp(&(b.scheduled_at, &b.event_id)));
    let mut listed: Vec<Slot> = Vec::new();
    loop {
        let after = listed.last().map(|slot| (slot.scheduled_at, slot.event_id.clone()));
        let query = SlotQuery {
            policy: trial.name.clone(),
            from: at,
            to: at.plus(Span::from_secs(60)),
            after,
            limit: 50,
        };
        let page = trial.gate.slots(query).await.expect("the store answers");
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    assert_eq!(listed, given);
}

pub async fn ten_callers_with_one_id_get_one_slot(stage: Stage) {
    let trial = stage.trial(PT4S).await;
    let (at, id) = (window_start(&stage), random::name("event"));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (trial, id) = (trial.clone(), id.clone());
        callers.spawn(async move { trial.slot(&id, at).await });
    }
    let slots = callers.join_all().await;
    assert!(slots.iter().all(|slot| *slot == slots[0]), "{slots:?}");
    trial.verify(1).await;
}

pub async fn one_id_in_two_policies_at_once_is_one_slot(stage: Stage) {
    let (one, other) = (stage.trial(PT4S).await, stage.trial(PT4S).await);
    let at = window_start(&stage);
    for _ in 0..10 {
        let id = random::name("event");
        let (first, second) = tokio::join!(one.ask_one(&id, at), other.ask_one(&id, at));
        let given = [&first, &second].map(|answer| matches!(answer, SlotAnswer::Given(_)));
        assert_ne!(given[0], given[1], "{first:?} {second:?}");
    }
    let counts = [&one, &other].map(|trial| trial.gate.verify_slots(&trial.name));
    let [one, other] = counts;
    let (one, other) =
        (one.await.expect("the store answers"), other.await.expect("the store answers"));
    assert_eq!((one.drifts.len(), other.drifts.len()), (0, 0));
    assert_eq!(one.slots + other.slots, 10);
}

pub async fn many_callers_at_once_never_overfill_a_window(stage: Stage) {
    let trial = stage.trial(r#"limits = [{ name = "window", max = 7, per = "PT4S" }]"#).await;
    let at = window_start(&stage);
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..16_u32 {
        let trial = trial.clone();
        callers.spawn(async move {
            let mut slots = Vec::new();
            for round in 0..6 {
                let from = (caller * 6 + round) * 5;
                slots.extend(trial.burst(from..from + 5, at).await);
                if round == 3 {
                    let gone = slots.swap_remove(0);
                    trial.gate.cancel_slot(&gone.event_id).await.expect("the store answers");
                }
            }
            slots
        });
    }
    let slots: Vec<Slot> = callers.join_all().await.into_iter().flatten().collect();
    assert_eq!(slots.len(), 16 * 29);
    assert!(by_window(&slots).values().all(|count| *count <= 7));
    let instants: HashSet<_> = slots.iter().map(|slot| slot.scheduled_at).collect();
    assert_eq!(instants.len(), slots.len());
    trial.verify(slots.len() as u64).await;
}

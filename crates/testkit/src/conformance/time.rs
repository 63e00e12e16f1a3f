//! Calendars, clocks that step back, and keys that are swept.

use tollgate::{Clock, Instant, Span};

use crate::stage::{Stage, Trial};

fn at(text: &str) -> Instant {
    Instant::from_jiff(text.parse().expect("a timestamp of a case is valid"))
}

/// A day's quota is spent just after `midnight` and comes back at `next_midnight`, not before.
async fn a_day_lasts(stage: &Stage, midnight: &str, next_midnight: &str) {
    let (midnight, next_midnight) = (at(midnight), at(next_midnight));
    stage.clock.set(midnight.plus_micros(-1));
    let trial = stage
        .trial(
            r#"limits = [{ name = "day", max = 3, per = "day", timezone = "Europe/Rome", by = ["api_key"] }]"#,
        )
        .await;
    let key = [("api_key", "k1")];
    trial.pass(&key, 3).await;
    assert_eq!(trial.refused_until(&key, 1).await, midnight);
    stage.wait_until(midnight);
    trial.pass(&key, 3).await;
    assert_eq!(trial.refused_until(&key, 1).await, next_midnight);
    stage.wait_until(next_midnight.plus_micros(-1));
    assert_eq!(trial.refused_until(&key, 1).await, next_midnight);
    stage.wait_until(next_midnight);
    trial.pass(&key, 3).await;
}

pub async fn a_day_in_rome_ends_at_local_midnight(stage: Stage) {
    a_day_lasts(&stage, "2026-07-13T22:00:00Z", "2026-07-14T22:00:00Z").await;
}

pub async fn a_day_of_23_hours_ends_at_local_midnight(stage: Stage) {
    a_day_lasts(&stage, "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z").await;
}

pub async fn a_day_of_25_hours_ends_at_local_midnight(stage: Stage) {
    a_day_lasts(&stage, "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z").await;
}

async fn full(stage: &Stage, algorithm: &str) -> Trial {
    let trial = stage
        .trial(&format!(
            r#"limits = [{{ name = "all", max = 3, per = "60s", algorithm = "{algorithm}" }}]"#
        ))
        .await;
    trial.pass_times(&[], 3).await;
    trial
}

/// The key is full. However far the clock steps back, nothing passes before the promised instant.
async fn mints_nothing(stage: &Stage, trial: &Trial) {
    let start = stage.clock.now();
    let promised = trial.refused_until(&[], 1).await;
    for back in [Span::from_secs(1), Span::from_secs(61), Span::from_secs(86_400)] {
        stage.clock.set(start.minus(back));
        let answer = trial.check(&[], 1).await;
        assert!(!answer.allowed(), "a clock {back:?} behind let something through");
        assert_eq!(answer.decision.limits[0].standing.remaining(), 0);
        assert!(trial.refused_until(&[], 1).await <= promised, "nobody waits longer for it");
    }
    stage.clock.set(promised.plus_micros(-1));
    assert_eq!(trial.refused_until(&[], 1).await, promised);
    stage.clock.set(promised);
    trial.pass(&[], 1).await;
}

pub async fn a_clock_that_steps_back_mints_nothing_in_a_fixed_window(stage: Stage) {
    let trial = full(&stage, "fixed").await;
    mints_nothing(&stage, &trial).await;
}

pub async fn a_clock_that_steps_back_mints_nothing_in_a_sliding_window(stage: Stage) {
    let trial = full(&stage, "sliding").await;
    mints_nothing(&stage, &trial).await;
}

pub async fn a_clock_that_steps_back_mints_nothing_in_a_bucket(stage: Stage) {
    let trial = full(&stage, "bucket").await;
    mints_nothing(&stage, &trial).await;
}

pub async fn time_never_goes_back_within_a_key(stage: Stage) {
    for (algorithm, seconds) in [("fixed", 60), ("sliding", 1)] {
        let trial = stage
            .trial(&format!(
                r#"limits = [
                    {{ name = "user", max = 9, per = "60s", algorithm = "{algorithm}", by = ["user"] }},
                    {{ name = "team", max = 9, per = "60s", algorithm = "{algorithm}", by = ["team"] }},
                ]"#
            ))
            .await;
        let start = stage.clock.now();
        trial.pass(&[("user", "ada"), ("team", "blue")], 1).await;
        // What the key has seen: the start of its window, or of its latest bucket.
        let seen = start.floor_to(Span::from_secs(seconds));
        stage.clock.set(start.minus(Span::from_secs(3600)));
        // The other key is new, and follows the one that knows better.
        for team in ["blue", "red"] {
            let answer = trial.check(&[("user", "ada"), ("team", team)], 1).await;
            assert!(answer.decision.decided_at >= seen, "{algorithm}: decided before {seen}");
        }
        stage.clock.set(start);
        assert_eq!(trial.used(&[("user", "ada"), ("team", "red")]).await, [3, 1], "{algorithm}");
        trial.pass(&[("user", "bob"), ("team", "red")], 8).await;
        trial.refused_until(&[("user", "eve"), ("team", "red")], 1).await;
    }
}

pub async fn sweeping_changes_no_answer(stage: Stage) {
    for algorithm in ["fixed", "sliding", "bucket"] {
        let trial = full(&stage, algorithm).await;
        let resets_at = trial.peek(&[], 1).await.decision.limits[0].standing.resets_at;
        stage.gate.sweep().await.expect("the store sweeps");
        assert_eq!(trial.used(&[]).await, [3], "{algorithm}: in use, so it stays");
        stage.wait_until(resets_at.plus_micros(-1));
        stage.gate.sweep().await.expect("the store sweeps");
        assert_ne!(trial.used(&[]).await, [0], "{algorithm}: a microsecond is left");
        stage.wait_until(resets_at);
        stage.gate.sweep().await.expect("the store sweeps");
        assert_eq!(trial.used(&[]).await, [0], "{algorithm}");
        trial.pass_times(&[], 3).await;
        trial.refused_until(&[], 1).await;
    }
}

pub async fn sweeping_and_stepping_back_mints_nothing(stage: Stage) {
    for algorithm in ["fixed", "sliding", "bucket"] {
        let trial = full(&stage, algorithm).await;
        let start = stage.clock.now();
        let over_at = trial.peek(&[], 1).await.decision.limits[0].standing.resets_at;
        stage.clock.advance(Span::from_secs(600));
        stage.gate.sweep().await.expect("the store sweeps");
        stage.clock.set(start);
        // The counts of `start` are gone, so no decision is made there again.
        let answer = trial.check(&[], 3).await;
        let decided_at = answer.decision.decided_at;
        assert!(decided_at >= over_at, "{algorithm}");
        assert!(answer.allowed(), "{algorithm}");
        assert!(trial.refused_until(&[], 1).await > decided_at, "{algorithm}");
        stage.wait_until(decided_at);
        trial.refused_until(&[], 1).await;
        stage.clock.advance(Span::from_secs(600));
    }
}

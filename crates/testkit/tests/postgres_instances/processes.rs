//! Three processes that check hot keys as fast as they can, and what their logs say together.

use std::path::Path;
use std::time::Duration;

use testkit::random;
use testkit::servers::{Postgres, Settings};
use testkit::soak::{CaseVerdict, Ground, LimitsChange, Outage, Round, Scene, Summary};

/// The scripts' largest cost.
const MAX_COST: u64 = 4;

const QUIET: Round = Round {
    scene: Scene::OneLimit,
    seed: 0,
    number: 1,
    instances: 3,
    tasks: 40,
    turns: 15,
    kills: 0,
    outage: Outage::None,
    changes: LimitsChange::Never,
};

/// Plays a round in a schema of its own, with a seed of its own.
async fn play(round: Round, postgres: &Postgres, settings: &str) -> (Vec<CaseVerdict>, Summary) {
    let folder = tempfile::tempdir().unwrap();
    let schema = random::name("s").replace('-', "_");
    let settings = format!("schema={schema}&{settings}");
    let ground = Ground {
        postgres,
        program: Path::new(env!("CARGO_BIN_EXE_testkit")),
        server: None,
        folder: folder.path(),
        settings: &settings,
        deadline: Duration::from_secs(10),
    };
    let round = Round { seed: random::number(), ..round };
    let (verdicts, summary) = round.play(&ground, |_| {}).await.unwrap();
    println!("seed {}: {summary}", round.seed);
    assert_eq!(summary.wrongs(), 0, "seed {}: {summary}", round.seed);
    assert!(summary.decisions() + summary.errors() >= round.expected(&ground), "all were asked");
    (verdicts, summary)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_together_allow_exactly_max_of_one_limit() {
    for shield in ["shield=on", "shield=off"] {
        let (verdicts, summary) = play(QUIET, Postgres::shared(), shield).await;
        assert_eq!(summary.errors(), 0, "nothing was in doubt");
        assert_eq!(summary.from_memory > 0, shield == "shield=on");
        for CaseVerdict { name, maxima, tallies } in verdicts {
            assert!(tallies[&(0, 0)].refusals > 0, "{name}: more was asked for than fits");
            assert_eq!(tallies[&(0, 0)].units, maxima[0], "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_together_fill_three_limits_that_cross_and_no_further() {
    let round = Round { scene: Scene::ThreeLimits, turns: 20, ..QUIET };
    let (verdicts, summary) = play(round, Postgres::shared(), "shield=off").await;
    assert_eq!(summary.errors(), 0, "nothing was in doubt");
    for CaseVerdict { name, maxima, tallies } in verdicts {
        let mut filled = 0;
        for ((limit, key), tally) in &tallies {
            let max = maxima[*limit];
            assert!(tally.units <= max, "{name}, {limit}, {key}: {} of {max}", tally.units);
            if tally.refusals > 0 {
                // Where only a large cost was refused, a small one may have found room.
                assert!(tally.units + MAX_COST > max, "{name}, {limit}, {key}: {}", tally.units);
                filled += u32::from(tally.units == max);
            }
        }
        assert!(filled > 0, "{name}: some key was filled to the last unit");
        let total = tallies[&(0, 0)].units;
        for limit in [1, 2] {
            let by_key = tallies.iter().filter(|((of, _), _)| *of == limit);
            let sum: u64 = by_key.map(|(_, tally)| tally.units).sum();
            assert_eq!(sum, total, "{name}: what passes spends in all three");
        }
    }
}

async fn changed_limits_hold(settings: &str) {
    let changes = LimitsChange::Meanwhile;
    let round = Round { scene: Scene::Passing, changes, turns: 30, ..QUIET };
    let (_, summary) = play(round, Postgres::shared(), settings).await;
    let first_versions = 5;
    assert!(summary.changes > first_versions, "limits changed: {summary}");
    assert!(summary.given_back > 0, "some was given back: {summary}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_changed_meanwhile_hold_in_every_process() {
    changed_limits_hold("shield=off").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_changed_meanwhile_hold_in_every_process_a_second_later_behind_the_shield() {
    changed_limits_hold("shield=on").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_killed_meanwhile_lose_nothing_they_answered_and_allow_nothing_above_max() {
    let changes = LimitsChange::Meanwhile;
    let round = Round { scene: Scene::All, changes, turns: 40, kills: 6, ..QUIET };
    let (_, summary) = play(round, Postgres::shared(), "shield=off").await;
    assert!(summary.kills >= 3, "instances were killed: {summary}");
    assert!(summary.in_doubt > 0, "a kill leaves something in doubt: {summary}");
    assert!(summary.replayed > 0, "keys were sent again: {summary}");
}

async fn nothing_answered_is_lost(outage: Outage) {
    let postgres = Postgres::start_with(Settings { fsync: true, ..Settings::default() });
    let round = Round { scene: Scene::All, turns: 30, kills: 1, outage, ..QUIET };
    let (_, summary) = play(round, &postgres, "shield=off").await;
    assert_eq!(summary.crashes + summary.restarts, 1);
    assert!(summary.errors() > 0, "somebody noticed: {summary}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_database_meanwhile_loses_nothing_it_answered() {
    nothing_answered_is_lost(Outage::Crash).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_database_meanwhile_loses_nothing_it_answered() {
    nothing_answered_is_lost(Outage::Restart).await;
}

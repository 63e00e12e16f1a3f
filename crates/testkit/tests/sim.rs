//! Some seeds of the simulation; `testkit sim` runs as many as there is time for.

use std::path::Path;
use std::process::Command;

use testkit::sim;

#[test]
fn two_hundred_histories_are_right() {
    let mut tally = sim::Tally::default();
    for seed in 1..=200 {
        match sim::run(seed) {
            Ok(one) => tally.add(&one),
            Err(failure) => panic!("{failure}"),
        }
    }
    // Otherwise it would prove nothing.
    assert!(tally.allowed > 2_000 && tally.refused > 2_000, "{tally}");
    assert!(tally.by_memory > 200 && tally.refunded > 100 && tally.replayed > 20, "{tally}");
    assert!(tally.lost > 20 && tally.failed > 200 && tally.changes > 200, "{tally}");
}

#[test]
fn a_seed_is_the_same_history_each_time() {
    for seed in 1..=10 {
        assert_eq!(sim::digest(seed), sim::digest(seed), "seed {seed}");
        assert_ne!(sim::digest(seed), sim::digest(seed + 1), "seed {seed}");
    }
}

/// `mistakes/prove` makes them and sees them found, which takes minutes.
#[test]
fn the_mistakes_still_fit_the_code() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.join("../..");
    for name in ["clock-before-lock", "gcra-clamp", "refusal-spends"] {
        let patch = here.join("mistakes").join(name).with_extension("patch");
        let mut fits = Command::new("git");
        fits.args(["apply", "--check"]).arg(&patch).current_dir(&root);
        assert!(fits.status().expect("git is there").success(), "{name} has to be made anew");
    }
}

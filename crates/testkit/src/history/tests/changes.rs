//! Limits changed meanwhile.

use super::{SECOND, terms};
use crate::history::{Answer, History, Outcome, Rule, Seen, Version, Versions, Wrong};

const ALLOWED: Outcome = Outcome::Allowed { given_back: None };
const DECIDED: Outcome = Outcome::Refused { from_memory: false };
const REPEATED: Outcome = Outcome::Refused { from_memory: true };

/// Version 1 allows 2, version 2 allows 5, version 3 allows 1; changes at 100 to 110 and at 200
/// to 210.
fn changing(rule: Rule) -> History {
    let version = |number, created_at, replaced_by, max| Version {
        number,
        created_at,
        replaced_by,
        terms: vec![terms(max)],
    };
    let versions = Versions::new(vec![
        version(2, 100, Some(210), 5),
        version(1, i64::MIN, Some(110), 2),
        version(3, 200, None, 1),
    ]);
    History::new("p", vec![rule], versions)
}

fn add(history: &mut History, at: i64, version: Option<u64>, (max, used): (u64, u64)) {
    add_asked(history, (at, at), version, ALLOWED, (max, used));
}

fn add_asked(
    history: &mut History,
    (asked_at, decided_at): (i64, i64),
    version: Option<u64>,
    outcome: Outcome,
    (max, used): (u64, u64),
) {
    let refuses = matches!(outcome, Outcome::Refused { .. });
    let limits = [Seen { key: 7, max, used, refuses }];
    history.add(&Answer {
        outcome,
        asked_at,
        decided_at,
        told_at: decided_at,
        cost: 1,
        version,
        limits: &limits,
    });
}

fn wrongs(history: History) -> Vec<(i64, Wrong)> {
    let (_, faults) = history.judge();
    faults.into_iter().map(|fault| (fault.decided_at, fault.wrong)).collect()
}

const RULES: [Rule; 3] = [
    Rule::Fixed { per: SECOND },
    Rule::Sliding { per: SECOND, resolution: 1 },
    Rule::Bucket { per: 3600 * SECOND },
];

#[test]
fn a_raised_max_counts_from_its_own_version_on() {
    for rule in RULES {
        let mut history = changing(rule);
        add(&mut history, 10, Some(1), (2, 1));
        add(&mut history, 20, Some(1), (2, 2));
        if !matches!(rule, Rule::Bucket { .. }) {
            add(&mut history, 120, Some(2), (5, 3));
        }
        assert_eq!(wrongs(history), [], "{rule:?}");
    }
}

#[test]
fn one_too_many_before_the_raise_is_not_excused_by_it() {
    for rule in RULES {
        let mut history = changing(rule);
        for (at, used) in [(10, 1), (20, 2), (30, 3)] {
            add(&mut history, at, Some(1), (2, used));
        }
        assert_eq!(wrongs(history), [(30, Wrong::OneTooMany { held: 3, max: 2 })], "{rule:?}");
    }
}

#[test]
fn a_lowered_max_refuses_all_while_more_than_that_is_held() {
    for rule in &RULES[..2] {
        let mut history = changing(*rule);
        for (at, used) in [(120, 1), (130, 2)] {
            add(&mut history, at, Some(2), (5, used));
        }
        add_asked(&mut history, (230, 230), Some(3), DECIDED, (1, 2));
        assert_eq!(wrongs(history.clone()), []);
        add(&mut history, 240, Some(3), (1, 3));
        assert_eq!(wrongs(history), [(240, Wrong::OneTooMany { held: 3, max: 1 })]);
    }
}

#[test]
fn a_bucket_is_measured_by_the_version_of_each_spend() {
    // At 5 an hour the first is owed 12 minutes; at 1 an hour that is a fifth of a unit, and
    // a whole one does not fit until it has passed.
    let mut history = changing(Rule::Bucket { per: 3600 * SECOND });
    add(&mut history, 120, Some(2), (5, 1));
    add_asked(&mut history, (230, 230), Some(3), DECIDED, (1, 1));
    add(&mut history, 120 + 720 * SECOND, Some(3), (1, 1));
    assert_eq!(wrongs(history.clone()), []);
    add(&mut history, 119 + 4320 * SECOND, Some(3), (1, 2));
    let at = 119 + 4320 * SECOND;
    assert_eq!(wrongs(history), [(at, Wrong::OneTooMany { held: 2, max: 1 })]);
}

#[test]
fn who_asks_after_a_change_is_known_must_be_answered_by_it() {
    let mut history = changing(RULES[0]);
    add_asked(&mut history, (110, 150), Some(1), ALLOWED, (2, 1));
    assert_eq!(wrongs(history.clone()), [], "asked before: it may have been on its way");
    add(&mut history, 111, Some(1), (2, 2));
    assert_eq!(wrongs(history), [(111, Wrong::WrongVersion { version: Some(1) })]);
}

#[test]
fn nobody_is_answered_by_a_version_before_it_is_made() {
    let mut history = changing(RULES[0]);
    add(&mut history, 99, Some(2), (5, 1));
    assert_eq!(wrongs(history), [(99, Wrong::WrongVersion { version: Some(2) })]);
}

#[test]
fn only_a_refusal_from_memory_may_be_by_the_version_of_a_second_ago() {
    let mut full = changing(RULES[1]);
    add(&mut full, 10, Some(1), (2, 1));
    add(&mut full, 20, Some(1), (2, 2));
    let refused_at = |at: i64, outcome: Outcome| {
        let mut history = full.clone();
        add_asked(&mut history, (at, at), Some(1), outcome, (2, 2));
        wrongs(history)
    };
    let (soon, late) = (110 + SECOND / 2, 110 + SECOND + SECOND / 10);
    assert_eq!(refused_at(soon, REPEATED), []);
    assert_eq!(refused_at(soon, DECIDED), [(soon, Wrong::WrongVersion { version: Some(1) })]);
    assert_eq!(refused_at(late, REPEATED), [(late, Wrong::WrongVersion { version: Some(1) })]);
}

#[test]
fn an_answer_that_tells_no_version_is_known_by_its_max() {
    let mut history = changing(RULES[0]);
    add(&mut history, 105, None, (2, 1));
    add(&mut history, 106, None, (5, 2));
    assert_eq!(wrongs(history.clone()), [], "both may be in force");
    add(&mut history, 150, None, (2, 3));
    assert_eq!(wrongs(history), [(150, Wrong::WrongVersion { version: None })]);
}

#[test]
fn a_max_that_is_not_its_versions_is_found() {
    let mut history = changing(RULES[0]);
    add(&mut history, 105, Some(2), (4, 1));
    assert_eq!(wrongs(history), [(105, Wrong::WrongMax { version: 2, says: 4 })]);
}

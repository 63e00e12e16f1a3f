//! What nobody knows excuses only what it can have caused.

use super::*;

/// Every rule, each with room for five.
const RULES: [fn(u64) -> Made; 3] = [fixed, sliding, |max| bucket(max, max)];

fn refused_for_nothing(held: u64, cost: u64, max: u64) -> Wrong {
    Wrong::RefusedForNothing { held, cost, max }
}

#[test]
fn a_refusal_long_after_what_is_in_doubt_is_not_excused_by_it() {
    for rule in RULES {
        rule(5).doubt(5, 10..=20).refuse(30, 1, 5).accept();
        let late = 20 + 2 * SECOND;
        let wrongs = rule(5).doubt(5, 10..=20).refuse(late, 1, 0).wrongs();
        assert_eq!(wrongs, [(late, refused_for_nothing(0, 1, 5))]);
        let invented = rule(5).doubt(5, 10..=20).look(late, 1).wrongs();
        assert_eq!(invented, [(late, Wrong::Invented { held: 0, used: 1 })]);
    }
}

#[test]
fn a_refusal_before_what_is_in_doubt_is_not_excused_by_it() {
    for rule in RULES {
        let wrongs = rule(5).doubt(5, 10..=20).refuse(9, 1, 0).wrongs();
        assert_eq!(wrongs, [(9, refused_for_nothing(0, 1, 5))]);
    }
}

#[test]
fn a_doubt_counts_until_it_has_left_if_it_was_counted_last() {
    let until = SECOND + 20;
    let held = |made: fn(u64) -> Made, at: i64| {
        made(5).doubt(5, 10..=until).refuse(at, 1, 0).wrongs().is_empty()
    };
    assert_eq!([2 * SECOND - 1, 2 * SECOND].map(|at| held(fixed, at)), [true, false]);
    let leaves = until + SECOND;
    assert_eq!([leaves - 1, leaves].map(|at| held(sliding, at)), [true, false]);
    // One of five is back after a fifth of a second.
    let ten = |max| bucket(max, max);
    assert_eq!([199_999, 200_000].map(|after| held(ten, until + after)), [true, false]);
}

#[test]
fn many_doubts_come_and_leave_one_by_one() {
    for rule in RULES {
        let made = rule(5).doubt(2, 10..=20).doubt(3, 10 * SECOND..=10 * SECOND);
        let wrongs = made.look(15, 2).look(5 * SECOND, 0).look(10 * SECOND, 4).wrongs();
        assert_eq!(wrongs, [(10 * SECOND, Wrong::Invented { held: 3, used: 4 })]);
    }
}

#[test]
fn what_is_known_to_be_given_back_no_longer_fills_a_window() {
    for rule in [fixed, sliding] {
        let given = GivenBack { from: 20, by: Some(30) };
        let made = || rule(2).allow_and_know_given_back(10, 2, 2, given);
        // On its way: either is right.
        made().refuse(25, 1, 2).look(25, 0).accept();
        let wrongs = made().refuse(31, 1, 2).wrongs();
        let invented = Wrong::Invented { held: 0, used: 2 };
        assert_eq!(wrongs, [(31, invented), (31, refused_for_nothing(0, 1, 2))]);
        // An instance's memory may be a second old.
        made().refuse_from_memory(31 + SECOND, 1, 2).accept();
        let late = 31 + SECOND + 20_000;
        let wrongs = made().refuse_from_memory(late, 1, 0).wrongs();
        assert_eq!(wrongs, [(late, refused_for_nothing(0, 1, 2))]);
    }
    // A bucket may give back less than was spent.
    let given = GivenBack { from: 20, by: Some(30) };
    bucket(2, 2).allow_and_know_given_back(10, 2, 2, given).refuse(31, 1, 2).accept();
}

//! The checker itself, on histories made by hand: those it must accept, and those it must not.

mod changes;
mod honest;
mod unsure;

use super::*;

const SECOND: i64 = 1_000_000;

/// A history of one limit and one key, whose `used` is what an honest store would say.
struct Made {
    history: History,
}

fn terms(max: u64) -> Terms {
    Terms { max, holds: max }
}

fn fixed(max: u64) -> Made {
    made(Rule::Fixed { per: SECOND }, terms(max))
}

fn sliding(max: u64) -> Made {
    made(Rule::Sliding { per: SECOND, resolution: 1 }, terms(max))
}

fn bucket(max: u64, burst: u64) -> Made {
    made(Rule::Bucket { per: SECOND }, Terms { max, holds: burst })
}

fn made(rule: Rule, terms: Terms) -> Made {
    Made { history: History::new("p", vec![rule], Versions::only(vec![terms])) }
}

impl Made {
    fn answer(self, outcome: Outcome, at: i64, cost: u32, max: u64, used: u64) -> Self {
        self.answer_late(outcome, (at, at), cost, max, used)
    }

    fn answer_late(
        mut self,
        outcome: Outcome,
        (at, told_at): (i64, i64),
        cost: u32,
        max: u64,
        used: u64,
    ) -> Self {
        let refuses = matches!(outcome, Outcome::Refused { .. });
        self.history.add(&Answer {
            outcome,
            asked_at: at,
            decided_at: at,
            told_at,
            cost,
            version: Some(1),
            limits: &[Seen { key: 7, max, used, refuses }],
        });
        self
    }

    fn max(&self) -> u64 {
        let answer = Answer {
            outcome: Outcome::Looked,
            asked_at: 0,
            decided_at: 0,
            told_at: 0,
            cost: 1,
            version: Some(1),
            limits: &[],
        };
        self.history.versions.of(&answer).unwrap().terms[0].holds
    }

    fn allow(self, at: i64, cost: u32, used: u64) -> Self {
        let max = self.max();
        self.answer(Outcome::Allowed { given_back: None }, at, cost, max, used)
    }

    /// What its caller hears of only at `told_at`.
    fn allow_late(self, at: i64, told_at: i64, cost: u32, used: u64) -> Self {
        let max = self.max();
        let outcome = Outcome::Allowed { given_back: None };
        self.answer_late(outcome, (at, told_at), cost, max, used)
    }

    fn allow_and_give_back(self, at: i64, cost: u32, used: u64, from: i64) -> Self {
        self.allow_and_know_given_back(at, cost, used, GivenBack { from, by: None })
    }

    fn allow_and_know_given_back(self, at: i64, cost: u32, used: u64, given: GivenBack) -> Self {
        let max = self.max();
        self.answer(Outcome::Allowed { given_back: Some(given) }, at, cost, max, used)
    }

    fn refuse(self, at: i64, cost: u32, used: u64) -> Self {
        let max = self.max();
        self.answer(Outcome::Refused { from_memory: false }, at, cost, max, used)
    }

    fn refuse_from_memory(self, at: i64, cost: u32, used: u64) -> Self {
        let max = self.max();
        self.answer(Outcome::Refused { from_memory: true }, at, cost, max, used)
    }

    fn look(self, at: i64, used: u64) -> Self {
        let max = self.max();
        self.answer(Outcome::Looked, at, 1, max, used)
    }

    fn doubt(mut self, cost: u32, when: RangeInclusive<i64>) -> Self {
        self.history.doubt(cost, &[7], &when);
        self
    }

    fn wrongs(self) -> Vec<(i64, Wrong)> {
        let (_, faults) = self.history.judge();
        faults.into_iter().map(|fault| (fault.decided_at, fault.wrong)).collect()
    }

    fn accept(self) {
        assert_eq!(self.wrongs(), []);
    }

    fn expect_one_too_many(self, at: i64, held: u64, max: u64) {
        assert_eq!(self.wrongs(), [(at, Wrong::OneTooMany { held, max })]);
    }
}

#[test]
fn a_full_fixed_window_is_right_and_the_next_begins_empty() {
    fixed(3).allow(0, 2, 2).allow(999_999, 1, 3).refuse(999_999, 1, 3).allow(SECOND, 3, 3).accept();
}

#[test]
fn one_too_many_in_a_fixed_window_is_found_whatever_the_order_of_the_log() {
    fixed(3).allow(999_999, 1, 4).allow(0, 2, 2).allow(10, 1, 3).expect_one_too_many(999_999, 4, 3);
}

#[test]
fn a_fixed_window_begins_at_its_multiple_of_the_epoch_also_before_it() {
    fixed(1).allow(-1, 1, 1).allow(0, 1, 1).accept();
    fixed(1).allow(-SECOND, 1, 1).allow(-1, 1, 2).expect_one_too_many(-1, 2, 1);
}

#[test]
fn one_too_many_in_a_sliding_interval_across_a_boundary_is_found() {
    let three = |rule: Made| rule.allow(900_000, 1, 1).allow(950_000, 1, 2).allow(999_999, 1, 3);
    three(fixed(3)).allow(1_000_001, 1, 1).accept();
    three(sliding(3)).allow(1_000_001, 1, 4).expect_one_too_many(1_000_001, 4, 3);
    three(sliding(3)).allow(1_950_000, 3, 4).expect_one_too_many(1_950_000, 4, 3);
}

#[test]
fn a_sliding_interval_is_half_open_to_the_microsecond() {
    sliding(2).allow(5, 2, 2).allow(5 + SECOND, 2, 2).accept();
    sliding(2).allow(5, 2, 2).allow(4 + SECOND, 2, 4).expect_one_too_many(4 + SECOND, 4, 2);
}

#[test]
fn a_coarse_sliding_window_may_refuse_until_its_piece_has_left_and_no_longer() {
    let coarse = || made(Rule::Sliding { per: SECOND, resolution: 1000 }, terms(1));
    coarse().allow(0, 1, 1).refuse(SECOND + 998, 1, 1).accept();
    let late = coarse().allow(0, 1, 1).refuse(SECOND + 999, 1, 1).wrongs();
    let at = SECOND + 999;
    assert_eq!(
        late,
        [
            (at, Wrong::Invented { held: 0, used: 1 }),
            (at, Wrong::RefusedForNothing { held: 0, cost: 1, max: 1 })
        ]
    );
}

#[test]
fn a_bucket_passes_its_burst_and_then_its_rate() {
    // Ten a second: one every 100 ms.
    bucket(10, 3)
        .allow(0, 3, 3)
        .refuse(99_999, 1, 3)
        .allow(100_000, 1, 3)
        .allow(300_000, 2, 3)
        .accept();
}

#[test]
fn a_bucket_a_microsecond_too_early_expect_one_too_many() {
    bucket(10, 3).allow(0, 3, 3).allow(99_999, 1, 4).expect_one_too_many(99_999, 4, 3);
}

#[test]
fn a_bucket_is_bound_over_any_interval_not_only_from_the_first_spend() {
    // From 10 s on: four in 50 ms, with a burst of three at ten a second. Idle time saves nothing up.
    let spends = bucket(10, 3).allow(0, 1, 1).allow(10 * SECOND, 3, 3);
    spends.allow(10 * SECOND + 50_000, 1, 4).expect_one_too_many(10 * SECOND + 50_000, 4, 3);
}

#[test]
fn an_uneven_rate_is_exact() {
    // Three a second: a unit takes 333,333⅓ µs to come back.
    bucket(3, 1).allow(0, 1, 1).allow(333_334, 1, 1).accept();
    bucket(3, 1).allow(0, 1, 1).allow(333_333, 1, 2).expect_one_too_many(333_333, 2, 1);
}

#[test]
fn what_is_given_back_makes_room_from_then_on_and_not_before() {
    for rule in [fixed(2), sliding(2), bucket(2, 2)] {
        rule.allow_and_give_back(10, 2, 2, 20).allow(20, 1, 1).accept();
    }
    for rule in [fixed(2), sliding(2)] {
        rule.allow_and_give_back(10, 2, 2, 21).allow(20, 1, 3).expect_one_too_many(20, 3, 2);
    }
    let spends = bucket(2, 2).allow_and_give_back(10, 2, 2, 21).allow(20, 1, 3);
    spends.expect_one_too_many(20, 3, 2);
}

#[test]
fn what_is_given_back_once_makes_room_once() {
    for rule in [fixed(3), sliding(3), bucket(3, 3)] {
        let spends = rule.allow_and_give_back(10, 1, 1, 20).allow(11, 2, 3).allow(30, 1, 3);
        spends.allow(31, 1, 4).expect_one_too_many(31, 4, 3);
    }
}

#[test]
fn what_left_its_window_is_not_taken_back_from_the_next() {
    for rule in [fixed(2), sliding(2)] {
        let spends = rule.allow_and_give_back(0, 1, 1, 2 * SECOND).allow(2 * SECOND - 2, 2, 2);
        spends.allow(2 * SECOND - 1, 1, 3).expect_one_too_many(2 * SECOND - 1, 3, 2);
    }
}

#[test]
fn a_lost_update_is_found_long_before_it_expect_one_too_many() {
    for rule in [fixed(100), sliding(100), bucket(100, 100)] {
        let wrongs = rule.allow(0, 5, 5).allow(1, 1, 1).wrongs();
        assert_eq!(wrongs, [(1, Wrong::Forgotten { held: 6, used: 1 })]);
    }
}

#[test]
fn whoever_looks_or_is_refused_must_know_of_all_that_was_answered_before() {
    for rule in [fixed, sliding, |max| bucket(max, max)] {
        rule(5).allow(0, 5, 5).look(1, 5).refuse(1, 1, 5).accept();
        let forgotten = [(1, Wrong::Forgotten { held: 5, used: 4 })];
        assert_eq!(rule(5).allow(0, 5, 5).look(1, 4).wrongs(), forgotten);
        assert_eq!(rule(5).allow(0, 5, 5).refuse(1, 2, 4).wrongs(), forgotten);
        rule(5).allow(0, 3, 3).allow(1, 2, 5).refuse_from_memory(2, 3, 3).accept();
    }
}

#[test]
fn a_count_nobody_asked_for_is_found_and_doubt_explains_it() {
    for rule in [fixed, sliding, |max| bucket(max, max)] {
        let wrongs = rule(100).allow(0, 1, 1).allow(1, 1, 5).wrongs();
        assert_eq!(wrongs, [(1, Wrong::Invented { held: 2, used: 5 })]);
        rule(100).allow(0, 1, 1).doubt(3, 0..=1).allow(1, 1, 5).accept();
    }
}

#[test]
fn a_refusal_with_room_left_is_found_and_doubt_explains_it() {
    for rule in [fixed, sliding, |max| bucket(max, max)] {
        let wrongs = rule(5).allow(0, 3, 3).refuse(1, 2, 3).wrongs();
        assert_eq!(wrongs, [(1, Wrong::RefusedForNothing { held: 3, cost: 2, max: 5 })]);
        rule(5).allow(0, 3, 3).refuse(1, 3, 3).accept();
        rule(5).allow(0, 3, 3).doubt(1, 0..=1).refuse(1, 2, 4).accept();
    }
}

#[test]
fn doubt_never_excuses_one_too_many() {
    fixed(5).allow(0, 3, 3).doubt(9, 0..=1).allow(1, 3, 6).expect_one_too_many(1, 6, 5);
}

#[test]
fn all_of_one_instant_may_be_logged_in_any_order() {
    for rule in [fixed(4), sliding(4), bucket(4, 4)] {
        rule.refuse(9, 1, 4).allow(9, 1, 4).allow(9, 2, 2).allow(9, 1, 3).accept();
    }
}

#[test]
fn whoever_only_looks_need_not_know_of_what_nobody_was_told_yet() {
    for made in [|| fixed(9), || sliding(9), || bucket(9, 9)] {
        let told_at_40 = || made().allow(10, 2, 2).allow_late(20, 40, 3, 5);
        told_at_40().look(30, 2).look(30, 5).refuse(39, 8, 2).look(40, 5).accept();
        let forgotten = |held, used| Wrong::Forgotten { held, used };
        assert_eq!(told_at_40().look(30, 1).wrongs(), [(30, forgotten(2, 1))], "told long ago");
        assert_eq!(told_at_40().look(40, 4).wrongs(), [(40, forgotten(5, 4))], "told by now");
        assert_eq!(told_at_40().allow(30, 1, 5).wrongs(), [(30, forgotten(6, 5))], "it spends");
    }
}

#[test]
fn a_limit_that_did_not_refuse_need_not_be_full() {
    let both = vec![Rule::Fixed { per: SECOND }, Rule::Fixed { per: SECOND }];
    let mut history = History::new("p", both, Versions::only(vec![terms(1), terms(9)]));
    for (outcome, used, refuses) in [
        (Outcome::Allowed { given_back: None }, 1, false),
        (Outcome::Refused { from_memory: false }, 1, true),
    ] {
        history.add(&Answer {
            outcome,
            asked_at: 5,
            decided_at: 5,
            told_at: 5,
            cost: 1,
            version: Some(1),
            limits: &[
                Seen { key: 0, max: 1, used, refuses },
                Seen { key: 3, max: 9, used, refuses: false },
            ],
        });
    }
    let (tallies, faults) = history.judge();
    assert_eq!(faults, []);
    assert_eq!(tallies[&(0, 0)], Tally { units: 1, refusals: 1 });
    assert_eq!(tallies[&(1, 3)], Tally { units: 1, refusals: 0 });
}

//! What each task of each instance asks, turn by turn: known from the seed alone.
//!
//! So a restarted instance goes on where the killed one was, and whoever reads the log knows what
//! was on its way when it died.

use super::scene::{By, Case, PLACES, Scene, USERS};
use crate::dice::Dice;

/// The largest cost.
const MAX_COST: u64 = 4;
/// Average cost in percent, for planning.
pub(crate) const AVERAGE_COST_PERCENT: u64 = 160;

/// One instance's part in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) scene: Scene,
    pub(crate) seed: u64,
    pub(crate) round: u64,
    pub(crate) instance: u64,
    pub(crate) tasks: u16,
    pub(crate) turns: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// Which of the scene's cases.
    pub(crate) case: usize,
    pub(crate) user: usize,
    pub(crate) place: usize,
    pub(crate) cost: u32,
    /// Under an idempotency key, which all instances share.
    pub(crate) once: bool,
    pub(crate) refund: Refund,
}

/// Whether what passes is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refund {
    No,
    Once,
    Twice,
}

impl Part {
    pub(crate) fn request(&self, task: u16, turn: u32) -> Request {
        // What all instances share depends on nothing of their own.
        let shared = [self.seed, self.round, u64::from(task), u64::from(turn)];
        let mut dice = Dice::of(&shared);
        let once = dice.one_in(25);
        if !once {
            dice = Dice::of(&[dice.number(), self.instance]);
        }
        let cases = self.scene.cases();
        let case = usize::try_from(dice.below(cases.len() as u64)).expect("a small number");
        // Mostly one unit.
        let cost = if dice.one_in(3) { 1 + dice.below(MAX_COST) } else { 1 };
        let refund = match dice.below(10) {
            _ if once || !cases[case].refunds => Refund::No,
            0..=2 => Refund::Once,
            3 => Refund::Twice,
            _ => Refund::No,
        };
        Request {
            case,
            user: dice.below(USERS.len() as u64) as usize,
            place: dice.below(PLACES.len() as u64) as usize,
            cost: cost as u32,
            once,
            refund,
        }
    }

    /// The idempotency key of a turn.
    pub(crate) fn once_key(&self, task: u16, turn: u32) -> String {
        format!("{:x}-{}-{task}-{turn}", self.seed, self.round)
    }
}

impl Request {
    pub(crate) fn subject(&self) -> [(&'static str, &'static str); 2] {
        [("user", USERS[self.user]), ("place", PLACES[self.place])]
    }

    /// The number of the key each limit of the case counts this under.
    pub(crate) fn keys(&self, case: &Case) -> Vec<u32> {
        let number = |by: By| match by {
            By::Nothing => 0,
            By::User => self.user as u32,
            By::Place => self.place as u32,
        };
        case.limits.iter().map(|shape| number(shape.by)).collect()
    }
}

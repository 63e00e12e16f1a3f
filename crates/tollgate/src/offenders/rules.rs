//! Alert rules: so many refusals within so long, and who has come to that.
//!
//! Refusals are counted in tenths of the rule's time, never one too many: an alert is never raised
//! early, and one whose refusals straddle the edge of a tenth may come up to a tenth late. Raised
//! once per episode; an episode lasts until its rule's time has passed without the rule being met.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tollgate_core::{Instant, Span};

use crate::offenders::history::{History, Refusals, Series};
/// Slices of a rule's time.
const GRAINS: i64 = 10;
/// Subjects remembered in each slice, of each limit.
pub(crate) const SUBJECTS_PER_SLICE: usize = 4096;
/// Episodes under way at once, of one rule.
const MAX_EPISODES: usize = 10_000;
/// Alerts kept for listing.
pub(crate) const MAX_ALERTS: usize = 1_000;

/// When to raise an alert: `refusals` or more, within `within`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlertRule {
    /// Names it in alerts. Instances that share a store share episodes by this name.
    pub name: String,
    pub refusals: u64,
    pub within: Span,
    pub per: AlertScope,
    /// The policies it is about; all of them if empty.
    pub policies: Vec<String>,
}

/// Whose refusals are counted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AlertScope {
    /// Those of one subject in one limit.
    Subject,
    /// Refused checks of one policy.
    Policy,
}

/// A rule was met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alert {
    /// Grows with every alert.
    pub id: u64,
    pub rule: String,
    pub policy: String,
    /// `None` if the rule is about policies.
    pub limit: Option<String>,
    /// A JSON object, as in a list of offenders; `None` if the rule is about policies.
    pub subject: Option<String>,
    /// Refusals within the rule's time when it was raised.
    pub refused: u64,
    pub within: Span,
    pub first_seen: Instant,
    pub raised_at: Instant,
}

impl AlertRule {
    /// The length of the slices it is counted in.
    pub(crate) fn grain(&self) -> Span {
        Span::from_micros(self.within.as_micros() / GRAINS).unwrap_or(self.within)
    }

    /// What of all that was refused this rule is about.
    pub(crate) fn select(&self, refusals: &Refusals) -> Refusals {
        let is_meant = |series: &Series| {
            series.limit.is_empty() == (self.per == AlertScope::Policy)
                && (self.policies.is_empty() || self.policies.iter().any(|p| **p == *series.policy))
        };
        let meant = refusals.iter().filter(|(series, _)| is_meant(series));
        meant.map(|(series, sketch)| (series.clone(), sketch.clone())).collect()
    }
}

/// A rule in a store that no other instance shares.
#[derive(Debug)]
pub(crate) struct RuleState {
    rule: AlertRule,
    history: History,
    /// Until when each lasts, unless the rule is met again.
    episodes: HashMap<(Series, Arc<str>), Instant>,
}

impl RuleState {
    pub(crate) fn new(rule: AlertRule) -> Self {
        let history = History::new(rule.grain(), rule.within, SUBJECTS_PER_SLICE);
        Self { rule, history, episodes: HashMap::new() }
    }

    /// Counts what was refused of late; the alerts that makes, without their ids.
    pub(crate) fn add(&mut self, refusals: &Refusals, now: Instant) -> Vec<Alert> {
        let refusals = self.rule.select(refusals);
        self.history.add(&refusals, now);
        let mut alerts = Vec::new();
        for (series, sketch) in &refusals {
            for (subject, _) in sketch.iter() {
                alerts.extend(self.judge(series, subject, now));
            }
        }
        alerts.sort_by_key(|alert| alert.first_seen);
        alerts
    }

    /// An alert if the rule is met and was not yet in this episode.
    fn judge(&mut self, series: &Series, subject: &Arc<str>, now: Instant) -> Option<Alert> {
        let AlertRule { refusals, within, .. } = self.rule;
        let tally = self.history.within(series, subject, now.minus(within), now)?;
        if tally.refused < refusals {
            return None;
        }
        self.make_room(now);
        let episode = (series.clone(), subject.clone());
        let before = self.episodes.insert(episode, now.plus(within));
        if before.is_some_and(|lasts_until| lasts_until >= now) {
            return None;
        }
        let is_of_subject = self.rule.per == AlertScope::Subject;
        Some(Alert {
            id: 0,
            rule: self.rule.name.clone(),
            policy: series.policy.to_string(),
            limit: is_of_subject.then(|| series.limit.to_string()),
            subject: is_of_subject.then(|| subject.to_string()),
            refused: tally.refused,
            within,
            first_seen: tally.first_seen,
            raised_at: now,
        })
    }

    /// Episodes that are over go first, then those that would end soonest.
    fn make_room(&mut self, now: Instant) {
        if self.episodes.len() < MAX_EPISODES {
            return;
        }
        self.episodes.retain(|_, lasts_until| *lasts_until >= now);
        if self.episodes.len() < MAX_EPISODES {
            return;
        }
        let mut ends: Vec<Instant> = self.episodes.values().copied().collect();
        let (_, middle, _) = ends.select_nth_unstable(MAX_EPISODES / 2);
        let middle = *middle;
        let mut excess = MAX_EPISODES / 2;
        self.episodes.retain(|_, lasts_until| {
            let goes = *lasts_until <= middle && excess > 0;
            excess -= usize::from(goes);
            !goes
        });
    }
}

/// The newest alerts of this process.
#[derive(Debug, Default)]
pub(crate) struct Alerts {
    newest_first: VecDeque<Alert>,
    last_id: u64,
}

impl Alerts {
    /// Ids go on from a time: they are kept in memory only, and must not come again after a restart.
    pub(crate) fn after(now: Instant) -> Self {
        Self { last_id: u64::try_from(now.as_micros()).unwrap_or(0), ..Self::default() }
    }

    pub(crate) fn push(&mut self, mut alert: Alert) -> Alert {
        self.last_id += 1;
        alert.id = self.last_id;
        self.newest_first.push_front(alert.clone());
        self.newest_first.truncate(MAX_ALERTS);
        alert
    }

    /// The newest before this id.
    pub(crate) fn list(&self, before: Option<u64>, limit: usize) -> Vec<Alert> {
        let older = |alert: &&Alert| before.is_none_or(|before| alert.id < before);
        self.newest_first.iter().filter(older).take(limit).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offenders::sketch::{Sketch, Tally};

    const NEVER: [i64; 0] = [];

    fn rule(per: AlertScope) -> AlertRule {
        let within = Span::from_secs(600);
        AlertRule { name: "r".into(), refusals: 5, within, per, policies: Vec::new() }
    }

    fn refused(limit: &str, subject: &str, secs: i64) -> Refusals {
        let mut sketch = Sketch::new(8);
        sketch.add(subject.into(), Tally::one(Instant::from_secs(secs)));
        Refusals::from_iter([(Series { policy: "p".into(), limit: limit.into() }, sketch)])
    }

    fn raised(state: &mut RuleState, subject: &str, seconds: &[i64]) -> Vec<i64> {
        let mut raised = Vec::new();
        for secs in seconds {
            let alerts = state.add(&refused("l", subject, *secs), Instant::from_secs(*secs));
            raised.extend(alerts.iter().map(|_| *secs));
        }
        raised
    }

    #[test]
    fn the_fifth_refusal_in_ten_minutes_raises_one_alert() {
        let mut state = RuleState::new(rule(AlertScope::Subject));
        let raised = raised(&mut state, "ada", &[0, 100, 200, 300, 400, 401, 402, 999]);
        assert_eq!(raised, [400]);
    }

    #[test]
    fn five_refusals_in_more_than_ten_minutes_raise_none() {
        let mut state = RuleState::new(rule(AlertScope::Subject));
        assert_eq!(raised(&mut state, "ada", &[0, 160, 320, 480, 640, 800, 960]), NEVER);
    }

    #[test]
    fn an_episode_ends_when_the_rule_was_not_met_for_its_time() {
        let mut state = RuleState::new(rule(AlertScope::Subject));
        let burst = |from: i64| -> Vec<i64> { (from..from + 5).collect() };
        assert_eq!(raised(&mut state, "ada", &burst(0)), [4]);
        // Met again within ten minutes of the last time: the same episode, and so on.
        assert_eq!(raised(&mut state, "ada", &burst(500)), NEVER);
        assert_eq!(raised(&mut state, "ada", &burst(1000)), NEVER);
        // A refusal now and then does not meet the rule, so it does not keep the episode up.
        assert_eq!(raised(&mut state, "ada", &[1300, 1500]), NEVER);
        assert_eq!(raised(&mut state, "ada", &burst(2200)), [2204]);
        assert_eq!(raised(&mut state, "bob", &burst(2200)), [2204]);
    }

    #[test]
    fn a_rule_is_about_its_own_policies_and_scope() {
        let mut of_policy = RuleState::new(rule(AlertScope::Policy));
        let mut of_other =
            RuleState::new(AlertRule { policies: vec!["q".into()], ..rule(AlertScope::Subject) });
        let mut alerts = Vec::new();
        for secs in 0..9 {
            let at = Instant::from_secs(secs);
            assert_eq!(of_policy.add(&refused("l", "ada", secs), at), []);
            assert_eq!(of_other.add(&refused("l", "ada", secs), at), []);
            alerts.extend(of_policy.add(&refused("", "", secs), at));
        }
        assert_eq!(alerts.len(), 1);
        assert_eq!((&alerts[0].limit, &alerts[0].subject, alerts[0].refused), (&None, &None, 5));
    }

    #[test]
    fn episodes_and_alerts_are_bounded() {
        let mut state = RuleState::new(AlertRule { refusals: 1, ..rule(AlertScope::Subject) });
        let mut alerts = Alerts::default();
        for number in 0..MAX_EPISODES as i64 + 2_000 {
            let at = Instant::from_micros(number * 50_000);
            let mut sketch = Sketch::new(1);
            sketch.add(format!("s{number}").as_str().into(), Tally::one(at));
            let series = Series { policy: "p".into(), limit: "l".into() };
            for alert in state.add(&Refusals::from_iter([(series, sketch)]), at) {
                alerts.push(alert);
            }
        }
        assert!(state.episodes.len() <= MAX_EPISODES);
        let listed = alerts.list(None, usize::MAX);
        assert_eq!((listed.len(), listed[0].id), (MAX_ALERTS, 12_000));
        let older = alerts.list(Some(11_999), 2);
        assert_eq!(older.iter().map(|alert| alert.id).collect::<Vec<_>>(), [11_998, 11_997]);
    }
}

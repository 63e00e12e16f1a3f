//! Limits raised and lowered while everybody checks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate::{Clock, Policy, SystemClock, Tollgate};

use super::scene::{Scene, terms};
use crate::dice::Dice;
use crate::history::{Version, Versions};

/// Between two changes, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 20..800;
const AFTER_AN_ERROR: Duration = Duration::from_millis(20);
/// How much of a case's first maxima a change leaves it.
const PERCENTS: [u64; 6] = [25, 50, 75, 100, 150, 300];

/// The policies of one round, and when each of their versions was known to be in force.
#[derive(Debug)]
pub(crate) struct Changes {
    scene: Scene,
    round: u64,
    /// By case.
    maxima: Vec<Vec<u64>>,
    /// What is in force of them.
    percents: Vec<u64>,
    /// By case, then version.
    known_at: Vec<BTreeMap<u64, i64>>,
    dice: Dice,
}

impl Changes {
    /// Puts all the round's policies in force. `demand` is how many units each case will be asked for.
    pub(crate) async fn begin(
        gate: &Tollgate,
        scene: Scene,
        round: u64,
        demand: u64,
        mut dice: Dice,
    ) -> Result<Self, String> {
        let cases = scene.cases();
        let maxima = cases.iter().map(|case| case.maxima(demand, &mut dice)).collect();
        let (percents, known_at) = (vec![0; cases.len()], vec![BTreeMap::new(); cases.len()]);
        let mut changes = Self { scene, round, maxima, percents, known_at, dice };
        for case in 0..cases.len() {
            changes.put(gate, case, 100).await?;
        }
        Ok(changes)
    }

    /// The first maxima of a case.
    pub(crate) fn maxima(&self, case: usize) -> &[u64] {
        &self.maxima[case]
    }

    /// Changes the limits of the cases whose windows pass, until it is told to stop.
    pub(crate) async fn go_on(&mut self, gate: &Tollgate, stop: &AtomicBool) -> Result<(), String> {
        let cases = self.scene.cases();
        let passing = |case: &usize| cases[*case].passes();
        let passing: Vec<usize> = (0..cases.len()).filter(passing).collect();
        while !passing.is_empty() {
            let case = self.dice.pick(&passing);
            let others: Vec<u64> =
                PERCENTS.into_iter().filter(|percent| *percent != self.percents[case]).collect();
            let percent = self.dice.pick(&others);
            self.put(gate, case, percent).await?;
            let pause = PAUSE_MS.start + self.dice.below(PAUSE_MS.end - PAUSE_MS.start);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if stop.load(Ordering::SeqCst) {
                break;
            }
        }
        Ok(())
    }

    /// Applies until it is known to be in force: the store may be down just now.
    async fn put(&mut self, gate: &Tollgate, case: usize, percent: u64) -> Result<(), String> {
        let policy = self.scene.cases()[case].policy(self.round, &self.maxima[case], percent);
        loop {
            match gate.apply(&policy, "soak").await {
                Ok(applied) => {
                    let now = SystemClock.now().as_micros();
                    self.percents[case] = percent;
                    self.known_at[case].entry(applied.policy.version()).or_insert(now);
                    return Ok(());
                }
                Err(tollgate::Error::Store(_)) => tokio::time::sleep(AFTER_AN_ERROR).await,
                Err(error) => return Err(format!("a policy cannot be applied: {error}")),
            }
        }
    }

    /// The number of versions this round has made.
    pub(crate) fn count(&self) -> u64 {
        self.known_at.iter().map(|known| known.len() as u64).sum()
    }

    /// All versions of a case, as the database keeps them, with when each was replaced.
    pub(crate) async fn versions(
        &self,
        gate: &Tollgate,
        case: usize,
    ) -> Result<(Policy, Versions), String> {
        let said = |error: tollgate::Error| error.to_string();
        let name = self.scene.cases()[case].policy_name(self.round);
        let mut latest = None;
        let mut versions = Vec::new();
        for stored in gate.policy_versions(&name).await.map_err(said)? {
            let document = stored.document.ok_or("a policy of the round was deleted")?;
            let document = serde_json::from_str(&document).map_err(|error| error.to_string())?;
            let policy = Policy::from_json(&name, document).map_err(|error| error.to_string())?;
            let later = self.known_at[case].range(stored.version + 1..);
            versions.push(Version {
                number: stored.version,
                created_at: stored.created_at.as_micros(),
                replaced_by: later.map(|(_, known_at)| *known_at).min(),
                terms: terms(&policy),
            });
            latest = Some(policy);
        }
        let latest = latest.ok_or("a policy of the round has no versions")?;
        Ok((latest, Versions::new(versions)))
    }

    /// Takes the round's policies out of force.
    pub(crate) async fn end(&self, gate: &Tollgate) -> Result<(), String> {
        for case in self.scene.cases() {
            let deleted = gate.delete_policy(&case.policy_name(self.round), "soak").await;
            deleted.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

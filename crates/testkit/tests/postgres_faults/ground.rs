//! A database of one's own with an open store on it, and what the fault tests do with both.

use std::time::{Duration, Instant as Stopwatch};

use testkit::random;
use tollgate::{Answer, Error, Policy, Tollgate};

/// Longer than the default: the promise is that there is one, and a loaded machine must be able to
/// keep it where nothing is broken.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);
/// What a loaded machine may add to any wait. What these tests tell apart is far longer: a call that
/// hangs, or a hundred that wait their turn.
pub(crate) const SLACK: Duration = Duration::from_secs(2);

pub(crate) struct Ground {
    pub(crate) gate: Tollgate,
    pub(crate) url: String,
}

/// Opens a store in a schema of its own.
pub(crate) async fn open(url: &str) -> Ground {
    open_with(url, "prepare=on").await
}

pub(crate) async fn open_with(url: &str, option: &str) -> Ground {
    let schema = random::name("s").replace('-', "_");
    let url = format!("{url}?{option}&deadline={}s&schema={schema}", DEADLINE.as_secs());
    Ground { gate: Tollgate::open(&url).await.unwrap(), url }
}

impl Ground {
    pub(crate) fn schema(&self) -> &str {
        self.url.rsplit_once("schema=").unwrap().1
    }

    pub(crate) async fn apply(&self, name: &str, toml: &str) {
        self.gate.apply(&Policy::from_toml(name, toml).unwrap(), "test").await.unwrap();
    }

    pub(crate) async fn check(&self, policy: &str, user: &str) -> Result<Answer, Error> {
        self.gate.check(policy, &[("user", user)], 1).await
    }

    /// A check that must be answered by its deadline, whatever the answer is.
    pub(crate) async fn check_in_time(&self, policy: &str, user: &str) -> Result<Answer, Error> {
        let started = Stopwatch::now();
        let answer = self.check(policy, user).await;
        let took = started.elapsed();
        assert!(took < DEADLINE + SLACK, "{policy} of {user} took {took:?}: {answer:?}");
        answer
    }

    /// As the store says, once it does: another lane than the one that recovered may have to answer.
    pub(crate) async fn used(&self, policy: &str, user: &str) -> u64 {
        let started = Stopwatch::now();
        loop {
            match self.gate.peek(policy, &[("user", user)], 1).await {
                Ok(answer) => return answer.decision.limits[0].standing.used,
                Err(error) => {
                    assert!(started.elapsed() < Duration::from_secs(20), "{error}");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }

    /// How long it takes until the store itself answers again.
    pub(crate) async fn recovery(&self, policy: &str, user: &str) -> Duration {
        let started = Stopwatch::now();
        loop {
            if matches!(self.check(policy, user).await, Ok(answer) if answer.degraded.is_none()) {
                return started.elapsed();
            }
            assert!(started.elapsed() < Duration::from_secs(20), "the store never comes back");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Three policies that differ in what they say when the store is gone.
pub(crate) async fn apply_all(ground: &Ground) {
    for on_store_error in ["refuse", "allow", "local"] {
        let toml = format!(
            "on_store_error = \"{on_store_error}\"\n\
             limits = [{{ name = \"user\", max = 5, per = \"1h\", by = [\"user\"] }}]"
        );
        ground.apply(on_store_error, &toml).await;
    }
}

pub(crate) const ONE_LIMIT: &str =
    r#"limits = [{ name = "user", max = 100, per = "1h", by = ["user"] }]"#;

//! What the library promises of its blocking path: on a known key, nothing is allocated.

use std::sync::Arc;

use allocation_counter::measure;
use tollgate::{Clock, Instant, Limiter, Policy, Tollgate};

/// Time stands still, so that no sliding window opens a new bucket meanwhile.
#[derive(Debug)]
struct Frozen;

impl Clock for Frozen {
    fn now(&self) -> Instant {
        Instant::from_secs(1_800_000_000)
    }
}

async fn limiter(document: &str) -> Limiter {
    let gate = Tollgate::open_with_clock("memory:", Arc::new(Frozen)).await.expect("memory opens");
    gate.limiter(Policy::from_toml("p", document).expect("valid"))
}

fn allowed(limiter: &Limiter, subject: &[(&str, &str)]) -> bool {
    limiter.check_blocking(subject, 1).expect("memory answers").allowed()
}

fn allocations(limiter: &Limiter, subject: &[(&str, &str)]) -> u64 {
    assert!(allowed(limiter, subject), "now the key is known");
    let measured = measure(|| {
        for _ in 0..100 {
            assert!(allowed(limiter, subject));
        }
    });
    measured.count_total
}

#[tokio::test]
async fn a_check_of_one_limit_allocates_nothing_on_a_known_key() {
    for algorithm in ["fixed", "sliding", "bucket"] {
        let document = format!(
            r#"limits = [{{ name = "u", max = 1000, per = "60s", algorithm = "{algorithm}", by = ["user"] }}]"#
        );
        let limiter = limiter(&document).await;
        let long = "a rather long name of a user, longer than what stands in the table itself";
        for user in ["ada", long] {
            assert_eq!(allocations(&limiter, &[("user", user)]), 0, "{algorithm}, {user}");
        }
    }
}

#[tokio::test]
async fn a_check_of_four_limits_allocates_nothing_on_known_keys() {
    let limiter = limiter(
        r#"limits = [
            { name = "global", max = 1000, per = "60s", algorithm = "sliding" },
            { name = "ip", max = 1000, per = "60s", algorithm = "sliding", by = ["ip"] },
            { name = "email", max = 1000, per = "1h", algorithm = "bucket", by = ["email"], private = true },
            { name = "role", max = 1000, per = "day", timezone = "Europe/Rome", by = ["user"], max_by = { role = { pro = 2000 } } },
        ]"#,
    )
    .await;
    let subject =
        [("ip", "203.0.113.7"), ("email", "ada@example.com"), ("user", "ada"), ("role", "pro")];
    assert_eq!(allocations(&limiter, &subject), 0);
}

#[tokio::test]
async fn a_refusal_allocates_nothing() {
    let document = r#"limits = [{ name = "u", max = 1, per = "60s", by = ["user"] }]"#;
    let limiter = limiter(document).await;
    let subject = [("user", "ada")];
    assert!(allowed(&limiter, &subject));
    let measured = measure(|| assert!(!allowed(&limiter, &subject)));
    assert_eq!(measured.count_total, 0);
}

//! What counting keeps.

use tollgate::Policy;

use super::*;

#[tokio::test(flavor = "current_thread")]
async fn of_a_policy_that_is_gone_only_the_name_is_kept() {
    let gate = Tollgate::open("memory:").await.expect("memory opens");
    let metrics = Metrics::new(gate.clone());
    let policy = r#"limits = [{ name = "all", max = 9, per = "1d" }]"#;
    let policy = Policy::from_toml("brief", policy).expect("valid");
    gate.apply(&policy, "me").await.expect("applied");
    let answer = gate.check("brief", &[], 1).await.expect("it answers");
    metrics.decided(&answer, Duration::ZERO);
    metrics.slot_asked(&answer.policy, SlotOutcome::Given);
    let text = |gate: &Tollgate| metrics.text(Format::Plain, &gate.policies(), Vec::new());
    text(&gate);
    let kept = Arc::downgrade(&answer.policy);
    drop(answer);
    gate.delete_policy("brief", "me").await.expect("deleted");
    assert!(kept.upgrade().is_none(), "it is kept with all its overrides");
    let counted = r#"tollgate_decisions_total{policy="brief",outcome="allowed"} 1"#;
    assert!(text(&gate).contains(counted), "a counter never goes away");
}

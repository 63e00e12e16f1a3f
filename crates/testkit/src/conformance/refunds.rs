//! Giving back what one decision spent: that, once, and never more.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tollgate::{Clock, Error, Refunded, Span, Tollgate};

use crate::stage::{Stage, Trial};

async fn refund(stage: &Stage, receipt: &str) -> Refunded {
    stage.gate.refund(receipt).await.expect("the store answers")
}

async fn trial_of(stage: &Stage, algorithm: &str) -> Trial {
    stage
        .trial(&format!(
            r#"limits = [{{ name = "all", max = 3, per = "60s", algorithm = "{algorithm}" }}]"#
        ))
        .await
}

async fn gives_back_exactly_once(stage: &Stage, algorithm: &str) {
    let trial = trial_of(stage, algorithm).await;
    trial.pass(&[], 1).await;
    trial.pass(&[], 1).await;
    let last = trial.pass(&[], 1).await;
    trial.refused_until(&[], 1).await;
    assert_eq!(refund(stage, &last).await, Refunded::Done);
    assert_eq!(trial.used(&[]).await, [2]);
    for _ in 0..3 {
        assert_eq!(refund(stage, &last).await, Refunded::Already);
    }
    assert_eq!(trial.used(&[]).await, [2], "the second time gives nothing");
    trial.pass(&[], 1).await;
    trial.refused_until(&[], 1).await;
    // The new spend is not what the old receipt names.
    assert_eq!(refund(stage, &last).await, Refunded::Already);
    trial.refused_until(&[], 1).await;
}

pub async fn a_refund_of_a_fixed_window_gives_back_exactly_once(stage: Stage) {
    gives_back_exactly_once(&stage, "fixed").await;
}

pub async fn a_refund_of_a_sliding_window_gives_back_exactly_once(stage: Stage) {
    gives_back_exactly_once(&stage, "sliding").await;
}

pub async fn a_refund_of_a_bucket_gives_back_exactly_once(stage: Stage) {
    gives_back_exactly_once(&stage, "bucket").await;
}

pub async fn a_refund_of_several_limits_gives_back_in_all(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "all",  max = 9, per = "60s", algorithm = "sliding" },
                { name = "user", max = 4, per = "1h", by = ["user"] },
                { name = "rate", max = 9, per = "60s", by = ["user"], algorithm = "bucket" },
            ]"#,
        )
        .await;
    let (ada, bob) = ([("user", "ada")], [("user", "bob")]);
    trial.pass(&bob, 1).await;
    let receipt = trial.pass(&ada, 2).await;
    assert_eq!(trial.used(&ada).await, [3, 2, 2]);
    assert_eq!(refund(&stage, &receipt).await, Refunded::Done);
    assert_eq!(trial.used(&ada).await, [1, 0, 0]);
    assert_eq!(trial.used(&bob).await, [1, 1, 1], "nobody else is touched");
    assert_eq!(refund(&stage, &receipt).await, Refunded::Already);
}

pub async fn a_refund_gives_back_where_something_is_left(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "second", max = 9, per = "1s" },
                { name = "hour",   max = 9, per = "1h" },
            ]"#,
        )
        .await;
    let receipt = trial.pass(&[], 2).await;
    stage.clock.advance(Span::from_secs(5));
    trial.pass(&[], 1).await;
    assert_eq!(trial.used(&[]).await, [1, 3]);
    assert_eq!(refund(&stage, &receipt).await, Refunded::Done);
    assert_eq!(trial.used(&[]).await, [1, 1], "the second it was counted in is over");
}

pub async fn a_refund_gives_back_the_whole_cost(stage: Stage) {
    for algorithm in ["fixed", "sliding", "bucket"] {
        let trial = trial_of(&stage, algorithm).await;
        let receipt = trial.pass(&[], 3).await;
        trial.refused_until(&[], 1).await;
        assert_eq!(refund(&stage, &receipt).await, Refunded::Done, "{algorithm}");
        trial.pass(&[], 3).await;
    }
}

pub async fn a_refund_of_a_shadow_limit_gives_back_too(stage: Stage) {
    let trial =
        stage.trial(r#"limits = [{ name = "shadow", max = 1, per = "60s", shadow = true }]"#).await;
    trial.pass(&[], 1).await;
    let receipt = trial.pass(&[], 1).await;
    assert_eq!(refund(&stage, &receipt).await, Refunded::Done);
    assert_eq!(trial.used(&[]).await, [1]);
}

pub async fn a_refund_after_its_window_is_expired(stage: Stage) {
    for algorithm in ["fixed", "sliding", "bucket"] {
        let trial = trial_of(&stage, algorithm).await;
        let answer = trial.check(&[], 3).await;
        let receipt = answer.receipt.expect("it fits");
        stage.wait_until(answer.decision.limits[0].standing.resets_at);
        trial.pass(&[], 2).await;
        assert_eq!(refund(&stage, &receipt).await, Refunded::Expired, "{algorithm}");
        assert_eq!(trial.used(&[]).await, [2], "{algorithm}: nothing was given");
    }
    let trial = trial_of(&stage, "fixed").await;
    let answer = trial.check(&[], 3).await;
    stage.wait_until(answer.decision.limits[0].standing.resets_at.plus_micros(-1));
    let receipt = answer.receipt.expect("it fits");
    assert_eq!(refund(&stage, &receipt).await, Refunded::Done, "the last microsecond counts");
}

/// Two of one instant, one of them given back: once the book has forgotten that, an earlier clock must
/// not let its receipt take the other one's place.
pub async fn a_refund_that_was_swept_is_not_done_again(stage: Stage) {
    let trial = trial_of(&stage, "sliding").await;
    let first = trial.check(&[], 1).await;
    let over_at = first.decision.limits[0].standing.resets_at;
    let receipt = first.receipt.expect("it fits");
    trial.pass(&[], 1).await;
    assert_eq!(refund(&stage, &receipt).await, Refunded::Done);
    stage.clock.advance(Span::from_secs(30));
    // Keeps the key beyond the receipt.
    trial.pass(&[], 1).await;
    stage.wait_until(over_at);
    stage.gate.sweep().await.expect("the store sweeps");
    stage.clock.set(over_at.plus_micros(-1));
    assert_ne!(refund(&stage, &receipt).await, Refunded::Done);
}

pub async fn a_refund_survives_a_change_of_max(stage: Stage) {
    for algorithm in ["fixed", "sliding"] {
        let trial = trial_of(&stage, algorithm).await;
        let receipt = trial.pass(&[], 3).await;
        trial
            .apply(&format!(
                r#"limits = [{{ name = "all", max = 2, per = "60s", algorithm = "{algorithm}" }}]"#
            ))
            .await;
        assert_eq!(refund(&stage, &receipt).await, Refunded::Done);
        trial.pass(&[], 2).await;
        trial.refused_until(&[], 1).await;
    }
}

pub async fn a_forged_or_altered_receipt_is_an_error(stage: Stage) {
    let trial = trial_of(&stage, "fixed").await;
    let receipt = trial.pass(&[], 2).await;
    let forged = async |token: &str| {
        let answer = stage.gate.refund(token).await;
        assert!(matches!(answer, Err(Error::BadReceipt)), "{token:?} is taken: {answer:?}");
    };
    for token in ["", "x", "not a receipt", "AAAA", &"A".repeat(200), &receipt[1..]] {
        forged(token).await;
    }
    let bytes = URL_SAFE_NO_PAD.decode(&receipt).expect("a receipt is base64url");
    for position in 0..bytes.len() {
        let mut altered = bytes.clone();
        altered[position] ^= 1;
        forged(&URL_SAFE_NO_PAD.encode(&altered)).await;
        forged(&URL_SAFE_NO_PAD.encode(&bytes[..position])).await;
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    forged(&URL_SAFE_NO_PAD.encode(longer)).await;
    assert_eq!(trial.used(&[]).await, [2]);
    // Blanks around it are not a part of it.
    assert_eq!(refund(&stage, &format!(" {receipt}\n")).await, Refunded::Done);
}

pub async fn a_receipt_of_another_store_is_an_error(stage: Stage) {
    let other = Tollgate::open_with_clock("memory:", stage.clock.shared()).await;
    let other = Stage::from((other.expect("it opens"), stage.clock.clone()));
    let receipt = trial_of(&other, "fixed").await.pass(&[], 1).await;
    assert!(stage.clock.now() == other.clock.now());
    assert!(matches!(stage.gate.refund(&receipt).await, Err(Error::BadReceipt)));
    assert_eq!(refund(&other, &receipt).await, Refunded::Done);
}

//! Receipts: as text that anybody may send, and as bytes that were genuinely signed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tollgate::Instant;
use tollgate::core::store::Receipt;
use tollgate::core::{
    Bucket, Counted, FineInstant, Fixed, Sliding, State, UnitBucket, Writer, refund,
};
use tollgate::{Span, fuzzing};

const VERSION: u8 = 1;
const MAC_BYTES: usize = 16;

pub fn receipt(input: &[u8]) {
    if let Ok(token) = std::str::from_utf8(input)
        && let Some(receipt) = fuzzing::receipt(token)
    {
        let bytes = URL_SAFE_NO_PAD.decode(token.trim()).expect("it was read");
        assert_eq!(written(&receipt), bytes[..bytes.len() - MAC_BYTES]);
    }
    // One bit of difference in what was signed, and it is forged.
    let genuine = fuzzing::sign(input);
    if let Some(receipt) = fuzzing::receipt(&genuine) {
        assert_eq!(written(&receipt), input, "a receipt that is written back otherwise");
        give_back(&receipt);
        let mut bytes = URL_SAFE_NO_PAD.decode(&genuine).expect("it was made here");
        bytes[0] ^= 1;
        assert!(fuzzing::receipt(&URL_SAFE_NO_PAD.encode(bytes)).is_none(), "forged, and taken");
    }
}

/// The same receipt by its own words: see `tollgate/src/receipt.rs`.
fn written(receipt: &Receipt) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer(&mut bytes);
    writer.byte(VERSION);
    writer.uint(u128::from(receipt.id.run));
    writer.uint(u128::from(receipt.id.sequence));
    writer.uint(u128::from(receipt.cost.get()));
    writer.uint(receipt.spends.len() as u128);
    for (key, spend) in &receipt.spends {
        writer.bytes(key);
        writer.spend(spend);
    }
    bytes
}

/// Whatever a receipt says, giving it back to whatever is there does no harm.
fn give_back(receipt: &Receipt) {
    let at = Instant::from_micros(1_000_000);
    let later = Instant::from_micros(2_000_000);
    let counted = Counted { starts_at: at, count: 3 };
    let lifetime = Span::from_secs(60);
    let tat = FineInstant::from_instant(later);
    let states = [
        State::Fixed(Fixed { ends_at: later, count: 3 }),
        State::Sliding(Box::new(Sliding::new(lifetime, at, vec![counted]))),
        Bucket { tat, latest: at, refunded: 0 }.into(),
        Bucket { tat, latest: at, refunded: u128::MAX }.into(),
        UnitBucket { latest: at, since: at, per: lifetime, max: 3, owed: 7 << 64, left: 5 }.into(),
    ];
    for (_, spend) in &receipt.spends {
        for state in &states {
            for now in [Instant::MIN, at, later, Instant::MAX] {
                refund(&mut state.clone(), spend, receipt.cost, now);
            }
        }
    }
}

//! Bytes of states and spends: there and back, and nothing else is let in.

mod support;

use proptest::prelude::*;
use support::*;
use tollgate_core::{
    Bucket, Counted, FineInstant, Fixed, MAX_BUCKETS, Malformed, Reader, Sliding, Spend, State,
    UnitBucket, Writer,
};

fn state_bytes(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer(&mut bytes).state(state);
    bytes
}

fn spend_bytes(spend: &Spend) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer(&mut bytes).spend(spend);
    bytes
}

fn read_state(bytes: &[u8]) -> Result<State, Malformed> {
    let mut reader = Reader(bytes);
    let state = reader.state()?;
    reader.end()?;
    Ok(state)
}

fn read_spend(bytes: &[u8]) -> Result<Spend, Malformed> {
    let mut reader = Reader(bytes);
    let spend = reader.spend()?;
    reader.end()?;
    Ok(spend)
}

fn any_micros() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), -1000..1000i64, Just(i64::MIN), Just(i64::MAX)]
}

fn any_fine() -> impl Strategy<Value = FineInstant> {
    (any_micros(), any::<u32>()).prop_map(|(micros, fraction)| FineInstant { micros, fraction })
}

fn any_span() -> impl Strategy<Value = u128> {
    prop_oneof![any::<u128>(), 0..1000u128, Just(u128::MAX)]
}

fn any_state() -> impl Strategy<Value = State> {
    let starts = prop::collection::btree_set(-1_000_000_000..1_000_000_000i64, 0..70);
    let parts = (1..=i64::MAX, any_micros(), starts, any::<u64>());
    let sliding = parts.prop_map(|(lifetime, latest, starts, count)| {
        let bucket = |starts_at: &i64| Counted { starts_at: at(*starts_at), count };
        let buckets = starts.iter().map(bucket).collect();
        State::Sliding(Box::new(Sliding::new(micros(lifetime), at(latest), buckets)))
    });
    prop_oneof![
        (any_micros(), any::<u64>())
            .prop_map(|(ends_at, count)| State::Fixed(Fixed { ends_at: at(ends_at), count })),
        sliding,
        (any_fine(), any_micros(), prop::option::of(any_span())).prop_map(
            |(tat, latest, refunded)| {
                Bucket { tat, latest: at(latest), refunded: refunded.unwrap_or(0) }.into()
            }
        ),
        any_unit_bucket(),
    ]
}

fn any_unit_bucket() -> impl Strategy<Value = State> {
    let instants = (any_micros(), any_micros());
    (instants, 1..=i64::MAX, 1..=u64::MAX, any_span(), any_span()).prop_map(
        |((latest, since), per, max, owed, left)| {
            let (latest, since) = (at(latest), at(since));
            UnitBucket { latest, since, per: micros(per), max, owed, left }.into()
        },
    )
}

fn any_spend() -> impl Strategy<Value = Spend> {
    prop_oneof![
        any_micros().prop_map(|ends_at| Spend::Fixed { ends_at: at(ends_at) }),
        (any_micros(), any_micros()).prop_map(|(starts_at, leaves_at)| Spend::Sliding {
            starts_at: at(starts_at),
            leaves_at: at(leaves_at),
        }),
        (any_fine(), any_span(), any_span()).prop_map(|(tat_after, spent, refunded_before)| {
            Spend::Bucket { tat_after, spent, refunded_before }
        }),
        (any_micros(), any_span(), any_micros()).prop_map(|(since, end, expires_at)| {
            Spend::UnitBucket { since: at(since), end, expires_at: at(expires_at) }
        }),
    ]
}

/// Bytes that are nearly right: only such reach the deeper parts of the reader.
fn damaged(valid: Vec<u8>, damage: &[(u16, u8)]) -> Vec<u8> {
    let mut bytes = valid;
    for (place, byte) in damage {
        let place = usize::from(*place) % bytes.len();
        bytes[place] = *byte;
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_state_reads_back_as_it_was_written(state in any_state()) {
        prop_assert_eq!(read_state(&state_bytes(&state)), Ok(state));
    }

    #[test]
    fn a_spend_reads_back_as_it_was_written(spend in any_spend()) {
        prop_assert_eq!(read_spend(&spend_bytes(&spend)), Ok(spend));
    }

    #[test]
    fn any_bytes_are_refused_or_written_back_the_same(
        kind in 0..7u8, rest in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let bytes = [vec![kind], rest].concat();
        if let Ok(state) = read_state(&bytes) {
            prop_assert_eq!(state_bytes(&state), &bytes[..]);
        }
        if let Ok(spend) = read_spend(&bytes) {
            prop_assert_eq!(spend_bytes(&spend), &bytes[..]);
        }
    }

    #[test]
    fn damaged_bytes_are_refused_or_written_back_the_same(
        state in any_state(), spend in any_spend(),
        damage in prop::collection::vec((any::<u16>(), any::<u8>()), 0..4),
    ) {
        let bytes = damaged(state_bytes(&state), &damage);
        if let Ok(state) = read_state(&bytes) {
            prop_assert_eq!(state_bytes(&state), bytes);
        }
        let bytes = damaged(spend_bytes(&spend), &damage);
        if let Ok(spend) = read_spend(&bytes) {
            prop_assert_eq!(spend_bytes(&spend), bytes);
        }
    }

    #[test]
    fn cut_or_lengthened_bytes_are_refused(state in any_state(), cut in any::<u16>()) {
        let mut bytes = state_bytes(&state);
        prop_assert_eq!(read_state(&bytes[..usize::from(cut) % bytes.len()]), Err(Malformed));
        bytes.push(0);
        prop_assert_eq!(read_state(&bytes), Err(Malformed));
    }

    #[test]
    fn a_state_that_was_let_in_can_be_decided_on(
        state in any_state(), spend in any_spend(), cost in 1..=u32::MAX, max in any::<u64>(),
        now in any_micros(), own_burst in prop::option::of(any::<u64>()),
    ) {
        let rule = match &state {
            State::Fixed(_) => fixed(1000),
            State::Sliding(_) => sliding(1000, 10),
            State::Bucket(_) | State::RefundedBucket(_) | State::UnitBucket(_) => {
                bucket(1000, own_burst)
            }
        };
        let mut gate = Gate::of(rule, max);
        gate.keys.0[0] = Some(state);
        gate.peek(cost, now);
        let mut receipt = gate.spend(cost, now);
        receipt.spends = vec![spend];
        gate.refund(&receipt, now);
        gate.forget_expired(now);
    }

    #[test]
    fn a_key_in_use_survives_its_bytes_at_every_step(
        rule in any_rule(), max in any_max(), steps in any_steps(), start in any_start(),
        clock in any_clock(),
    ) {
        let per = per_of(&rule);
        let mut gate = Gate::of(rule, max);
        let mut now = start;
        for step in steps {
            now = step.apply(clock, now, per);
            let decision = gate.spend(step.cost, now);
            if let Some(spend) = decision.spends.first().copied() {
                prop_assert_eq!(read_spend(&spend_bytes(&spend)), Ok(spend));
                if step.pick % 3 == 0 {
                    gate.refund(&decision, now);
                }
            }
            if let Some(state) = &gate.keys.0[0] {
                prop_assert_eq!(read_state(&state_bytes(state)), Ok(state.clone()));
            }
        }
    }

    #[test]
    fn integers_and_strings_read_back(
        value in any_span(), text in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut bytes = Vec::new();
        let mut writer = Writer(&mut bytes);
        writer.uint(value);
        writer.bytes(&text);
        writer.byte(7);
        let mut reader = Reader(&bytes);
        prop_assert_eq!(reader.uint(), Ok(value));
        prop_assert_eq!(reader.bytes(), Ok(&text[..]));
        prop_assert_eq!(reader.byte(), Ok(7));
        prop_assert_eq!(reader.end(), Ok(()));
    }
}

#[test]
fn a_number_has_one_form_only() {
    assert_eq!(Reader(&[0]).uint(), Ok(0));
    assert_eq!(Reader(&[0x80, 0]).uint(), Err(Malformed));
    assert_eq!(Reader(&[0xff, 0x80, 0]).uint(), Err(Malformed));
    let largest = [&[0xff; 18][..], &[3]].concat();
    assert_eq!(Reader(&largest).uint(), Ok(u128::MAX));
    let too_large = [&[0xff; 18][..], &[7]].concat();
    assert_eq!(Reader(&too_large).uint(), Err(Malformed));
    assert_eq!(Reader(&[0xff; 40]).uint(), Err(Malformed));
    assert_eq!(
        Reader(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).u64(),
        Err(Malformed)
    );
}

#[test]
fn a_length_that_is_not_there_is_refused_before_it_is_allocated() {
    let mut bytes = Vec::new();
    Writer(&mut bytes).uint(u128::from(u64::MAX));
    assert_eq!(Reader(&bytes).bytes(), Err(Malformed));
    let mut bytes = vec![2, 1, 0];
    Writer(&mut bytes).uint(u128::from(u64::MAX / 2));
    assert_eq!(read_state(&bytes), Err(Malformed));
}

#[test]
fn no_state_has_more_buckets_than_the_finest_window() {
    let with = |length: i64| {
        let bucket = |starts_at| Counted { starts_at: at(starts_at), count: 1 };
        let buckets = (0..length).map(bucket).collect();
        let state = Sliding::new(micros(1), at(0), buckets);
        let state = State::Sliding(Box::new(state));
        read_state(&state_bytes(&state))
    };
    assert!(with(MAX_BUCKETS + 1).is_ok());
    assert_eq!(with(MAX_BUCKETS + 2), Err(Malformed));
}

#[test]
fn a_bucket_that_holds_nothing_is_refused() {
    let kind_lifetime_latest_length_start_count = |count| [2, 1, 0, 1, 0, count];
    assert!(read_state(&kind_lifetime_latest_length_start_count(1)).is_ok());
    assert_eq!(read_state(&kind_lifetime_latest_length_start_count(0)), Err(Malformed));
}

#[test]
fn a_bucket_without_a_rate_or_a_window_is_refused() {
    let kind_latest_since_per_max_owed_left = |per, max| [5, 0, 0, per, max, 0, 0, 0, 0];
    assert!(read_state(&kind_latest_since_per_max_owed_left(1, 1)).is_ok());
    assert_eq!(read_state(&kind_latest_since_per_max_owed_left(0, 1)), Err(Malformed));
    assert_eq!(read_state(&kind_latest_since_per_max_owed_left(1, 0)), Err(Malformed));
}

#[test]
fn the_finest_sliding_window_fits_its_bytes_when_full() {
    let mut gate = Gate::of(sliding(MAX_BUCKETS * 10, 10), 10_000);
    for bucket in 0..3 * MAX_BUCKETS {
        assert!(gate.spend(1, bucket * 10 + bucket % 10).allowed());
    }
    let state = gate.keys.0[0].as_ref().expect("in use");
    assert_eq!(read_state(&state_bytes(state)).as_ref(), Ok(state));
}

#[test]
fn the_bytes_of_a_state_stay_what_stores_have_written() {
    let fixed = State::Fixed(Fixed { ends_at: at(100), count: 3 });
    assert_eq!(state_bytes(&fixed), [1, 200, 1, 3]);
    let buckets =
        vec![Counted { starts_at: at(-2), count: 1 }, Counted { starts_at: at(8), count: 300 }];
    let sliding = Sliding::new(micros(20), at(9), buckets);
    let sliding = State::Sliding(Box::new(sliding));
    assert_eq!(state_bytes(&sliding), [2, 20, 18, 2, 3, 1, 10, 172, 2]);
    let (tat, latest) = (FineInstant { micros: 5, fraction: 6 }, at(4));
    let bucket = State::from(Bucket { tat, latest, refunded: 0 });
    assert_eq!(state_bytes(&bucket), [3, 10, 6, 8]);
    let bucket = State::from(Bucket { tat, latest, refunded: 7 });
    assert_eq!(state_bytes(&bucket), [4, 10, 6, 8, 7]);
    let (owed, left) = (3 << 64 | 5, 1 << 64);
    let bucket = UnitBucket { latest, since: at(2), per: micros(9), max: 300, owed, left };
    assert_eq!(state_bytes(&bucket.into()), [5, 8, 4, 9, 172, 2, 3, 5, 1, 0]);
    let spend = Spend::UnitBucket { since: at(2), end: owed + left, expires_at: at(6) };
    assert_eq!(spend_bytes(&spend), [5, 4, 4, 5, 12]);
}

//! Exact lines for each kind of limit, on wide and narrow places.

use serde_json::json;

use super::*;

const PIPE: Look = Look { width: 80, glyphs: ASCII, is_coloured: false };

fn narrow(width: usize) -> Look {
    Look { width, ..PIPE }
}

/// Three limits, as a fixed, a sliding and a bucket limit report themselves.
fn three() -> Value {
    json!({
        "allowed": true, "policy": "p", "cost": 1, "decided_at": "2026-11-16T03:00:00.800000Z",
        "limits": [
            { "name": "window", "max": 100, "used": 1, "remaining": 99,
              "resets_at": "2026-11-16T03:00:04.000000Z" },
            { "name": "ip", "max": 5, "used": 4, "remaining": 1,
              "resets_at": "2026-11-16T03:00:58.800000Z" },
            { "name": "bucket", "max": 10, "used": 0, "remaining": 10,
              "resets_at": "2026-11-16T03:00:00.800000Z" },
        ],
    })
}

#[test]
fn a_wide_place_has_a_bar_and_a_sentence_for_each_limit() {
    assert_eq!(
        lines(&three(), PIPE),
        [
            "window  #.......................  1 of 100 used, 99 remaining, all back in 3.2 s",
            "ip      ####################....  4 of 5 used, 1 remaining, all back in 58 s",
            "bucket  ........................  0 of 10 used, 10 remaining",
        ]
    );
    let longest = lines(&three(), narrow(300));
    assert!(longest[0].contains(&format!("  #{}  1 of", ".".repeat(29))), "{longest:?}");
}

#[test]
fn a_narrow_place_has_fewer_words_then_no_bar() {
    assert_eq!(
        lines(&three(), narrow(40)),
        [
            "window  #.........  1/100, back in 3.2 s",
            "ip      ########..  4/5, back in 58 s",
            "bucket  ..........  0/10",
        ]
    );
    assert_eq!(
        lines(&three(), narrow(30)),
        ["window  1/100, back in 3.2 s", "ip      4/5, back in 58 s", "bucket  0/10"]
    );
    assert_eq!(lines(&three(), narrow(0)), lines(&three(), narrow(30)));
}

#[test]
fn what_refuses_says_when_there_is_room_and_what_never_fits_says_so() {
    let refused = json!({
        "allowed": false, "cost": 3, "decided_at": "2026-11-16T03:00:00.000000Z",
        "limits": [
            { "name": "a", "max": 5, "used": 5, "remaining": 0, "retry_after": 42,
              "resets_at": "2026-11-16T03:01:00.000000Z" },
            { "name": "b", "max": 2, "used": 0, "remaining": 2,
              "resets_at": "2026-11-16T03:01:00.000000Z" },
            { "name": "c", "max": 9, "used": 12, "remaining": 0, "retry_after": 7200, "shadow": true,
              "resets_at": "2026-11-16T05:00:00.000000Z" },
        ],
    });
    assert_eq!(
        lines(&refused, PIPE),
        [
            "a  ################  5 of 5 used, 0 remaining, room for 3 in 42 s",
            "b  ................  0 of 2 used, 2 remaining, 3 can never fit",
            "c  ################  12 of 9 used, 0 remaining, room for 3 in 2 h 0 min (shadow)",
        ]
    );
}

#[test]
fn colours_say_free_full_and_refused() {
    let look = Look { is_coloured: true, ..narrow(40) };
    let mut decision = three();
    decision["limits"][1]["remaining"] = json!(0);
    decision["limits"][2]["retry_after"] = json!(1);
    let drawn = lines(&decision, look);
    for (line, colour) in drawn.iter().zip([GREEN, YELLOW, RED]) {
        assert!(line.contains(&format!("\x1b[{colour}m")) && line.contains("\x1b[0m"), "{line:?}");
    }
}

#[test]
fn one_unit_is_seen_and_so_is_one_left() {
    let drawn = |used, max| bar(used, max, 10, BLOCKS);
    assert_eq!(drawn(0, 1_000_000), "░░░░░░░░░░");
    assert_eq!(drawn(1, 1_000_000), "█░░░░░░░░░");
    assert_eq!(drawn(999_999, 1_000_000), "█████████░");
    assert_eq!(drawn(1_000_000, 1_000_000), "██████████");
    assert_eq!(drawn(u64::MAX, 3), "██████████");
    assert_eq!(drawn(0, 0), "██████████", "max = 0 lets nothing through");
    assert_eq!(bar(1, 2, 0, ASCII), "");
}

#[test]
fn durations_are_rounded_up_and_have_two_units_at_most() {
    for (millis, shown) in [
        (0, "0 s"),
        (1, "0.1 s"),
        (3_200, "3.2 s"),
        (3_000, "3 s"),
        (9_910, "10 s"),
        (59_001, "60 s"),
        (119_000, "119 s"),
        (120_000, "2 min 0 s"),
        (3_599_000, "59 min 59 s"),
        (3_600_000, "1 h 0 min"),
        (86_400_000, "1 d 0 h"),
        (2_678_400_000, "31 d 0 h"),
    ] {
        assert_eq!(duration(SignedDuration::from_millis(millis)), shown, "{millis} ms");
    }
}

//! A decision as a picture: one line for each limit, with its bar, what is used, what remains, and
//! when it comes back.
//!
//! "All back" is true of every algorithm: the end of a fixed window, the last unit that leaves a
//! sliding one, a bucket that is full again. Elsewhere than on a terminal there are no colours, no
//! block characters, and no width but 80.

use std::io::IsTerminal;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// What the place that is written to can show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) width: usize,
    pub(super) glyphs: Glyphs,
    pub(super) is_coloured: bool,
}

/// What bars are made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Glyphs {
    full: &'static str,
    free: &'static str,
}

pub(super) const BLOCKS: Glyphs = Glyphs { full: "█", free: "░" };
pub(super) const ASCII: Glyphs = Glyphs { full: "#", free: "." };

const WIDTH: usize = 80;
const SHORTEST_BAR: usize = 10;
const LONGEST_BAR: usize = 30;
/// Between the name, the bar and the words.
const GAP: &str = "  ";

impl Look {
    /// Of standard output.
    pub(super) fn of_stdout() -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if !std::io::stdout().is_terminal() || is_dumb {
            return Self { width: WIDTH, glyphs: ASCII, is_coloured: false };
        }
        let width = terminal_size::terminal_size().map_or(WIDTH, |(width, _)| width.0.into());
        let is_coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { width, glyphs: BLOCKS, is_coloured }
    }

    fn coloured(self, text: &str, colour: &str) -> String {
        if self.is_coloured { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";

/// One limit of a decision.
struct Limit {
    name: String,
    max: u64,
    used: u64,
    remaining: u64,
    cost: u64,
    is_shadow: bool,
    /// Seconds until the cost fits, where it does not now.
    room_after: Option<u64>,
    /// Until nothing of what is counted now counts any more.
    all_back_in: Option<SignedDuration>,
}

/// The decision's limits, a line for each.
pub(super) fn lines(decision: &Value, look: Look) -> Vec<String> {
    let decided_at = time(&decision["decided_at"]);
    let cost = decision["cost"].as_u64().unwrap_or(1);
    let limits = decision["limits"].as_array().map(Vec::as_slice).unwrap_or_default();
    let limits: Vec<_> = limits.iter().map(|limit| Limit::read(limit, cost, decided_at)).collect();
    let name_width = limits.iter().map(|limit| limit.name.len()).max().unwrap_or(0);
    let room = look.width.saturating_sub(name_width + GAP.len());
    // All lines alike, so that bars can be compared: the longest words decide for all.
    let longest = |words: fn(&Limit) -> String| {
        limits.iter().map(|limit| words(limit).len()).max().unwrap_or(0)
    };
    let bar_beside = |words| room.saturating_sub(longest(words) + GAP.len()).min(LONGEST_BAR);
    let (words, bar_width): (fn(&Limit) -> String, usize) =
        if bar_beside(Limit::sentence) >= SHORTEST_BAR {
            (Limit::sentence, bar_beside(Limit::sentence))
        } else {
            (Limit::brief, bar_beside(Limit::brief))
        };
    let line = |limit: &Limit| {
        let name = format!("{:name_width$}", limit.name);
        if bar_width < SHORTEST_BAR {
            return [name, words(limit)].join(GAP);
        }
        let bar = bar(limit.used, limit.max, bar_width, look.glyphs);
        [name, look.coloured(&bar, limit.colour()), words(limit)].join(GAP)
    };
    limits.iter().map(line).collect()
}

impl Limit {
    fn read(limit: &Value, cost: u64, decided_at: Option<Timestamp>) -> Self {
        let number = |name: &str| limit[name].as_u64().unwrap_or(0);
        let all_back_in = match (time(&limit["resets_at"]), decided_at) {
            (Some(resets_at), Some(now)) if number("used") > 0 => {
                Some(resets_at.duration_since(now))
            }
            _ => None,
        };
        Self {
            name: limit["name"].as_str().unwrap_or_default().to_owned(),
            max: number("max"),
            used: number("used"),
            remaining: number("remaining"),
            cost,
            is_shadow: limit["shadow"].as_bool().unwrap_or(false),
            room_after: limit["retry_after"].as_u64(),
            all_back_in,
        }
    }

    fn sentence(&self) -> String {
        let Self { used, max, remaining, cost, .. } = self;
        let mut words = format!("{used} of {max} used, {remaining} remaining");
        if self.cost > self.max {
            words += &format!(", {cost} can never fit");
        } else if let Some(secs) = self.room_after {
            words += &format!(", room for {cost} in {}", seconds(secs));
        } else if let Some(time) = self.all_back_in {
            words += &format!(", all back in {}", duration(time));
        }
        words + if self.is_shadow { " (shadow)" } else { "" }
    }

    /// The same for a narrow place.
    fn brief(&self) -> String {
        let words = format!("{}/{}", self.used, self.max);
        if self.cost > self.max {
            words + ", never fits"
        } else if let Some(secs) = self.room_after {
            format!("{words}, room in {}", seconds(secs))
        } else if let Some(time) = self.all_back_in {
            format!("{words}, back in {}", duration(time))
        } else {
            words
        }
    }

    fn colour(&self) -> &'static str {
        if self.room_after.is_some() || self.cost > self.max {
            RED
        } else if self.remaining == 0 {
            YELLOW
        } else {
            GREEN
        }
    }
}

/// So many glyphs, filled as far as the limit is. A single unit is seen, and so is a single one
/// left.
pub(super) fn bar(used: u64, max: u64, width: usize, glyphs: Glyphs) -> String {
    let (used, max, cells) = (u128::from(used), u128::from(max), width as u128);
    let full = match max {
        _ if used >= max => cells,
        _ => (used * cells).div_ceil(max).min(cells.saturating_sub(1)),
    };
    let full = usize::try_from(full).unwrap_or(width);
    glyphs.full.repeat(full) + &glyphs.free.repeat(width - full)
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

fn seconds(secs: u64) -> String {
    duration(SignedDuration::from_secs(i64::try_from(secs).unwrap_or(i64::MAX)))
}

/// Tenths below ten seconds, then the two largest units; rounded up, as waits are.
fn duration(time: SignedDuration) -> String {
    let tenths = time.as_micros().max(0).unsigned_abs().div_ceil(100_000);
    if tenths < 100 && !tenths.is_multiple_of(10) {
        return format!("{}.{} s", tenths / 10, tenths % 10);
    }
    let secs = tenths.div_ceil(10);
    let (minutes, hours) = (secs.div_ceil(60), secs.div_ceil(3600));
    match secs {
        0..120 => format!("{secs} s"),
        120..3600 => format!("{} min {} s", secs / 60, secs % 60),
        3600..86_400 => format!("{} h {} min", minutes / 60, minutes % 60),
        _ => format!("{} d {} h", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests;

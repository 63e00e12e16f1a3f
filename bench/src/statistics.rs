//! Medians of rounds, ratios of rounds, and how a number is written.

/// Three significant digits at least, thousands grouped.
pub(crate) fn number(value: f64) -> String {
    if value.abs() < 10.0 {
        return format!("{value:.2}");
    }
    if value.abs() < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Bytes as people read them.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{} MiB", number(bytes as f64 / f64::from(1 << 20)))
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[length / 2],
        length => f64::midpoint(sorted[length / 2 - 1], sorted[length / 2]),
    }
}

/// One side to the other, round by round: what disturbs a round disturbs both sides of it.
pub(crate) struct Ratio {
    /// Of the round in the middle; not a number if there was none.
    pub(crate) value: f64,
    /// Both sides in that round.
    sides: [f64; 2],
    /// Of all rounds.
    lowest: f64,
    highest: f64,
}

pub(crate) fn ratio(ours: &[f64], theirs: &[f64]) -> Ratio {
    let mut rounds: Vec<[f64; 2]> = ours.iter().zip(theirs).map(|(a, b)| [*a, *b]).collect();
    let of = |[ours, theirs]: [f64; 2]| ours / theirs;
    rounds.sort_by(|a, b| of(*a).total_cmp(&of(*b)));
    let sides = rounds.get(rounds.len() / 2).copied().unwrap_or([f64::NAN; 2]);
    let [lowest, highest] =
        [rounds.first(), rounds.last()].map(|round| round.map_or(f64::NAN, |round| of(*round)));
    Ratio { value: of(sides), sides, lowest, highest }
}

impl Ratio {
    /// What it was made of, in a unit of that many.
    pub(crate) fn detail(&self, unit: &str, scale: f64) -> String {
        let [ours, theirs] = self.sides.map(|side| number(side / scale));
        let (lowest, highest) = (number(self.lowest), number(self.highest));
        format!("{ours} to {theirs}{unit}; rounds {lowest}–{highest}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_the_sides_it_shows() {
        let ratio = ratio(&[100.0, 30.0, 70.0], &[50.0, 60.0, 70.0]);
        assert!((ratio.value - 1.0).abs() < 1e-9);
        assert_eq!(ratio.detail("/s", 1.0), "70.0 to 70.0/s; rounds 0.50–2.00");
        assert!(super::ratio(&[], &[]).value.is_nan());
    }
}

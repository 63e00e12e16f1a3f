//! Costs at growing sizes, and whether they grow faster than the logarithm of the size.

use serde_json::{Value, json};

use crate::report::Table;
use crate::statistics::{mib, number};

/// How much more than the ratio of the logarithms a step may cost. A table of hashes is O(1) and
/// still several times slower once it is larger than the processor's caches.
pub(super) const ROOM: f64 = 2.0;

pub(super) struct Point {
    pub(super) size: usize,
    /// One for each of the series' costs.
    pub(super) costs: Vec<f64>,
    pub(super) resident_bytes: u64,
    /// File or tables; nothing where nothing is kept.
    pub(super) stored_bytes: Option<u64>,
}

/// Something that is measured at each size.
pub(super) struct Cost {
    pub(super) what: &'static str,
    pub(super) unit: &'static str,
    /// Of the target; nothing, if it is only shown.
    pub(super) id: Option<String>,
}

pub(super) struct Series {
    pub(super) heading: String,
    /// What there are so many of.
    pub(super) of: &'static str,
    pub(super) costs: Vec<Cost>,
    pub(super) points: Vec<Point>,
}

impl Series {
    pub(super) fn table(&self) -> Table {
        let mut columns = vec![self.of.to_owned()];
        for Cost { what, unit, .. } in &self.costs {
            columns.push(format!("{what}, {unit}"));
            columns.push("to the last, to log n".into());
        }
        columns.extend(["resident".to_owned(), "stored".to_owned()]);
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let mut table = Table::new(&self.heading, &columns);
        for (position, point) in self.points.iter().enumerate() {
            let mut cells = vec![number(point.size as f64).trim_end_matches(".00").to_owned()];
            for (column, cost) in point.costs.iter().enumerate() {
                cells.push(number(*cost));
                cells.push(match position {
                    0 => "–".into(),
                    _ => {
                        let before = &self.points[position - 1];
                        let ratio = cost / before.costs[column];
                        format!("{} ×, {}", number(ratio), number(step(before, point, column)))
                    }
                });
            }
            cells.push(mib(point.resident_bytes));
            cells.push(point.stored_bytes.map_or("–".into(), mib));
            table.cells(cells);
        }
        table
    }

    /// The ids of targets, with the column each is about.
    pub(super) fn targets(&self) -> Vec<(String, usize)> {
        let ids = self.costs.iter().enumerate();
        ids.filter_map(|(column, cost)| Some((cost.id.clone()?, column))).collect()
    }

    /// The step that grew most, over the logarithm's growth; nothing before there is a step.
    pub(super) fn worst_step(&self, column: usize) -> Option<f64> {
        let steps = self.points.windows(2).map(|pair| step(&pair[0], &pair[1], column));
        steps.max_by(f64::total_cmp)
    }

    /// The first and the last cost, in words.
    pub(super) fn ends(&self, column: usize) -> String {
        let unit = self.costs[column].unit;
        let ends = self.points.first().zip(self.points.last());
        ends.map_or(String::new(), |(first, last)| {
            let [from, to] = [first, last].map(|point| number(point.costs[column]));
            let decades = (last.size as f64 / first.size as f64).log10();
            let ratio = last.costs[column] / first.costs[column];
            let each = number(ratio.powf(1.0 / decades));
            format!("{from} to {to} {unit}, {each} × per decade")
        })
    }

    pub(super) fn json(&self) -> Value {
        let names: Vec<&str> = self.costs.iter().map(|cost| cost.what).collect();
        let points: Vec<Value> = self
            .points
            .iter()
            .map(|point| {
                json!({
                    "size": point.size, "costs": point.costs,
                    "resident_bytes": point.resident_bytes, "stored_bytes": point.stored_bytes,
                })
            })
            .collect();
        json!({ "heading": self.heading, "of": self.of, "costs": names, "points": points })
    }
}

/// How much more it costs than before, over how much larger the logarithm of the size is.
fn step(before: &Point, after: &Point, column: usize) -> f64 {
    let logarithms = (after.size as f64).ln() / (before.size as f64).ln();
    after.costs[column] / before.costs[column] / logarithms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(cost_of: impl Fn(f64) -> f64) -> Series {
        let point = |size: usize| Point {
            size,
            costs: vec![cost_of(size as f64)],
            resident_bytes: 0,
            stored_bytes: None,
        };
        let points = [1_000, 100_000, 1_000_000].map(point).into();
        let costs = vec![Cost { what: "a check", unit: "ns", id: None }];
        Series { heading: String::new(), of: "keys", costs, points }
    }

    #[test]
    fn the_worst_step_tells_logarithmic_growth_from_anything_faster() {
        let worst = |cost_of: fn(f64) -> f64| series(cost_of).worst_step(0).expect("two steps");
        assert!(worst(|_| 50.0) < 1.0);
        assert!((worst(f64::ln) - 1.0).abs() < 1e-9);
        assert!(worst(f64::sqrt) > ROOM);
        assert!(worst(|size| size) > ROOM);
    }
}

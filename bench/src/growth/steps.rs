//! Costs at growing sizes, and whether they grow faster than the logarithm of the size.

use serde_json::{Value, json};

use crate::report::Table;
use crate::statistics::{mib, number};

/// How much more than the ratio of the logarithms a step may cost: whatever is larger no longer fits
/// one cache or another.
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
    /// The column of what memory alone costs at these sizes, where that is measured: what it grows
    /// by is the caches', and not held against this.
    pub(super) memory: Option<usize>,
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
                        let step = self.step(before, point, column);
                        format!("{} ×, {}", number(ratio), number(step))
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

    /// The step that grew most beyond what it may; nothing before there is a step.
    pub(super) fn worst_step(&self, column: usize) -> Option<f64> {
        let steps = self.points.windows(2).map(|pair| self.step(&pair[0], &pair[1], column));
        steps.max_by(f64::total_cmp)
    }

    /// How much more it costs than before, over how much larger the logarithm of the size is, or
    /// over how much more memory alone costs, if that is more.
    fn step(&self, before: &Point, after: &Point, column: usize) -> f64 {
        let ratio = |column: usize| after.costs[column] / before.costs[column];
        let logarithms = (after.size as f64).ln() / (before.size as f64).ln();
        let memory = self.costs[column].memory.map_or(0.0, ratio);
        ratio(column) / logarithms.max(memory)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn series(cost_of: impl Fn(f64) -> f64) -> Series {
        let point = |size: usize| Point {
            size,
            costs: vec![cost_of(size as f64), size as f64],
            resident_bytes: 0,
            stored_bytes: None,
        };
        let points = [1_000, 100_000, 1_000_000].map(point).into();
        let cost = |what| Cost { what, unit: "ns", id: None, memory: None };
        let costs = vec![cost("a check"), cost("memory")];
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

    #[test]
    fn what_memory_grows_by_is_not_held_against_a_check_and_everything_beyond_it_is() {
        let worst = |cost_of: fn(f64) -> f64| {
            let mut series = series(cost_of);
            series.costs[0].memory = Some(1);
            series.worst_step(0).expect("two steps")
        };
        assert!((worst(|size| size) - 1.0).abs() < 1e-9);
        assert!(worst(|size| size.powf(1.5)) > ROOM);
    }
}

//! `slot timeline`: windows and their fill as bars.

use serde_json::Value;

use super::client::Remote;
use super::picture::{BLOCKS, bar};
use super::show::text;
use super::slot::Interval;
use crate::exit::{Done, Failure};

const BAR_WIDTH: usize = 40;

#[derive(Debug, clap::Args)]
pub(crate) struct TimelineArgs {
    #[command(flatten)]
    interval: Interval,
    /// Draw at most so many rows; more windows share them
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
    #[command(flatten)]
    remote: Remote,
}

/// Windows drawn as one.
struct Row {
    start: jiff::Timestamp,
    end: jiff::Timestamp,
    count: u64,
    max: u64,
}

pub(crate) fn run(args: &TimelineArgs) -> Result<Done, Failure> {
    let answer = args.remote.get(&args.interval.query().path("/api/v1/windows"))?.success()?;
    if args.remote.json {
        say!("{answer}");
        return Ok(Done::Ok);
    }
    let windows: &[Value] = answer["windows"].as_array().map_or(&[], Vec::as_slice);
    let (config, size) = (text(&answer["configName"]), text(&answer["windowSize"]));
    let total: u64 = windows.iter().map(|window| window["count"].as_u64().unwrap_or(0)).sum();
    say!("config {config}: {total} slots in {} windows of {size}", windows.len());
    let together = windows.len().div_ceil(args.rows as usize).max(1);
    if together > 1 {
        say!("each row is up to {together} windows");
    }
    let mut drawn_until = None;
    for windows in windows.chunks(together) {
        let row = row(windows)
            .ok_or_else(|| Failure::unreachable("the server's windows cannot be read"))?;
        if drawn_until.is_some_and(|end| end < row.start) {
            say!("  · nothing until {}", row.start.strftime("%Y-%m-%d %H:%M:%S"));
        }
        say!("{}", drawn(&row));
        drawn_until = Some(row.end);
    }
    if let Some(next) = answer["nextFrom"].as_str() {
        say!("there are more: --from {next}");
    }
    Ok(Done::Ok)
}

fn row(windows: &[Value]) -> Option<Row> {
    let time = |value: &Value| value.as_str()?.parse().ok();
    let sum = |name: &str| windows.iter().filter_map(|window| window[name].as_u64()).sum();
    Some(Row {
        start: time(&windows.first()?["start"])?,
        end: time(&windows.last()?["end"])?,
        count: sum("count"),
        max: sum("max"),
    })
}

fn drawn(row: &Row) -> String {
    let start = row.start.strftime("%Y-%m-%d %H:%M:%S%.f").to_string();
    let over = if row.count > row.max { " over" } else { "" };
    format!(
        "{start:<26} {} {}/{}{over}",
        bar(row.count, row.max, BAR_WIDTH, BLOCKS),
        row.count,
        row.max
    )
}

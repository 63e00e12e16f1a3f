//! How long the server takes from its spawn to its first answer.

use std::path::Path;

use anyhow::Result;
use serde_json::json;
use tollgate::{Policy, Tollgate};

use crate::Pace;
use crate::peers;
use crate::report::{Report, Table, progress};
use crate::servers::Server;
use crate::statistics::{median, number};

/// So slow a refill that no key expires while this runs.
const LASTING: &str =
    r#"limits = [{ name = "user", max = 1, per = "30d", algorithm = "bucket", by = ["user"] }]"#;

pub(crate) fn run(pace: Pace) -> Result<()> {
    let mut report = Report::new("start", "Start", pace)?;
    report.note(format!(
        "Milliseconds from spawn to the first answer of /healthz, {} starts each.",
        pace.starts
    ));
    let program = peers::tollgate()?;
    let folder = tempfile::tempdir()?;
    let full = folder.path().join("full.db");
    fill(&full, pace.keys_in_memory)?;
    let mut table = Table::new("Start", &["store", "median ms", "slowest ms"]);
    let mut figures = Vec::new();
    let with_keys = format!("{} keys on disk", number(pace.keys_in_memory as f64));
    for (what, id) in [("empty", "start.empty"), (with_keys.as_str(), "start.full")] {
        let bar = progress(pace.starts, what);
        let mut millis = Vec::new();
        for start in 0..pace.starts {
            let path = match what {
                "empty" => folder.path().join(format!("empty-{start}.db")),
                _ => full.clone(),
            };
            let server = Server::tollgate(&program, &format!("sqlite:{}", path.display()))?;
            millis.push(server.ready_after.as_micros() as f64 / 1e3);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let slowest = millis.iter().copied().fold(0.0, f64::max);
        table.row([what.to_owned(), number(median(&millis)), number(slowest)]);
        report.measured(id, median(&millis), String::new());
        figures.push(json!({ "store": what, "millis": millis }));
    }
    report.table(table);
    report.finish(json!({ "starts": figures }))
}

fn fill(path: &Path, keys: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let gate = runtime.block_on(Tollgate::open(&format!("sqlite:{}", path.display())))?;
    let limiter = gate.limiter(Policy::from_toml("bench", LASTING)?);
    let bar = progress(keys, "filling");
    for number in 0..keys {
        limiter.check_blocking(&[("user", &format!("user-{number:08}"))], 1)?;
        if number % 10_000 == 0 {
            bar.set_position(number as u64);
        }
    }
    gate.close();
    bar.finish_and_clear();
    Ok(())
}

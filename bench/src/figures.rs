//! The pages: `docs/figures.md` and the short table of the README, from `bench/results` alone.
//!
//! Nothing is measured here and nothing is typed in by hand but why a target is missed.

mod why;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::benches;
use crate::report::{self, Document, Measured, Table};
use crate::targets::{self, Target, Verdict};

const BEGIN: &str = "<!-- figures:begin -->";
const END: &str = "<!-- figures:end -->";

/// What the README shows of the targets.
const HEADLINES: [&str; 20] = [
    "http.memory.1.many.echo",
    "http.memory.3.many.echo",
    "http.sqlite.1.many.echo",
    "http.memory.1.many.throttlecrab",
    "inprocess.bucket.hot.1",
    "inprocess.three.hot.1",
    "postgres.hot.inprocess",
    "postgres.hot.http",
    "postgres.tiers.inprocess",
    "postgres.many.inprocess",
    "postgres.refusals.inprocess",
    "slots.callers",
    "slots.batches.postgres",
    "slots.batches.sqlite",
    "mail.accepted",
    "mail.delivered",
    "mail.waiting",
    "edge.tower",
    "memory.bytes_per_key",
    "start.full",
];

/// What is known, by bench.
struct Results(BTreeMap<&'static str, Document>);

impl Results {
    fn read() -> Result<Self> {
        let mut documents = BTreeMap::new();
        for bench in benches::ALL {
            if let Some(document) = Document::read(bench.name)? {
                documents.insert(bench.name, document);
            }
        }
        Ok(Self(documents))
    }

    fn measured(&self, target: &Target) -> Option<(&Document, &Measured)> {
        let document = self.0.get(target.bench())?;
        Some((document, document.measured.get(target.id)?))
    }

    /// Why there is no figure.
    fn absence(&self, target: &Target) -> String {
        match self.0.get(target.bench()).map(|document| &document.failed) {
            None => format!("`bench -- {}` was not run", target.bench()),
            Some(Some(_)) => format!("`bench -- {}` failed", target.bench()),
            Some(None) => "not in the last run".into(),
        }
    }

    /// Met, of how many; and how many of them met their aim, of how many that have one.
    fn sums(&self) -> String {
        let (mut met, mut musts, mut aims_met, mut aims, mut missing) = (0, 0, 0, 0, 0);
        for target in targets::all() {
            let verdict = self.measured(target).map(|(_, it)| target.verdict(it.value));
            missing += usize::from(verdict.is_none());
            if target.must.is_some() {
                musts += 1;
                met += usize::from(matches!(verdict, Some(Verdict::Met | Verdict::AimMet)));
            }
            if target.aim.is_some() {
                aims += 1;
                aims_met += usize::from(verdict == Some(Verdict::AimMet));
            }
        }
        let missing = if missing > 0 { format!("; {missing} not measured") } else { String::new() };
        format!("{met} of {musts} targets met, {aims_met} of {aims} aims{missing}")
    }
}

pub(crate) fn write() -> Result<()> {
    let results = Results::read()?;
    let docs = report::workspace().join("docs/figures.md");
    fs::write(&docs, page(&results)).context("docs/figures.md was not written")?;
    let readme = report::workspace().join("README.md");
    let text = fs::read_to_string(&readme)?;
    fs::write(&readme, between_markers(&text, &headlines(&results))?)?;
    eprintln!("wrote docs/figures.md and the README's table: {}", results.sums());
    Ok(())
}

fn page(results: &Results) -> String {
    let mut text = "# Figures\n\nWritten by `cargo run --release -p bench -- all`; do not edit. \
        Everybody runs on the same few cores as the load that drives them, in turns within each \
        round: read the ratios.\n\n"
        .to_owned();
    let _ = writeln!(text, "{}.\n", results.sums());
    text += &provenance(results);
    text += "\n## Every target\n\n";
    text += &verdicts(results);
    text += &reasons(results);
    for bench in benches::ALL {
        if let Some(document) = results.0.get(bench.name) {
            text += &section(bench.name, document);
        }
    }
    text
}

/// Machine and versions of the newest run; each section says which commit it measured.
fn provenance(results: &Results) -> String {
    let Some(newest) = results.0.values().max_by(|a, b| a.date.cmp(&b.date)) else {
        return "Nothing was measured yet.\n".into();
    };
    let mut text = format!("{}.\n\n", report::machine_line(&newest.machine));
    let versions: Vec<String> = newest
        .versions
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, version)| Some((name, version.as_str()?)))
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let _ = writeln!(text, "Versions: {}.", versions.join(", "));
    text
}

fn verdicts(results: &Results) -> String {
    let mut table = Table::new("", &["issue", "figure", "measured", "must be", "aim", "verdict"]);
    for (issue, targets) in targets::by_issue() {
        for target in *targets {
            let (measured, verdict) = cells(results, target);
            table.row([
                issue.to_string(),
                target.what.to_owned(),
                measured,
                target.wanted(target.must),
                target.wanted(target.aim),
                verdict,
            ]);
        }
    }
    table.markdown()
}

/// A value with its detail, and the verdict.
fn cells(results: &Results, target: &Target) -> (String, String) {
    let Some((document, measured)) = results.measured(target) else {
        return ("–".into(), format!("missing: {}", results.absence(target)));
    };
    let shown = match measured.detail.as_str() {
        "" => target.shown(measured.value),
        detail => format!("{} ({detail})", target.shown(measured.value)),
    };
    let mark = if document.quick { ", quick run" } else { "" };
    (shown, format!("{}{mark}", target.verdict(measured.value).word()))
}

fn reasons(results: &Results) -> String {
    let mut text = String::new();
    for (prefix, reason) in why::MISSED {
        let missed: Vec<&str> = targets::all()
            .filter(|target| target.id.starts_with(prefix))
            .filter(|target| {
                results.measured(target).is_some_and(|(_, it)| {
                    matches!(target.verdict(it.value), Verdict::Missed | Verdict::ShortOfAim)
                })
            })
            .map(|target| target.what)
            .collect();
        if !missed.is_empty() {
            let _ = writeln!(text, "- {}: {reason}", missed.join("; "));
        }
    }
    if text.is_empty() { text } else { format!("\nWhy some are missed:\n\n{text}") }
}

fn section(name: &str, document: &Document) -> String {
    let mut text = format!("\n## {}\n\n", document.title);
    let quick = if document.quick { "--quick " } else { "" };
    let _ = write!(text, "`bench -- {quick}{name}`, {}", document.date);
    if let Some(commit) = document.versions["commit"].as_str() {
        let _ = write!(text, ", commit {commit}");
    }
    let _ = match &document.failed {
        Some(reason) => writeln!(text, ". Missing: {reason}"),
        None => writeln!(
            text,
            ", {} s. {}",
            document.seconds,
            if document.quick {
                "**A quick run, to try the bench: not to be quoted.**"
            } else {
                ""
            }
        ),
    };
    let _ = writeln!(text, "Settings: `{}`.\n", document.settings);
    for note in &document.notes {
        let _ = writeln!(text, "{note}\n");
    }
    for table in &document.tables {
        let _ = writeln!(text, "### {}\n", table.heading);
        if let Some(run) = &table.kept_from {
            let _ = writeln!(text, "From an earlier run: {run}.\n");
        }
        let _ = writeln!(text, "{}", table.markdown());
    }
    let mut hows: Vec<&str> =
        targets::all().filter(|target| target.bench() == name).map(|target| target.how).collect();
    hows.dedup();
    if !hows.is_empty() {
        let _ = writeln!(text, "Its targets are measured as {}.", hows.join("; "));
    }
    text
}

fn headlines(results: &Results) -> String {
    let mut table = Table::new("", &["figure", "measured", "must be", "aim", "verdict"]);
    for target in HEADLINES.iter().filter_map(|id| targets::find(id)) {
        let (measured, verdict) = cells(results, target);
        let [must, aim] = [target.must, target.aim].map(|value| target.wanted(value));
        table.row([target.what.to_owned(), measured, must, aim, verdict]);
    }
    let dates: Vec<&str> = results.0.values().map(|document| &document.date[..10]).collect();
    let machine = results.0.values().next().map_or(&Value::Null, |document| &document.machine);
    format!(
        "{}\n{} × {}. {}. All of it, with the peers, the growth tables and what is missed: \
         [docs/figures.md](docs/figures.md).\n",
        table.markdown(),
        machine["cores"],
        machine["cpu"].as_str().unwrap_or_default(),
        match (dates.iter().min(), dates.iter().max()) {
            (Some(first), Some(last)) if first == last =>
                format!("Measured on {first}; {}", results.sums()),
            (Some(first), Some(last)) =>
                format!("Measured from {first} to {last}; {}", results.sums()),
            _ => "Nothing was measured yet".into(),
        },
    )
}

fn between_markers(text: &str, table: &str) -> Result<String> {
    let markers = || format!("README.md needs a line {BEGIN} and a line {END} after it");
    let (before, rest) = text.split_once(BEGIN).with_context(markers)?;
    let (_, after) = rest.split_once(END).with_context(markers)?;
    Ok(format!("{before}{BEGIN}\n{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_markers_is_replaced() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let written = between_markers(&text, "new\n").expect("both markers are there");
        assert_eq!(written, format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
        assert_eq!(between_markers(&written, "new\n").expect("still there"), written);
        assert!(between_markers("no markers", "new\n").is_err());
    }

    #[test]
    fn every_headline_and_every_reason_is_of_a_target() {
        for id in HEADLINES {
            assert!(targets::find(id).is_some(), "{id}");
        }
        for (prefix, _) in why::MISSED {
            assert!(targets::all().any(|target| target.id.starts_with(prefix)), "{prefix}");
        }
    }
}

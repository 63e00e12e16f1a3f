//! The reports as a table in Markdown, and its place in a page.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::measure::millis;
use super::stage::Report;

const BEGIN: &str = "<!-- faults: begin -->";
const END: &str = "<!-- faults: end -->";

/// One row per fault.
pub fn table(reports: &[Result<Report, (&'static str, String)>]) -> String {
    let mut table = String::from(
        "| fault | callers saw meanwhile: requests, p50 / p99 / max ms (before: p99), errors | \
         back after: first good answer, as before | held against it |\n\
         | --- | --- | --- | --- |\n",
    );
    for report in reports {
        let row = match report {
            Ok(report) => row(report),
            Err((name, why)) => format!("| `{name}` | **{}** | – | – |", one_line(why)),
        };
        // Writing to memory does not fail.
        let _ = writeln!(table, "{row}");
    }
    table
}

fn row(report: &Report) -> String {
    let Report { name, fault, usual, during, recovery, checked, broken } = report;
    let after = |after: Option<Duration>| {
        after.map_or("never".to_owned(), |after| format!("{} ms", millis(after)))
    };
    let verdict = match broken.as_slice() {
        [] => String::new(),
        broken => format!("**broken: {}.** ", one_line(&broken.join("; "))),
    };
    format!(
        "| `{name}`: {fault} | {} requests, {} ms ({}); errors: {} | {}, {} | {verdict}{checked} |",
        during.requests,
        during.waits_in_words(),
        millis(usual.p99),
        during.troubles_in_words(),
        after(recovery.first_good),
        after(recovery.as_before),
    )
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ").replace('|', "/")
}

/// Puts the text between the two marks of the page, in place of what was there.
pub fn write_into(page: &Path, text: &str) -> Result<(), String> {
    let shown = page.display();
    let old = std::fs::read_to_string(page).map_err(|error| {
        format!("{shown}: {error}; --write works in the root of the repository")
    })?;
    let new = between_marks(&old, text).ok_or_else(|| {
        format!("{shown} has no place for the table: put {BEGIN} and {END} on lines of their own")
    })?;
    std::fs::write(page, new).map_err(|error| format!("{shown}: {error}"))
}

fn between_marks(page: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{}\n{END}{after}", text.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_replaces_the_one_before_it_and_nothing_else() {
        let page = format!("# Page\n\n{BEGIN}\nold\n{END}\n\nThe end.\n");
        let new = between_marks(&page, "| a |\n| b |\n").unwrap();
        assert_eq!(new, format!("# Page\n\n{BEGIN}\n| a |\n| b |\n{END}\n\nThe end.\n"));
        assert_eq!(between_marks(&new, "old").unwrap(), page);
        assert_eq!(between_marks("# Page\n", "x"), None);
    }

    #[test]
    fn a_fault_that_did_not_end_has_a_row_too() {
        let table = table(&[Err(("paused", "hangs | since\nthen".into()))]);
        assert_eq!(table.lines().nth(2), Some("| `paused` | **hangs / since then** | – | – |"));
    }
}

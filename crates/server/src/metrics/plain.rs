//! Prometheus' older text format, which everything that reads metrics understands: made of OpenMetrics, where
//! a counter is announced without the `_total` of its samples.

/// The same metrics as `openmetrics` holds.
pub(super) fn plain(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help = None;
    for line in openmetrics.lines() {
        match line.split_once(' ').filter(|(mark, _)| *mark == "#").map(|(_, rest)| rest) {
            None => push(&mut text, line),
            Some(rest) => match rest.split_once(' ') {
                // Comes before the type, which says what it is called.
                Some(("HELP", rest)) => help = rest.split_once(' ').map(|(_, help)| help),
                Some(("TYPE", rest)) => {
                    let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
                    let total = if kind == "counter" { "_total" } else { "" };
                    if let Some(help) = help.take() {
                        push(&mut text, &format!("# HELP {name}{total} {help}"));
                    }
                    push(&mut text, &format!("# TYPE {name}{total} {kind}"));
                }
                // Units and the end have no place there.
                _ => {}
            },
        }
    }
    text
}

fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn counters_are_announced_as_they_are_called() {
        let openmetrics = "# HELP a_b Things done.\n# TYPE a_b counter\n# UNIT a_b seconds\na_b_total{x=\"# y\"} 3\n\
                           # HELP c Now.\n# TYPE c gauge\nc 1\n# EOF\n";
        let expected = "# HELP a_b_total Things done.\n# TYPE a_b_total counter\na_b_total{x=\"# y\"} 3\n\
                        # HELP c Now.\n# TYPE c gauge\nc 1\n";
        assert_eq!(plain(openmetrics), expected);
    }
}

//! `top`: who is refused most, again and again.
//!
//! On a terminal the list is drawn over the one before, line by line, so that nothing flickers.
//! A program, or a file, gets it once, unless it asks for more with `--interval`: then each list
//! follows the last.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tollgate::parse_duration;

use super::client::{Remote, encode};
use super::show::{table, text};
use crate::exit::{Done, Failure};

/// A wider subject is cut, so that a row stays a row.
const SUBJECT_CHARS: usize = 60;
const USUAL_INTERVAL: Duration = Duration::from_secs(2);
/// Another screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// How far back to count, up to 24h
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    since: String,
    /// How many to show
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: u32,
    /// How often to ask (default: 2s on a terminal, else once)
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    interval: Option<Duration>,
    /// Show the list once and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    remote: Remote,
}

fn interval(given: &str) -> Result<Duration, String> {
    let span = parse_duration(given)?;
    let interval = Duration::from_micros(span.as_micros().unsigned_abs());
    if interval < Duration::from_millis(100) {
        return Err("must be at least 100ms".into());
    }
    Ok(interval)
}

pub(crate) fn run(args: TopArgs) -> Result<Done, Failure> {
    let is_watched = !args.remote.json && std::io::stdout().is_terminal();
    if args.once || (args.interval.is_none() && !is_watched) {
        let list = args.fetch()?;
        let _ = std::io::stdout().write_all(args.render(&list).as_bytes());
        return Ok(Done::Ok);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::unreachable(format!("the runtime did not start: {error}")))?;
    let done = runtime.block_on(refresh(Arc::new(args), is_watched));
    // A question under way is not waited for.
    runtime.shutdown_background();
    done
}

async fn refresh(args: Arc<TopArgs>, is_watched: bool) -> Result<Done, Failure> {
    let mut screen = Screen::new(is_watched);
    let mut stop = std::pin::pin!(tokio::signal::ctrl_c());
    let mut last = String::new();
    loop {
        let asked = args.clone();
        let asking = tokio::task::spawn_blocking(move || asked.fetch());
        let answer = tokio::select! {
            answer = asking => answer.map_err(|error| Failure::unreachable(error.to_string()))?,
            _ = &mut stop => return Ok(Done::Ok),
        };
        let shown = match answer {
            Ok(list) => {
                last = args.render(&list);
                last.clone()
            }
            // Somebody who is watching sees why, and the server may come back.
            Err(failure) if screen.is_terminal && !last.is_empty() => format!("{failure}\n{last}"),
            Err(failure) => return Err(failure),
        };
        if screen.show(&shown).is_err() {
            return Ok(Done::Ok);
        }
        tokio::select! {
            () = tokio::time::sleep(args.interval.unwrap_or(USUAL_INTERVAL)) => {}
            _ = &mut stop => return Ok(Done::Ok),
        }
    }
}

impl TopArgs {
    fn fetch(&self) -> Result<Value, Failure> {
        let since = encode(&self.since);
        self.remote.get(&format!("/admin/offenders?since={since}&limit={}", self.limit))?.success()
    }

    fn render(&self, list: &Value) -> String {
        if self.remote.json {
            return format!("{list}\n");
        }
        let mut table = table(["refused", "policy", "limit", "subject", "last seen"]);
        let offenders = list["offenders"].as_array().map(Vec::as_slice).unwrap_or_default();
        for offender in offenders {
            table.add_row([
                refused(offender),
                text(&offender["policy"]),
                text(&offender["limit"]),
                subject(&offender["subject"]),
                text(&offender["last_seen"]),
            ]);
        }
        let since = text(&list["since"]);
        if offenders.is_empty() {
            return format!("nobody was refused since {since}\n");
        }
        format!("refused most since {since}\n{table}\n")
    }
}

fn refused(offender: &Value) -> String {
    let at_least = offender["refused"].as_u64().unwrap_or_default();
    match offender["error"].as_u64().unwrap_or_default() {
        0 => at_least.to_string(),
        error => format!("{at_least} to {}", at_least.saturating_add(error)),
    }
}

/// Who asks may choose the values: nothing of them may steer the terminal.
fn subject(subject: &Value) -> String {
    let members = subject.as_object().into_iter().flatten();
    let pairs: Vec<String> =
        members.map(|(name, value)| format!("{name}={}", text(value))).collect();
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let shown: String = pairs.join(" ").chars().map(plain).collect();
    if shown.is_empty() {
        return "(everybody)".into();
    }
    match shown.char_indices().nth(SUBJECT_CHARS) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

/// The terminal, given back as it was.
struct Screen {
    is_terminal: bool,
    entered: bool,
}

impl Screen {
    fn new(is_terminal: bool) -> Self {
        Self { is_terminal, entered: false }
    }

    fn show(&mut self, lines: &str) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        if !self.is_terminal {
            out.write_all(lines.as_bytes())?;
            return out.flush();
        }
        let mut drawn = String::new();
        if !self.entered {
            self.entered = true;
            drawn.push_str(ENTER);
        }
        drawn.push_str(HOME);
        for line in lines.lines() {
            drawn.push_str(line);
            drawn.push_str(CLEAR_LINE);
            drawn.push('\n');
        }
        drawn.push_str(CLEAR_BELOW);
        out.write_all(drawn.as_bytes())?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.entered {
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(LEAVE.as_bytes());
            let _ = out.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_subject_is_one_plain_line() {
        assert_eq!(subject(&json!({ "user": "ada", "route": "/x" })), "route=/x user=ada");
        assert_eq!(subject(&json!({})), "(everybody)");
        let steering = subject(&json!({ "user": "\u{1b}[2J\nx\u{9b}" }));
        assert!(!steering.chars().any(char::is_control), "{steering:?}");
        let long = subject(&json!({ "user": "ü".repeat(500) }));
        assert_eq!(long.chars().count(), SUBJECT_CHARS + 1);
    }

    #[test]
    fn a_count_that_may_be_short_says_so() {
        assert_eq!(refused(&json!({ "refused": 7, "error": 0 })), "7");
        assert_eq!(refused(&json!({ "refused": 7, "error": 2 })), "7 to 9");
    }
}

//! `slot import`: a slot for every line of a file, in batches.
//!
//! What was assigned stays, and an event gets one slot however often it is asked for: an import
//! that was cut off is run again as it is.

pub(super) mod lines;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use ureq::http::StatusCode;

use super::client::Remote;
use super::show::printable;
use crate::exit::{Done, Failure};
use lines::Lines;

/// In one call, as many as the server takes and comfortably within its bytes.
const MAX_EVENTS: usize = 1_000;
const MAX_BYTES: usize = 900 << 10;
/// No event is longer.
const MAX_EVENT_BYTES: usize = 64 << 10;
/// Lines that failed and are reported one by one; the rest are counted.
const MAX_REPORTED: usize = 1_000;

#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    /// CSV with the header eventId,configName,requestedTime (the last two may be missing), or JSON lines with such members
    file: PathBuf,
    /// The policy for lines that name none
    #[arg(long, value_name = "NAME")]
    config: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

/// What a line asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Event {
    event_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    config_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requested_time: Option<String>,
}

/// One line of the file: an event, or why it is none.
pub(super) struct Line {
    pub(super) number: u64,
    pub(super) event: Result<Event, String>,
}

#[derive(Default)]
struct Counts {
    assigned: u64,
    already: u64,
    failed: u64,
    failures: Vec<Value>,
    /// Whether a line was not valid, rather than refused.
    is_bad: bool,
}

pub(crate) fn run(args: &ImportArgs) -> Result<Done, Failure> {
    let shown = args.file.display();
    let unreadable =
        |error: std::io::Error| Failure::bad_input(format!("{shown} cannot be read: {error}"));
    let file = File::open(&args.file).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    let mut source = BufReader::with_capacity(1 << 16, file);
    source.fill_buf().map_err(unreadable)?;
    let mut lines =
        Lines::of(source).map_err(|why| Failure::bad_input(format!("{shown}: {why}")))?;
    let bar = ProgressBar::new(bytes);
    let style = "{bar:40} {bytes}/{total_bytes} {msg} {eta}";
    bar.set_style(
        ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let mut import =
        Import { args, bar, batch: Vec::new(), batch_bytes: 0, counts: Counts::default() };
    while let Some(line) =
        lines.next().map_err(|why| Failure::bad_input(format!("{shown}: {why}")))?
    {
        import.take(line)?;
        import.bar.set_position(lines.position_bytes());
    }
    import.send()?;
    import.bar.finish_and_clear();
    Ok(import.counts.told(&args.remote))
}

struct Import<'a> {
    args: &'a ImportArgs,
    bar: ProgressBar,
    /// Events with the numbers of their lines, not sent yet.
    batch: Vec<(u64, Value)>,
    batch_bytes: usize,
    counts: Counts,
}

impl Import<'_> {
    fn take(&mut self, line: Line) -> Result<(), Failure> {
        let mut event = match line.event {
            Ok(event) => event,
            Err(why) => {
                self.bad(line.number, &why);
                return Ok(());
            }
        };
        if event.config_name.is_none() {
            event.config_name.clone_from(&self.args.config);
        }
        let event = json!(event);
        let bytes = event.to_string().len() + 1;
        if bytes > MAX_EVENT_BYTES {
            self.bad(line.number, &format!("is longer than {MAX_EVENT_BYTES} bytes"));
            return Ok(());
        }
        if self.batch.len() >= MAX_EVENTS || self.batch_bytes + bytes > MAX_BYTES {
            self.send()?;
        }
        self.batch_bytes += bytes;
        self.batch.push((line.number, event));
        Ok(())
    }

    fn send(&mut self) -> Result<(), Failure> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.batch_bytes = 0;
        let (numbers, events): (Vec<u64>, Vec<Value>) = self.batch.drain(..).unzip();
        let first = numbers.first().copied().unwrap_or(1);
        let reply = self.args.remote.post("/api/v1/slots/batch", &json!({ "events": events }));
        let answer = reply.and_then(super::client::Reply::success).map_err(|failure| {
            self.bar.finish_and_clear();
            let done = self.counts.assigned + self.counts.already;
            failure.context(format!("stopped at line {first}, {done} done; run it again to go on"))
        })?;
        let results = answer["results"].as_array().filter(|list| list.len() == numbers.len());
        let results = results
            .ok_or_else(|| Failure::unreachable("the server's answer is not one for each event"))?;
        let mut given = 0;
        for (number, result) in numbers.into_iter().zip(results) {
            match result["detail"].as_str() {
                Some(why) => {
                    let refusals = [StatusCode::CONFLICT, StatusCode::SERVICE_UNAVAILABLE];
                    let is_refusal = refusals.iter().any(|it| result["status"] == it.as_u16());
                    self.counts.is_bad |= !is_refusal;
                    self.failed(number, why);
                }
                None => given += 1,
            }
        }
        let already = answer["repeated"].as_u64().unwrap_or(0).min(given);
        self.counts.already += already;
        self.counts.assigned += given - already;
        self.bar.set_message(format!("{} assigned", self.counts.assigned));
        Ok(())
    }

    fn bad(&mut self, line: u64, why: &str) {
        self.counts.is_bad = true;
        self.failed(line, why);
    }

    fn failed(&mut self, line: u64, why: &str) {
        self.counts.failed += 1;
        if self.counts.failures.len() < MAX_REPORTED {
            self.bar.suspend(|| note!("line {line}: {}", printable(why)));
            self.counts.failures.push(json!({ "line": line, "detail": why }));
        }
    }
}

impl Counts {
    fn told(self, remote: &Remote) -> Done {
        let Self { assigned, already, failed, failures, is_bad } = self;
        let reported = failures.len() as u64;
        if remote.json {
            say!(
                "{}",
                json!({ "assigned": assigned, "already": already, "failed": failed,
                    "failures": failures })
            );
        } else {
            if failed > reported {
                note!("and {} more lines", failed - reported);
            }
            say!("{assigned} assigned, {already} already, {failed} failed");
        }
        match (failed, is_bad) {
            (0, _) => Done::Ok,
            (_, true) => Done::PartlyBad,
            (_, false) => Done::Refused,
        }
    }
}

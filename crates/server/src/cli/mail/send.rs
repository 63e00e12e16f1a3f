//! `mail send FILE…`: message files into the queue, in batches.

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use ureq::http::StatusCode;

use super::{Of, eml};
use crate::cli::client::Remote;
use crate::cli::show::printable;
use crate::exit::{Done, Failure};

/// What goes into one call: well below what a server takes by default.
const MAX_MESSAGES: usize = 100;
const MAX_BYTES: usize = 16 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct SendArgs {
    /// Messages as mail programs save them (.eml)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    of: Of,
    /// The account to send through
    #[arg(long, value_name = "ID")]
    account: String,
    /// 0 immediate, 1 high, 2 medium, 3 low
    #[arg(long, value_name = "0-3", default_value_t = 2)]
    priority: u8,
    /// Names the batch, so that it can be suspended, activated or deleted as one
    #[arg(long, value_name = "CODE")]
    batch: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

pub(super) fn run(args: &SendArgs) -> Result<Done, Failure> {
    // Before anything is sent: a mistyped name is not half a job.
    for file in &args.files {
        std::fs::File::open(file).map_err(|error| {
            Failure::bad_input(format!("{} cannot be read: {error}", file.display()))
        })?;
    }
    let bar = ProgressBar::new(args.files.len() as u64);
    let style = "{bar:40} {pos}/{len} {msg} {eta}";
    bar.set_style(
        ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let mut sending =
        Sending { args, bar, batch: Vec::new(), bytes: 0, queued: 0, rejected: vec![] };
    for file in &args.files {
        sending.take(file)?;
        sending.bar.inc(1);
    }
    sending.flush()?;
    sending.bar.finish_and_clear();
    Ok(sending.told())
}

struct Sending<'a> {
    args: &'a SendArgs,
    bar: ProgressBar,
    /// Files with their messages, not sent yet.
    batch: Vec<(&'a Path, Value)>,
    bytes: usize,
    queued: u64,
    rejected: Vec<Value>,
}

impl<'a> Sending<'a> {
    fn take(&mut self, file: &'a Path) -> Result<(), Failure> {
        let read = std::fs::read(file).map_err(|error| format!("cannot be read: {error}"));
        let mut message = match read.and_then(|bytes| eml::read(&bytes)) {
            Ok(message) => message,
            Err(why) => {
                self.reject(file, &why);
                return Ok(());
            }
        };
        let SendArgs { of, account, priority, batch, .. } = self.args;
        for (name, value) in [
            ("tenant_id", json!(of.tenant)),
            ("account_id", json!(account)),
            ("priority", json!(priority)),
            ("batch_code", json!(batch)),
        ] {
            message.insert(name.into(), value);
        }
        let message = Value::Object(message);
        let bytes = message.to_string().len();
        if self.batch.len() >= MAX_MESSAGES || self.bytes + bytes > MAX_BYTES {
            self.flush()?;
        }
        self.bytes += bytes;
        self.batch.push((file, message));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        let messages: Vec<_> = batch.iter().map(|(_, message)| message).collect();
        let body = json!({ "messages": messages });
        let reply = self.args.remote.post_patiently("/commands/add-messages", &body);
        let answer = reply.and_then(|reply| match reply.status {
            // Every one of them was rejected; each says why.
            StatusCode::BAD_REQUEST if reply.document["rejected"].is_array() => Ok(reply.document),
            StatusCode::PAYLOAD_TOO_LARGE if batch.len() == 1 => {
                let reason = reply.document["detail"].clone();
                Ok(json!({ "rejected": [{ "id": messages[0]["id"], "reason": reason }] }))
            }
            _ => reply.success(),
        });
        let answer = answer.map_err(|failure| {
            self.bar.finish_and_clear();
            let first = batch.first().map_or(Path::new(""), |(file, _)| file);
            let (first, queued) = (first.display(), self.queued);
            failure.context(format!("stopped at {first}, {queued} queued; run it again to go on"))
        })?;
        self.queued += answer["queued"].as_u64().unwrap_or(0);
        for refused in answer["rejected"].as_array().into_iter().flatten() {
            let why = refused["reason"].as_str().unwrap_or("rejected").to_owned();
            let named = batch.iter().find(|(_, message)| message["id"] == refused["id"]);
            self.reject(named.map_or(Path::new(""), |(file, _)| file), &why);
        }
        self.bar.set_message(format!("{} queued", self.queued));
        Ok(())
    }

    fn reject(&mut self, file: &Path, why: &str) {
        let shown = file.display().to_string();
        self.bar.suspend(|| note!("{}: {}", printable(&shown), printable(why)));
        self.rejected.push(json!({ "file": shown, "reason": why }));
    }

    fn told(self) -> Done {
        let Self { queued, rejected, .. } = self;
        let count = rejected.len();
        if self.args.remote.json {
            say!("{}", json!({ "queued": queued, "rejected": rejected }));
        } else {
            say!("{queued} queued, {count} rejected");
        }
        if count == 0 { Done::Ok } else { Done::PartlyBad }
    }
}

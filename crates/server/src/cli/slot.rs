//! `slot EVENT_ID` and `slot list|cancel|verify|import|timeline`.

use clap::Subcommand;
use serde_json::{Value, json};
use ureq::http::StatusCode;

use super::client::{Query, Remote, Reply, encode};
use super::show::{printable, table, text};
use super::slot_import::{self, ImportArgs};
use super::slot_timeline::{self, TimelineArgs};
use crate::exit::{Done, Failure};

/// The server's word for a refusal that only a later or larger schedule lifts.
const HORIZON_FULL: &str = "urn:tollgate:horizon-full";

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "An event that is called like a subcommand: tollgate slot -- list")]
pub(crate) struct SlotArgs {
    #[command(subcommand)]
    command: Option<SlotCommand>,
    /// The event that wants a slot; the same id always gets the same one
    #[arg(required = true)]
    event_id: Option<String>,
    /// The policy to schedule by
    #[arg(long, value_name = "NAME")]
    config: Option<String>,
    /// The earliest time, such as 2026-12-01T12:00:00Z (default: now)
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SlotCommand {
    /// Slots in order of time, cancelled ones included
    List(ListArgs),
    /// Free the place of an event
    Cancel {
        event_id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Count the slots again and compare with what the windows say (exit 1 if they differ)
    Verify {
        /// The policy to count
        #[arg(long, value_name = "NAME")]
        config: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Ask for a slot for every line of a file; may be repeated, as each event gets one slot
    Import(ImportArgs),
    /// Draw windows and how full they are
    Timeline(TimelineArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    interval: Interval,
    /// How many to list, 1 to 1000 (default: 100)
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Go on from here: the cursor that the page before printed
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

/// Which slots or windows.
#[derive(Debug, clap::Args)]
pub(crate) struct Interval {
    /// The policy that gave them
    #[arg(long, value_name = "NAME")]
    config: Option<String>,
    /// From this time on
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

impl Interval {
    pub(super) fn query(&self) -> Query {
        Query::default()
            .with("configName", self.config.as_deref())
            .with("from", self.from.as_deref())
            .with("to", self.to.as_deref())
    }
}

pub(crate) fn run(args: SlotArgs) -> Result<Done, Failure> {
    match args.command {
        None => ask(&args),
        Some(SlotCommand::List(args)) => list(&args),
        Some(SlotCommand::Cancel { event_id, remote }) => cancel(&event_id, &remote),
        Some(SlotCommand::Verify { config, remote }) => verify(config.as_deref(), &remote),
        Some(SlotCommand::Import(args)) => slot_import::run(&args),
        Some(SlotCommand::Timeline(args)) => slot_timeline::run(&args),
    }
}

/// Behind an option, clap takes the name of a subcommand for an event.
fn meant_a_subcommand(event_id: &str) -> bool {
    SlotCommand::has_subcommand(event_id) && !std::env::args_os().any(|argument| argument == "--")
}

fn ask(args: &SlotArgs) -> Result<Done, Failure> {
    if let Some(name) = args.event_id.as_deref().filter(|id| meant_a_subcommand(id)) {
        return Err(Failure::bad_input(format!(
            "options belong behind {name:?}: tollgate slot {name} --help; an event of that name: \
             tollgate slot -- {name}"
        )));
    }
    let mut body = json!({ "eventId": args.event_id });
    for (name, value) in [("configName", &args.config), ("requestedTime", &args.at)] {
        if let Some(value) = value {
            body[name] = value.as_str().into();
        }
    }
    let reply = args.remote.post("/api/v1/slots", &body)?;
    if is_refusal(&reply) {
        if args.remote.json {
            say!("{}", reply.document);
        } else {
            say!("refused: {}", text(&reply.document["detail"]));
        }
        return Ok(Done::Refused);
    }
    let slot = reply.success()?;
    if args.remote.json {
        say!("{slot}");
    } else {
        let delay_ms = slot["delayMs"].as_u64().unwrap_or(0);
        say!("{} at {}", text(&slot["eventId"]), text(&slot["scheduledTime"]));
        say!("{}", delay(delay_ms));
    }
    Ok(Done::Ok)
}

/// A 503 is one only if it is the schedule that is full, not the store that is down.
fn is_refusal(reply: &Reply) -> bool {
    reply.status == StatusCode::CONFLICT || reply.document["type"] == HORIZON_FULL
}

fn delay(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{ms} ms after the time asked for"),
        _ => format!("{} after the time asked for", crate::wire::wait(ms / 1_000)),
    }
}

fn list(args: &ListArgs) -> Result<Done, Failure> {
    let limit = args.limit.map(|limit| limit.to_string());
    let query = args.interval.query();
    let query = query.with("limit", limit.as_deref()).with("cursor", args.cursor.as_deref());
    let answer = args.remote.get(&query.path("/api/v1/slots"))?.success()?;
    if args.remote.json {
        say!("{answer}");
        return Ok(Done::Ok);
    }
    let mut table =
        table(["event", "scheduled", "requested", "delay ms", "config", "version", "cancelled"]);
    for slot in answer["slots"].as_array().into_iter().flatten() {
        let names = [
            "eventId",
            "scheduledTime",
            "requestedTime",
            "delayMs",
            "configName",
            "configVersion",
            "cancelledAt",
        ];
        table.add_row(names.map(|name| printable(&text(&slot[name]))));
    }
    say!("{table}");
    if let Some(cursor) = answer["nextCursor"].as_str() {
        say!("there are more: --cursor {cursor}");
    }
    Ok(Done::Ok)
}

fn cancel(event_id: &str, remote: &Remote) -> Result<Done, Failure> {
    let slot = remote.delete(&format!("/api/v1/slots/{}", encode(event_id)))?.success()?;
    if remote.json {
        say!("{slot}");
    } else {
        let (at, cancelled) = (text(&slot["scheduledTime"]), text(&slot["cancelledAt"]));
        say!("cancelled at {cancelled}; its place was {at}");
    }
    Ok(Done::Ok)
}

fn verify(config: Option<&str>, remote: &Remote) -> Result<Done, Failure> {
    let path = Query::default().with("configName", config).path("/admin/slots/verify");
    let found = remote.get(&path)?.success()?;
    let drifts: &[Value] = found["drifts"].as_array().map_or(&[], Vec::as_slice);
    if remote.json {
        say!("{found}");
    } else {
        let verdict = match drifts.len() {
            0 => "no drift".to_owned(),
            count => format!("{count} windows do not hold what they count"),
        };
        let (slots, windows) = (text(&found["slots"]), text(&found["windows"]));
        say!(
            "config {}: {slots} slots in {windows} windows, {verdict}",
            text(&found["configName"])
        );
        if !drifts.is_empty() {
            let mut table = table(["window", "counted", "slots"]);
            for drift in drifts {
                table.add_row(["start", "counted", "slots"].map(|name| text(&drift[name])));
            }
            say!("{table}");
        }
    }
    Ok(if drifts.is_empty() { Done::Ok } else { Done::Refused })
}

//! The events of a file, CSV or JSON lines: one at a time, each with the number of its line, and
//! none that fills the memory.

use std::io::{BufRead, BufReader, Read};

use csv::StringRecord;

use super::{Event, Line, MAX_EVENT_BYTES};

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
const COLUMNS: [&str; 3] = ["eventId", "configName", "requestedTime"];

pub(in crate::cli) struct Lines<R> {
    source: BufReader<R>,
    /// Of the last line read.
    number: u64,
    position_bytes: u64,
    format: Format,
}

#[derive(Clone, Copy)]
enum Format {
    Json,
    Csv(Columns),
}

/// Where each of [`COLUMNS`] stands, and how many cells a line has.
#[derive(Clone, Copy)]
struct Columns {
    places: [Option<usize>; 3],
    count: usize,
}

/// What stands between two ends of line, or why it cannot be used.
type Text = Result<Vec<u8>, String>;

impl<R: Read> Lines<R> {
    /// JSON if the first thing in the file is an object, else CSV with a header.
    pub(in crate::cli) fn of(source: BufReader<R>) -> Result<Self, String> {
        let mut lines = Self { source, number: 0, position_bytes: 0, format: Format::Json };
        let beginning = lines.source.fill_buf().map_err(|error| error.to_string())?;
        if beginning.starts_with(BYTE_ORDER_MARK) {
            lines.source.consume(BYTE_ORDER_MARK.len());
            lines.position_bytes += BYTE_ORDER_MARK.len() as u64;
        }
        if lines.source.buffer().trim_ascii_start().first() == Some(&b'{') {
            return Ok(lines);
        }
        let header = lines.next_record()?.ok_or("it is empty")?;
        let header = header.1.and_then(|text| parse(&text))?;
        lines.format = Format::Csv(columns(&header)?);
        Ok(lines)
    }

    /// `None` at the end; an error if the rest cannot be read.
    pub(in crate::cli) fn next(&mut self) -> Result<Option<Line>, String> {
        let found = match self.format {
            Format::Json => self.next_text()?.map(|text| (self.number, text)),
            Format::Csv(_) => self.next_record()?,
        };
        let Some((number, text)) = found else { return Ok(None) };
        let event = text.and_then(|text| match self.format {
            Format::Json => serde_json::from_slice(&text).map_err(|error| error.to_string()),
            Format::Csv(columns) => columns.event(&parse(&text)?),
        });
        Ok(Some(Line { number, event }))
    }

    pub(super) fn position_bytes(&self) -> u64 {
        self.position_bytes
    }

    /// The next line that is not blank.
    fn next_text(&mut self) -> Result<Option<Text>, String> {
        loop {
            match self.read_line()? {
                Some(Ok(text)) if text.trim_ascii().is_empty() => {}
                found => return Ok(found),
            }
        }
    }

    /// The next record of CSV and the number of its first line: a quoted cell may hold ends of line.
    fn next_record(&mut self) -> Result<Option<(u64, Text)>, String> {
        let Some(first) = self.next_text()? else { return Ok(None) };
        let number = self.number;
        let mut text = match first {
            Ok(text) => text,
            Err(why) => return Ok(Some((number, Err(why)))),
        };
        while text.iter().filter(|byte| **byte == b'"').count() % 2 == 1 {
            let more = self.read_line()?;
            let unclosed = "a quote is not closed".to_owned();
            match more {
                Some(Ok(more)) if text.len() + more.len() <= MAX_EVENT_BYTES => text.extend(more),
                _ => return Ok(Some((number, Err(unclosed)))),
            }
        }
        Ok(Some((number, Ok(text))))
    }

    /// The next line with its end; of one that is too long only that it is.
    fn read_line(&mut self) -> Result<Option<Text>, String> {
        let mut text = Vec::new();
        let bound = MAX_EVENT_BYTES as u64;
        let read = self.source.by_ref().take(bound).read_until(b'\n', &mut text);
        let read = read.map_err(|error| error.to_string())?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.position_bytes += read as u64;
        if read == MAX_EVENT_BYTES && !text.ends_with(b"\n") {
            let rest = self.source.skip_until(b'\n').map_err(|error| error.to_string())?;
            self.position_bytes += rest as u64;
            return Ok(Some(Err(format!("is longer than {MAX_EVENT_BYTES} bytes"))));
        }
        Ok(Some(Ok(text)))
    }
}

/// The one record of a text.
fn parse(text: &[u8]) -> Result<StringRecord, String> {
    let mut builder = csv::ReaderBuilder::new();
    builder.has_headers(false).flexible(true).buffer_capacity(text.len().max(1));
    let mut reader = builder.from_reader(text);
    let (mut record, mut more) = (StringRecord::new(), StringRecord::new());
    let read = reader.read_record(&mut record).and_then(|_| reader.read_record(&mut more));
    match read {
        Ok(false) => Ok(record),
        Ok(true) => Err("a quote stands inside a cell that is not quoted".into()),
        Err(error) if matches!(error.kind(), csv::ErrorKind::Utf8 { .. }) => {
            Err("is not UTF-8".into())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn columns(header: &StringRecord) -> Result<Columns, String> {
    let names: Vec<&str> = header.iter().map(str::trim).collect();
    for (position, name) in names.iter().enumerate() {
        if !COLUMNS.contains(name) {
            return Err(format!("the header has {name:?}; it may have {}", COLUMNS.join(",")));
        }
        if names[..position].contains(name) {
            return Err(format!("the header has {name:?} twice"));
        }
    }
    let places = COLUMNS.map(|column| names.iter().position(|name| *name == column));
    match places[0] {
        None => Err("the header has no eventId".into()),
        Some(_) => Ok(Columns { places, count: names.len() }),
    }
}

impl Columns {
    /// An event's id is as it stands; the rest is trimmed, because people align columns.
    fn event(self, record: &StringRecord) -> Result<Event, String> {
        if record.len() != self.count {
            return Err(format!("has {} cells; the header has {}", record.len(), self.count));
        }
        let cell = |place: Option<usize>| record.get(place?);
        let trimmed = |place| cell(place).map(str::trim).filter(|cell| !cell.is_empty());
        let [event_id, config_name, requested_time] = self.places;
        Ok(Event {
            event_id: cell(event_id).unwrap_or_default().to_owned(),
            config_name: trimmed(config_name).map(str::to_owned),
            requested_time: trimmed(requested_time).map(str::to_owned),
        })
    }
}

//! Readers of files, for the fuzz targets.

use std::io::BufReader;

use serde_json::{Map, Value, json};

use super::mail::eml;
use super::slot_import::lines::Lines;

/// A message file as an object for `add-messages`.
pub fn message_file(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    eml::read(bytes)
}

/// The number of a line, and its event or what is wrong with it.
pub(crate) type Imported = (u64, Result<Value, String>);

/// The events of a file for `slot import`.
pub fn imported(bytes: &[u8]) -> Result<Vec<Imported>, String> {
    let mut lines = Lines::of(BufReader::new(bytes))?;
    let mut events = Vec::new();
    while let Some(line) = lines.next()? {
        events.push((line.number, line.event.map(|event| json!(event))));
    }
    Ok(events)
}

//! API keys of end users: known by their hashes, never kept or shown.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write;

use axum::http::{HeaderMap, HeaderName};
use ring::digest::{SHA256, digest};

use super::config::ApiKey;
use super::{single, unidentified};
use crate::problem::Problem;

/// A key that is not in a file counts by this many bytes of its hash.
const SHOWN_HASH_BYTES: usize = 16;

#[derive(Debug)]
pub(crate) struct ApiKeys {
    header: HeaderName,
    attribute: String,
    /// Names by hash; `None` if any key is taken.
    names: Option<HashMap<String, String>>,
}

impl ApiKeys {
    pub(crate) fn new(config: ApiKey) -> Result<Self, String> {
        let read = |path: std::path::PathBuf| {
            let shown = path.display();
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("gate.api_key.file: {shown} cannot be read: {error}"))?;
            parse(&text).map_err(|why| format!("gate.api_key.file: {shown}: {why}"))
        };
        let names = config.file.map(read).transpose()?;
        Ok(Self { header: config.header.0, attribute: config.attribute, names })
    }

    pub(crate) fn attribute(&self) -> &str {
        &self.attribute
    }

    /// Whose key a request carries; `None` if it carries none.
    pub(crate) fn identify(&self, headers: &HeaderMap) -> Result<Option<Cow<'_, str>>, Problem> {
        let Some(key) = single(&self.header, headers)? else { return Ok(None) };
        let hash = digest(&SHA256, key.as_bytes());
        match &self.names {
            None => Ok(Some(hex(&hash.as_ref()[..SHOWN_HASH_BYTES]).into())),
            Some(names) => match names.get(&hex(hash.as_ref())) {
                Some(name) => Ok(Some(name.as_str().into())),
                None => Err(unidentified(format!("this {} is not known", self.header))),
            },
        }
    }
}

fn parse(text: &str) -> Result<HashMap<String, String>, String> {
    let mut names = HashMap::new();
    for (position, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let number = position + 1;
        let mut words = line.split_whitespace();
        let (Some(name), Some(hash), None) = (words.next(), words.next(), words.next()) else {
            return Err(format!("line {number} is not a name and the SHA-256 of its key"));
        };
        let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hash || name.len() > tollgate::MAX_ATTRIBUTE_VALUE_BYTES {
            return Err(format!("line {number} has no SHA-256 in hex (64 digits) after its name"));
        }
        if names.insert(hash.to_ascii_lowercase(), name.to_owned()).is_some() {
            return Err(format!("line {number} has a key that is there already"));
        }
    }
    Ok(names)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to memory does not fail");
        text
    })
}

//! Reads a JSON object field by field and notes every fault with its place, instead of stopping at
//! the first.

use std::fmt;

use serde_json::{Map, Value};

/// One thing wrong with a document, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Such as `limits[1].per`.
    pub place: String,
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// The fields of one object that are still to be read.
pub(crate) struct Fields<'a> {
    place: String,
    rest: Map<String, Value>,
    known: Vec<&'static str>,
    faults: &'a mut Vec<Fault>,
}

impl<'a> Fields<'a> {
    /// `None`, with a fault, if it is not an object. An empty `place` is the document itself.
    pub(crate) fn of(value: Value, place: String, faults: &'a mut Vec<Fault>) -> Option<Self> {
        match value {
            Value::Object(rest) => Some(Self { place, rest, known: Vec::new(), faults }),
            other => {
                let message = format!("must be an object, not {}", describe(&other));
                let place = if place.is_empty() { "document".to_owned() } else { place };
                faults.push(Fault { place, message });
                None
            }
        }
    }

    pub(crate) fn place_of(&self, name: &str) -> String {
        // A field can be called nothing.
        let name = if name.is_empty() { "\"\"" } else { name };
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    pub(crate) fn fault(&mut self, name: &str, message: impl Into<String>) {
        let fault = Fault { place: self.place_of(name), message: message.into() };
        self.faults.push(fault);
    }

    pub(crate) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.rest.remove(name)
    }

    pub(crate) fn required(&mut self, name: &'static str) -> Option<Value> {
        let value = self.take(name);
        if value.is_none() {
            self.fault(name, "is required");
        }
        value
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Option<String> {
        let value = self.take(name)?;
        self.as_text(name, value)
    }

    pub(crate) fn required_text(&mut self, name: &'static str) -> Option<String> {
        let value = self.required(name)?;
        self.as_text(name, value)
    }

    fn as_text(&mut self, name: &str, value: Value) -> Option<String> {
        match value {
            Value::String(text) => Some(text),
            other => {
                self.fault(name, format!("must be text, not {}", describe(&other)));
                None
            }
        }
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> Option<bool> {
        match self.take(name)? {
            Value::Bool(flag) => Some(flag),
            other => {
                self.fault(name, format!("must be true or false, not {}", describe(&other)));
                None
            }
        }
    }

    /// A whole number from `least` to `most`.
    pub(crate) fn number(&mut self, name: &'static str, least: u64, most: u64) -> Option<u64> {
        let value = self.take(name)?;
        self.as_number(name, &value, least, most)
    }

    pub(crate) fn required_number(
        &mut self,
        name: &'static str,
        least: u64,
        most: u64,
    ) -> Option<u64> {
        let value = self.required(name)?;
        self.as_number(name, &value, least, most)
    }

    pub(crate) fn as_number(
        &mut self,
        name: &str,
        value: &Value,
        least: u64,
        most: u64,
    ) -> Option<u64> {
        let number = value.as_u64().filter(|number| (least..=most).contains(number));
        if number.is_none() {
            let found = describe(value);
            let message = format!("must be a whole number from {least} to {most}, not {found}");
            self.fault(name, message);
        }
        number
    }

    pub(crate) fn list(&mut self, name: &'static str) -> Option<Vec<Value>> {
        match self.take(name)? {
            Value::Array(items) => Some(items),
            other => {
                self.fault(name, format!("must be a list, not {}", describe(&other)));
                None
            }
        }
    }

    pub(crate) fn texts(&mut self, name: &'static str) -> Option<Vec<String>> {
        let items = self.list(name)?;
        let mut texts = Vec::with_capacity(items.len());
        for (position, item) in items.into_iter().enumerate() {
            texts.extend(self.as_text(&format!("{name}[{position}]"), item));
        }
        Some(texts)
    }

    pub(crate) fn object(&mut self, name: &'static str) -> Option<Map<String, Value>> {
        match self.take(name)? {
            Value::Object(object) => Some(object),
            other => {
                self.fault(name, format!("must be a table, not {}", describe(&other)));
                None
            }
        }
    }

    /// Parses with a function whose error is the fault's message.
    pub(crate) fn parse<T>(
        &mut self,
        name: &str,
        text: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        parse(text).map_err(|message| self.fault(name, message)).ok()
    }

    pub(crate) fn faults(&mut self) -> &mut Vec<Fault> {
        self.faults
    }

    /// Whatever was not asked for is not known.
    pub(crate) fn finish(mut self) {
        let known = self.known.join(", ");
        for name in std::mem::take(&mut self.rest).into_iter().map(|(name, _)| name) {
            self.fault(&name, format!("is not a known field; known here are {known}"));
        }
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.len() <= 40 => format!("{text:?}"),
        Value::String(_) => "a long text".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::Policy;

    #[test]
    fn a_document_that_is_no_object_is_told_with_a_place() {
        for document in [json!(5), json!([]), json!(null)] {
            let faults = Policy::from_json("p", document).unwrap_err().faults;
            assert_eq!(faults[0].place, "document");
        }
    }

    #[test]
    fn a_field_without_a_name_is_told_with_a_place() {
        let limit = json!({ "name": "l", "max": 1, "per": "60s", "": 1 });
        let faults =
            Policy::from_json("p", json!({ "limits": [limit], "": 1 })).unwrap_err().faults;
        let places: Vec<&str> = faults.iter().map(|fault| fault.place.as_str()).collect();
        assert_eq!(places, [r#"limits[0]."""#, r#""""#]);
    }
}

//! A refused subject as it is remembered and shown.
//!
//! What is kept is what its limit counts by, as it stands in the key: the values themselves, or
//! where the limit is `private` their keyed hashes, of which a short part is shown. Values that are
//! long together are kept as a hash only, so that every subject is small.

use std::fmt::Write;

use serde_json::{Map, Value};
use tollgate_core::Limit;

use crate::secret::{MAC_BYTES, sha256};

/// The values of a subject are kept as they are up to this length.
const MAX_BYTES: usize = 256;
const PLAIN: u8 = 0;
const HASHED: u8 = 1;
/// Of a hash, as much as tells subjects apart and no more.
const SHOWN_HASH_BYTES: usize = 6;

/// Calls `then` with a bounded name of the subject that has these values in its key.
pub(crate) fn with_name<T>(values: &[u8], then: impl FnOnce(&[u8]) -> T) -> T {
    let mut name = [PLAIN; MAX_BYTES + 1];
    match name.get_mut(1..=values.len()) {
        Some(room) => {
            room.copy_from_slice(values);
            then(&name[..=values.len()])
        }
        None => {
            let hash = sha256(&[values]);
            name[0] = HASHED;
            name[1..=hash.len()].copy_from_slice(&hash);
            then(&name[..=hash.len()])
        }
    }
}

/// The subject as a JSON object, from the name it was given.
pub(crate) fn subject(limit: &Limit, name: &[u8]) -> String {
    let (kind, mut rest) = match name.split_first() {
        Some((kind, rest)) => (*kind, rest),
        None => (PLAIN, name),
    };
    let mut members = Map::new();
    for (position, attribute) in limit.by.iter().enumerate() {
        let is_last = position + 1 == limit.by.len();
        let value = if kind == HASHED {
            format!("sha256:{}", short_hex(rest))
        } else if limit.private {
            let (mac, more) = rest.split_at(MAC_BYTES.min(rest.len()));
            rest = more;
            format!("hmac:{}", short_hex(mac))
        } else {
            let length = match rest.split_first_chunk() {
                Some((length, more)) if !is_last => {
                    rest = more;
                    usize::from(u16::from_le_bytes(*length)).min(more.len())
                }
                _ => rest.len(),
            };
            let (value, more) = rest.split_at(length);
            rest = more;
            String::from_utf8_lossy(value).into_owned()
        };
        members.insert(attribute.clone(), value.into());
    }
    Value::Object(members).to_string()
}

fn short_hex(bytes: &[u8]) -> String {
    bytes.iter().take(SHOWN_HASH_BYTES).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_core::Instant;

    use super::*;
    use crate::compiled::{Compiled, Keys};
    use crate::policy::Policy;
    use crate::secret::Keyed;
    use crate::subject::Attributes;

    fn shown(limit: &str, attributes: Attributes<'_>) -> String {
        let document = format!("limits = [{{ name = \"x\", max = 1, per = \"1h\", {limit} }}]");
        let policy = Policy::from_toml("p", &document).unwrap();
        let compiled = Arc::new(Compiled::new(policy, 1, Instant::MIN, None));
        let mut keys = Keys::new();
        let privacy = Keyed::derive(b"secret", "private attribute");
        compiled.write_keys(attributes, &privacy, &mut keys).unwrap();
        with_name(keys.get(0).values, |name| subject(&compiled.policy().limits()[0], name))
    }

    #[test]
    fn values_are_shown_as_they_are_counted() {
        let ada = [("user", "ada"), ("route", "/a\"b"), ("ip", "2001:db8::1"), ("more", "x")];
        assert_eq!(shown("by = [\"user\"]", &ada), r#"{"user":"ada"}"#);
        let both = shown("by = [\"user\", \"route\"]", &ada);
        assert_eq!(both, r#"{"route":"/a\"b","user":"ada"}"#);
        assert_eq!(shown("by = [\"ip\"]", &ada), r#"{"ip":"2001:db8::"}"#);
        assert_eq!(shown("by = []", &ada), "{}");
    }

    #[test]
    fn private_values_are_shown_as_a_short_keyed_hash() {
        let limit = "by = [\"ip\", \"email\"], private = true";
        let text = shown(limit, &[("ip", "192.0.2.1"), ("email", "Ada@x.org")]);
        assert!(!text.contains("192.0.2.1") && !text.contains("ada"), "{text}");
        let shown_again = shown(limit, &[("ip", "192.0.2.1"), ("email", "ada@x.org")]);
        assert_eq!(text, shown_again);
        let value: Value = serde_json::from_str(&text).unwrap();
        let (ip, email) = (value["ip"].as_str().unwrap(), value["email"].as_str().unwrap());
        assert!(ip.starts_with("hmac:") && ip.len() == 17 && ip != email, "{text}");
    }

    #[test]
    fn long_values_are_shown_as_a_hash() {
        let long = "x".repeat(MAX_BYTES);
        let other = format!("{long}y");
        assert!(shown("by = [\"user\"]", &[("user", &long)]).contains(&long));
        let text = shown("by = [\"user\"]", &[("user", &other)]);
        assert!(text.starts_with("{\"user\":\"sha256:") && text.len() < 40, "{text}");
    }
}

//! The segments of a request's path, however it is written.
//!
//! Escapes are undone once, doubled slashes count as one, `.` and `..` are followed, a slash at the end
//! and everything from `?` or `#` on is dropped. Servers disagree about `%2F`, `\`, `%5C` and `;…`:
//! some see a separator (or the end of a segment) and some do not. Whoever wants past a limit
//! writes the path in the way that only the application understands, so such a path has two
//! readings, and the table looks at both.

use std::borrow::Cow;

use smallvec::SmallVec;

/// Segments of most paths need no heap.
pub(crate) type Segments<'a> = SmallVec<[Cow<'a, [u8]>; 12]>;

/// What to take for a separator where servers disagree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reading {
    /// Only `/`, as RFC 3986 has it.
    Strict,
    /// Also `\`, and both of them escaped; `;` ends a segment.
    Loose,
}

/// Whether the two readings can differ.
pub(crate) fn is_ambiguous(path: &str) -> bool {
    let bytes = path.as_bytes();
    bytes.iter().enumerate().any(|(position, byte)| match byte {
        b'\\' | b';' => true,
        b'%' => escape(&bytes[position..]).is_some_and(|byte| b"/\\".contains(&byte)),
        _ => false,
    })
}

/// The path of a request target: of `/a?b` and of `http://host/a?b` it is `/a`.
pub(crate) fn of_target(target: &str) -> &str {
    let path = match target.find("://") {
        // Only before the path there is a scheme.
        Some(end) if !target[..end].contains(['/', '?', '#']) => {
            let rest = &target[end + 3..];
            rest.find(['/', '?', '#']).map_or("", |start| &rest[start..])
        }
        _ => target,
    };
    path.find(['?', '#']).map_or(path, |end| &path[..end])
}

/// A path as one of its readings has it.
#[derive(Debug, Default)]
pub(crate) struct Read<'a> {
    pub(crate) segments: Segments<'a>,
    /// How often `..` was followed.
    pub(crate) climbs: usize,
}

pub(crate) fn read(path: &str, reading: Reading) -> Read<'_> {
    let mut read = Read::default();
    let bytes = path.as_bytes();
    let (mut start, mut position) = (0, 0);
    while position <= bytes.len() {
        let separator = separator(&bytes[position..], reading);
        if position < bytes.len() && separator == 0 {
            position += 1;
            continue;
        }
        push(&mut read, &bytes[start..position], reading);
        position += separator.max(1);
        start = position;
    }
    read
}

/// How many bytes the separator takes that stands here; 0 if none does.
fn separator(bytes: &[u8], reading: Reading) -> usize {
    match (bytes.first(), reading) {
        (Some(b'/'), _) | (Some(b'\\'), Reading::Loose) => 1,
        (Some(b'%'), Reading::Loose) if escape(bytes).is_some_and(|b| b"/\\".contains(&b)) => 3,
        _ => 0,
    }
}

fn push<'a>(read: &mut Read<'a>, raw: &'a [u8], reading: Reading) {
    let raw = match (reading, raw.iter().position(|byte| *byte == b';')) {
        (Reading::Loose, Some(end)) => &raw[..end],
        _ => raw,
    };
    let segment = unescape(raw);
    match &*segment {
        b"" | b"." => {}
        b".." => {
            read.segments.pop();
            read.climbs += 1;
        }
        _ => read.segments.push(segment),
    }
}

/// Every escape undone, once; what is not one stays as it is.
fn unescape(raw: &[u8]) -> Cow<'_, [u8]> {
    if !raw.contains(&b'%') {
        return Cow::Borrowed(raw);
    }
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((first, after)) = rest.split_first() {
        match escape(rest) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    Cow::Owned(bytes)
}

/// The byte that an escape at this place stands for.
fn escape(bytes: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    match bytes {
        [b'%', high, low, ..] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
        _ => None,
    }
}

//! Header lines of a length that servers take: RFC 5322 asks for 78 and allows 998.
//!
//! lettre folds subjects and other texts, but no list of addresses, and nothing inside of a word.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lettre::message::Mailbox;

/// Where lines are broken if they can be.
const GOOD_LINE_BYTES: usize = 76;
/// What a line must not be longer than, its end not counted.
pub(super) const MAX_LINE_BYTES: usize = 998;
/// Of the text in one encoded word: with its frame and a header's name it fits into a line.
const ENCODED_TEXT_BYTES: usize = 39;

/// The same headers in short lines: broken at spaces, which changes nothing that they say.
pub(super) fn folded(head: &str) -> String {
    let mut out = String::with_capacity(head.len() + head.len() / 32);
    for line in head.split_inclusive("\r\n") {
        let mut rest = line;
        while let Some(at) = break_in(rest) {
            out.push_str(&rest[..at]);
            out.push_str("\r\n");
            rest = &rest[at..];
        }
        out.push_str(rest);
    }
    out
}

/// At which space a line is to be broken, if it is too long and has one.
fn break_in(line: &str) -> Option<usize> {
    let line = line.strip_suffix("\r\n").unwrap_or(line);
    if line.len() <= GOOD_LINE_BYTES {
        return None;
    }
    let bytes = line.as_bytes();
    // What stands before must be more than white space or a header's name, what follows a word.
    let begun = match bytes.first() {
        Some(b' ' | b'\t') => line.len() - line.trim_start().len(),
        _ => line.find(": ").map_or(0, |colon| colon + 2),
    };
    let is_place =
        |at: &usize| bytes[*at] == b' ' && bytes.get(at + 1).is_some_and(|next| *next != b' ');
    let places = || (begun + 1..bytes.len()).filter(is_place);
    places().take_while(|at| *at <= GOOD_LINE_BYTES).last().or_else(|| places().next())
}

/// A list of addresses as a header's value, broken behind commas.
pub(super) fn list(header_name: &str, mailboxes: &[Mailbox]) -> String {
    let mut out = String::new();
    let mut line_bytes = header_name.len() + 2;
    for (position, mailbox) in mailboxes.iter().enumerate() {
        let one = written(mailbox);
        if position > 0 {
            // The comma behind it counts as well.
            let fits = line_bytes + 2 + one.len() < GOOD_LINE_BYTES;
            out.push_str(if fits { ", " } else { ",\r\n " });
            line_bytes = if fits { line_bytes + 2 } else { 1 };
        }
        out.push_str(&one);
        line_bytes += one.rsplit("\r\n").next().map_or(0, str::len);
    }
    out
}

fn written(mailbox: &Mailbox) -> String {
    let name = mailbox.name.as_deref().unwrap_or("").trim();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " -_".contains(c);
    if name.is_empty() {
        mailbox.email.to_string()
    } else if !name.is_ascii() {
        format!("{} <{}>", encoded_words(name), mailbox.email)
    } else if name.chars().all(is_plain) {
        format!("{name} <{}>", mailbox.email)
    } else {
        let name = name.replace('\\', "\\\\").replace('"', "\\\"");
        format!("\"{name}\" <{}>", mailbox.email)
    }
}

/// A text in encoded words (RFC 2047), folded.
pub(super) fn encoded_words(text: &str) -> String {
    let mut words = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (word, after) = rest.split_at(rest.floor_char_boundary(ENCODED_TEXT_BYTES));
        words.push(format!("=?utf-8?b?{}?=", STANDARD.encode(word)));
        rest = after;
    }
    words.join("\r\n ")
}

#[cfg(test)]
mod tests {
    use super::{encoded_words, folded, list};

    #[test]
    fn lists_are_broken_behind_commas() {
        let one = "\"Body, Some\" <somebody@example.org>";
        let made = list("To", &vec![one.parse().unwrap(); 70]);
        assert_eq!(made.replace("\r\n ", " "), vec![one; 70].join(", "));
        let lines: Vec<&str> = made.lines().collect();
        assert!(lines.len() <= 36, "{made}");
        assert!(lines.iter().all(|line| line.len() <= 76), "{made}");
        assert!(lines[..lines.len() - 1].iter().all(|line| line.ends_with(">,")), "{made}");
    }

    #[test]
    fn names_are_written_so_that_they_are_read_again() {
        for (given, made) in [
            ("a@b.org", "a@b.org"),
            ("Ada King <a@b.org>", "Ada King <a@b.org>"),
            ("\"King, Ada\" <a@b.org>", "\"King, Ada\" <a@b.org>"),
            (r#""a \"b\" \\ c" <a@b.org>"#, r#""a \"b\" \\ c" <a@b.org>"#),
            ("\"=?utf-8?q?x?=\" <a@b.org>", "\"=?utf-8?q?x?=\" <a@b.org>"),
            ("Zoë <a@b.org>", "=?utf-8?b?Wm/Dqw==?= <a@b.org>"),
        ] {
            assert_eq!(list("To", &[given.parse().unwrap()]), made, "{given}");
        }
    }

    #[test]
    fn texts_are_broken_at_spaces_and_words_stay_whole() {
        let word = "x".repeat(200);
        for line in [format!("X: {word}\r\n"), format!(" {word}\r\n"), format!("X:  {word}\r\n")] {
            assert_eq!(folded(&line), line);
        }
        assert_eq!(folded(&format!("X: a {word} b\r\n")), format!("X: a\r\n {word}\r\n b\r\n"));
        let head = format!("X: {}end\r\nY: z\r\n", "word ".repeat(100));
        let made = folded(&head);
        assert!(made.lines().all(|line| line.len() <= 76), "{made}");
        assert_eq!(made.replace("\r\n ", " "), head);
    }

    #[test]
    fn long_words_are_encoded_in_pieces() {
        let made = encoded_words(&"é".repeat(400));
        assert!(made.is_ascii() && made.lines().all(|line| line.len() <= 66), "{made}");
    }
}

//! Why a message was not sent, and what that means for it and for its account.

use std::error::Error as _;

use lettre::transport::smtp::Error;

/// What a server says when it is asked too often. Each must begin a word.
const THROTTLING: &[&str] = &[
    "rate",
    "throttl",
    "too many",
    "too much",
    "too fast",
    "too quickly",
    "limit",
    "slow down",
    "try again later",
];
/// Said to everybody who comes for the first time: about one message, not about the account.
const GREYLISTING: &[&str] = &["greylist", "graylist", "grey list", "gray list"];
const THROTTLING_CODES: &[u16] = &[421, 450, 451];
/// Of policy and security (RFC 3463): what a server holds against who sends.
const POLICY: &str = "4.7.";

/// An attempt that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) stage: Stage,
    pub(crate) code: Option<u16>,
    /// For people: what was being done, and what the server said to it.
    pub(crate) text: String,
    /// The message was said whole and the answer never came: nobody knows.
    pub(crate) maybe_sent: bool,
    /// The connection carries nothing more.
    pub(crate) connection_lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// May well be different later.
    Temporary,
    /// The server asks for a pause.
    Throttled,
    /// Will be the same later.
    Permanent,
}

/// How far it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// No message was spoken of yet: any other would have failed as well.
    Connecting,
    /// Nothing was said of the message but who sends it.
    Sender,
    /// The answer is about one of its recipients.
    Recipient,
    /// Its content, or all of it.
    Message,
}

impl Failure {
    /// The account, as it is, cannot be used for anything.
    pub(crate) fn permanent(text: impl Into<String>) -> Self {
        Self { kind: Kind::Permanent, ..Self::unconnected(text) }
    }

    /// There is no connection, and that is not the message's fault.
    pub(crate) fn unconnected(text: impl Into<String>) -> Self {
        Self {
            kind: Kind::Temporary,
            stage: Stage::Connecting,
            code: None,
            text: text.into(),
            maybe_sent: false,
            connection_lost: true,
        }
    }

    /// The server did not answer in time.
    pub(super) fn timeout(stage: Stage, doing: &str) -> Self {
        let text = format!("{doing}: the server did not answer in time");
        Self { stage, ..Self::unconnected(text) }
    }

    /// The server refused, or was lost.
    pub(super) fn of(error: &Error, stage: Stage, doing: &str) -> Self {
        let code = error.status().map(u16::from);
        let said = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        let text = match code {
            Some(code) => format!("{doing}: {code} {said}"),
            None if said == "incomplete response" => {
                format!("{doing}: the server closed the connection")
            }
            None => format!("{doing}: {said}"),
        };
        let kind = match code {
            Some(code) if is_throttling(code, stage, &said) => Kind::Throttled,
            _ if error.is_permanent() => Kind::Permanent,
            _ => Kind::Temporary,
        };
        // 421 is said by a server that hangs up.
        let connection_lost = code.is_none_or(|code| code == 421);
        Self { kind, stage, code, text, maybe_sent: false, connection_lost }
    }
}

/// Whether the server means the account, not this message. What it says to a recipient is about
/// that one, unless it hangs up or calls it its policy.
fn is_throttling(code: u16, stage: Stage, text: &str) -> bool {
    let means_account =
        stage != Stage::Recipient || code == 421 || text.trim_start().starts_with(POLICY);
    let text = without_addresses(&text.to_lowercase());
    means_account
        && THROTTLING_CODES.contains(&code)
        && THROTTLING.iter().any(|words| begins_a_word(&text, words))
        && !GREYLISTING.iter().any(|words| text.contains(words))
}

/// Servers repeat addresses, and those can hold any word.
fn without_addresses(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, (_, after))) =
        rest.split_once('<').and_then(|(before, from)| Some((before, from.split_once('>')?)))
    {
        plain.push_str(before);
        plain.push(' ');
        rest = after;
    }
    plain.push_str(rest);
    let words: Vec<&str> = plain.split_whitespace().filter(|word| !word.contains('@')).collect();
    words.join(" ")
}

fn begins_a_word(text: &str, words: &str) -> bool {
    text.match_indices(words)
        .any(|(at, _)| !text[..at].ends_with(|before: char| before.is_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::{Stage, is_throttling};

    #[test]
    fn throttling_words_are_told_from_other_delays() {
        for (code, text, throttling) in [
            (421, "4.7.0 Too many messages, slow down", true),
            (450, "4.2.1 You are sending mail at a rate that prevents delivery", true),
            (451, "4.7.1 Rate-limited, try later", true),
            (421, "4.7.0 Try again later, closing connection", true),
            (450, "4.7.1 <ada@example.org>: too many messages", true),
            (450, "4.7.1 a < b: too many messages", true),
            (451, "4.7.1 Greylisted, please try again later", false),
            (451, "4.3.0 failed to generate a corporate header", false),
            (450, "4.2.0 mailbox busy", false),
            (421, "4.4.2 timeout exceeded", false),
            (452, "4.5.3 too many recipients", false),
            (550, "5.7.1 rate limit", false),
        ] {
            assert_eq!(is_throttling(code, Stage::Sender, text), throttling, "{code} {text}");
            assert_eq!(is_throttling(code, Stage::Message, text), throttling, "{code} {text}");
        }
    }

    #[test]
    fn words_in_an_address_mean_nothing() {
        for text in [
            "4.1.8 <x@limited-edition.example>: Sender address rejected: Domain not found",
            "4.1.8 <Rate Limit@example.org>: Sender address rejected",
            "4.1.8 limit@example.org is not known",
            "4.1.8 example.org does not know (limit@example.org)",
        ] {
            assert!(!is_throttling(450, Stage::Sender, text), "{text}");
        }
    }

    #[test]
    fn what_is_said_to_a_recipient_is_about_the_message() {
        for (code, text, throttling) in [
            (450, "4.2.1 The user is receiving mail at a rate that prevents delivery", false),
            (451, "4.3.0 <x@d.example>: Temporary lookup failure, try again later", false),
            (450, "too many messages to this mailbox", false),
            (452, "4.2.2 over its limit", false),
            (450, "4.7.1 <x@d.example>: you send too many messages", true),
            (451, "4.7.1 <x@d.example>: Greylisted, try again later", false),
            (421, "4.2.1 too many messages in this connection", true),
        ] {
            assert_eq!(is_throttling(code, Stage::Recipient, text), throttling, "{code} {text}");
        }
    }
}

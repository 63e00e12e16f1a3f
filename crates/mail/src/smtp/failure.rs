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
    /// Sender, recipients, content.
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
            Some(code) if is_throttling(code, &said) => Kind::Throttled,
            _ if error.is_permanent() => Kind::Permanent,
            _ => Kind::Temporary,
        };
        // 421 is said by a server that hangs up.
        let connection_lost = code.is_none_or(|code| code == 421);
        Self { kind, stage, code, text, maybe_sent: false, connection_lost }
    }
}

fn is_throttling(code: u16, text: &str) -> bool {
    let text = text.to_lowercase();
    THROTTLING_CODES.contains(&code)
        && THROTTLING.iter().any(|words| begins_a_word(&text, words))
        && !GREYLISTING.iter().any(|words| text.contains(words))
}

fn begins_a_word(text: &str, words: &str) -> bool {
    text.match_indices(words)
        .any(|(at, _)| !text[..at].ends_with(|before: char| before.is_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::is_throttling;

    #[test]
    fn throttling_words_are_told_from_other_delays() {
        for (code, text, throttling) in [
            (421, "4.7.0 Too many messages, slow down", true),
            (450, "4.2.1 The user is receiving mail at a rate that prevents delivery", true),
            (451, "4.7.1 Rate-limited, try later", true),
            (421, "4.7.0 Try again later, closing connection", true),
            (451, "4.7.1 Greylisted, please try again later", false),
            (451, "4.3.0 failed to generate a corporate header", false),
            (450, "4.2.0 mailbox busy", false),
            (421, "4.4.2 timeout exceeded", false),
            (452, "4.5.3 too many recipients", false),
            (550, "5.7.1 rate limit", false),
        ] {
            assert_eq!(is_throttling(code, text), throttling, "{code} {text}");
        }
    }
}

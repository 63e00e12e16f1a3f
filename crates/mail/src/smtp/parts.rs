//! The parts of a message: its text, the same in HTML, and files.

use lettre::message::header::{ContentTransferEncoding, ContentType};
use lettre::message::{Body, Message, MessageBuilder, MultiPart, SinglePart};

use super::folding::MAX_LINE_BYTES;
use crate::model::{Attachment, Content};
use crate::validate::Composite;

/// What any file can be.
const BYTES: &str = "application/octet-stream";

pub(super) fn with_parts(builder: MessageBuilder, content: &Content) -> Result<Message, String> {
    let failed = |error: lettre::error::Error| error.to_string();
    let text = content.body.as_deref().map(with_plain_ends).map(SinglePart::plain);
    let html = content.html.as_deref().map(with_plain_ends).map(SinglePart::html);
    if content.attachments.is_empty() {
        return match (text, html) {
            (Some(text), Some(html)) => {
                builder.multipart(MultiPart::alternative().singlepart(text).singlepart(html))
            }
            (Some(only), None) | (None, Some(only)) => builder.singlepart(only),
            (None, None) => builder.singlepart(SinglePart::plain(String::new())),
        }
        .map_err(failed);
    }
    let mixed = MultiPart::mixed();
    let mut parts = match (text, html) {
        (Some(text), Some(html)) => {
            mixed.multipart(MultiPart::alternative().singlepart(text).singlepart(html))
        }
        (Some(only), None) | (None, Some(only)) => mixed.singlepart(only),
        (None, None) => mixed.build(),
    };
    for file in &content.attachments {
        parts = parts.singlepart(attached(file)?);
    }
    builder.multipart(parts).map_err(failed)
}

fn attached(file: &Attachment) -> Result<SinglePart, String> {
    let bytes =
        file.bytes().ok_or_else(|| format!("attachment {:?} is not base64", file.filename))?;
    let (kind, body) = match (file.composite(), bytes) {
        (None, bytes) => (file.content_type.as_str(), in_base64(file, bytes)?),
        // RFC 2046, 5.2.1: a message in a message is said as it is, or it is none.
        (Some(Composite::Message), bytes) => match in_lines(&bytes) {
            Some(lines) => (file.content_type.as_str(), lines),
            None => (BYTES, in_base64(file, bytes)?),
        },
        (Some(Composite::Multipart), bytes) => (BYTES, in_base64(file, bytes)?),
    };
    let kind = ContentType::parse(kind).map_err(|_| format!("{kind:?} is not a media type"))?;
    Ok(lettre::message::Attachment::new(file.filename.clone()).body(body, kind))
}

/// What most files are said in: lettre would say one that is plain text as it is, with its own ends
/// of line, and a dot between two of them ends the message for some servers.
fn in_base64(file: &Attachment, bytes: Vec<u8>) -> Result<Body, String> {
    Body::new_with_encoding(bytes, ContentTransferEncoding::Base64)
        .map_err(|_| format!("attachment {:?} cannot be encoded", file.filename))
}

/// As it is, but for its ends of line, if it can be said so.
fn in_lines(bytes: &[u8]) -> Option<Body> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.is_ascii())?;
    let text = with_plain_ends(text);
    let fits = |line: &str| line.len() <= MAX_LINE_BYTES && !line.contains('\0');
    text.split("\r\n")
        .all(fits)
        .then(|| Body::dangerous_pre_encoded(text.into_bytes(), ContentTransferEncoding::SevenBit))
}

/// Every end of line as `\r\n`. lettre leaves a `\r` alone, and some servers take that for an end
/// of line too; of each `\n` it makes `\r\n`, in a time that grows with their square.
fn with_plain_ends(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n").replace('\n', "\r\n")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    fn made(content_type: &str, bytes: &[u8]) -> String {
        let part = attached(&Attachment {
            filename: "a.eml".into(),
            content_type: content_type.into(),
            content_base64: STANDARD.encode(bytes),
        });
        String::from_utf8(part.unwrap().formatted()).unwrap()
    }

    #[test]
    fn a_message_in_a_message_is_said_as_it_is() {
        for kind in ["message/rfc822", "Message/RFC822; x=y"] {
            let part = made(kind, b"Subject: a\n\nb\rc\r\n");
            assert!(part.contains("Content-Transfer-Encoding: 7bit\r\n"), "{part}");
            assert!(part.to_lowercase().contains("content-type: message/rfc822"), "{part}");
            assert!(part.contains("\r\n\r\nSubject: a\r\n\r\nb\r\nc\r\n"), "{part}");
        }
    }

    #[test]
    fn what_cannot_be_said_as_it_is_is_a_file() {
        let long = format!("Subject: {}\n\n", "x".repeat(990));
        for (kind, bytes) in [
            ("message/rfc822", "Subject: é\n\n".as_bytes()),
            ("message/rfc822", b"\xff"),
            ("message/rfc822", b"a\0b"),
            ("message/rfc822", long.as_bytes()),
            ("message/partial; number=1; id=a", "é".as_bytes()),
            ("multipart/mixed; boundary=b", b"--b--"),
        ] {
            let part = made(kind, bytes);
            assert!(part.contains("Content-Type: application/octet-stream\r\n"), "{part}");
            assert!(part.contains("filename=\"a.eml\""), "{part}");
            assert!(part.contains("Content-Transfer-Encoding: base64\r\n"), "{part}");
            assert!(part.contains(&STANDARD.encode(bytes)[..4]), "{part}");
        }
    }

    #[test]
    fn what_is_no_message_keeps_its_kind() {
        for kind in ["text/plain", "application/pdf", "message/global"] {
            let part = made(kind, "é".as_bytes());
            assert!(part.contains(&format!("Content-Type: {kind}\r\n")), "{part}");
            assert!(part.contains("Content-Transfer-Encoding: base64\r\n"), "{part}");
        }
    }

    #[test]
    fn many_lines_take_no_longer_than_many_bytes() {
        let body = Some("\n".repeat(3 << 20));
        let content = Content { body, ..Content::default() };
        let begun = Instant::now();
        let builder = Message::builder().from("a@example.org".parse().unwrap());
        let message = with_parts(builder.to("b@example.org".parse().unwrap()), &content).unwrap();
        assert!(message.formatted().len() > 6 << 20);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}

//! A message's own parts: addresses, header lines, bodies, attachments.

use base64::Engine;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{GeneralPurposeConfig, STANDARD};

use crate::address::mailbox;
use crate::error::Invalid;
use crate::model::{Attachment, Content};
use crate::settings::MailSettings;

const MAX_SUBJECT_CHARS: usize = 998;
const MAX_HEADERS: usize = 64;
const MAX_HEADER_VALUE_BYTES: usize = 4096;
const MAX_ATTACHMENTS: usize = 100;
const MAX_CONTENT_TYPE_CHARS: usize = 255;
/// A line of a message holds 998 bytes, a header's name included, and is broken at spaces only.
const MAX_WORD_BYTES: usize = 900;
/// In a name, where every character may be written as two.
const MAX_NAME_WORD_BYTES: usize = 400;

/// Written by the relay itself: a second one would contradict it.
const OWN_HEADERS: &[&str] = &[
    "from",
    "to",
    "cc",
    "bcc",
    "reply-to",
    "subject",
    "date",
    "message-id",
    "mime-version",
    "content-type",
    "content-transfer-encoding",
    "content-disposition",
    "return-path",
];

pub(crate) fn content(content: &Content, settings: &MailSettings) -> Result<(), Invalid> {
    address("from", &content.from)?;
    if content.to.is_empty() && content.cc.is_empty() && content.bcc.is_empty() {
        return Err(Invalid::new("to", "must name at least one recipient"));
    }
    let recipients = content.to.len() + content.cc.len() + content.bcc.len();
    if recipients > settings.max_recipients {
        let most = settings.max_recipients;
        let message = format!("has {recipients} recipients with cc and bcc; at most {most}");
        return Err(Invalid::new("to", message + " are possible"));
    }
    for (field, list) in [("to", &content.to), ("cc", &content.cc), ("bcc", &content.bcc)] {
        for (position, given) in list.iter().enumerate() {
            address(&format!("{field}[{position}]"), given)?;
        }
    }
    if let Some(given) = &content.reply_to {
        address("reply_to", given)?;
    }
    one_line("subject", &content.subject)?;
    if content.subject.chars().count() > MAX_SUBJECT_CHARS {
        let message = format!("must be at most {MAX_SUBJECT_CHARS} characters long");
        return Err(Invalid::new("subject", message));
    }
    if content.body.is_none() && content.html.is_none() {
        return Err(Invalid::new("body", "is required, or html, or both"));
    }
    for (field, text) in [("body", &content.body), ("html", &content.html)] {
        if text.as_ref().is_some_and(|text| text.contains('\0')) {
            return Err(Invalid::new(field, "must not hold a zero byte; attach it as a file"));
        }
    }
    headers(content)?;
    if content.attachments.len() > MAX_ATTACHMENTS {
        let message = format!("must be at most {MAX_ATTACHMENTS}");
        return Err(Invalid::new("attachments", message));
    }
    for (position, attachment) in content.attachments.iter().enumerate() {
        check_attachment(&format!("attachments[{position}]"), attachment)?;
    }
    let bytes = content_bytes(content);
    if bytes > settings.max_message_bytes {
        let most = settings.max_message_bytes;
        let message = format!("make a message of {bytes} bytes; at most {most} are possible");
        return Err(Invalid::new("body and attachments", message));
    }
    Ok(())
}

/// About what it will be on the wire.
pub(crate) fn content_bytes(content: &Content) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let lists = [&content.to, &content.cc, &content.bcc];
    let recipients: usize = lists.into_iter().flatten().map(|to| to.len() + 2).sum();
    let headers: usize = content.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    let attachments: usize = content
        .attachments
        .iter()
        .map(|file| file.filename.len() + file.content_base64.len())
        .sum();
    content.subject.len()
        + text(&content.body)
        + text(&content.html)
        + recipients
        + headers
        + attachments
}

/// `ada@example.org` or `Ada <ada@example.org>`.
pub(crate) fn address(field: &str, given: &str) -> Result<(), Invalid> {
    one_line(field, given)?;
    if given.trim().is_empty() {
        return Err(Invalid::new(field, "is required: an address such as ada@example.org"));
    }
    // The longest address that SMTP carries is 254 bytes; a name may stand before it.
    if given.len() > 1000 {
        return Err(Invalid::new(field, "is too long for an address"));
    }
    words(field, given, MAX_NAME_WORD_BYTES)?;
    match mailbox(given) {
        Ok(mailbox) if AsRef::<str>::as_ref(&mailbox.email).len() <= 254 => Ok(()),
        Ok(_) => Err(Invalid::new(field, "is longer than 254 characters")),
        Err(_) => Err(Invalid::new(field, "is not an address such as ada@example.org")),
    }
}

/// Whatever goes into a header: a line break would let it write more of them.
pub(crate) fn one_line(field: &str, text: &str) -> Result<(), Invalid> {
    if text.contains(['\r', '\n']) {
        return Err(Invalid::new(field, "must not hold a line break"));
    }
    if text.contains(|c: char| c.is_control() && c != '\t') {
        return Err(Invalid::new(field, "must not hold control characters"));
    }
    Ok(())
}

/// Whether it can be broken into lines. What is not ASCII is encoded in short pieces.
fn words(field: &str, text: &str, max_bytes: usize) -> Result<(), Invalid> {
    let mut word_bytes = 0;
    let mut before = ' ';
    for c in text.chars() {
        // A word with the spaces before it.
        word_bytes = if !c.is_ascii() || (c == ' ' && before != ' ') { 1 } else { word_bytes + 1 };
        before = c;
        if word_bytes > max_bytes {
            let message = format!("must not hold a word of more than {max_bytes} bytes");
            return Err(Invalid::new(field, message));
        }
    }
    Ok(())
}

fn headers(content: &Content) -> Result<(), Invalid> {
    if content.headers.len() > MAX_HEADERS {
        return Err(Invalid::new("headers", format!("must be at most {MAX_HEADERS}")));
    }
    let mut seen: Vec<String> = Vec::with_capacity(content.headers.len());
    for (name, value) in &content.headers {
        let shown: String = name.chars().filter(|c| !c.is_control()).take(80).collect();
        let field = format!("headers.{shown}");
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b':';
        if name.is_empty() || name.len() > 76 || !name.bytes().all(plain) {
            return Err(Invalid::new(field, "is not a header's name"));
        }
        let lower = name.to_ascii_lowercase();
        if OWN_HEADERS.contains(&lower.as_str()) {
            return Err(Invalid::new(field, "is written by the relay; use the message's fields"));
        }
        if seen.contains(&lower) {
            return Err(Invalid::new(field, "is given twice"));
        }
        seen.push(lower);
        one_line(&field, value)?;
        if value.len() > MAX_HEADER_VALUE_BYTES {
            let message = format!("must be at most {MAX_HEADER_VALUE_BYTES} bytes long");
            return Err(Invalid::new(field, message));
        }
        words(&field, value, MAX_WORD_BYTES)?;
    }
    Ok(())
}

fn check_attachment(field: &str, attachment: &Attachment) -> Result<(), Invalid> {
    let name = format!("{field}.filename");
    if attachment.filename.is_empty() {
        return Err(Invalid::new(name, "is required"));
    }
    if attachment.filename.chars().count() > 255 {
        return Err(Invalid::new(name, "must be at most 255 characters long"));
    }
    one_line(&name, &attachment.filename)?;
    let kind = format!("{field}.content_type");
    one_line(&kind, &attachment.content_type)?;
    if attachment.content_type.chars().count() > MAX_CONTENT_TYPE_CHARS {
        let message = format!("must be at most {MAX_CONTENT_TYPE_CHARS} characters long");
        return Err(Invalid::new(kind, message));
    }
    if attachment.content_type.parse::<lettre::message::header::ContentType>().is_err() {
        return Err(Invalid::new(kind, "is not a media type such as application/pdf"));
    }
    if attachment.composite() == Some(Composite::Multipart) {
        let message = "must not be multipart/*: attach its parts, or give application/octet-stream";
        return Err(Invalid::new(kind, message));
    }
    if decode(&attachment.content_base64).is_none() {
        return Err(Invalid::new(format!("{field}.content_base64"), "is not base64"));
    }
    Ok(())
}

/// Standard base64 with or without padding; white space as mail programs put it is no harm.
fn decode(text: &str) -> Option<Vec<u8>> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
    );
    match STANDARD.decode(text) {
        Ok(bytes) => Some(bytes),
        Err(_) => {
            let dense: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
            LENIENT.decode(dense).ok()
        }
    }
}

/// A file that holds parts of its own, which mail may not encode (RFC 2045, 6.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Composite {
    Message,
    Multipart,
}

impl Attachment {
    /// `message/global` may be encoded (RFC 6532, 3.7).
    pub(crate) fn composite(&self) -> Option<Composite> {
        let kind = self.content_type.trim_start().to_ascii_lowercase();
        if kind.starts_with("multipart/") {
            Some(Composite::Multipart)
        } else if kind.starts_with("message/") && !kind.starts_with("message/global") {
            Some(Composite::Message)
        } else {
            None
        }
    }

    /// The file itself.
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        decode(&self.content_base64)
    }
}

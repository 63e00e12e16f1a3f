//! A message as it travels: its envelope, and its headers and parts as one text.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use lettre::Address;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, Mailboxes, Message};
use sha2::{Digest, Sha256};
use tollgate::Instant;

use super::folding::{MAX_LINE_BYTES, encoded_words, folded, list};
use super::parts::with_parts;
use crate::address::mailbox;
use crate::model::Content;
use crate::secrets;

/// Longer ones are encoded: with the header's name they may not fit into a line.
const MAX_WORD_BYTES: usize = 900;

/// What tells this message from all others, the same at every attempt: receivers know a repeat by
/// the `Message-ID` that is made of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) tenant_id: &'a str,
    pub(crate) id: &'a str,
    pub(crate) created_at: Instant,
}

/// Ready to be said to a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outgoing {
    pub(crate) from: Address,
    /// Each once.
    pub(crate) recipients: Vec<Address>,
    /// All of it as it is said after `DATA`, the last dot included.
    pub(crate) data: String,
}

impl Outgoing {
    /// An error if it cannot be made a message: said to whoever gave it.
    pub(crate) fn new(
        content: &Content,
        identity: Identity<'_>,
        date: Instant,
    ) -> Result<Self, String> {
        let from = mailbox(&content.from)?;
        let [to, cc, bcc] = [&content.to, &content.cc, &content.bcc];
        let [to, cc, bcc] = [mailboxes(to)?, mailboxes(cc)?, mailboxes(bcc)?];
        let mut builder = Message::builder()
            .message_id(Some(message_id(identity, &from.email)))
            .date(system_time(date))
            .raw_header(addresses("From", std::slice::from_ref(&from)))
            .raw_header(words(HeaderName::new_from_ascii_str("Subject"), &content.subject));
        if let Some(given) = &content.reply_to {
            builder = builder.raw_header(addresses("Reply-To", &[mailbox(given)?]));
        }
        for (name, list) in [("To", &to), ("Cc", &cc)] {
            if !list.is_empty() {
                builder = builder.raw_header(addresses(name, list));
            }
        }
        let recipients = each_once(to.into_iter().chain(cc).chain(bcc));
        for (name, value) in &content.headers {
            let name = HeaderName::new_from_ascii(name.clone())
                .map_err(|_| format!("{name:?} is not a header's name"))?;
            builder = builder.raw_header(words(name, value));
        }
        let envelope = lettre::address::Envelope::new(Some(from.email.clone()), recipients.clone());
        builder = builder.envelope(envelope.map_err(|error| error.to_string())?);
        let message = with_parts(builder, content)?;
        let mut text = String::from_utf8(message.formatted())
            .map_err(|_| "the message is not valid text".to_owned())?;
        let head_end = text.find("\r\n\r\n").unwrap_or(text.len());
        let head = folded(&text[..head_end]);
        if head.lines().any(|line| line.len() > MAX_LINE_BYTES) {
            return Err(format!("a header needs a line of more than {MAX_LINE_BYTES} bytes"));
        }
        text.replace_range(..head_end, &head);
        Ok(Self { from: from.email, recipients, data: dotted(&text) })
    }
}

/// A header of any words. lettre breaks a text at spaces only, and says several of them between
/// words that are not ASCII as they are, where readers take them for none.
fn words(name: HeaderName, text: &str) -> HeaderValue {
    let fits = |word: &str| word.len() <= MAX_WORD_BYTES || !word.is_ascii();
    let loses_spaces = !text.is_ascii() && (text.contains("  ") || text.trim_matches(' ') != text);
    if text.split(' ').all(fits) && !loses_spaces {
        return HeaderValue::new(name, text.to_owned());
    }
    HeaderValue::dangerous_new_pre_encoded(name, text.to_owned(), encoded_words(text))
}

fn mailboxes(given: &[String]) -> Result<Vec<Mailbox>, String> {
    given.iter().map(|given| mailbox(given)).collect()
}

fn addresses(name: &'static str, mailboxes: &[Mailbox]) -> HeaderValue {
    let raw: Mailboxes = mailboxes.iter().cloned().collect();
    let encoded = list(name, mailboxes);
    let name = HeaderName::new_from_ascii_str(name);
    HeaderValue::dangerous_new_pre_encoded(name, raw.to_string(), encoded)
}

fn each_once(mailboxes: impl Iterator<Item = Mailbox>) -> Vec<Address> {
    let mut seen = HashSet::new();
    mailboxes.map(|it| it.email).filter(|email| seen.insert(email.clone())).collect()
}

fn message_id(identity: Identity<'_>, from: &Address) -> String {
    let Identity { tenant_id, id, created_at } = identity;
    let named = format!("{tenant_id}\0{id}\0{}", created_at.as_micros());
    let digest = secrets::hex(&Sha256::digest(named.as_bytes()));
    format!("<{}@{}>", &digest[..32], from.domain())
}

fn system_time(at: Instant) -> SystemTime {
    let micros = u64::try_from(at.as_micros()).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

/// A line that begins with a dot gets another one, and a dot alone ends it all.
fn dotted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    for line in text.split_inclusive("\r\n") {
        if line.starts_with('.') {
            out.push('.');
        }
        out.push_str(line);
    }
    if !out.ends_with("\r\n") {
        out.push_str("\r\n");
    }
    out.push_str(".\r\n");
    out
}

#[cfg(test)]
mod tests {
    use super::{Identity, Outgoing, dotted};
    use crate::model::{Attachment, Content};
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use tollgate::Instant;

    const IDENTITY: Identity<'_> =
        Identity { tenant_id: "acme", id: "m1", created_at: Instant::from_micros(7) };

    fn content() -> Content {
        Content {
            from: "Ada <ada@example.org>".into(),
            to: vec!["bob@example.org".into()],
            subject: "hello".into(),
            body: Some("text".into()),
            ..Content::default()
        }
    }

    fn outgoing(content: &Content) -> Outgoing {
        Outgoing::new(content, IDENTITY, Instant::from_micros(1_772_714_096_789_012)).unwrap()
    }

    #[test]
    fn dots_at_the_beginning_of_lines_are_doubled() {
        assert_eq!(dotted(".a\r\nb.\r\n..c"), "..a\r\nb.\r\n...c\r\n.\r\n");
        assert_eq!(dotted("a\r\n"), "a\r\n.\r\n");
    }

    /// What some servers take for the end of a message, and whatever follows for commands.
    #[test]
    fn no_part_ends_the_message_early() {
        for end in ["\n.\n", "\n.\r\n", "\r.\r", "\r\n.\r", "\r.\r\n", "\r\n.\r\n"] {
            let text = format!("a{end}MAIL FROM:<eve@example.org>\r\n");
            let mut content = content();
            content.body = Some(text.clone());
            content.html = Some(text.clone());
            let attached = |content_type: &str| Attachment {
                filename: "a.txt".into(),
                content_type: content_type.into(),
                content_base64: STANDARD.encode(&text),
            };
            content.attachments = vec![attached("text/plain"), attached("message/rfc822")];
            let data = outgoing(&content).data;
            assert!(!data.replace("\r\n", "").contains(['\r', '\n']), "{end:?}: {data:?}");
            assert_eq!(data.find("\r\n.\r\n"), Some(data.len() - 5), "{end:?}: {data:?}");
        }
    }

    #[test]
    fn bcc_receives_and_is_not_named() {
        let mut content = content();
        content.cc = vec!["Cleo <cleo@example.org>".into()];
        content.bcc = vec!["secret@example.org".into(), "bob@example.org".into()];
        let made = outgoing(&content);
        let recipients: Vec<&str> = made.recipients.iter().map(AsRef::as_ref).collect();
        assert_eq!(recipients, ["bob@example.org", "cleo@example.org", "secret@example.org"]);
        assert!(!made.data.to_lowercase().contains("secret"), "{}", made.data);
        assert!(!made.data.to_lowercase().contains("bcc"), "{}", made.data);
    }

    #[test]
    fn a_repeat_has_the_same_message_id_and_another_message_has_not() {
        let id = |data: &str| {
            data.lines().find(|line| line.starts_with("Message-ID:")).map(str::to_owned)
        };
        let first = id(&outgoing(&content()).data).unwrap();
        let again = Outgoing::new(&content(), IDENTITY, Instant::from_micros(9)).unwrap();
        assert_eq!(id(&again.data).unwrap(), first);
        let other = Identity { tenant_id: "other", ..IDENTITY };
        let other = Outgoing::new(&content(), other, Instant::from_micros(9)).unwrap();
        assert_ne!(id(&other.data).unwrap(), first);
    }

    #[test]
    fn no_line_is_longer_than_servers_take() {
        let mut content = content();
        let named =
            |number: usize| format!("\"Somebody, Number {number}\" <u{number}@example.org>");
        content.to = (0..200).map(named).collect();
        content.cc = (0..200).map(|number| format!("c{number}@example.org")).collect();
        content.from = format!("{} <ada@example.org>", "Ada ".repeat(200));
        content.reply_to = Some(format!("\"{}\" <ada@example.org>", "\\\\".repeat(190)));
        content.headers.insert("X-Words".into(), "word ".repeat(800));
        content.headers.insert("X".repeat(76), "y".repeat(900));
        for subject in ["x".repeat(998), "word ".repeat(199), "é".repeat(998), "x y".repeat(332)] {
            content.subject = subject;
            let data = outgoing(&content).data;
            let longest = data.lines().map(str::len).max();
            assert!(longest <= Some(998), "{longest:?} {data}");
            let list = data.lines().skip_while(|line| !line.starts_with("To: "));
            assert!(list.take(300).all(|line| line.len() <= 78), "{data}");
        }
    }

    #[test]
    fn everything_on_the_wire_is_ascii() {
        let mut content = content();
        content.subject = "Grüße aus Łódź — 東京".into();
        content.to = vec!["\"Zoë Müller\" <zoe@müller.example>".into()];
        content.body = Some(format!("é\n{}", "x".repeat(2000)));
        content.html = Some("<p>é</p>".into());
        content.headers.insert("X-Note".into(), "naïve".into());
        content.attachments = vec![Attachment {
            filename: "résumé.pdf".into(),
            content_type: "application/pdf".into(),
            content_base64: "AAEC".into(),
        }];
        let made = outgoing(&content);
        assert!(made.data.is_ascii());
        assert!(made.data.lines().all(|line| line.len() <= 998));
        assert!(!made.data.replace("\r\n", "").contains(['\r', '\n']));
    }
}

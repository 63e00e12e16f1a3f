//! A message file (RFC 5322) as the relay takes it.
//!
//! The relay writes Date and Message-ID itself and builds the parts anew, so signatures over the old
//! ones and traces of an earlier journey are left out. Pictures that the HTML shows by Content-ID
//! come as attachments.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mail_parser::{Address, Message, MessageParser, MessagePart, MimeHeaders, PartType};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// As long as the relay takes an id.
const MAX_ID_CHARS: usize = 255;

/// Of the message's own fields, of its form, or of a journey that is over.
const LEFT_OUT: [&str; 23] = [
    "from",
    "to",
    "cc",
    "bcc",
    "reply-to",
    "sender",
    "subject",
    "date",
    "message-id",
    "mime-version",
    "return-path",
    "received",
    "received-spf",
    "delivered-to",
    "envelope-to",
    "x-received",
    "x-original-to",
    "dkim-signature",
    "domainkey-signature",
    "authentication-results",
    "errors-to",
    "status",
    "x-status",
];
const LEFT_OUT_KINDS: [&str; 3] = ["content-", "resent-", "arc-"];

/// The message as an object for `add-messages`, without tenant and account.
pub(in crate::cli) fn read(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    let message = MessageParser::default().parse(bytes).ok_or("is not a message")?;
    let from = message.from().and_then(Address::first).and_then(address);
    let from = from.ok_or("is not a message: it has no From address")?;
    let list = |addresses: Vec<&Address<'_>>| -> Vec<String> {
        addresses.into_iter().flat_map(Address::iter).filter_map(address).collect()
    };
    let bodies = |ids: &[u32], wanted: fn(&PartType<'_>) -> bool| -> Option<String> {
        let parts = ids.iter().filter_map(|id| message.part(*id));
        let texts: Vec<_> = parts
            .filter(|part| wanted(&part.body))
            .filter_map(MessagePart::text_contents)
            .collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    };
    let html = bodies(&message.html_body, |body| matches!(body, PartType::Html(_)));
    let text = bodies(&message.text_body, |body| matches!(body, PartType::Text(_)));
    // A message may well say nothing but its subject.
    let text = text.or_else(|| html.is_none().then(String::new));
    let reply_to = message.reply_to().and_then(Address::first).and_then(address);
    let attachments: Vec<_> = message.attachments().enumerate().map(attachment).collect();
    let members = json!({
        "id": id(&message, bytes),
        "from": from,
        "to": list(message.all_to().collect()),
        "cc": list(message.all_cc().collect()),
        "bcc": list(message.all_bcc().collect()),
        "reply_to": reply_to,
        "subject": message.subject().unwrap_or_default(),
        "body": text,
        "html": html,
        "headers": headers(&message),
        "attachments": attachments,
    });
    match members {
        Value::Object(members) => Ok(members),
        _ => unreachable!("it was written as an object"),
    }
}

/// The same file is the same message, however often it is sent.
fn id(message: &Message<'_>, bytes: &[u8]) -> String {
    let usable = |id: &&str| !id.is_empty() && id.chars().count() <= MAX_ID_CHARS;
    match message.message_id().filter(usable) {
        Some(id) => id.to_owned(),
        None => Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn address(address: &mail_parser::Addr<'_>) -> Option<String> {
    let email = address.address()?;
    Some(match address.name().filter(|name| !name.is_empty()) {
        Some(name) => {
            let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
            format!("\"{quoted}\" <{email}>")
        }
        None => email.to_owned(),
    })
}

fn attachment((position, part): (usize, &MessagePart<'_>)) -> Value {
    let kind = part.content_type().map(|kind| match kind.subtype() {
        Some(subtype) => format!("{}/{subtype}", kind.ctype()),
        None => kind.ctype().to_owned(),
    });
    // Text was decoded on the way.
    let kind = match (&part.body, kind) {
        (PartType::Text(_) | PartType::Html(_), Some(kind)) => format!("{kind}; charset=utf-8"),
        (PartType::Text(_) | PartType::Html(_), None) => "text/plain; charset=utf-8".into(),
        (_, kind) => kind.unwrap_or_else(|| "application/octet-stream".into()),
    };
    let name = part.attachment_name().map_or_else(
        || format!("attachment-{}", position + 1),
        |name| name.chars().filter(|c| !c.is_control()).collect(),
    );
    json!({ "filename": name, "content_type": kind,
        "content_base64": STANDARD.encode(part.contents()) })
}

/// Each name once, the first; folded lines made one.
fn headers(message: &Message<'_>) -> Map<String, Value> {
    let mut seen: Vec<String> = Vec::new();
    let mut headers = Map::new();
    for (name, value) in message.headers_raw() {
        let lower = name.to_ascii_lowercase();
        let is_left_out = LEFT_OUT.contains(&lower.as_str())
            || LEFT_OUT_KINDS.iter().any(|kind| lower.starts_with(kind));
        if !is_left_out && !seen.contains(&lower) {
            let lines: Vec<_> = value.lines().map(str::trim).collect();
            headers.insert(name.to_owned(), lines.join(" ").trim().into());
            seen.push(lower);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    const LETTER: &str = "Received: from somewhere\r\n\
        From: \"Lovelace, Ada\" <ada@example.org>\r\n\
        To: Bob <bob@example.org>, =?utf-8?Q?J=C3=BCrgen?= <j@example.org>\r\n\
        Cc: friends: carol@example.org, dave@example.org;\r\n\
        Bcc: eve@example.org\r\n\
        Subject: =?iso-8859-1?Q?Gr=FC=DFe?=\r\n\
        Message-ID: <1@example.org>\r\n\
        X-Campaign: spring\r\n two\r\n\
        DKIM-Signature: v=1\r\n\
        MIME-Version: 1.0\r\n\
        Content-Type: multipart/mixed; boundary=b\r\n\r\n\
        --b\r\nContent-Type: multipart/alternative; boundary=a\r\n\r\n\
        --a\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\
        Content-Transfer-Encoding: quoted-printable\r\n\r\nsch=F6n\r\n\
        --a\r\nContent-Type: text/html\r\n\r\n<p>nice</p>\r\n--a--\r\n\
        --b\r\nContent-Type: application/pdf\r\n\
        Content-Disposition: attachment; filename=\"a b.pdf\"\r\n\
        Content-Transfer-Encoding: base64\r\n\r\nJVBERg==\r\n--b--\r\n";

    #[test]
    fn a_letter_is_read_whole() {
        let read = Value::Object(read(LETTER.as_bytes()).unwrap());
        assert_eq!(read["id"], "1@example.org");
        assert_eq!(read["from"], "\"Lovelace, Ada\" <ada@example.org>");
        assert_eq!(read["to"], json!(["\"Bob\" <bob@example.org>", "\"Jürgen\" <j@example.org>"]));
        assert_eq!(read["cc"], json!(["carol@example.org", "dave@example.org"]));
        assert_eq!(read["bcc"], json!(["eve@example.org"]));
        assert_eq!(read["subject"], "Grüße");
        assert_eq!(read["body"].as_str().unwrap().trim(), "schön");
        assert_eq!(read["html"].as_str().unwrap().trim(), "<p>nice</p>");
        assert_eq!(read["headers"], json!({ "X-Campaign": "spring two" }));
        let pdf = json!({ "filename": "a b.pdf", "content_type": "application/pdf",
            "content_base64": "JVBERg==" });
        assert_eq!(read["attachments"], json!([pdf]));
    }

    #[test]
    fn a_letter_without_an_id_is_known_by_its_bytes() {
        let letter = "From: a@b.org\nTo: c@d.org\nSubject: x\n\nhello\n";
        let first = read(letter.as_bytes()).unwrap();
        assert_eq!(first, read(letter.as_bytes()).unwrap());
        assert_eq!(first["id"].as_str().unwrap().len(), 64);
        assert_eq!(first["body"], "hello\n");
        assert_eq!(first["html"], Value::Null);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for text in ["", "nonsense", "To: a@b.org\n\nhello"] {
            assert!(read(text.as_bytes()).unwrap_err().contains("not a message"), "{text:?}");
        }
    }
}

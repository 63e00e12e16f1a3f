//! Messages: as callers give them, as files hold them, and as they are said to a server.

use tollgate_mail::fuzzing::{said, stored};
use tollgate_mail::{Content, NewMessage};
use tollgate_server::fuzzing::message_file;

/// Written by the relay, once each.
const OWN: [&str; 9] = [
    "from",
    "to",
    "cc",
    "reply-to",
    "subject",
    "date",
    "message-id",
    "mime-version",
    "content-type",
];
const ENCODING: &str = "content-transfer-encoding";

pub fn mail_message(input: &[u8]) {
    if let Ok(content) = serde_json::from_slice::<Content>(input) {
        travel(content);
    }
}

pub fn eml(input: &[u8]) {
    let Ok(members) = message_file(input) else { return };
    let id = members["id"].as_str().expect("an id");
    assert!((1..=255).contains(&id.chars().count()), "an id that is not taken: {id:?}");
    travel(serde_json::from_value(members.into()).expect("what the relay takes"));
}

/// What the relay takes can be kept, and be said without a word more than was given.
fn travel(content: Content) {
    let message = NewMessage {
        id: "m".into(),
        tenant_id: "t".into(),
        account_id: "a".into(),
        content,
        ..NewMessage::default()
    };
    let content = message.content.clone();
    let Ok(kept) = stored(message) else { return };
    assert_eq!(serde_json::from_slice::<Content>(&kept).ok().as_ref(), Some(&content));
    let (text, recipients) = match said(&content) {
        Ok(said) => said,
        Err(why) => panic!("taken, and cannot be said: {why}"),
    };
    assert!((1..=content.recipient_count() as usize).contains(&recipients), "{recipients}");
    assert_eq!(text.find("\r\n.\r\n"), Some(text.len() - 5), "it ends once, at its end");
    assert!(!text.replace("\r\n", "").contains(['\r', '\n']), "a line with another end");
    only_given_headers(&text, &content);
}

fn only_given_headers(text: &str, content: &Content) {
    let (head, _) = text.split_once("\r\n\r\n").expect("a head and a body");
    let mut given = 0;
    let mut seen: Vec<String> = Vec::new();
    for line in head.split("\r\n").filter(|line| !line.starts_with([' ', '\t'])) {
        let (name, _) = line.split_once(':').expect("a header has a name");
        let name = name.to_ascii_lowercase();
        assert!(!seen.contains(&name), "{name} is there twice");
        if !OWN.contains(&name.as_str()) && name != ENCODING {
            given += 1;
        }
        seen.push(name);
    }
    assert_eq!(given, content.headers.len(), "headers that nobody gave, or lost: {head}");
}

//! The queue from outside.

use std::time::Duration;

use crate::stage::{Stage, new_message, new_tenant};
use tollgate::Span;
use tollgate_mail::{Attachment, Content, MessageQuery, Selection, Status};

pub(crate) async fn good_and_bad_messages_are_judged_one_by_one(stage: Stage) {
    let mail = &stage.mail;
    mail.put_tenant(new_tenant("other")).await.unwrap();
    let mut bad = new_message("bad");
    bad.content.to = vec!["not an address".into()];
    let mut unknown = new_message("unknown");
    unknown.account_id = "nobody".into();
    let mut stranger = new_message("stranger");
    stranger.tenant_id = "other".into();
    let added = mail
        .add_messages(vec![new_message("a"), bad, unknown, new_message("b"), stranger])
        .await
        .unwrap();
    assert_eq!(added.queued, 2);
    let rejected: Vec<_> = added.rejected.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(rejected, ["bad", "unknown", "stranger"]);
    assert!(added.rejected[0].reason.contains("to[0]"), "{:?}", added.rejected[0]);
    assert!(added.rejected[1].reason.contains("account_id"), "{:?}", added.rejected[1]);
    assert_eq!(stage.pending().await, 2);
}

pub(crate) async fn bad_content_is_refused_with_the_field_named(stage: Stage) {
    type Change = fn(&mut Content);
    let attachment = |name: &str, kind: &str, content: &str| Attachment {
        filename: name.into(),
        content_type: kind.into(),
        content_base64: content.into(),
    };
    let cases: [(&str, Change); 20] = [
        ("from", |content| content.from = String::new()),
        ("from", |content| content.from = "ada@example.org\r\nBcc: eve@example.org".into()),
        ("to must name", |content| content.to = Vec::new()),
        ("to[0]", |content| content.to = vec!["bob".into()]),
        ("cc[0]", |content| content.cc = vec!["bob@".into()]),
        ("bcc[0]", |content| content.bcc = vec!["a@b.example\ncc: d@e.example".into()]),
        ("reply_to", |content| content.reply_to = Some("nobody".into())),
        ("subject", |content| content.subject = "hi\r\nBcc: eve@example.org".into()),
        ("body", |content| content.body = None),
        ("headers.X-A", |content| drop(content.headers.insert("X-A".into(), "a\r\nb: c".into()))),
        ("headers.X A", |content| drop(content.headers.insert("X A".into(), "a".into()))),
        ("headers.Bcc", |content| drop(content.headers.insert("Bcc".into(), "a@b.c".into()))),
        ("headers.X-B", |content| drop(content.headers.insert("X-B".into(), "y".repeat(901)))),
        ("from", |content| content.from = format!("{} <a@example.org>", "x".repeat(401))),
        ("body must not hold a zero byte", |content| content.body = Some("a\0b".into())),
        ("html must not hold a zero byte", |content| content.html = Some("a\0b".into())),
        ("to[0]", |content| content.to = vec![format!("a@{}.de", "ü".repeat(200))]),
        ("headers.X-C", |content| {
            drop(content.headers.insert("X-C".into(), format!("a{}b", " ".repeat(901))));
        }),
        ("to has 1001", |content| content.to = vec!["a@example.org".into(); 1001]),
        ("body and attachments", |content| content.body = Some("x".repeat(26 << 20))),
    ];
    for (expected, change) in cases {
        let mut message = new_message("bad");
        change(&mut message.content);
        refused(&stage, message, expected).await;
    }
    for (expected, bad) in [
        ("attachments[0].filename", attachment("", "text/plain", "aGk=")),
        ("attachments[0].filename", attachment("a\r\nb", "text/plain", "aGk=")),
        ("attachments[0].content_type", attachment("a", "text", "aGk=")),
        ("attachments[0].content_type", attachment("a", "Multipart/mixed; boundary=b", "aGk=")),
        ("attachments[0].content_base64", attachment("a", "text/plain", "%%%")),
        ("attachments[0].content_type", attachment("a", &format!("a/{}", "b".repeat(300)), "")),
    ] {
        let mut message = new_message("bad");
        message.content.attachments = vec![bad];
        refused(&stage, message, expected).await;
    }
    let mut message = new_message("bad");
    message.priority = 4;
    refused(&stage, message, "priority").await;
    let mut message = new_message("");
    message.id = String::new();
    refused(&stage, message, "id is required").await;
    let mut good = new_message("good");
    good.content.attachments = vec![attachment("ä.pdf", "application/pdf", "aGVs\r\nbG8")];
    good.content.html = Some("<p>hello</p>".into());
    good.content.headers.insert("X-Campaign".into(), "spring".into());
    assert_eq!(stage.mail.add_messages(vec![good]).await.unwrap().queued, 1);
}

async fn refused(stage: &Stage, message: tollgate_mail::NewMessage, expected: &str) {
    let added = stage.mail.add_messages(vec![message]).await.unwrap();
    assert_eq!(added.queued, 0, "{expected}");
    let reason = &added.rejected[0].reason;
    assert!(reason.starts_with(expected), "{reason:?} does not begin with {expected:?}");
}

pub(crate) async fn a_repeated_id_is_fine_and_a_reused_one_is_not(stage: Stage) {
    let mail = &stage.mail;
    mail.add_messages(vec![new_message("a")]).await.unwrap();
    let again = mail.add_messages(vec![new_message("a"), new_message("a")]).await.unwrap();
    assert_eq!((again.queued, again.rejected.len()), (2, 0));
    let twice = mail.add_messages(vec![new_message("b"), new_message("b")]).await.unwrap();
    assert_eq!((twice.queued, twice.rejected.len()), (1, 0));
    let mut other = new_message("a");
    other.content.subject = "something else".into();
    let reused = mail.add_messages(vec![other]).await.unwrap();
    assert_eq!(reused.queued, 0);
    assert!(reused.rejected[0].reason.contains("id already used"), "{reused:?}");
    assert_eq!(stage.pending().await, 2);
}

pub(crate) async fn a_page_has_a_cursor_until_the_last(stage: Stage) {
    let mail = &stage.mail;
    let messages = (0..7).map(|n| new_message(&format!("m{n}"))).collect();
    mail.add_messages(messages).await.unwrap();
    let mut query = MessageQuery { limit: 3, ..MessageQuery::of_tenant("acme") };
    let mut pages = Vec::new();
    loop {
        let (page, cursor) = mail.messages(&query).await.unwrap();
        pages.push(page.len());
        query.cursor = cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    assert_eq!(pages, [3, 3, 1]);
    for (limit, cursor) in [(0, None), (1001, None), (10, Some("x")), (10, Some("-1"))] {
        let query = MessageQuery {
            limit,
            cursor: cursor.map(ToOwned::to_owned),
            ..MessageQuery::of_tenant("acme")
        };
        assert!(mail.messages(&query).await.is_err());
    }
}

pub(crate) async fn batches_are_suspended_and_activated(stage: Stage) {
    let mail = &stage.mail;
    let mut held = new_message("held");
    held.batch_code = Some("spring".into());
    mail.add_messages(vec![held, new_message("free")]).await.unwrap();
    assert_eq!(mail.suspend("acme", Some("spring")).await.unwrap(), 1);
    assert_eq!(mail.message("acme", "held").await.unwrap().status, Status::Suspended);
    assert_eq!(mail.message("acme", "free").await.unwrap().status, Status::Pending);
    let status = mail.status(Some("acme")).await.unwrap();
    assert_eq!((status.pending, status.suspended), (1, 1));
    assert_eq!(mail.activate("acme", Some("spring")).await.unwrap(), 1);
    assert_eq!(stage.pending().await, 2);
}

pub(crate) async fn cleanup_works_in_many_chunks(stage: Stage) {
    let mail = &stage.mail;
    let messages = (0..2500).map(|n| {
        let mut message = new_message(&format!("m{n}"));
        message.batch_code = Some("many".into());
        message
    });
    assert_eq!(mail.add_messages(messages.collect()).await.unwrap().queued, 2500);
    assert_eq!(mail.suspend("acme", Some("many")).await.unwrap(), 2500);
    assert_eq!(mail.activate("acme", Some("many")).await.unwrap(), 2500);
    stage.clock.advance(Span::from_secs(3600));
    // Nothing of it is final, so nothing is old.
    let removed = mail.cleanup_messages(None, Duration::from_secs(60)).await.unwrap();
    assert_eq!(removed, 0);
    let of_batch = Selection {
        tenant_id: "acme".into(),
        batch_code: Some("many".into()),
        ..Selection::default()
    };
    assert_eq!(mail.delete_messages(&of_batch).await.unwrap(), 2500);
    assert_eq!(stage.pending().await, 0);
}

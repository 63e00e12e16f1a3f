//! What goes over the wire: TLS, logins, and messages of every shape.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "support/stage.rs"]
mod stage;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use stage::{Stage, message, message_to, settings};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tollgate_mail::{Attachment, MailSettings, NewAccount, Secret, Status, Tls};

fn with_login(account: &mut NewAccount) {
    account.user = Some(stage::sink::USER.into());
    account.password = Some(Secret::new(stage::sink::PASSWORD));
}

async fn one_arrives(stage: &Stage) -> Value {
    stage.add(vec![message("m0")]).await;
    stage.until_status("m0", Status::Sent).await;
    stage.sink.wait_for("message", 1).await.remove(0)
}

#[tokio::test]
async fn starttls_with_a_login() {
    let stage = Stage::new().await;
    let (port, authority) = (stage.sink.starttls, stage.sink.authority.clone());
    stage
        .account("main", |account| {
            with_login(account);
            account.port = port;
            account.use_tls = true;
            account.root_cert = Some(authority);
        })
        .await;
    let arrived = one_arrives(&stage).await;
    assert_eq!((&arrived["tls"], &arrived["user"]), (&json!(true), &json!("ada")));
}

#[tokio::test]
async fn implicit_tls_with_the_authority_of_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.crt");
    let given = MailSettings { root_cert: Some(file.clone()), ..settings() };
    let stage = Stage::with(given).await;
    std::fs::write(&file, &stage.sink.authority).unwrap();
    let port = stage.sink.implicit;
    stage
        .account("main", |account| {
            with_login(account);
            account.host = "localhost".into();
            account.port = port;
            account.use_tls = true;
            account.tls = Some(Tls::Implicit);
        })
        .await;
    let arrived = one_arrives(&stage).await;
    assert_eq!((&arrived["tls"], &arrived["user"]), (&json!(true), &json!("ada")));
}

#[tokio::test]
async fn a_login_over_plain_text_to_this_machine() {
    let stage = Stage::new().await;
    stage.account("main", with_login).await;
    let arrived = one_arrives(&stage).await;
    assert_eq!((&arrived["tls"], &arrived["user"]), (&json!(false), &json!("ada")));
}

#[tokio::test]
async fn a_password_does_not_travel_unencrypted_to_another_machine() {
    let stage = Stage::new().await;
    stage
        .account("main", |account| {
            with_login(account);
            account.host = "mail.example.org".into();
        })
        .await;
    stage.add(vec![message("m0")]).await;
    let row = stage.until_status("m0", Status::Error).await;
    assert!(row.last_error.unwrap().contains("unencrypted"));
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_said_clearly_and_nothing_is_lost() {
    let stage = Stage::new().await;
    let (port, authority) = (stage.sink.starttls, stage.sink.authority.clone());
    let secure = |root_cert: Option<String>| {
        move |account: &mut NewAccount| {
            account.port = port;
            account.use_tls = true;
            account.root_cert = root_cert;
        }
    };
    stage.account("main", secure(None)).await;
    stage.add(vec![message("m0")]).await;
    let row = stage.until_status("m0", Status::Deferred).await;
    let error = row.last_error.unwrap();
    assert!(error.contains("certificate") && error.contains("UnknownIssuer"), "{error}");
    stage.account("main", secure(Some(authority))).await;
    stage.clock.set(row.deferred_until.unwrap());
    stage.until_status("m0", Status::Sent).await;
}

#[tokio::test]
async fn without_starttls_nothing_is_sent() {
    let stage = Stage::new().await;
    stage.account("main", |account| account.use_tls = true).await;
    stage.add(vec![message("m0")]).await;
    let row = stage.until_status("m0", Status::Deferred).await;
    assert!(row.last_error.unwrap().contains("STARTTLS"));
    assert!(stage.sink.messages().is_empty());
}

#[tokio::test]
async fn everything_a_message_can_hold_arrives_as_it_was_given() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    let mut full = message("m0");
    let content = &mut full.content;
    content.from = "Zoë's shop <shop@example.org>".into();
    content.to = vec!["\"Müller, Bob\" <bob@example.org>".into(), "eve@example.org".into()];
    content.cc = vec!["cleo@example.org".into()];
    content.bcc = vec!["hidden@example.org".into()];
    content.reply_to = Some("answers@example.org".into());
    content.subject = "Grüße — 東京 and a subject that is long enough to be folded, twice".into();
    content.body = Some("first line é\n.\n..dots\nlast".into());
    content.html = Some("<p>größer</p>".into());
    content.headers.insert("X-Campaign".into(), "spring naïve 7".into());
    content.headers.insert("List-Unsubscribe".into(), "<https://example.org/u?id=1>".into());
    content.attachments = vec![Attachment {
        filename: "résumé.bin".into(),
        content_type: "application/octet-stream".into(),
        content_base64: "AAEC/w==".into(),
    }];
    stage.add(vec![full]).await;
    stage.until_status("m0", Status::Sent).await;
    let arrived = stage.sink.wait_for("message", 1).await.remove(0);
    let headers = &arrived["headers"];
    assert_eq!(arrived["sender"], "shop@example.org");
    assert_eq!(
        arrived["recipients"],
        json!(["bob@example.org", "eve@example.org", "cleo@example.org", "hidden@example.org"])
    );
    assert_eq!(headers["from"], "Zoë's shop <shop@example.org>");
    assert_eq!(headers["to"], "\"Müller, Bob\" <bob@example.org>, eve@example.org");
    assert_eq!(headers["cc"], "cleo@example.org");
    assert_eq!(headers["reply-to"], "answers@example.org");
    assert_eq!(
        headers["subject"],
        "Grüße — 東京 and a subject that is long enough to be folded, twice"
    );
    assert_eq!(headers["x-campaign"], "spring naïve 7");
    assert_eq!(headers["list-unsubscribe"], "<https://example.org/u?id=1>");
    assert!(headers["message-id"].as_str().unwrap().ends_with("@example.org>"));
    assert!(headers["date"].as_str().unwrap().starts_with("Thu, 05 Mar 2026 12:34:56"));
    assert!(headers.get("bcc").is_none());
    let parts = arrived["parts"].as_array().unwrap();
    let kinds: Vec<&str> = parts.iter().map(|part| part["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text/plain", "text/html", "application/octet-stream"]);
    let text = parts[0]["content"].as_str().unwrap().replace("\r\n", "\n");
    assert_eq!(text.trim_end(), "first line é\n.\n..dots\nlast");
    assert_eq!(parts[1]["content"].as_str().unwrap().trim_end(), "<p>größer</p>");
    assert_eq!(parts[2]["filename"], "résumé.bin");
    assert_eq!(parts[2]["content"], "000102ff");
}

#[tokio::test]
async fn spaces_arrive_as_they_were_given() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    let texts = ["é  é", " é", "é ", "a   é  b c", "é é", "two  words"];
    for (number, text) in texts.into_iter().enumerate() {
        let mut message = message(&format!("m{number}"));
        message.content.subject = text.into();
        message.content.headers.insert("X-Note".into(), text.into());
        stage.add(vec![message]).await;
    }
    for (arrived, text) in stage.sink.wait_for("message", texts.len()).await.iter().zip(texts) {
        assert_eq!(arrived["headers"]["subject"], text);
        assert_eq!(arrived["headers"]["x-note"], text);
    }
}

#[tokio::test]
async fn a_message_in_a_message_arrives_as_one() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    let mut outer = message("m0");
    outer.content.attachments = vec![Attachment {
        filename: "inner.eml".into(),
        content_type: "message/rfc822".into(),
        content_base64: STANDARD.encode("Subject: inner\n\nfirst\n.\nlast\n"),
    }];
    stage.add(vec![outer]).await;
    let arrived = stage.sink.wait_for("message", 1).await.remove(0);
    let inner = &arrived["parts"][1];
    assert_eq!(inner["type"], "text/plain");
    let text = inner["content"].as_str().unwrap().replace("\r\n", "\n");
    assert_eq!(text, "first\n.\nlast\n");
}

#[tokio::test]
async fn a_single_part_is_plain_or_html_as_given() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    let mut html = message("m1");
    html.content.body = None;
    html.content.html = Some("<p>hi</p>".into());
    stage.add(vec![message("m0"), html]).await;
    stage.until_count(Status::Sent, 2).await;
    let arrived = stage.sink.wait_for("message", 2).await;
    let kind = |message: &Value| message["parts"][0]["type"].as_str().unwrap().to_owned();
    assert_eq!((kind(&arrived[0]), kind(&arrived[1])), ("text/plain".into(), "text/html".into()));
}

/// The server takes no line of more than 1000 bytes.
#[tokio::test]
async fn long_lists_and_subjects_arrive_whole() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    let mut long = message("m0");
    let plain = |number: usize| format!("user{number}@example.org");
    let named = |number: usize| format!("\"Body, Some {number}\" <user{number}@example.org>");
    long.content.to = (0..70).map(plain).collect();
    long.content.cc = (70..140).map(named).collect();
    long.content.subject = "x".repeat(998);
    long.content.headers.insert("X-Words".into(), "word ".repeat(400).trim_end().into());
    stage.add(vec![long.clone()]).await;
    let row = stage.until_status("m0", Status::Sent).await;
    assert_eq!((row.attempts, row.recipients), (1, 140));
    let arrived = stage.sink.wait_for("message", 1).await.remove(0);
    assert_eq!(arrived["recipients"].as_array().unwrap().len(), 140);
    assert_eq!(arrived["headers"]["to"], long.content.to.join(", "));
    assert_eq!(arrived["headers"]["cc"], long.content.cc.join(", "));
    assert_eq!(arrived["headers"]["subject"], long.content.subject);
    assert_eq!(arrived["headers"]["x-words"], long.content.headers["X-Words"]);
}

#[tokio::test]
async fn who_is_named_twice_counts_and_receives_once() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    let mut twice = message("m0");
    twice.content.to = vec!["bob@example.org".into(), "Bob <bob@EXAMPLE.org>".into()];
    twice.content.cc = vec!["zoe@müller.example".into(), "BOB@example.org".into()];
    twice.content.bcc = vec!["zoe@xn--mller-kva.example".into()];
    stage.add(vec![twice]).await;
    assert_eq!(stage.until_status("m0", Status::Sent).await.recipients, 3);
    let arrived = stage.sink.wait_for("message", 1).await.remove(0);
    let wanted = ["bob@example.org", "zoe@xn--mller-kva.example", "BOB@example.org"];
    assert_eq!(arrived["recipients"], json!(wanted));
}

/// One that was taken and is sent again arrives again and again.
#[tokio::test]
async fn an_answer_counts_by_its_code_whatever_its_words_are() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    let (port, authority) = (stage.sink.starttls, stage.sink.authority.clone());
    stage
        .account("secure", |account| {
            account.port = port;
            account.use_tls = true;
            account.root_cert = Some(authority);
        })
        .await;
    let mut secure = message_to("m2", "latin");
    secure.account_id = "secure".into();
    let taken = vec![message_to("m0", "latin"), message_to("m1", "short"), secure];
    stage.add(taken).await;
    stage.add(vec![message_to("refused", "latin-550")]).await;
    stage.until_status("refused", Status::Error).await;
    for id in ["m0", "m1", "m2"] {
        assert_eq!(stage.until_status(id, Status::Sent).await.attempts, 1, "{id}");
    }
    assert_eq!(stage.sink.messages().len(), 3);
    let attempts = stage.attempts("refused").await;
    assert_eq!((attempts.len(), attempts[0].smtp_code), (1, Some(550)));
    assert!(attempts[0].smtp_text.contains("f\u{fffd}r"), "{}", attempts[0].smtp_text);
}

#[tokio::test]
async fn an_answer_without_end_is_given_up() {
    let stage = Stage::new().await;
    stage.account("main", |_| {}).await;
    stage.add(vec![message_to("m0", "flood")]).await;
    let error = stage.until_status("m0", Status::Deferred).await.last_error.unwrap();
    assert!(error.contains("answer is longer than 65536 bytes"), "{error}");
    stage.sink.wait_for("disconnect", 1).await;
}

#[tokio::test]
async fn a_server_that_does_not_speak_smtp_is_called_so() {
    let stage = Stage::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut caller, _)) = listener.accept().await {
            caller.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        }
    });
    stage.account("main", |account| account.port = port).await;
    stage.add(vec![message("m0")]).await;
    let error = stage.until_status("m0", Status::Deferred).await.last_error.unwrap();
    assert!(error.contains("does not speak SMTP"), "{error}");
    assert!(error.contains("it said \"HTTP/1.1 400 Bad Request\""), "{error}");
}

//! From HTTP to a real SMTP server: the seeds' flows, end to end.

use serde_json::{Value, json};

use crate::support::mail::{hasty, letter, message_body, with};
use crate::support::sink::{PASSWORD, Sink, USER};
use crate::support::{Server, eventually};

fn status(server: &Server, id: &str) -> String {
    server.mail("acme")[id]["status"].as_str().unwrap().to_owned()
}

fn until(server: &Server, id: &str, wanted: &str) {
    eventually(&format!("{id} is {wanted}"), || (status(server, id) == wanted).then_some(()));
}

fn metric(server: &Server, name: &str) -> String {
    let metrics = server.get("/metrics").body;
    let series = format!("{name}{{tenant_id=\"acme\",account_id=\"main\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
    line.unwrap_or_else(|| panic!("{series} is not in {metrics}")).to_owned()
}

#[test]
fn mail_with_everything_arrives_as_it_was_given() {
    let sink = Sink::start();
    let server = hasty().into_server();
    server.mail_tenant("acme", sink.plain);
    let more = json!({ "user": USER, "password": PASSWORD, "host": "localhost", "use_tls": true,
        "root_cert": sink.authority });
    server.mail_account("acme", sink.starttls, more);
    let file = json!({ "filename": "a b.pdf", "content_type": "application/pdf",
        "content_base64": "JVBERg==" });
    let message = json!({ "id": "m", "tenant_id": "acme", "account_id": "main",
        "from": "Ada <ada@example.org>", "to": ["bob@example.org"], "cc": ["carol@example.org"],
        "bcc": ["eve@example.org"], "reply_to": "replies@example.org", "subject": "Grüße",
        "body": "plain", "html": "<p>html</p>", "headers": { "X-Campaign": "spring" },
        "attachments": [file], "priority": 1 });
    server.queue(&[message]);
    until(&server, "m", "sent");
    // The sink says "250" before its own list is read here.
    let arrived = eventually("it is in the sink", || sink.messages().into_iter().next());
    assert_eq!((&arrived["user"], &arrived["tls"]), (&json!(USER), &json!(true)));
    assert_eq!(arrived["sender"], "ada@example.org");
    let to = ["bob@example.org", "carol@example.org", "eve@example.org"];
    assert_eq!(arrived["recipients"], json!(to));
    let headers = &arrived["headers"];
    for (name, value) in [
        ("subject", "Grüße"),
        ("cc", "carol@example.org"),
        ("reply-to", "replies@example.org"),
        ("x-campaign", "spring"),
    ] {
        assert_eq!(headers[name], value, "{headers}");
    }
    assert!(!headers.to_string().contains("eve@example.org"), "nobody sees bcc: {headers}");
    assert!(headers["message-id"].is_string() && headers["date"].is_string());
    let kinds: Vec<_> =
        arrived["parts"].as_array().unwrap().iter().map(|part| &part["type"]).collect();
    assert_eq!(kinds, ["text/plain", "text/html", "application/pdf"]);
    assert_eq!(arrived["parts"][2]["content"], "25504446");
    let attempts = server.get("/messages/m/attempts?tenant_id=acme").ok();
    assert_eq!(
        (&attempts["attempts"][0]["outcome"], &attempts["attempts"][0]["smtp_code"]),
        (&json!("sent"), &json!(250))
    );
    let sent = &server.mail("acme")["m"];
    assert!(sent["sent_ts"].is_i64() && sent["attempts"] == 1, "{sent}");
    assert!(!server.said().contains(PASSWORD), "never in the log");
    assert!(!server.said().contains("bob@example.org"), "no address in the log: {}", server.said());
}

#[test]
fn mail_over_a_limit_is_deferred_and_counted_in_the_metrics() {
    let sink = Sink::start();
    let server = hasty().into_server();
    server.mail_tenant("acme", sink.plain);
    for (name, kind) in [
        ("gmp_sent", "counter"),
        ("gmp_errors", "counter"),
        ("gmp_rate_limited", "counter"),
        ("gmp_deferred_total", "gauge"),
        ("gmp_pending_messages", "gauge"),
    ] {
        let series = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        assert_eq!(metric(&server, &series), "0", "present at zero");
        let metrics = server.get("/metrics").body;
        assert!(metrics.contains(&format!("# TYPE {series} {kind}\n")), "{metrics}");
    }
    server.mail_account("acme", sink.plain, json!({ "limit_per_hour": 3 }));
    let messages: Vec<_> = (0..8).map(|n| message_body("acme", &format!("m{n}"))).collect();
    server.queue(&messages);
    eventually("five are deferred", || (server.get("/status").ok()["deferred"] == 5).then_some(()));
    assert_eq!(sink.subjects(), ["m0", "m1", "m2"], "in order, and no more");
    let now = jiff::Timestamp::now().as_second();
    for (id, message) in server.mail("acme").iter().skip(3) {
        let deferred = message["deferred_ts"].as_i64().unwrap();
        assert!((now + 3000..=now + 3700).contains(&deferred), "{id}: {message}");
        assert_eq!(message["status"], "deferred");
    }
    assert_eq!(metric(&server, "gmp_sent_total"), "3");
    assert_eq!(metric(&server, "gmp_deferred_total"), "5");
    assert_eq!(metric(&server, "gmp_pending_messages"), "0");
    assert_ne!(metric(&server, "gmp_rate_limited_total"), "0");
    let resume = &server.get("/accounts?tenant_id=acme").ok()["accounts"][0]["resume_ts"];
    assert!(resume.is_i64(), "{resume}");
    // Another limit is in force at the next send, which is now.
    server.mail_account("acme", sink.plain, json!({ "limit_per_hour": 5 }));
    eventually("two more", || (sink.messages().len() == 5).then_some(()));
    server.mail_account("acme", sink.plain, json!({}));
    eventually("the rest", || (sink.messages().len() == 8).then_some(()));
    until(&server, "m7", "sent");
    assert_eq!(metric(&server, "gmp_deferred_total"), "0");
}

#[test]
fn mail_over_a_limit_that_rejects_ends_in_error() {
    let sink = Sink::start();
    let server = hasty().into_server();
    server.mail_tenant("acme", sink.plain);
    server.mail_account(
        "acme",
        sink.plain,
        json!({ "limit_per_hour": 1, "limit_behavior": "reject" }),
    );
    server.queue(&[message_body("acme", "a"), message_body("acme", "b")]);
    until(&server, "b", "error");
    let b = &server.mail("acme")["b"];
    assert!(b["last_error"].as_str().unwrap().contains("rate_limit_exceeded"), "{b}");
    assert!(b["error_ts"].is_i64());
    assert_eq!(status(&server, "a"), "sent");
    assert_eq!(metric(&server, "gmp_errors_total"), "1");
}

#[test]
fn mail_that_fails_for_good_gives_its_quota_back_and_for_now_is_tried_again() {
    let sink = Sink::start();
    let server = hasty().into_server();
    server.mail_tenant("acme", sink.plain);
    let (_, key) = server.api_key("acme", json!({ "daily_limit": 10 }));
    let to = |address: &str| with(letter(1), json!({ "to": [address, "bob@example.org"] }));
    let send = |body: &Value| {
        let reply = server.send_mail(&key, body);
        assert_eq!(reply.status, 202, "{reply:?}");
        reply.json()["id"].as_str().unwrap().to_owned()
    };
    let for_good = send(&to("code-550-0@example.org"));
    until(&server, &for_good, "error");
    eventually("the quota is back", || {
        (server.usage(&key)["emails_sent_today"] == 0).then_some(())
    });
    let for_now = send(&to("code-451-2@example.org"));
    until(&server, &for_now, "sent");
    assert_eq!(server.usage(&key)["emails_sent_today"], 2);
    let attempts = server.get(&format!("/messages/{for_now}/attempts?tenant_id=acme")).ok();
    let outcomes: Vec<_> = attempts["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| &attempt["outcome"])
        .collect();
    assert_eq!(outcomes, ["retry", "retry", "sent"]);
}

#[test]
fn mail_to_a_server_that_is_not_there_waits_and_delays_nobody_else() {
    let sink = Sink::start();
    let server = hasty().into_server();
    server.mail_tenant("acme", sink.plain);
    server.mail_tenant("globex", crate::support::mail::CLOSED_PORT);
    server.queue(&[message_body("globex", "lost")]);
    server.queue(&[message_body("acme", "m")]);
    until(&server, "m", "sent");
    let lost = eventually("an attempt failed", || {
        let lost = server.mail("globex")["lost"].clone();
        lost["last_error"].is_string().then_some(lost)
    });
    assert!(["deferred", "pending"].contains(&lost["status"].as_str().unwrap()), "{lost}");
    // The same mail goes to where the account points next.
    server.mail_account("globex", sink.plain, json!({}));
    eventually("it arrives", || sink.subjects().contains(&"lost".to_owned()).then_some(()));
}

#[test]
fn mail_is_not_given_to_a_server_whose_certificate_nobody_vouches_for() {
    let sink = Sink::start();
    let server = hasty().into_server();
    server.mail_tenant("acme", sink.plain);
    let more = json!({ "host": "localhost", "tls": "implicit" });
    server.mail_account("acme", sink.implicit, more.clone());
    server.queue(&[message_body("acme", "m")]);
    let m = eventually("an attempt failed", || {
        let m = server.mail("acme")["m"].clone();
        m["last_error"].is_string().then_some(m)
    });
    assert!(m["last_error"].as_str().unwrap().to_lowercase().contains("certificate"), "{m}");
    assert!(sink.messages().is_empty());
    // With its authority it is, as soon as the account says so.
    server.mail_account("acme", sink.implicit, with(more, json!({ "root_cert": sink.authority })));
    server.post("/commands/run-now", &json!({ "tenant_id": "acme" })).ok();
    until(&server, "m", "sent");
    assert_eq!(sink.messages()[0]["tls"], true);
}

#[test]
fn mail_that_is_suspended_is_not_sent_until_it_is_activated() {
    let sink = Sink::start();
    let server = hasty().into_server();
    server.mail_tenant("acme", sink.plain);
    server.post("/commands/suspend", &json!({ "tenant_id": "acme", "batch_code": "x" })).ok();
    server.queue(&[with(message_body("acme", "held"), json!({ "batch_code": "x" }))]);
    server.queue(&[message_body("acme", "free")]);
    until(&server, "free", "sent");
    assert_eq!(status(&server, "held"), "suspended");
    assert_eq!(sink.subjects(), ["free"]);
    server.post("/commands/activate", &json!({ "tenant_id": "acme", "batch_code": "x" })).ok();
    until(&server, "held", "sent");
    let cleanup = json!({ "tenant_id": "acme", "older_than": "1d" });
    assert_eq!(server.post("/commands/cleanup-messages", &cleanup).ok()["messages"], 0);
    let cleanup = json!({ "tenant_id": "acme", "older_than": "1us" });
    assert_eq!(server.post("/commands/cleanup-messages", &cleanup).ok()["messages"], 2);
    assert!(server.mail("acme").is_empty());
}

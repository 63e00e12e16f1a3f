//! Log lines name messages by their ids; bodies, passwords and addresses never stand in them.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "support/stage.rs"]
mod stage;

use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::Mutex;
use stage::{Stage, message, message_to};
use tollgate_mail::{Secret, Status};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps every line of level info and above.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("tollgate_mail")
    }
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().push(line.0);
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn nothing_personal_is_logged() {
    let lines = Lines::default();
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let stage = Stage::new().await;
    stage
        .account("main", |account| {
            account.user = Some(stage::sink::USER.into());
            account.password = Some(Secret::new(stage::sink::PASSWORD));
        })
        .await;
    let mut private = message("m-private");
    private.content.body = Some("a confidential body".into());
    private.content.subject = "a confidential subject".into();
    stage
        .add(vec![
            private,
            message_to("m-refused", "code-550-0"),
            message_to("m-later", "code-451-0"),
            message_to("m-throttled", "code-421-0-slow"),
        ])
        .await;
    stage.until_status("m-private", Status::Sent).await;
    stage.until_status("m-refused", Status::Error).await;
    stage.until_paused("main").await;
    let lines = lines.0.lock().clone();
    let about = |id: &str| lines.iter().filter(|line| line.contains(id)).count();
    assert!(about("m-private") > 0 && about("m-refused") > 0 && about("m-later") > 0, "{lines:#?}");
    for line in &lines {
        for secret in ["example.org", "confidential", "bob", stage::sink::PASSWORD, "as the test"] {
            assert!(!line.contains(secret), "{secret:?} in {line}");
        }
    }
    let sent = lines.iter().find(|line| line.contains("m-private")).unwrap();
    assert!(sent.contains("tenant_id=\"acme\"") && sent.contains("to=\""), "{sent}");
}

//! The mail relay's calls, as tests make them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Call, Reply, Server, Setup};

/// Nothing of it is sent while a test runs.
pub(crate) const FAR_TS: i64 = 4_000_000_000;
/// Nobody listens there.
pub(crate) const CLOSED_PORT: u16 = 9;

/// Tries again soon, and takes over soon from whoever died.
pub(crate) const HASTY: &str = r#"
    [mail]
    retry_base = "200ms"
    retry_max = "1s"
    throttle_base = "1s"
    attempt_timeout = "5s"
    lease = "6s"
    poll_interval = "100ms"
"#;

pub(crate) fn hasty() -> Setup {
    Setup::sqlite().config(HASTY)
}

/// An object with some members more, or others.
pub(crate) fn with(mut object: Value, more: Value) -> Value {
    let (Value::Object(members), Value::Object(more)) = (&mut object, more) else {
        panic!("two objects");
    };
    members.extend(more);
    object
}

pub(crate) fn account_body(tenant: &str, id: &str, port: u16) -> Value {
    json!({ "id": id, "tenant_id": tenant, "host": "127.0.0.1", "port": port, "use_tls": false })
}

pub(crate) fn message_body(tenant: &str, id: &str) -> Value {
    json!({ "id": id, "tenant_id": tenant, "account_id": "main", "from": "ada@example.org",
        "to": ["bob@example.org"], "subject": id, "body": "hello" })
}

impl Server {
    /// A tenant with an account `main` at this port.
    pub(crate) fn mail_tenant(&self, tenant: &str, port: u16) {
        self.post("/tenant", &json!({ "id": tenant, "name": "Acme" })).ok();
        self.mail_account(tenant, port, json!({}));
    }

    pub(crate) fn mail_account(&self, tenant: &str, port: u16, more: Value) {
        let body = with(account_body(tenant, "main", port), more);
        assert_eq!(self.post("/account", &body).ok(), json!({ "ok": true }));
    }

    pub(crate) fn add_messages(&self, messages: &[Value]) -> Reply {
        self.post("/commands/add-messages", &json!({ "messages": messages }))
    }

    /// Messages that are all taken.
    pub(crate) fn queue(&self, messages: &[Value]) {
        let added = self.add_messages(messages).ok();
        assert_eq!(added, json!({ "queued": messages.len(), "rejected": [] }));
    }

    /// All of a tenant's messages, by id.
    pub(crate) fn mail(&self, tenant: &str) -> BTreeMap<String, Value> {
        let mut found = BTreeMap::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/messages?tenant_id={tenant}&limit=1000&cursor={cursor}");
            let page = self.get(&path).ok();
            for message in page["messages"].as_array().unwrap() {
                found.insert(message["id"].as_str().unwrap().to_owned(), message.clone());
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => return found,
            }
        }
    }

    /// A new API key: its id and its secret.
    pub(crate) fn api_key(&self, tenant: &str, more: Value) -> (String, String) {
        let reply =
            self.post("/keys", &with(json!({ "tenant_id": tenant, "account_id": "main" }), more));
        assert_eq!(reply.status, 201, "{reply:?}");
        let made = reply.json();
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        (text("id"), text("api_key"))
    }

    pub(crate) fn send_mail(&self, key: &str, body: &Value) -> Reply {
        self.send(Call::post("/api/v1/send", body).header("X-API-Key", key))
    }

    pub(crate) fn usage(&self, key: &str) -> Value {
        self.send(Call::new("GET", "/api/v1/usage").header("X-API-Key", key)).ok()
    }
}

/// A letter to so many.
pub(crate) fn letter(recipients: usize) -> Value {
    let to: Vec<_> = (0..recipients).map(|n| format!("r{n}@example.org")).collect();
    json!({ "to": to, "subject": "hello", "text": "hello" })
}

/// The members of an object that are wanted.
pub(crate) fn only(value: &Value, names: &[&str]) -> Value {
    names
        .iter()
        .map(|name| ((*name).to_owned(), value[*name].clone()))
        .collect::<Map<_, _>>()
        .into()
}

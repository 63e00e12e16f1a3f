//! Slots over HTTP.

use serde_json::{Value, json};

use super::{Reply, Server};

pub(crate) const SLOTS: &str = "/api/v1/slots";
/// A time to ask for: it is not now, and the start of a window of any length here.
pub(crate) const NOON: &str = "2026-12-01T12:00:00Z";

impl Server {
    /// A config of this many in each window of this size.
    pub(crate) fn slot_config(&self, name: &str, max: u64, size: &str) {
        let body = json!({ "configName": name, "maxPerWindow": max, "windowSize": size });
        let reply = self.post("/admin/rate-limit/config", &body);
        assert_eq!(reply.status, 201, "{reply:?}");
    }

    /// A config whose horizon is full after `max` events at one time.
    pub(crate) fn short_config(&self, name: &str, max: u64) {
        let policy = json!({
            "limits": [{ "name": "window", "max": max, "per": "1h" }],
            "schedule": { "horizon": "59m" },
        });
        let reply = self.put(&format!("/admin/policies/{name}"), &policy);
        assert!([200, 201].contains(&reply.status), "{reply:?}");
    }

    pub(crate) fn ask_slot(&self, event: &str, config: &str, at: &str) -> Reply {
        self.post(SLOTS, &event_body(event, config, at))
    }

    pub(crate) fn verified(&self, config: &str) -> Value {
        let found = self.get(&format!("/admin/slots/verify?configName={config}")).ok();
        assert_eq!(found["drifts"], json!([]), "{found}");
        found
    }

    /// How full the windows of a config are.
    pub(crate) fn fill(&self, config: &str) -> Vec<u64> {
        let found = self.get(&format!("/api/v1/windows?configName={config}")).ok();
        let windows = found["windows"].as_array().unwrap();
        windows.iter().map(|window| window["count"].as_u64().unwrap()).collect()
    }
}

pub(crate) fn event_body(event: &str, config: &str, at: &str) -> Value {
    json!({ "eventId": event, "configName": config, "requestedTime": at })
}

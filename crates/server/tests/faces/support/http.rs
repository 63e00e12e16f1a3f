//! One HTTP call and its answer.

use serde_json::Value;
use ureq::http::{HeaderMap, Request};

use super::DEADLINE;

#[derive(Clone, Debug)]
pub(crate) struct Call {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

/// A connection for every call: what keeping one alive does is tested by hand.
pub(crate) fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .max_idle_connections(0)
        .http_status_as_error(false)
        .timeout_global(Some(DEADLINE))
        .allow_non_standard_methods(true)
        .build()
        .into()
}

impl Call {
    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self { method: method.into(), path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    pub(crate) fn post(path: &str, body: &Value) -> Self {
        Self::new("POST", path).json(body)
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("X-API-Token", token)
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.header("Content-Type", "application/json").bytes(body.to_string())
    }

    pub(crate) fn bytes(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn send(self, agent: &ureq::Agent, address: &str) -> Reply {
        let shown = format!("{} {}", self.method, self.path);
        let uri = format!("http://{address}{}", self.path);
        let answer = if self.method == "DELETE" && !self.body.is_empty() {
            let request = agent.delete(uri).force_send_body();
            let request =
                self.headers.iter().fold(request, |r, (name, value)| r.header(name, value));
            request.send(&self.body[..])
        } else {
            let request = Request::builder().method(&*self.method).uri(uri);
            let request =
                self.headers.iter().fold(request, |r, (name, value)| r.header(name, value));
            if self.body.is_empty() && ["GET", "DELETE"].contains(&&*self.method) {
                agent.run(request.body(()).unwrap())
            } else {
                agent.run(request.body(self.body).unwrap())
            }
        };
        let mut answer = answer.unwrap_or_else(|error| panic!("{shown}: {error}"));
        let body = answer.body_mut().read_to_string().unwrap();
        Reply { status: answer.status().as_u16(), headers: answer.headers().clone(), body }
    }
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.header(name).map(|value| value.parse().unwrap_or_else(|_| panic!("{name}: {value}")))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The document of a 200.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        self.json()
    }

    /// The problem document, which has everything such a document must have.
    pub(crate) fn problem(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        for name in ["type", "title", "detail", "request_id"] {
            assert!(
                problem[name].as_str().is_some_and(|text| !text.is_empty()),
                "{name}: {problem}"
            );
        }
        assert_eq!(problem["status"], status);
        assert_eq!(problem["request_id"].as_str(), self.header("x-request-id"));
        problem
    }

    /// The problem document, which names the field at fault.
    pub(crate) fn fault(&self, status: u16, field: &str) -> Value {
        let problem = self.problem(status);
        assert_eq!(problem["field"], field, "{problem}");
        problem
    }
}

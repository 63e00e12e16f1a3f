//! Whole requests, answered by the server without its sockets.
//!
//! An input is one request or several, apart by a line of `---`: a line with method and target,
//! lines of headers, an empty line, the body. Whoever gives no token is the admin.

use std::cell::RefCell;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use serde_json::{Value, json};
use sha2::Sha256;
use tollgate_server::fuzzing::Served;

const ADMIN: &str = "the-admin-token-of-the-fuzz-targets";
const JWT_SECRET: &str = "a secret that is at least 32 bytes long";
const MAX_REQUESTS: usize = 8;
/// Then a new server begins, so that memory stays small and a failure has a short history.
const MAX_INPUTS: u32 = 256;

const POLICIES: &str = r#"
[gate]
trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
identity = { x-auth-team = "team" }
[gate.api_key]
[policy.default]
limits = [{ name = "window", max = 100, per = "PT4S" }]
schedule = { spread = "even", horizon = "365d" }
[policy.several]
routes = ["/several/{id}", "POST /several"]
limits = [
  { name = "global", max = 1000, per = "60s", algorithm = "sliding" },
  { name = "ip", max = 5, per = "60s", algorithm = "bucket", burst = 9, by = ["ip"], private = true },
  { name = "tier", max = 3, per = "day", timezone = "Europe/Rome", by = ["ip"], max_by = { role = { pro = 50 } } },
]
[policy.user]
routes = ["/user/*"]
limits = [{ name = "by-user", max = 1000000, per = "1h", by = ["user"] }]
[policy.team]
routes = ["/team"]
limits = [{ name = "team", max = 3, per = "1h", by = ["team", "api_key", "route", "method"] }]
[policy.office]
limits = [{ name = "window", max = 2, per = "1m" }]
schedule = { calendar = { timezone = "America/New_York", open = { mon-fri = "09:00-17:00" } } }
"#;

struct Stage {
    served: Served,
    /// What it says of itself.
    api: Value,
    mail_key: String,
    inputs: u32,
}

thread_local! {
    static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
}

pub fn request(input: &[u8]) {
    on_stage(|stage| {
        for part in parts(input) {
            let Some(mut request) = read(part, |_| None) else { continue };
            let headers = request.headers_mut();
            let admin = HeaderValue::from_static(ADMIN);
            let is_anonymous =
                !["x-api-token", "authorization"].iter().any(|n| headers.contains_key(*n));
            if is_anonymous {
                headers.insert("x-api-token", admin);
            }
            if !headers.contains_key("x-api-key") {
                let key = HeaderValue::from_str(&stage.mail_key).expect("a key is plain");
                headers.insert("x-api-key", key);
            }
            judge(stage, request);
        }
    });
}

/// The same for what proxies ask: the first line is what *they* were asked for, and a header
/// `claims` becomes a genuine token that says so.
pub fn gate(input: &[u8]) {
    on_stage(|stage| {
        for part in parts(input) {
            let mut is_signed = false;
            let sign = |claims: &str| {
                is_signed = true;
                Some(("authorization", format!("Bearer {}", signed(claims))))
            };
            let Some(asked) = read(part, sign) else { continue };
            let (method, uri) = (asked.method().as_str().to_owned(), asked.uri().to_string());
            let mut request = Request::post("/gate").body(Bytes::new()).expect("plain");
            *request.headers_mut() = asked.into_parts().0.headers;
            let headers = request.headers_mut();
            headers.insert("x-api-token", HeaderValue::from_static(ADMIN));
            for (name, value) in [("x-original-method", method), ("x-original-uri", uri)] {
                let Ok(value) = HeaderValue::from_str(&value) else { return };
                headers.append(name, value);
            }
            let response = judge(stage, request);
            let counted = response.headers().get("ratelimit-policy");
            if counted.is_some_and(|policy| policy.as_bytes().starts_with(b"\"by-user\"")) {
                assert!(is_signed, "somebody was a user without a token");
            }
        }
    });
}

fn on_stage(act: impl FnOnce(&Stage)) {
    STAGE.with_borrow_mut(|slot| {
        let mut stage = slot.take().filter(|stage| stage.inputs < MAX_INPUTS).unwrap_or_else(set);
        stage.inputs += 1;
        act(&stage);
        *slot = Some(stage);
    });
}

fn set() -> Stage {
    let secret = SecretFile::new();
    let file = json!(secret.0).to_string();
    let jwt = format!("[gate.jwt]\nalgorithm = \"HS256\"\nkey_files = [{file}]\n");
    let config = POLICIES.replace("[policy.default]", &format!("{jwt}[policy.default]"));
    let served = Served::new(&config, ADMIN).expect("a server");
    let call = |method: &str, path: &str, body: Value| -> Value {
        let request = Request::builder().method(method).uri(path).header("x-api-token", ADMIN);
        let request = request.body(Bytes::from(body.to_string())).expect("a request");
        let answer = served.answer(request);
        assert!(answer.status().is_success(), "{method} {path}: {:?}", answer.body());
        serde_json::from_slice(answer.body()).expect("JSON")
    };
    let api = call("GET", "/openapi.json", json!({}));
    call("POST", "/tenant", json!({ "id": "t", "name": "T" }));
    let account = json!({ "id": "a", "tenant_id": "t", "host": "localhost", "port": 25,
        "use_tls": false, "from_address": "a@example.org" });
    call("POST", "/account", account);
    let key = json!({ "tenant_id": "t", "account_id": "a", "name": "k" });
    let mail_key = call("POST", "/keys", key)["api_key"].as_str().expect("a key").to_owned();
    Stage { served, api, mail_key, inputs: 0 }
}

/// Removed when it has been read.
struct SecretFile(PathBuf);

impl SecretFile {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("tollgate-fuzz-{}", std::process::id()));
        std::fs::write(&path, JWT_SECRET).expect("a writable folder");
        Self(path)
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn parts(input: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    let mut rest = input;
    while let Some(end) = rest.windows(5).position(|window| window == b"\n---\n") {
        found.push(&rest[..end]);
        rest = &rest[end + 5..];
    }
    found.push(rest);
    found.truncate(MAX_REQUESTS);
    found
}

/// `None` if it is not one that hyper would have let through.
fn read(
    input: &[u8],
    mut claims: impl FnMut(&str) -> Option<(&'static str, String)>,
) -> Option<Request<Bytes>> {
    let end = input.windows(2).position(|window| window == b"\n\n");
    let (head, body) = match end {
        Some(end) => (&input[..end], &input[end + 2..]),
        None => (input, &[][..]),
    };
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = std::str::from_utf8(lines.next()?).ok()?;
    let (method, target) = first.split_once(' ')?;
    let mut headers = HeaderMap::new();
    for line in lines.take(50) {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let name = HeaderName::from_bytes(name).ok()?;
        let given = std::str::from_utf8(value).ok().filter(|_| name == "claims");
        if let Some((name, value)) = given.and_then(&mut claims) {
            headers.insert(name, HeaderValue::from_str(&value).ok()?);
        } else {
            headers.append(name, HeaderValue::from_bytes(value).ok()?);
        }
    }
    let mut request = Request::builder()
        .method(method.as_bytes())
        .uri(target)
        .body(Bytes::copy_from_slice(body))
        .ok()?;
    *request.headers_mut() = headers;
    Some(request)
}

/// A genuine token with these claims, whatever they are.
fn signed(claims: &str) -> String {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let message = format!("{}.{}", part(r#"{"alg":"HS256","typ":"JWT"}"#), part(claims));
    let mut mac = Hmac::<Sha256>::new_from_slice(JWT_SECRET.as_bytes()).expect("any key");
    mac.update(message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

/// No failure, nothing that is not described, and bodies and headers that can be read.
fn judge(stage: &Stage, request: Request<Bytes>) -> Response<Bytes> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = stage.served.answer(request);
    let status = response.status();
    let shown = || format!("{method} {path}: {status} {:?}", response.body());
    if method == http::Method::HEAD {
        assert!(!status.is_server_error(), "{}", shown());
        return response;
    }
    let kind = response.headers().get("content-type").map(|kind| kind.to_str().expect("ASCII"));
    let body: Option<Value> = kind
        .filter(|kind| kind.ends_with("json"))
        .map(|_| serde_json::from_slice(response.body()).unwrap_or_else(|_| panic!("{}", shown())));
    if status.is_client_error() || status.is_server_error() {
        let body = body.unwrap_or_else(|| panic!("{}", shown()));
        assert_eq!(kind, Some("application/problem+json"), "{}", shown());
        for member in ["type", "title", "detail", "request_id"] {
            assert!(body[member].is_string(), "{member} is missing: {}", shown());
        }
        assert_eq!(body["status"], status.as_u16(), "{}", shown());
        let is_full = body["type"] == "urn:tollgate:horizon-full";
        assert!(!status.is_server_error() || is_full, "{}", shown());
    }
    let is_plain = method.as_str().bytes().all(|byte| byte.is_ascii_uppercase());
    let name = method.as_str().to_ascii_lowercase();
    if is_plain && let Some(operation) = described(&stage.api, &path, &name) {
        let listed = &operation["responses"][status.as_str()];
        assert!(listed.is_object(), "not described: {}", shown());
    }
    for name in ["ratelimit", "ratelimit-policy"] {
        if let Some(value) = response.headers().get(name) {
            let read = sfv::Parser::new(value.as_bytes()).parse::<sfv::List>();
            assert!(read.is_ok(), "{name}: {value:?}");
        }
    }
    response
}

/// The operation that a path is described under: literally before with parameters.
fn described<'a>(api: &'a Value, path: &str, method: &str) -> Option<&'a Value> {
    let paths = api["paths"].as_object()?;
    let fits = |pattern: &str| {
        let (a, b): (Vec<_>, Vec<_>) = (pattern.split('/').collect(), path.split('/').collect());
        a.len() == b.len()
            && a.iter().zip(&b).all(|(a, b)| a == b || (a.starts_with('{') && !b.is_empty()))
    };
    let found = paths
        .get(path)
        .or_else(|| paths.iter().find(|(pattern, _)| fits(pattern)).map(|(_, item)| item))?;
    found.get(method)
}

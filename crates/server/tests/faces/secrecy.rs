//! Nothing secret and nobody's name in what the server says: a full run at the most verbose level,
//! its two outputs and its metrics searched for every secret it was told or made.
//!
//! What may be said: at `debug`, the words with which a mail server refused a message, and those may
//! hold an address. Nothing else here may be said at any level.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use testkit::servers::{Postgres, Settings};

use crate::gate_jwt::{Signer, claims};
use crate::support::command::clean;
use crate::support::mail::{CLOSED_PORT, HASTY, message_body, with};
use crate::support::raw::Raw;
use crate::support::receiver::{Manner, Receiver};
use crate::support::sink::{PASSWORD, Sink, USER};
use crate::support::{Call, DEADLINE, Ended, Reply, Server, Setup, eventually};

const ADMIN: &str = "admin token/of+the environment?";
const MAIL_KEY: &str = "a mail key/that seals & passwords";
const JWT_SECRET: &str = "a secret that/signs+the tokens of users";
const HOOK_SECRET: &str = "whsec/of+alerts and more";
const REPORT_SECRET: &str = "whsec/of+reports and more";
const URL_PASSWORD: &str = "url-password-of-webhooks";
const WRONG_PASSWORD: &str = "wrong sesame/of+nobody";
const BODY: &str = "the confidential body of a letter";
const TITLE: &str = "the confidential title of a letter";
const FILE: &str = "the confidential attachment of a letter";
const FOREIGN: &str = "tg_somebody-guessed-this-token";
const CLIENT: &str = "198.51.100.77";
/// Who asks, by name, privately and not.
const PEOPLE: [&str; 4] =
    ["grace.hopper@private.example", "203.0.113.209", "user-katherine-johnson", "user-by-jwt-mary"];
/// To whom mail goes. Mail servers may repeat these, and then they are at `debug`.
const RECIPIENTS: [&str; 4] = [
    "ida.rhodes@mail.example",
    "code-550-0@mail.example",
    "joan.clarke@mail.example",
    "hidden.betty@mail.example",
];

const POLICIES: &str = r#"
[policy.private]
limits = [
  { name = "email", max = 1, per = "3650d", by = ["email"], private = true },
  { name = "ip", max = 100, per = "3650d", by = ["ip"], private = true },
]

[policy.plain]
limits = [{ name = "user", max = 1, per = "3650d", by = ["user"] }]

[policy.route]
routes = ["/users"]
limits = [{ name = "user", max = 1, per = "3650d", by = ["user"] }]

[policy.address]
routes = ["/address"]
limits = [{ name = "ip", max = 1, per = "3650d", by = ["ip"] }]
"#;

/// What must not be said, each with a name for the failure.
#[derive(Default)]
struct Secrets(Vec<(String, String)>);

impl Secrets {
    fn add(&mut self, name: &str, secret: &str) -> String {
        assert!(secret.len() >= 8, "{name}: too short to be searched for");
        self.0.push((name.to_owned(), secret.to_owned()));
        secret.to_owned()
    }

    /// The secrets in a text, in any form.
    fn found_in(&self, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        for (name, secret) in &self.0 {
            for form in forms(secret) {
                if let Some(at) = text.find(&form) {
                    let from = text[..at].rfind('\n').map_or(0, |end| end + 1);
                    let line = text[from..].lines().next().unwrap_or_default();
                    found.push(format!("{name} as {form:?} in {line:?}"));
                }
            }
        }
        found
    }
}

/// As it is, escaped for URLs and for Rust, in hex, and in base64 wherever in it it begins.
fn forms(secret: &str) -> Vec<String> {
    let escaped = |plus: bool| -> String {
        secret
            .bytes()
            .map(|byte| match byte {
                b' ' if plus => "+".to_owned(),
                _ if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) => {
                    char::from(byte).to_string()
                }
                _ => format!("%{byte:02X}"),
            })
            .collect()
    };
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let debug = format!("{secret:?}");
    let mut forms = vec![
        secret.to_owned(),
        escaped(false),
        escaped(true),
        hex,
        debug.trim_matches('"').to_owned(),
        // A list of bytes, as Debug prints one.
        secret.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", "),
    ];
    for before in 0..3 {
        let shifted = [vec![0; before], secret.as_bytes().to_vec()].concat();
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let text = engine.encode(&shifted);
            // What the neighbours have a share in is left out.
            let stable = &text[if before == 0 { 0 } else { 4 }..text.len() - 2];
            forms.push(stable.to_owned());
        }
    }
    forms.sort();
    forms.dedup();
    forms
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text")).to_owned()
}

/// A server and what it must keep to itself.
struct Run {
    server: Server,
    secrets: Secrets,
    /// What the command line said besides.
    commands: String,
}

impl Run {
    fn admin(&self, call: Call) -> Reply {
        self.server.send(call.token(ADMIN))
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        self.admin(Call::post(path, body))
    }

    fn check(&self, policy: &str, subject: &Value) -> Reply {
        self.post("/api/v1/check", &json!({ "policy": policy, "subject": subject }))
    }

    fn access(&mut self) {
        for scope in ["admin", "check"] {
            let made = self.post("/admin/tokens", &json!({ "scope": scope }));
            let token = self.secrets.add("a token", &text(&made.json()["token"]));
            self.server.send(Call::new("GET", "/admin/policies").token(&token));
            let bearer = format!("Bearer {token}");
            let call = Call::new("GET", "/api/v1/windows").header("Authorization", &bearer);
            assert_eq!(self.server.send(call).status, 200);
        }
        self.server.send(Call::new("GET", "/admin/policies").token(FOREIGN)).problem(401);
        self.server.get(&format!("/admin/policies?token={FOREIGN}")).problem(401);
        self.server.get(&format!("/nothing/{FOREIGN}")).problem(404);
        let mut raw = Raw::connect(&self.server);
        raw.send(format!("GET /healthz HTTP/1.1\r\nX-API-Token: {FOREIGN}\r\nno header\r\n\r\n"));
        raw.rest();
        let mut command = clean(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["check", "plain", &format!("user={}", PEOPLE[2]), "--log", "trace"]);
        command.env("TOLLGATE_TOKEN", FOREIGN).env("TOLLGATE_SERVER", self.server.url(""));
        let ended = Ended::of(command).expect(2);
        self.commands += &format!("{}{}", ended.out, ended.err);
    }

    fn checks(&mut self) {
        let [email, ip, user, _] = PEOPLE;
        let private = json!({ "email": email, "ip": ip });
        let first = self.check("private", &private).ok();
        let receipt = self.secrets.add("a receipt", &text(&first["receipt"]));
        // Enough for an alert, of somebody private and of somebody known.
        for _ in 0..6 {
            self.check("private", &private).problem(429);
            self.check("plain", &json!({ "user": user }));
        }
        self.post("/api/v1/peek", &json!({ "policy": "private", "subject": private })).ok();
        self.check("private", &json!({ "email": email })).problem(400);
        self.check("nothing", &private).problem(404);
        let torn = format!("{{\"policy\":\"private\",\"subject\":{{\"email\":\"{email}\"");
        self.admin(Call::new("POST", "/api/v1/check").bytes(torn)).problem(400);
        let refund = |receipt: &str| self.post("/api/v1/refund", &json!({ "receipt": receipt }));
        assert_eq!(refund(&receipt).ok()["refunded"], true);
        assert_eq!(refund(&receipt).ok()["refunded"], false);
        refund(&format!("{receipt}AAAA")).problem(400);
        let once = Call::post("/api/v1/check", &json!({ "policy": "plain", "subject": {} }));
        self.admin(once.header("Idempotency-Key", "key")).problem(400);
        let own = json!({ "policy": "private", "limit": "email", "subject": { "email": email },
            "max": 3 });
        self.admin(Call::new("PUT", "/admin/overrides").json(&own)).ok();
        self.post("/api/v1/slots", &json!({ "eventId": user })).ok();
        for path in ["/admin/offenders", "/admin/alerts", "/admin/overrides"] {
            self.admin(Call::new("GET", path)).ok();
        }
    }

    fn gate(&mut self) {
        let ask = |uri: &str| {
            let call = Call::new("GET", "/gate").header("X-Original-URI", uri);
            call.token(ADMIN).header("X-Forwarded-For", CLIENT)
        };
        let genuine = Signer::Hs256(JWT_SECRET).token(&claims(PEOPLE[3]));
        let forged = Signer::Hs256(FOREIGN).token(&claims(PEOPLE[3]));
        for (token, status) in [(&genuine, 200), (&genuine, 429), (&forged, 401)] {
            let call = ask("/users").header("Authorization", &format!("Bearer {token}"));
            assert_eq!(self.server.send(call).status, status);
            let (_, signature) = token.rsplit_once('.').unwrap();
            self.secrets.add("a user's token", signature);
            self.secrets.add("a user's token", token);
        }
        for status in [200, 429] {
            assert_eq!(self.server.send(ask("/address")).status, status);
        }
        self.server.send(ask("/users").header("Authorization", FOREIGN)).problem(401);
    }

    fn mail(&mut self, sink: &Sink, reports: &Receiver) {
        let host = reports.url().replace("http://", "");
        let url = format!("http://user:{URL_PASSWORD}@{host}");
        let tenant = json!({ "id": "acme", "report_url": url, "report_secret": REPORT_SECRET });
        self.post("/tenant", &tenant).ok();
        let made = self.admin(Call::new("POST", "/tenant/acme/token")).json();
        let token = self.secrets.add("a tenant's token", &text(&made["token"]));
        for (id, port, password) in [
            ("main", sink.starttls, PASSWORD),
            ("wrong", sink.starttls, WRONG_PASSWORD),
            ("closed", CLOSED_PORT, PASSWORD),
        ] {
            let account = json!({ "id": id, "tenant_id": "acme", "host": "localhost",
                "port": port, "use_tls": true, "root_cert": sink.authority, "user": USER,
                "password": password });
            self.post("/account", &account).ok();
        }
        let file = json!({ "filename": "a.txt", "content_type": "text/plain",
            "content_base64": STANDARD_NO_PAD.encode(FILE) });
        let letter = |id: &str, account: &str, to: &str| {
            with(
                message_body("acme", id),
                json!({ "account_id": account, "to": [to], "bcc": [RECIPIENTS[3]],
                    "subject": TITLE, "body": BODY, "attachments": [file] }),
            )
        };
        let messages = [
            letter("sent", "main", RECIPIENTS[0]),
            letter("refused", "main", RECIPIENTS[1]),
            letter("wrong", "wrong", RECIPIENTS[2]),
            letter("closed", "closed", RECIPIENTS[2]),
        ];
        let add = Call::post("/commands/add-messages", &json!({ "messages": messages }));
        self.server.send(add.token(&token)).ok();
        let key = json!({ "tenant_id": "acme", "account_id": "main", "daily_limit": 1 });
        let key =
            self.secrets.add("an API key", &text(&self.post("/keys", &key).json()["api_key"]));
        let body = json!({ "to": RECIPIENTS[0], "subject": TITLE, "text": BODY });
        for (key, status) in [(&*key, 202), (&key, 429), (FOREIGN, 401)] {
            assert_eq!(self.server.send_mail(key, &body).status, status);
        }
        let status = |id: &str| {
            let path = "/messages?tenant_id=acme&limit=100";
            let page = self.server.send(Call::new("GET", path).token(&token)).ok();
            let rows = page["messages"].as_array().unwrap().clone();
            rows.into_iter().find(|row| row["id"] == id)
        };
        for (id, wanted) in [("sent", "sent"), ("refused", "error"), ("wrong", "error")] {
            eventually(&format!("{id} is {wanted}"), || {
                status(id).filter(|row| row["status"] == wanted)
            });
        }
        eventually("the closed port was tried", || {
            status("closed").filter(|row| row["attempts"].as_u64() > Some(0))
        });
        reports.wait_for(2);
    }

    /// Everything it said, and its metrics; the server is stopped.
    fn said(mut self) -> (Secrets, String) {
        let metrics = self.server.get("/metrics").body;
        self.server.signal("TERM");
        self.server.ended();
        let said = eventually("the last line is read", || {
            Some(self.server.said()).filter(|said| said.contains("stopped"))
        });
        (self.secrets, format!("{said}\n{metrics}\n{}", self.commands))
    }
}

fn known() -> Secrets {
    let mut secrets = Secrets::default();
    for (name, secret) in [
        ("the admin's token", ADMIN),
        ("the mail key", MAIL_KEY),
        ("the secret of JWTs", JWT_SECRET),
        ("the webhook's secret", HOOK_SECRET),
        ("the reports' secret", REPORT_SECRET),
        ("a password in a URL", URL_PASSWORD),
        ("an account's password", PASSWORD),
        ("a wrong password", WRONG_PASSWORD),
        ("a body", BODY),
        ("a title", TITLE),
        ("an attachment", FILE),
        ("a foreign token", FOREIGN),
        ("a client's address", CLIENT),
    ] {
        secrets.add(name, secret);
    }
    for person in PEOPLE {
        secrets.add("a subject", person);
    }
    secrets
}

fn assert_silent(secrets: &Secrets, said: &str) {
    let found = secrets.found_in(said);
    assert!(found.is_empty(), "{found:#?}");
    let mut people = Secrets::default();
    for address in RECIPIENTS {
        people.add("a recipient", address);
    }
    let ours: Vec<_> = said.lines().filter(|line| !line.contains("not sent, because")).collect();
    let found = people.found_in(&ours.join("\n"));
    assert!(found.is_empty(), "{found:#?}");
}

/// The configuration with webhooks, tokens of users and policies.
fn configured(setup: Setup, hooks: &Receiver) -> Setup {
    let key = setup.write("jwt.key", JWT_SECRET);
    let host = hooks.url().replace("http://", "");
    let config = format!(
        "[alerts]\nwebhook = \"http://user:{URL_PASSWORD}@{host}\"\nsecret = \"{HOOK_SECRET}\"\n\
         [gate]\ntrusted_proxies = [\"127.0.0.1\"]\n\
         [gate.jwt]\nalgorithm = \"HS256\"\nkey_files = [{key:?}]\n{HASTY}\n{POLICIES}"
    );
    let setup = setup.config(&config).env("TOLLGATE_LOG", "trace");
    setup.env("TOLLGATE_ADMIN_TOKEN", ADMIN).env("TOLLGATE_MAIL_KEY", MAIL_KEY)
}

fn full_run(setup: Setup, hooks: &Receiver, secrets: Secrets) {
    let sink = Sink::start();
    let reports = Receiver::start(&[Manner::Status(500), Manner::Status(204)]);
    let server = configured(setup, hooks).into_server();
    let mut run = Run { server, secrets, commands: String::new() };
    run.access();
    run.checks();
    run.gate();
    run.mail(&sink, &reports);
    // The first is not taken, so it is complained about and told again.
    hooks.wait_for(2);
    let (secrets, said) = run.said();
    for word in ["DEBUG", "alert", "not sent", "sent", "tollgate_decisions_total", "gmp_sent"] {
        assert!(said.contains(word), "a full run says {word:?}: {said}");
    }
    assert_silent(&secrets, &said);
}

#[test]
fn nothing_secret_is_said_in_a_full_run() {
    let hooks = Receiver::start(&[Manner::Status(500), Manner::Status(204)]);
    full_run(Setup::sqlite(), &hooks, known());
}

#[test]
fn nothing_secret_is_said_in_a_full_run_on_postgres() {
    let postgres = Postgres::start_with(Settings { password: true, ..Settings::default() });
    let plain = postgres.url();
    let (login, place) = plain.split_once('@').unwrap();
    let (_, password) = login.rsplit_once(':').unwrap();
    let url = format!("{plain}?deadline={}s", DEADLINE.as_secs());
    let mut secrets = known();
    secrets.add("the database's password", password);
    let hooks = Receiver::start(&[Manner::Status(500), Manner::Status(204)]);
    let wrong = secrets.add("a wrong password", "not-the-password-of-anybody");
    // Nobody listens, there is no such database, and the password is another.
    for bad in [
        format!("{login}@127.0.0.1:{CLOSED_PORT}/nowhere"),
        format!("{plain}-nowhere"),
        format!("{}@{place}", login.replace(password, &wrong)),
    ] {
        let setup = Setup::postgres(&bad).env("TOLLGATE_LOG", "trace");
        let ended = setup.start_in_vain();
        assert_eq!(ended.code, 3, "{ended:?}");
        let found = secrets.found_in(&format!("{}{}", ended.out, ended.err));
        assert!(found.is_empty(), "{found:#?}");
    }
    full_run(Setup::postgres(&url), &hooks, secrets);
}

#[test]
fn a_secret_is_found_in_all_its_forms() {
    let mut secrets = Secrets::default();
    secrets.add("it", "open sesame/now?");
    let hidden = "\0ada\0open sesame/now?";
    for text in [
        "so open sesame/now? it is".to_owned(),
        "user:open%20sesame%2Fnow%3F@host".to_owned(),
        "q=open+sesame%2Fnow%3F".to_owned(),
        STANDARD_NO_PAD.encode(hidden),
        URL_SAFE_NO_PAD.encode(&hidden[1..]),
        URL_SAFE_NO_PAD.encode(&hidden[2..]),
        format!("{:?}", "open sesame/now?".as_bytes()),
    ] {
        assert!(!secrets.found_in(&text).is_empty(), "{text}");
    }
    assert!(secrets.found_in("open says me").is_empty());
}

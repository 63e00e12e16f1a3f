//! Identity by JSON Web Token: genuine ones, and every kind of forgery.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};

use crate::support::{Call, Reply, Server, Setup};

const SECRET: &str = "a secret that is long enough to be one";

const POLICIES: &str = r#"
[policy.users]
routes = ["/users"]
limits = [{ name = "user", max = 2, per = "3650d", by = ["user"], max_by = { role = { pro = 3 } } }]

[policy.plain]
routes = ["/plain"]
limits = [{ name = "ip", max = 100, per = "3650d", by = ["ip"] }]
"#;

/// What signs, by algorithm.
pub(crate) enum Signer {
    Hs256(&'static str),
    Rs256(Box<RsaKeyPair>),
    Es256(Box<EcdsaKeyPair>),
}

impl Signer {
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Hs256(_) => "HS256",
            Self::Rs256(_) => "RS256",
            Self::Es256(_) => "ES256",
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Hs256(secret) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
                hmac::sign(&key, message).as_ref().to_vec()
            }
            Self::Rs256(key) => {
                let mut signed = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signed).unwrap();
                signed
            }
            Self::Es256(key) => key.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
        }
    }

    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({ "alg": self.algorithm(), "typ": "JWT" }), claims)
    }

    fn token_with(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(self.sign(message.as_bytes())))
    }
}

fn message(header: &Value, claims: &Value) -> String {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", encode(header), encode(claims))
}

/// A new RSA key, and its public half in PEM.
fn rsa(folder: &Path, name: &str) -> (Signer, String) {
    let path = folder.join(name);
    let run = |args: &[&str]| {
        let ended = Command::new("openssl").args(args).output();
        let ended = ended.expect("openssl is missing: install it");
        assert!(ended.status.success(), "{ended:?}");
        ended.stdout
    };
    let shown = path.display().to_string();
    let bits = "rsa_keygen_bits:2048";
    let pem = format!("{shown}.pem");
    run(&["genpkey", "-algorithm", "RSA", "-pkeyopt", bits, "-out", &pem]);
    run(&["rsa", "-in", &pem, "-outform", "DER", "-traditional", "-out", &shown]);
    let public = run(&["rsa", "-in", &pem, "-pubout"]);
    let key = RsaKeyPair::from_der(&std::fs::read(&path).unwrap()).unwrap();
    (Signer::Rs256(Box::new(key)), String::from_utf8(public).unwrap())
}

/// A new key of P-256, and its public half in PEM.
fn p256() -> (Signer, String) {
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap();
    // A SubjectPublicKeyInfo up to the point: ecPublicKey, prime256v1.
    let mut der = vec![
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08,
        0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ];
    der.extend_from_slice(key.public_key().as_ref());
    let body = STANDARD.encode(der);
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n");
    (Signer::Es256(Box::new(key)), pem)
}

fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

pub(crate) fn claims(user: &str) -> Value {
    json!({ "sub": user, "exp": now_secs() + 3600 })
}

/// A server that believes tokens of this algorithm and these keys.
fn server(algorithm: &str, keys: &[&str], more: &str) -> Server {
    let setup = Setup::memory();
    let write = |(position, key): (usize, &&str)| setup.write(&format!("key-{position}"), key);
    let files: Vec<_> = keys.iter().enumerate().map(write).collect();
    let config = format!(
        "[gate.jwt]\nalgorithm = \"{algorithm}\"\nkey_files = {files:?}\n{more}\n{POLICIES}"
    );
    setup.config(&config).into_server()
}

fn ask(server: &Server, token: &str) -> Reply {
    let call = Call::new("GET", "/gate").header("X-Original-URI", "/users");
    server.send(call.header("Authorization", &format!("Bearer {token}")))
}

fn refused(server: &Server, token: &str, why: &str) {
    let reply = ask(server, token);
    let problem = reply.problem(401);
    assert!(problem["detail"].as_str().unwrap().contains(why), "{why}: {problem}");
    let challenge = reply.header("www-authenticate").unwrap();
    assert_eq!(challenge, "Bearer error=\"invalid_token\"", "{reply:?}");
}

#[test]
fn every_algorithm_verifies_its_own_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (rs256, rsa_public) = rsa(folder.path(), "rsa");
    let (other_rs256, _) = rsa(folder.path(), "other");
    let (es256, p256_public) = p256();
    let (other_es256, _) = p256();
    let hs256 = Signer::Hs256(SECRET);
    let other_hs256 = Signer::Hs256("another secret, of whoever would like to be ada");
    let all = [
        (&hs256, &other_hs256, SECRET),
        (&rs256, &other_rs256, &rsa_public),
        (&es256, &other_es256, &p256_public),
    ];
    for (genuine, other, public) in all {
        let server = server(genuine.algorithm(), &[public], "");
        let statuses: Vec<_> =
            (0..3).map(|_| ask(&server, &genuine.token(&claims("ada"))).status).collect();
        assert_eq!(statuses, [200, 200, 429], "{}", genuine.algorithm());
        assert_eq!(server.used("users", &json!({ "user": "ada" })), [2]);
        refused(&server, &other.token(&claims("bob")), "not signed by a known key");
        for (stranger, ..) in all {
            if stranger.algorithm() != genuine.algorithm() {
                refused(&server, &stranger.token(&claims("bob")), "another algorithm");
            }
        }
        // The public key as a secret: the oldest trick.
        let message = message(&json!({ "alg": "HS256" }), &claims("bob"));
        let key = hmac::Key::new(hmac::HMAC_SHA256, public.as_bytes());
        let forged = hmac::sign(&key, message.as_bytes());
        let forged = format!("{message}.{}", URL_SAFE_NO_PAD.encode(forged));
        if genuine.algorithm() != "HS256" {
            refused(&server, &forged, "another algorithm");
        }
        assert_eq!(server.used("users", &json!({ "user": "bob" })), [0]);
    }
}

#[test]
fn a_token_that_nobody_signed_is_refused() {
    let server = server("HS256", &[SECRET], "");
    for header in [json!({ "alg": "none" }), json!({ "alg": "None" }), json!({ "alg": "NONE" })] {
        let message = message(&header, &claims("ada"));
        refused(&server, &format!("{message}."), "the token");
        let signed = Signer::Hs256(SECRET).token_with(&header, &claims("ada"));
        refused(&server, &signed, "the token");
    }
    let unsigned = message(&json!({ "alg": "HS256" }), &claims("ada"));
    refused(&server, &format!("{unsigned}."), "not signed");
    refused(&server, &unsigned, "cannot be read");
    for nonsense in ["x", "a.b.c", "..", "....", &"x".repeat(8_000)] {
        refused(&server, nonsense, "the token");
    }
    let genuine = Signer::Hs256(SECRET).token(&claims("ada"));
    let (_, signature) = genuine.rsplit_once('.').unwrap();
    let altered = format!("{}.{signature}", message(&json!({ "alg": "HS256" }), &claims("eve")));
    refused(&server, &altered, "not signed by a known key");
    assert_eq!(server.used("users", &json!({ "user": "eve" })), [0]);
}

#[test]
fn times_issuer_and_audience_are_checked() {
    let more = "issuer = \"https://id.example.com\"\naudience = \"shop\"\nleeway = \"1s\"";
    let server = server("HS256", &[SECRET], more);
    let hs256 = Signer::Hs256(SECRET);
    let good = json!({
        "sub": "ada", "exp": now_secs() + 3600, "iss": "https://id.example.com",
        "aud": ["other", "shop"],
    });
    assert_eq!(ask(&server, &hs256.token(&good)).status, 200);
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        hs256.token(&claims)
    };
    let without = |name: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(name);
        hs256.token(&claims)
    };
    refused(&server, &with("exp", json!(now_secs() - 60)), "has expired");
    refused(&server, &with("nbf", json!(now_secs() + 600)), "not valid yet");
    refused(&server, &with("iss", json!("https://evil.example.com")), "issuer");
    refused(&server, &with("aud", json!("bank")), "audience");
    for claim in ["exp", "iss", "aud"] {
        refused(&server, &without(claim), "claims");
    }
    refused(&server, &with("exp", json!("tomorrow")), "the token");
    let critical = json!({ "alg": "HS256", "crit": ["new"], "new": 1 });
    refused(&server, &hs256.token_with(&critical, &good), "critical");
}

#[test]
fn claims_become_attributes_and_a_token_without_one_is_nobody() {
    let more = "claims = { user_id = \"user\", \"app_metadata.role\" = \"role\" }";
    let server = server("HS256", &[SECRET], more);
    let hs256 = Signer::Hs256(SECRET);
    let token = |user: Value, role: &str| {
        let exp = now_secs() + 3600;
        hs256.token(&json!({ "user_id": user, "exp": exp, "app_metadata": { "role": role } }))
    };
    let statuses = |token: &str, count: usize| -> Vec<u16> {
        (0..count).map(|_| ask(&server, token).status).collect()
    };
    assert_eq!(statuses(&token(json!("ada"), "pro"), 4), [200, 200, 200, 429]);
    assert_eq!(statuses(&token(json!(7), "free"), 3), [200, 200, 429]);
    assert_eq!(server.used("users", &json!({ "user": "7" })), [2]);
    for user in [json!(null), json!(["ada"]), json!(""), json!({ "name": "ada" })] {
        ask(&server, &token(user, "pro")).fault(401, "subject.user");
    }
}

#[test]
fn without_a_token_a_user_is_unknown_and_an_address_is_not() {
    let server = server("HS256", &[SECRET], "");
    let call = |uri: &str| Call::new("GET", "/gate").header("X-Original-URI", uri);
    let reply = server.send(call("/users"));
    reply.fault(401, "subject.user");
    assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    for value in ["Basic YWRhOng=", "Bearer", "Bearer ", SECRET] {
        server.send(call("/users").header("Authorization", value)).problem(401);
    }
    let twice = call("/users").header("Authorization", "Bearer a").header("Authorization", "b");
    server.send(twice).fault(400, "authorization");
    // A policy that does not look at users does not look at tokens.
    let plain = call("/plain").header("Authorization", "Bearer nonsense");
    assert_eq!(server.send(plain).status, 200);
    assert_eq!(server.send(call("/elsewhere").header("Authorization", "x")).status, 200);
}

#[test]
fn keys_can_be_rotated_and_the_header_chosen() {
    let old = "the secret of yesterday, still in use";
    let server = server("HS256", &[SECRET, old], "header = \"X-Session\"");
    let ask = |token: &str| {
        let call = Call::new("GET", "/gate").header("X-Original-URI", "/users");
        server.send(call.header("X-Session", token)).status
    };
    for secret in [SECRET, "the secret of yesterday, still in use"] {
        assert_eq!(ask(&Signer::Hs256(secret).token(&claims("ada"))), 200);
    }
    assert_eq!(ask(&Signer::Hs256("a secret that was never in use").token(&claims("ada"))), 401);
}

#[test]
fn a_bad_section_is_refused_at_the_start_and_says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let (_, rsa_public) = rsa(folder.path(), "rsa");
    for (algorithm, key, more, why) in [
        ("HS256", "short", "", "shorter than 32 bytes"),
        ("RS256", SECRET, "", "no public RSA key"),
        ("ES256", rsa_public.as_str(), "", "no public P-256 key"),
        ("none", SECRET, "", "none"),
        ("HS512", SECRET, "", "HS512"),
        ("HS256", SECRET, "secret = \"x\"", "secret"),
        ("HS256", SECRET, "claims = { sub = \"ip\" }", "the request's own"),
        ("HS256", SECRET, "claims = { sub = \"user\", id = \"user\" }", "two sources"),
    ] {
        let setup = Setup::memory();
        let file = setup.write("key", key);
        let config =
            format!("[gate.jwt]\nalgorithm = \"{algorithm}\"\nkey_files = [{file:?}]\n{more}\n");
        let ended = setup.config(&config).start_in_vain().expect(2);
        assert!(ended.err.contains(why), "{why}: {ended:?}");
        assert!(!ended.err.contains(SECRET), "a key is never shown: {ended:?}");
    }
    let missing = "[gate.jwt]\nalgorithm = \"HS256\"\nkey_files = [\"nowhere\"]\n";
    let ended = Setup::memory().config(missing).start_in_vain().expect(2);
    assert!(ended.err.contains("nowhere"), "{ended:?}");
}

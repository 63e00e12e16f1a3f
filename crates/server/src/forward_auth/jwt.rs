//! JSON Web Tokens of end users: verified with keys from files, by one algorithm only.
//!
//! One algorithm per server is what makes it impossible to pass one kind of key off as another. The
//! signatures are checked by ring, as everywhere else here.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Validation, decode};
use ring::{hmac, signature};
use serde_json::{Map, Value};
use tollgate::{Policy, Subject};

use super::config::{Jwt, JwtAlgorithm};
use super::{single, unidentified};
use crate::problem::Problem;

/// RFC 7518: a secret must be no shorter than the hash.
const MIN_SECRET_BYTES: usize = 32;
/// An uncompressed point of P-256.
const P256_POINT_BYTES: usize = 65;

pub(crate) struct Jwts {
    header: HeaderName,
    keys: Vec<DecodingKey>,
    validation: Validation,
    /// Claims and the attributes they are.
    claims: Vec<(String, String)>,
}

impl std::fmt::Debug for Jwts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwts").field("header", &self.header).field("claims", &self.claims).finish()
    }
}

impl Jwts {
    pub(crate) fn new(config: Jwt) -> Result<Self, String> {
        // A second one in this process would be the same.
        let _ = RING.install_default();
        if config.key_files.is_empty() {
            return Err("gate.jwt.key_files: must name at least one file".into());
        }
        let mut keys = Vec::new();
        for path in &config.key_files {
            let wrong = |why: String| format!("gate.jwt.key_files: {}: {why}", path.display());
            let bytes =
                std::fs::read(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
            keys.push(read_key(config.algorithm, &bytes).map_err(wrong)?);
        }
        let mut validation = Validation::new(config.algorithm.into());
        validation.leeway = config.leeway.0.as_secs();
        validation.validate_nbf = true;
        validation.validate_aud = config.audience.is_some();
        let mut required = vec!["exp"];
        if let Some(audience) = &config.audience {
            validation.set_audience(&[audience]);
            required.push("aud");
        }
        if let Some(issuer) = &config.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        validation.set_required_spec_claims(&required);
        let claims = config.claims.into_iter().collect();
        Ok(Self { header: config.header.0, keys, validation, claims })
    }

    pub(crate) fn attributes(&self) -> impl Iterator<Item = &str> {
        self.claims.iter().map(|(_, attribute)| attribute.as_str())
    }

    /// Adds what the token says, if the policy looks at any of it.
    pub(crate) fn identify<'a>(
        &'a self,
        policy: &Policy,
        headers: &HeaderMap,
        subject: &mut Subject<'a>,
    ) -> Result<(), Problem> {
        if !self.attributes().any(|attribute| policy.looks_at(attribute)) {
            return Ok(());
        }
        let Some(token) = self.token(headers)? else { return Ok(()) };
        let claims = self.verify(token)?;
        for (claim, attribute) in &self.claims {
            if policy.looks_at(attribute)
                && let Some(value) = find(&claims, claim)
            {
                subject.add(attribute.as_str(), value);
            }
        }
        Ok(())
    }

    /// `Bearer` goes before it in `Authorization`, and may in another header.
    fn token<'a>(&self, headers: &'a HeaderMap) -> Result<Option<&'a str>, Problem> {
        let Some(value) = single(&self.header, headers)? else { return Ok(None) };
        Ok(match value.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Some(token.trim()),
            Some(_) => None,
            None => Some(value).filter(|_| self.header != header::AUTHORIZATION),
        })
    }

    fn verify(&self, token: &str) -> Result<Map<String, Value>, Problem> {
        let mut outcome = Err(Error::from(ErrorKind::InvalidSignature));
        for key in &self.keys {
            outcome = decode::<Map<String, Value>>(token, key, &self.validation);
            let is_of_other_key = |error: &Error| *error.kind() == ErrorKind::InvalidSignature;
            if !outcome.as_ref().is_err_and(is_of_other_key) {
                break;
            }
        }
        match outcome {
            // What must be understood, and is not.
            Ok(decoded) if decoded.header.crit.is_some() => {
                Err(invalid("has a critical extension"))
            }
            Ok(decoded) => Ok(decoded.claims),
            Err(error) => Err(invalid(match error.kind() {
                ErrorKind::ExpiredSignature => "has expired",
                ErrorKind::ImmatureSignature => "is not valid yet",
                ErrorKind::InvalidSignature => "is not signed by a known key",
                ErrorKind::InvalidAlgorithm => "is signed by another algorithm than is asked for",
                ErrorKind::InvalidIssuer => "is not from the issuer that is asked for",
                ErrorKind::InvalidAudience => "is not for the audience that is asked for",
                ErrorKind::MissingRequiredClaim(_) => "has not all the claims that are asked for",
                _ => "cannot be read",
            })),
        }
    }
}

fn invalid(why: &str) -> Problem {
    let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
    unidentified(format!("the token {why}")).header(header::WWW_AUTHENTICATE, challenge)
}

/// A claim of this name, or else inside others: `app_metadata.role`.
fn find(claims: &Map<String, Value>, name: &str) -> Option<String> {
    let value = claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        rest.split('.').try_fold(claims.get(first)?, |value, name| value.get(name))
    })?;
    match value {
        Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

fn read_key(algorithm: JwtAlgorithm, bytes: &[u8]) -> Result<DecodingKey, String> {
    let no_key = |kind: &str| format!("holds no public {kind} key in PEM");
    match algorithm {
        JwtAlgorithm::HS256 => {
            let secret = bytes.trim_ascii_end();
            if secret.len() < MIN_SECRET_BYTES {
                return Err(format!("holds a secret shorter than {MIN_SECRET_BYTES} bytes"));
            }
            Ok(DecodingKey::from_secret(secret))
        }
        JwtAlgorithm::RS256 => DecodingKey::from_rsa_pem(bytes).map_err(|_| no_key("RSA")),
        JwtAlgorithm::ES256 => {
            let key = DecodingKey::from_ec_pem(bytes).map_err(|_| no_key("P-256"))?;
            let is_p256 = key.try_get_as_bytes().is_ok_and(|key| key.len() == P256_POINT_BYTES);
            if is_p256 { Ok(key) } else { Err(no_key("P-256")) }
        }
    }
}

impl From<JwtAlgorithm> for Algorithm {
    fn from(algorithm: JwtAlgorithm) -> Self {
        match algorithm {
            JwtAlgorithm::HS256 => Self::HS256,
            JwtAlgorithm::RS256 => Self::RS256,
            JwtAlgorithm::ES256 => Self::ES256,
        }
    }
}

/// Verifies by ring; nothing is ever signed.
static RING: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    Err(ErrorKind::InvalidAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    let key = key.try_get_as_bytes()?;
    let key = match algorithm {
        Algorithm::HS256 => Key::Secret(hmac::Key::new(hmac::HMAC_SHA256, key)),
        Algorithm::RS256 => Key::of(&signature::RSA_PKCS1_2048_8192_SHA256, key),
        Algorithm::ES256 => Key::of(&signature::ECDSA_P256_SHA256_FIXED, key),
        _ => return Err(ErrorKind::InvalidAlgorithm.into()),
    };
    Ok(Box::new(Verifier { algorithm: *algorithm, key }))
}

struct Verifier {
    algorithm: Algorithm,
    key: Key,
}

enum Key {
    Secret(hmac::Key),
    Public(signature::UnparsedPublicKey<Vec<u8>>),
}

impl Key {
    fn of(algorithm: &'static dyn signature::VerificationAlgorithm, key: &[u8]) -> Self {
        Self::Public(signature::UnparsedPublicKey::new(algorithm, key.to_vec()))
    }
}

impl ::signature::Verifier<Vec<u8>> for Verifier {
    fn verify(&self, message: &[u8], given: &Vec<u8>) -> Result<(), ::signature::Error> {
        let verified = match &self.key {
            Key::Secret(key) => hmac::verify(key, message, given),
            Key::Public(key) => key.verify(message, given),
        };
        verified.map_err(|_| ::signature::Error::new())
    }
}

impl JwtVerifier for Verifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

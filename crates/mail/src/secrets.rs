//! Passwords sealed, keys and tokens hashed.
//!
//! What the relay must be able to read back (SMTP passwords, report secrets) is sealed with
//! XChaCha20-Poly1305 under one key that never stands in the database; whose it is is bound to it,
//! so that rows cannot be swapped. What it must only recognise is hashed.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};

use crate::error::MailError;
use crate::model::AccountKey;
use crate::queue::Queue;
use crate::settings::{KeySource, Secret};

pub(crate) const KEY_PREFIX: &str = "tgk_";
pub(crate) const TOKEN_PREFIX: &str = "tgt_";

/// The variable that holds the key.
pub(crate) const KEY_VARIABLE: &str = "TOLLGATE_MAIL_KEY";
const NONCE_BYTES: usize = 24;
const MIN_PASSPHRASE_CHARS: usize = 16;
/// Sealed with the key and kept in the store: whoever can open it has the right one.
const CHECK: &str = "key_check";

/// Seals and opens.
pub(crate) struct Vault {
    cipher: OnceLock<XChaCha20Poly1305>,
    /// Where the key is to be made at first need.
    file: Option<PathBuf>,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Vault")
    }
}

impl Vault {
    /// Finds the key and checks that it is the one in use. A key that does not exist yet is made
    /// by [`Vault::ready`].
    pub(crate) async fn open(
        queue: &Queue,
        store_url: &str,
        source: &KeySource,
    ) -> Result<Self, MailError> {
        let (key, file) = find_key(store_url, source)?;
        let vault = Self { cipher: OnceLock::new(), file };
        let stored = queue.setting(CHECK, None).await?;
        match (key, stored) {
            (Some(key), stored) => {
                let cipher = XChaCha20Poly1305::new(&key.into());
                if let Some(stored) = stored {
                    check(&cipher, &stored)?;
                }
                let _ = vault.cipher.set(cipher);
            }
            (None, Some(_)) => return Err(missing(vault.file.as_deref())),
            (None, None) => {}
        }
        Ok(vault)
    }

    /// Makes the key if there is none yet, and notes in the store which one is in use.
    pub(crate) async fn ready(&self, queue: &Queue) -> Result<(), MailError> {
        if self.cipher.get().is_none() {
            let Some(file) = &self.file else { return Err(missing(None)) };
            let key = make_key_file(file)?;
            let _ = self.cipher.set(XChaCha20Poly1305::new(&key.into()));
        }
        let cipher = self.cipher()?;
        let first = seal(cipher, CHECK.as_bytes(), CHECK.as_bytes())?;
        let stored = queue.setting(CHECK, Some(&first)).await?;
        // Another instance may have been first, with another key.
        check(cipher, stored.as_deref().unwrap_or(&first))
    }

    fn cipher(&self) -> Result<&XChaCha20Poly1305, MailError> {
        self.cipher.get().ok_or_else(|| missing(self.file.as_deref()))
    }

    pub(crate) fn seal_password(
        &self,
        account: &AccountKey,
        password: &Secret,
    ) -> Result<Vec<u8>, MailError> {
        seal(self.cipher()?, &account_scope(account), password.reveal().as_bytes())
    }

    pub(crate) fn open_password(
        &self,
        account: &AccountKey,
        sealed: &[u8],
    ) -> Result<Secret, MailError> {
        unseal(self.cipher()?, &account_scope(account), sealed).map_err(|Unopened| {
            let AccountKey { tenant_id, account_id } = account;
            MailError::Key(format!(
                "the password of account {account_id:?} of tenant {tenant_id:?} cannot be opened \
                 with this key: give it again with POST /account"
            ))
        })
    }

    pub(crate) fn seal_report_secret(
        &self,
        tenant_id: &str,
        secret: &str,
    ) -> Result<Vec<u8>, MailError> {
        seal(self.cipher()?, &scope(&["report", tenant_id]), secret.as_bytes())
    }

    pub(crate) fn open_report_secret(
        &self,
        tenant_id: &str,
        sealed: &[u8],
    ) -> Result<Secret, MailError> {
        unseal(self.cipher()?, &scope(&["report", tenant_id]), sealed).map_err(|Unopened| {
            MailError::Key(format!(
                "the report secret of tenant {tenant_id:?} cannot be opened with this key: give \
                 it again with POST /tenant"
            ))
        })
    }
}

fn account_scope(account: &AccountKey) -> Vec<u8> {
    scope(&["account", &account.tenant_id, &account.account_id])
}

/// Each part with its length, so that they cannot run into each other.
fn scope(parts: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes
}

fn seal(cipher: &XChaCha20Poly1305, scope: &[u8], text: &[u8]) -> Result<Vec<u8>, MailError> {
    let nonce: [u8; NONCE_BYTES] = random_bytes()?;
    let payload = Payload { msg: text, aad: scope };
    let sealed = cipher
        .encrypt(XNonce::from_slice(&nonce), payload)
        .map_err(|_| MailError::unavailable("a secret could not be sealed"))?;
    Ok([&nonce[..], &sealed].concat())
}

/// Another key, another owner, or damage.
struct Unopened;

fn unseal(cipher: &XChaCha20Poly1305, scope: &[u8], sealed: &[u8]) -> Result<Secret, Unopened> {
    let (nonce, sealed) = sealed.split_at_checked(NONCE_BYTES).ok_or(Unopened)?;
    let payload = Payload { msg: sealed, aad: scope };
    let text = cipher.decrypt(XNonce::from_slice(nonce), payload).map_err(|_| Unopened)?;
    String::from_utf8(text).map(Secret::new).map_err(|_| Unopened)
}

fn check(cipher: &XChaCha20Poly1305, stored: &[u8]) -> Result<(), MailError> {
    match unseal(cipher, CHECK.as_bytes(), stored) {
        Ok(_) => Ok(()),
        Err(Unopened) => Err(MailError::Key(format!(
            "the mail key is not the one that the stored passwords were sealed with: start with \
             the same {KEY_VARIABLE} (or key file) as before and as the other instances"
        ))),
    }
}

fn missing(file: Option<&Path>) -> MailError {
    MailError::Key(match file {
        Some(file) => format!(
            "the stored passwords were sealed with a key that is not here: put back {} or set \
             {KEY_VARIABLE}",
            file.display()
        ),
        None => format!(
            "passwords cannot be sealed without a key: set {KEY_VARIABLE} to 32 random bytes in \
             hex, the same for every instance (such as from `openssl rand -hex 32`)"
        ),
    })
}

type Key = [u8; 32];

/// The key if there is one already, and else where it is to be made, if anywhere.
fn find_key(
    store_url: &str,
    source: &KeySource,
) -> Result<(Option<Key>, Option<PathBuf>), MailError> {
    let file = match source {
        KeySource::Given(text) => {
            return Ok((Some(parse_key(text.reveal(), KEY_VARIABLE)?), None));
        }
        KeySource::File(path) => path.clone(),
        KeySource::Standard => {
            if let Ok(text) = std::env::var(KEY_VARIABLE)
                && !text.is_empty()
            {
                return Ok((Some(parse_key(&text, KEY_VARIABLE)?), None));
            }
            if store_url == "memory:" {
                return Ok((Some(random_bytes()?), None));
            }
            match tollgate::sqlite_path(store_url) {
                Some(path) => beside(Path::new(path), "-mail", "key"),
                None => return Ok((None, None)),
            }
        }
    };
    // What cannot be looked at is not known to be missing.
    let key = match file.try_exists() {
        Ok(false) => None,
        Ok(true) | Err(_) => Some(read_key_file(&file)?),
    };
    Ok((key, Some(file)))
}

/// `tollgate.db` → `tollgate-mail.key`.
pub(crate) fn beside(store: &Path, suffix: &str, extension: &str) -> PathBuf {
    let stem = store.file_stem().unwrap_or_default().to_string_lossy();
    store.with_file_name(format!("{stem}{suffix}.{extension}"))
}

/// `source` is named if it is none.
fn parse_key(text: &str, source: &str) -> Result<Key, MailError> {
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let mut key = Key::default();
        for (byte, pair) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default();
            *byte = u8::try_from(digit(pair[0]) * 16 + digit(pair[1])).unwrap_or_default();
        }
        return Ok(key);
    }
    for engine in [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD] {
        if let Some(key) = engine.decode(text).ok().and_then(|bytes| Key::try_from(bytes).ok()) {
            return Ok(key);
        }
    }
    if text.chars().count() < MIN_PASSPHRASE_CHARS {
        return Err(MailError::Key(format!(
            "{source} is too short: give 32 bytes as hex or base64, or a passphrase of at \
             least {MIN_PASSPHRASE_CHARS} characters"
        )));
    }
    Ok(Sha256::digest([b"tollgate mail key\0", text.as_bytes()].concat()).into())
}

/// Readable by its owner only, and whole from the first moment on. If somebody else was first,
/// theirs is the key.
fn make_key_file(path: &Path) -> Result<Key, MailError> {
    let key: Key = random_bytes()?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", random_id()?));
    let draft = path.with_file_name(name);
    let made = write_private(&draft, &hex(&key)).and_then(|()| {
        std::fs::hard_link(&draft, path).or_else(|error| match error.kind() {
            ErrorKind::AlreadyExists => Err(error),
            // Not every file system has links.
            _ => write_private(path, &hex(&key)),
        })
    });
    // It has its name, or is of no use.
    let _ = std::fs::remove_file(&draft);
    match made.and_then(|()| sync_folder(path)) {
        Ok(()) => Ok(key),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => read_key_file(path),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn write_private(path: &Path, line: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    writeln!(file, "{line}")?;
    file.sync_all()
}

/// The name must survive a power failure too, before anything is sealed with the key.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if !cfg!(unix) {
        return Ok(());
    }
    match std::fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all() {
        // A file system that does not know how has no more to give.
        Err(error) if [ErrorKind::InvalidInput, ErrorKind::Unsupported].contains(&error.kind()) => {
            Ok(())
        }
        synced => synced,
    }
}

fn read_key_file(path: &Path) -> Result<Key, MailError> {
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    parse_key(text.trim(), &format!("the mail key file {}", path.display()))
}

fn unreadable(path: &Path, error: &std::io::Error) -> MailError {
    MailError::Key(format!(
        "the mail key file {} cannot be used ({error}): check its rights, or set {KEY_VARIABLE}",
        path.display()
    ))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random_bytes<const N: usize>() -> Result<[u8; N], MailError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|_| MailError::unavailable("the system gave no random bytes"))?;
    Ok(bytes)
}

/// A name nobody else has; not a secret.
pub(crate) fn random_id() -> Result<String, MailError> {
    Ok(hex(&random_bytes::<8>()?))
}

/// A new secret with 256 random bits.
pub(crate) fn generate(prefix: &str) -> Result<String, MailError> {
    Ok(format!("{prefix}{}", URL_SAFE_NO_PAD.encode(random_bytes::<32>()?)))
}

/// What keys and tokens are stored as: they are random and long, so a plain hash hides them well,
/// and looking one up by it tells nothing by the time it takes.
pub(crate) fn hash(secret: &str) -> Vec<u8> {
    Sha256::digest(secret.as_bytes()).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_who_make_a_key_file_at_once_have_the_same_key() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let path = folder.path().join(format!("{round}.key"));
            let keys: Vec<Key> = std::thread::scope(|scope| {
                let makers: Vec<_> =
                    (0..4).map(|_| scope.spawn(|| make_key_file(&path).unwrap())).collect();
                makers.into_iter().map(|maker| maker.join().unwrap()).collect()
            });
            assert!(keys.iter().all(|key| *key == keys[0]));
            let kept = std::fs::read_to_string(&path).unwrap();
            assert_eq!(parse_key(kept.trim(), "").unwrap(), keys[0]);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 50, "nothing else is left");
    }
}

//! An account as something to connect to.

use std::net::IpAddr;
use std::time::Duration;

use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::extension::ClientId;

use super::encryption::Encryption;
use super::failure::Failure;
use crate::model::{Account, Tls};
use crate::settings::MailSettings;

/// Connecting, greeting, TLS and login together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// One command, the message itself included.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Where, how, and as whom.
pub(crate) struct Server {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: Tls,
    /// As long as `tls` is not `None`.
    pub(super) encryption: Option<Encryption>,
    pub(super) credentials: Option<Credentials>,
    pub(super) hello: ClientId,
    pub(super) connect_timeout: Duration,
    pub(super) command_timeout: Duration,
    pub(super) attempt_timeout: Duration,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({}:{})", self.host, self.port)
    }
}

impl Server {
    /// A failure if it must not or cannot be connected to as it is.
    pub(crate) fn new(account: &Account, settings: &MailSettings) -> Result<Self, Failure> {
        let credentials = match (&account.user, &account.password) {
            (Some(user), Some(password)) => {
                Some(Credentials::new(user.clone(), password.reveal().to_owned()))
            }
            _ => None,
        };
        let covered = account.tls != Tls::None || account.allow_plaintext_auth;
        if credentials.is_some() && !covered && !is_loopback(&account.host) {
            return Err(Failure::permanent(
                "the password would travel unencrypted: use TLS, or set allow_plaintext_auth on \
                 the account",
            ));
        }
        let encryption = match account.tls {
            Tls::None => None,
            Tls::Starttls | Tls::Implicit => Some(Encryption::new(account, settings)?),
        };
        Ok(Self {
            host: account.host.clone(),
            port: account.port,
            tls: account.tls,
            encryption,
            credentials,
            hello: ClientId::default(),
            connect_timeout: CONNECT_TIMEOUT,
            command_timeout: COMMAND_TIMEOUT,
            attempt_timeout: settings.attempt_timeout,
        })
    }
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

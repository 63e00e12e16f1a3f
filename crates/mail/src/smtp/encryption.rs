//! TLS to one server: whom to trust, and the handshake.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::failure::Failure;
use crate::model::Account;
use crate::settings::MailSettings;

/// How one account's server proves who it is.
pub(super) struct Encryption {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Encryption {
    /// Trusts the public authorities, that of the account and that of the settings.
    pub(super) fn new(account: &Account, settings: &MailSettings) -> Result<Self, Failure> {
        let mut roots: RootCertStore = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
        if let Some(pem) = &account.root_cert {
            trust(&mut roots, pem.as_bytes()).map_err(|error| {
                Failure::unconnected(format!("the account's root_cert cannot be used: {error}"))
            })?;
        }
        if let Some(path) = &settings.root_cert {
            trust_file(&mut roots, path)?;
        }
        let unusable = |error: &dyn std::fmt::Display| {
            Failure::unconnected(format!("TLS cannot be set up: {error}"))
        };
        let name = ServerName::try_from(account.host.clone()).map_err(|error| unusable(&error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }

    pub(super) async fn begin(&self, tcp: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), tcp).await
    }
}

fn trust_file(roots: &mut RootCertStore, path: &Path) -> Result<(), Failure> {
    let trusted = match std::fs::read(path) {
        Ok(pem) => trust(roots, &pem),
        Err(error) => Err(error.to_string()),
    };
    trusted.map_err(|error| {
        let file = path.display();
        Failure::unconnected(format!("root_cert {file} of the settings cannot be used: {error}"))
    })
}

fn trust(roots: &mut RootCertStore, pem: &[u8]) -> Result<(), String> {
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(())
}

//! Connecting, with TLS where the URL asks for it.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::{CancelToken, Client};
use tokio_postgres_rustls::MakeRustlsConnect;
use tollgate_core::store::{StoreError, StoreErrorKind};

use crate::Inner;
use crate::error::{failed, timed_out};
use crate::settings::{Settings, Verify};

/// Makes connections. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connector {
    client: tokio_postgres::Config,
    tls: MakeRustlsConnect,
    #[cfg(feature = "simulation")]
    world: Option<Arc<dyn crate::World>>,
}

impl Connector {
    pub(crate) fn new(settings: &Settings) -> Result<Self, StoreError> {
        let tls = MakeRustlsConnect::new(tls_config(&settings.verify)?);
        Ok(Self {
            client: settings.client.clone(),
            tls,
            #[cfg(feature = "simulation")]
            world: None,
        })
    }

    /// Connects through a simulated network instead.
    #[cfg(feature = "simulation")]
    pub(crate) fn within(self, world: Arc<dyn crate::World>) -> Self {
        Self { world: Some(world), ..self }
    }

    /// A connection, driven by a task of its own until it is dropped.
    pub(crate) async fn connect(&self, within: Duration) -> Result<Client, StoreError> {
        #[cfg(feature = "simulation")]
        if let Some(world) = &self.world {
            return crate::simulation::connect(&**world, &self.client, within).await;
        }
        let connecting = self.client.connect(self.tls.clone());
        let (client, connection) = tokio::time::timeout(within, connecting)
            .await
            .map_err(|_| timed_out())?
            .map_err(|error| failed("PostgreSQL cannot be reached", error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to PostgreSQL ended");
            }
        });
        Ok(client)
    }

    /// Asks the server to give up what an abandoned connection is doing.
    pub(crate) fn cancel(&self, token: CancelToken, within: Duration) {
        #[cfg(feature = "simulation")]
        if let Some(world) = &self.world {
            return crate::simulation::cancel(&**world, token);
        }
        let tls = self.tls.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(within, token.cancel_query(tls)).await;
        });
    }
}

/// What the server is doing for somebody. Dropped before it is done, the server is asked to give it
/// up: it would go on, or wait for its lock, for nobody, and keep one of its connections for that.
pub(crate) struct AtWork<'a> {
    inner: &'a Inner,
    connection: Option<CancelToken>,
}

impl Inner {
    pub(crate) fn at_work<'a>(&'a self, client: &Client) -> AtWork<'a> {
        AtWork { inner: self, connection: Some(client.cancel_token()) }
    }
}

impl AtWork<'_> {
    pub(crate) fn done(mut self) {
        self.connection = None;
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            // Whoever stopped waiting may have no runtime.
            let _on_ours = self.inner.engine.enter();
            self.inner.connector.cancel(connection, self.inner.settings.deadline);
        }
    }
}

fn tls_config(verify: &Verify) -> Result<ClientConfig, StoreError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS cannot be set up", error))?;
    Ok(match verify {
        Verify::No => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
            .with_no_client_auth(),
        Verify::Yes { authorities: None } => {
            let roots = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect::<RootCertStore>();
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        Verify::Yes { authorities: Some(path) } => {
            let mut roots = RootCertStore::empty();
            let what = format!("sslrootcert={}: no certificates can be read", path.display());
            let certificates = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| unusable(&what, error))?;
            for certificate in certificates {
                roots.add(certificate).map_err(|error| unusable(&what, error))?;
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
    })
}

fn unusable(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, format!("{what}: {error}")).with_source(error)
}

/// Encrypts to whoever answers, as libpq does for `prefer` and `require`.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

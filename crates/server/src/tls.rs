//! TLS on the listener: the certificate, the handshake, and a renewed certificate while it runs.
//!
//! Deliberately absent: certificates of clients, and more than one certificate. A proxy does both.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::signal::unix::SignalKind;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::exit::Failure;
use crate::serve::watch;

/// Every handshake begins with it; no HTTP request does.
const HANDSHAKE_RECORD: u8 = 0x16;
/// What a client hears that speaks plain HTTP.
const PLAIN_DETAIL: &str = r#"{"type":"urn:tollgate:tls-required","title":"Bad Request","status":400,"detail":"this address speaks TLS: use https:// instead of http://"}"#;

/// What handshakes are made with.
#[derive(Debug)]
pub(crate) struct Tls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
}

/// PEM files: a certificate chain, the server's own first, and its private key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl TlsFiles {
    /// Both or neither: one alone is a mistake, not plain HTTP.
    pub(crate) fn of(cert: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<Self>, Failure> {
        match (cert, key) {
            (Some(cert), Some(key)) => Ok(Some(Self { cert, key })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(Failure::bad_input(
                "tls_cert is set and tls_key is not: name the certificate's key too, or neither",
            )),
            (None, Some(_)) => Err(Failure::bad_input(
                "tls_key is set and tls_cert is not: name the key's certificate too, or neither",
            )),
        }
    }

    fn read(&self) -> Result<ServerConfig, String> {
        let (cert, key) = (self.cert.display(), self.key.display());
        let chain = CertificateDer::pem_file_iter(&self.cert)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| unreadable("tls_cert", &self.cert, &error))?;
        if chain.is_empty() {
            return Err(unreadable("tls_cert", &self.cert, &pem::Error::NoItemsFound));
        }
        let secret = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| unreadable("tls_key", &self.key, &error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret))
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => format!(
                    "tls_key {key} is not the key of the first certificate in tls_cert {cert}: \
                     name the pair that was made together, the server's own certificate first"
                ),
                other => format!("tls_cert {cert} and tls_key {key} cannot be used: {other}"),
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Says what is wrong with a file, and never what is in it.
fn unreadable(setting: &str, path: &Path, error: &pem::Error) -> String {
    let path = path.display();
    match error {
        pem::Error::Io(error) => format!("{setting} {path} cannot be read: {error}"),
        pem::Error::NoItemsFound if setting == "tls_key" => format!(
            "{setting} {path} holds no private key: give it in PEM (BEGIN PRIVATE KEY), not \
             encrypted"
        ),
        pem::Error::NoItemsFound => {
            format!("{setting} {path} holds no certificate: give it in PEM (BEGIN CERTIFICATE)")
        }
        other => format!("{setting} {path} is not a PEM file: {other}"),
    }
}

impl Tls {
    pub(crate) fn open(files: TlsFiles) -> Result<Self, Failure> {
        let config = files.read().map_err(Failure::bad_input)?;
        Ok(Self { files, config: ArcSwap::from_pointee(config) })
    }

    /// From now on SIGHUP has the files read again. Connections go on with what they began with;
    /// a pair that cannot be used leaves the one before in force.
    pub(crate) fn reload_on_hangup(self: &Arc<Self>) -> Result<(), Failure> {
        let mut hangup = watch(SignalKind::hangup())?;
        let tls = self.clone();
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                match tls.files.read() {
                    Ok(config) => {
                        tls.config.store(Arc::new(config));
                        tracing::info!("the certificate was read again and is in force");
                    }
                    Err(why) => tracing::error!(why, "the certificate stays as it was"),
                }
            }
        });
        Ok(())
    }

    /// Takes as long as the client does: whoever calls this sets the time.
    pub(crate) async fn handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first != [HANDSHAKE_RECORD] {
            refuse_plain(stream).await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no TLS"));
        }
        TlsAcceptor::from(self.config.load_full()).accept(stream).await
    }
}

/// Says what to do instead, as far as the client listens.
async fn refuse_plain(mut stream: TcpStream) -> io::Result<()> {
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{PLAIN_DETAIL}",
        PLAIN_DETAIL.len()
    );
    // What was sent and not read would make the system cut the connection, and the answer with it.
    let _ = stream.try_read(&mut [0; 16 << 10]);
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

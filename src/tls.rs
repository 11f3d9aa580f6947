//! TLS 1.2 and 1.3 for both sides of the proxy: rustls, with one provider of cryptography.
//!
//! Certificates and keys come in as PEM and go out as rustls configurations. Nothing here reads the configuration or
//! opens a socket.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, ClientConfig, ConfigBuilder, InvalidMessage, RootCertStore, ServerConfig};
use rustls::{ConfigSide, WantsVerifier};

/// The cryptography of every connection: AWS-LC. It is named only here, so that there is no second one.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(aws_lc_rs::default_provider())))
}

/// Begins every configuration: TLS 1.2 and 1.3, with that provider.
pub fn start_config<S: ConfigSide>(
    builder: impl FnOnce(Arc<CryptoProvider>) -> ConfigBuilder<S, rustls::WantsVersions>,
) -> ConfigBuilder<S, WantsVerifier> {
    builder(provider()).with_safe_default_protocol_versions().expect("AWS-LC has suites for both versions")
}

/// The problem of a certificate or of its key. The text begins with a verb and has nothing of the files.
#[derive(Debug)]
pub enum CertificateFileError {
    /// The problem of the certificate's file.
    Certificate(String),
    /// The problem of the key's file.
    Key(String),
}

/// The configuration towards clients: HTTP/2 or HTTP/1.1, by their choice, with this certificate and those behind it in
/// the same PEM. Early data, which an attacker can replay, is not accepted.
///
/// # Errors
/// [`CertificateFileError`].
pub fn server_config(certificate: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, CertificateFileError> {
    let chain = parse_certificates(certificate).map_err(CertificateFileError::Certificate)?;
    let key = parse_private_key(key).map_err(CertificateFileError::Key)?;
    let builder = start_config(ServerConfig::builder_with_provider).with_no_client_auth();
    let mut server = builder.with_single_cert(chain, key).map_err(explain_rejection)?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(server))
}

/// The problem of a certificate and key that are PEM, by the error of rustls.
pub fn explain_rejection(error: rustls::Error) -> CertificateFileError {
    match error {
        rustls::Error::InconsistentKeys(_) => CertificateFileError::Key("does not belong to the certificate".into()),
        rustls::Error::InvalidCertificate(error) => CertificateFileError::Certificate(format!("is unusable: {error}")),
        _ => CertificateFileError::Key("is of an unknown kind: RSA, ECDSA and Ed25519 keys are known".into()),
    }
}

/// Reads the certificates in a PEM file; at least one.
///
/// # Errors
/// The problem, beginning with a verb.
pub fn parse_certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Err(_) => Err("is no valid PEM".into()),
        Ok(found) if found.is_empty() => Err("has no certificate: it needs a `-----BEGIN CERTIFICATE-----`".into()),
        Ok(found) => Ok(found),
    }
}

/// Reads the private key in a PEM file.
///
/// # Errors
/// The problem, beginning with a verb; never has anything of the file.
pub fn parse_private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            "has no private key: it needs a `-----BEGIN PRIVATE KEY-----` that is not encrypted".into()
        }
        _ => "is no valid PEM".into(),
    })
}

/// The certificate authorities that servers are verified with.
#[derive(Clone, Debug)]
pub struct Authorities {
    /// Their certificates.
    pub roots: Arc<RootCertStore>,
    /// The problems of those that could not be read.
    pub problems: Vec<String>,
}

impl Authorities {
    /// No authorities.
    pub fn empty() -> Self {
        Self { roots: Arc::new(RootCertStore::empty()), problems: Vec::new() }
    }

    /// Reads the system's authorities; or, where they are set, those that the environment variables `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR` name instead. Reads some hundred kilobytes.
    pub fn from_system() -> Self {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        Self { roots: Arc::new(roots), problems: found.errors.iter().map(ToString::to_string).collect() }
    }
}

/// The TLS configuration towards services, with the authorities that they are verified with. Cheap to clone.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Requires of a service a certificate by one of these authorities, for the name by which it is called. The
    /// protocol is HTTP/1.1.
    pub fn new(authorities: &Authorities) -> Self {
        let builder = start_config(ClientConfig::builder_with_provider);
        let mut client = builder.with_root_certificates(Arc::clone(&authorities.roots)).with_no_client_auth();
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self(Arc::new(client))
    }

    /// The rustls configuration.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}

/// A failed handshake. No byte of the request was sent.
#[derive(Debug)]
pub struct HandshakeError(io::Error);

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the TLS handshake failed")?;
        let cause = self.0.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        f.write_str(match cause {
            Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                ", because no trusted authority signed the certificate (self-signed, or by a private authority?)"
            }
            Some(rustls::Error::InvalidCertificate(CertificateError::Other(_))) => {
                ", because the certificate is not valid for a server (an authority's own?)"
            }
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                ", because the other side does not speak TLS"
            }
            _ => "",
        })
    }
}

impl Error for HandshakeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

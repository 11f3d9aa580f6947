//! TLS 1.2 and 1.3 as both sides of the proxy speak it: rustls, with one provider of cryptography.
//!
//! What is configured comes in as PEM and goes out as what rustls wants. Nothing here reads the configuration or opens a
//! socket.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, ClientConfig, ConfigBuilder, InvalidMessage, RootCertStore, ServerConfig};
use rustls::{ConfigSide, WantsVerifier};

/// The cryptography behind every connection: AWS-LC, named here alone, so that no second one can come in.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(aws_lc_rs::default_provider())))
}

/// The beginning of every configuration: TLS 1.2 and 1.3, with that provider.
pub fn begin<S: ConfigSide>(
    builder: impl FnOnce(Arc<CryptoProvider>) -> ConfigBuilder<S, rustls::WantsVersions>,
) -> ConfigBuilder<S, WantsVerifier> {
    builder(provider()).with_safe_default_protocol_versions().expect("AWS-LC has suites for both versions")
}

/// Why a certificate and its key are of no use. The words begin with a verb and hold nothing of the files.
#[derive(Debug)]
pub enum Unusable {
    /// It is the certificate's file.
    Certificate(String),
    /// It is the key's file.
    Key(String),
}

/// How clients are spoken to: HTTP/2 or HTTP/1.1, by their choice, with this certificate and those that stand behind it
/// in the same PEM. Early data, which an attacker can send again, is not taken.
///
/// # Errors
/// [`Unusable`].
pub fn server(certificate: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, Unusable> {
    let chain = certificates(certificate).map_err(Unusable::Certificate)?;
    let key = private_key(key).map_err(Unusable::Key)?;
    let builder = begin(ServerConfig::builder_with_provider).with_no_client_auth();
    let mut server = builder.with_single_cert(chain, key).map_err(unusable)?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(server))
}

/// What rustls has against a pair of which each part is PEM.
pub fn unusable(error: rustls::Error) -> Unusable {
    match error {
        rustls::Error::InconsistentKeys(_) => Unusable::Key("does not belong to the certificate".into()),
        rustls::Error::InvalidCertificate(error) => Unusable::Certificate(format!("is unusable: {error}")),
        _ => Unusable::Key("is of a kind that is not known: RSA, ECDSA and Ed25519 keys are".into()),
    }
}

/// The certificates in a PEM file; at least one.
///
/// # Errors
/// What is wrong with it, beginning with a verb.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Err(_) => Err("is no PEM that can be read".into()),
        Ok(found) if found.is_empty() => Err("has no certificate: it needs a `-----BEGIN CERTIFICATE-----`".into()),
        Ok(found) => Ok(found),
    }
}

/// The private key in a PEM file.
///
/// # Errors
/// What is wrong with it, beginning with a verb; never what stands in it.
pub fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            "has no private key: it needs a `-----BEGIN PRIVATE KEY-----` that is not encrypted".into()
        }
        _ => "is no PEM that can be read".into(),
    })
}

/// Whose word about who a server is counts.
#[derive(Clone, Debug)]
pub struct Authorities {
    /// Their certificates.
    pub roots: Arc<RootCertStore>,
    /// What could not be read.
    pub problems: Vec<String>,
}

impl Authorities {
    /// Nobody's.
    pub fn none() -> Self {
        Self { roots: Arc::new(RootCertStore::empty()), problems: Vec::new() }
    }

    /// The system's; or, where they are set, those that the environment's `SSL_CERT_FILE` and `SSL_CERT_DIR` name
    /// instead. Reads some hundred kilobytes.
    pub fn of_system() -> Self {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        Self { roots: Arc::new(roots), problems: found.errors.iter().map(ToString::to_string).collect() }
    }
}

/// How services are spoken to, and whom they must be vouched for by. Cheap to clone.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// A service must show a certificate by one of these, for the name by which it is called. HTTP/1.1 is spoken.
    pub fn new(authorities: &Authorities) -> Self {
        let builder = begin(ClientConfig::builder_with_provider);
        let mut client = builder.with_root_certificates(Arc::clone(&authorities.roots)).with_no_client_auth();
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self(Arc::new(client))
    }

    /// As rustls wants it.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}

/// A handshake that came to nothing. No byte of what was to be said over the connection has left.
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
                ", as nobody who is trusted here signed the certificate (self-signed, or by an authority of its own?)"
            }
            Some(rustls::Error::InvalidCertificate(CertificateError::Other(_))) => {
                ", as the certificate will not do for a server (an authority's own?)"
            }
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                ", as what the other side speaks is no TLS"
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

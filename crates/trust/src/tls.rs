//! TLS 1.2 and 1.3 for both sides of the proxy: rustls, with one provider of cryptography.
//!
//! Certificates and keys come in as PEM and go out as rustls configurations. Nothing here reads the configuration or
//! opens a socket.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustls::client::ResolvesClientCert;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CertificateError, ClientConfig, ConfigBuilder, InvalidMessage, RootCertStore};
use rustls::{ConfigSide, ServerConfig, SignatureScheme, WantsVerifier};
use sha2::{Digest, Sha256};

pub use client_certificate::CertificateName;

mod client_certificate;

/// The cryptography of every connection: AWS-LC. It is named only here, so that there is no second one.
// See docs/decisions/0030-choose-dependencies.md.
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

/// The names of the protocols in ALPN.
pub const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// The problem of a certificate or of its key. The text begins with a verb and has nothing of the files.
#[derive(Debug)]
pub enum CertificateFileError {
    Certificate(String),
    Key(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// A client may have one. One that does not verify ends the handshake.
    Optional,
    /// A client without one ends the handshake.
    Required,
}

/// The configuration towards clients: HTTP/2 or HTTP/1.1, by their choice, with this certificate and those behind it in
/// the same PEM. `clients` verifies their certificates. Early data, which an attacker can replay, is not
/// accepted.
///
/// Each configuration has its own memory of sessions, and no key of tickets: none outlives a change of the authorities.
pub fn server_config(
    certificate: &[u8],
    key: &[u8],
    clients: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<Arc<ServerConfig>, CertificateFileError> {
    let chain = parse_certificates(certificate).map_err(CertificateFileError::Certificate)?;
    let key = parse_private_key(key).map_err(CertificateFileError::Key)?;
    let builder = start_config(ServerConfig::builder_with_provider);
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    let mut server = builder.with_single_cert(chain, key).map_err(explain_rejection)?;
    server.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
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

/// Reads the certificates in a PEM file; at least one. An error is the problem, beginning with a verb.
pub fn parse_certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Err(_) => Err("is no valid PEM".into()),
        Ok(found) if found.is_empty() => Err("has no certificate: it needs a `-----BEGIN CERTIFICATE-----`".into()),
        Ok(found) => Ok(found),
    }
}

/// The verifier of clients' certificates by the authorities in a PEM file.
/// An error is the problem, beginning with a verb.
pub fn client_verifier(
    authorities: &[u8],
    certificates: ClientCertificates,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in parse_certificates(authorities)? {
        roots.add(certificate).map_err(|error| format!("has a certificate that is no authority's: {error}"))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider());
    let verifier = match certificates {
        ClientCertificates::Optional => verifier.allow_unauthenticated(),
        ClientCertificates::Required => verifier,
    };
    verifier.build().map_err(|error| format!("is unusable: {error}"))
}

/// Reads the private key in a PEM file. An error is the problem, beginning with a verb, and has nothing of the file.
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
    pub roots: Arc<RootCertStore>,
    /// The problems of those that could not be read.
    pub problems: Vec<String>,
    /// The hash of the certificates, in whatever order they were read.
    pub digest: [u8; 32],
}

impl Authorities {
    pub fn empty() -> Self {
        Self { roots: Arc::new(RootCertStore::empty()), problems: Vec::new(), digest: digest_of(&[]) }
    }

    /// Reads those in a PEM file; at least one. An error is the problem, beginning with a verb.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let certificates = parse_certificates(text)?;
        let (digest, mut roots) = (digest_of(&certificates), RootCertStore::empty());
        for certificate in certificates {
            roots.add(certificate).map_err(|_| "has a certificate that cannot be an authority's")?;
        }
        Ok(Self { roots: Arc::new(roots), problems: Vec::new(), digest })
    }

    /// Reads the system's authorities; or, where they are set, those that the environment variables `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR` name instead. Reads some hundred kilobytes.
    pub fn from_system() -> Self {
        let found = rustls_native_certs::load_native_certs();
        let (digest, mut roots) = (digest_of(&found.certs), RootCertStore::empty());
        roots.add_parsable_certificates(found.certs);
        Self { roots: Arc::new(roots), problems: found.errors.iter().map(ToString::to_string).collect(), digest }
    }
}

fn digest_of(certificates: &[CertificateDer<'_>]) -> [u8; 32] {
    let each: BTreeSet<[u8; 32]> = certificates.iter().map(|one| Sha256::digest(one).into()).collect();
    Sha256::digest(each.into_iter().flatten().collect::<Vec<u8>>()).into()
}

/// The certificate that this proxy shows to services, with its chain and its key.
pub struct ClientIdentity {
    /// The certificate, and behind it those up to its authority.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

/// The TLS configuration towards services: the authorities that they are verified with, and the proxy's own
/// certificate. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("Trust")]
pub struct Trust {
    client: Arc<ClientConfig>,
    /// The hash of its parts: two of them with the same hash accept the same services and show the same certificate.
    digest: [u8; 32],
}

impl Trust {
    /// Requires of a service a certificate by one of these authorities, for the name by which it is called, and shows
    /// none. The protocol is HTTP/1.1.
    pub fn new(authorities: &Authorities) -> Self {
        Self::with_identity(authorities, None, authorities.digest).expect("there is no certificate to reject")
    }

    /// Does the same, and shows a certificate to services that ask for one. `digest` is the hash of both parts.
    pub fn with_identity(
        authorities: &Authorities,
        identity: Option<ClientIdentity>,
        digest: [u8; 32],
    ) -> Result<Self, CertificateFileError> {
        let builder = start_config(ClientConfig::builder_with_provider);
        let builder = builder.with_root_certificates(Arc::clone(&authorities.roots));
        let mut client = match identity {
            Some(own) => builder.with_client_auth_cert(own.chain, own.key).map_err(explain_rejection)?,
            None => builder.with_no_client_auth(),
        };
        client.alpn_protocols = vec![HTTP1.to_vec()];
        Ok(Self { client: Arc::new(client), digest })
    }

    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The rustls configuration, for HTTP/1.1.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    /// The configurations for the connections to one service.
    pub fn for_service(&self) -> ServiceTls {
        let requests = Arc::new(CertificateRequests {
            inner: Arc::clone(&self.client.client_auth_cert_resolver),
            seen: AtomicBool::new(false),
        });
        let mut http1 = (*self.client).clone();
        http1.client_auth_cert_resolver = Arc::<CertificateRequests>::clone(&requests);
        let mut negotiated = http1.clone();
        negotiated.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        ServiceTls { negotiated: Arc::new(negotiated), http1: Arc::new(http1), requests }
    }
}

impl PartialEq for Trust {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Trust {}

/// The configurations for the connections to one service. Cheap to clone.
#[derive(Clone)]
pub struct ServiceTls {
    /// Offers HTTP/2 and HTTP/1.1; the service picks.
    pub negotiated: Arc<ClientConfig>,
    /// Offers HTTP/1.1 alone.
    pub http1: Arc<ClientConfig>,
    requests: Arc<CertificateRequests>,
}

impl ServiceTls {
    pub fn asks_for_certificate(&self) -> bool {
        self.requests.seen.load(Ordering::Relaxed)
    }
}

/// Finds the proxy's own certificate, and notes that the service has asked for one.
#[derive(Debug)]
struct CertificateRequests {
    inner: Arc<dyn ResolvesClientCert>,
    seen: AtomicBool,
}

impl ResolvesClientCert for CertificateRequests {
    fn resolve(&self, root_hint_subjects: &[&[u8]], sigschemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.seen.store(true, Ordering::Relaxed);
        self.inner.resolve(root_hint_subjects, sigschemes)
    }

    fn has_certs(&self) -> bool {
        self.inner.has_certs()
    }
}

/// A failed handshake. No byte of the request was sent.
#[derive(Debug, thiserror::Error)]
#[error("the TLS handshake failed{}", self.cause())]
pub struct HandshakeError(#[from] io::Error);

impl HandshakeError {
    /// The cause in a few words that follow "the TLS handshake failed". It names no certificate, file or host.
    pub fn cause(&self) -> &'static str {
        let cause = self.0.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        match cause {
            Some(rustls::Error::InvalidCertificate(error)) => match error {
                CertificateError::UnknownIssuer => {
                    ", because no trusted authority signed the certificate (self-signed, or by a private authority?)"
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    ", because the certificate has expired"
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    ", because the certificate is for another name"
                }
                CertificateError::Other(_) => {
                    ", because the certificate is not valid for a server (an authority's own?)"
                }
                _ => ", because the certificate is not valid",
            },
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                ", because the other side does not speak TLS"
            }
            Some(rustls::Error::AlertReceived(alert)) => match alert {
                AlertDescription::CertificateRequired => {
                    ", because the other side requires a client certificate and got none"
                }
                AlertDescription::AccessDenied
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateUnknown
                | AlertDescription::DecryptError
                | AlertDescription::UnknownCA
                | AlertDescription::UnsupportedCertificate => {
                    ", because the other side refused the client certificate, or requires one and got none"
                }
                AlertDescription::HandshakeFailure => {
                    ", because the other side refused it (it may require a client certificate)"
                }
                AlertDescription::NoApplicationProtocol => ", because the other side speaks no HTTP that was offered",
                _ => ", because the other side refused it",
            },
            _ => "",
        }
    }
}

//! TLS to the server, as the URL configures it.
//!
//! The files that the URL names are read for each connection, as libpq does: new files apply without a restart.

use std::error::Error;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::Socket;
use tokio_postgres::config::{self, SslNegotiation};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::without_detail;
use crate::config::{Identity, PostgresTls, Roots, SslMode};
use crate::store::OpenError;
use crate::tls::{self, Authorities, CertificateFileError, HandshakeError};

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// Makes the TLS session of each connection.
#[derive(Clone)]
pub(super) struct PgTls {
    settings: Arc<PostgresTls>,
    /// The system's authorities. Read once, as they are hundreds of kilobytes.
    system: Arc<RootCertStore>,
    /// Whether TLS begins without a request in plain text, with ALPN naming the protocol (`sslnegotiation=direct`).
    direct: bool,
}

impl PgTls {
    /// Reads the files, so that errors in them are reported at start.
    pub fn new(settings: PostgresTls, negotiation: SslNegotiation) -> Result<Self, OpenError> {
        let asks_system = settings.mode == SslMode::VerifyFull && settings.roots == Roots::System;
        let system = if asks_system { Authorities::from_system() } else { Authorities::empty() };
        if asks_system && system.roots.is_empty() {
            return Err(OpenError::Missing(
                "no certificate authority is known here: install ca-certificates, or write an `sslrootcert` into store.url"
                    .into(),
            ));
        }
        let direct = negotiation == SslNegotiation::Direct;
        let tls = Self { settings: Arc::new(settings), system: system.roots, direct };
        if tls.settings.mode != SslMode::Disable {
            tls.client().map_err(OpenError::Missing)?;
        }
        Ok(tls)
    }

    /// The driver's TLS mode.
    pub fn mode(&self) -> config::SslMode {
        match self.settings.mode {
            SslMode::Disable => config::SslMode::Disable,
            SslMode::Prefer => config::SslMode::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => config::SslMode::Require,
        }
    }

    /// The driver's error for people, with advice where the server has no TLS and the URL does not mention it.
    pub fn explain(&self, error: tokio_postgres::Error) -> BoxError {
        let no_tls = error.source().is_some_and(|cause| cause.to_string() == "server does not support TLS");
        if no_tls && !self.settings.is_written && self.settings.mode == SslMode::VerifyFull {
            return "the server has no TLS, which is needed for a host that is not this machine: write `sslmode=disable` into \
                    store.url if you trust the network between"
                .into();
        }
        without_detail(error)
    }

    fn client(&self) -> Result<ClientConfig, BoxError> {
        let builder = tls::start_config(ClientConfig::builder_with_provider);
        let lenient_verifier =
            |roots| Arc::new(LenientVerifier { roots, algorithms: tls::provider().signature_verification_algorithms });
        let builder = match self.settings.mode {
            SslMode::Disable | SslMode::Prefer | SslMode::Require => {
                builder.dangerous().with_custom_certificate_verifier(lenient_verifier(None))
            }
            SslMode::VerifyCa => {
                builder.dangerous().with_custom_certificate_verifier(lenient_verifier(Some(self.roots()?)))
            }
            SslMode::VerifyFull => builder.with_root_certificates(self.roots()?),
        };
        let mut client = match &self.settings.identity {
            None => builder.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let chain = tls::parse_certificates(&read("sslcert", certificate)?);
                let chain = chain.map_err(|why| unusable("sslcert", certificate, &why))?;
                let secret =
                    tls::parse_private_key(&read("sslkey", key)?).map_err(|why| unusable("sslkey", key, &why))?;
                builder.with_client_auth_cert(chain, secret).map_err(|error| match tls::explain_rejection(error) {
                    CertificateFileError::Certificate(why) => unusable("sslcert", certificate, &why),
                    CertificateFileError::Key(why) => unusable("sslkey", key, &why),
                })?
            }
        };
        if self.direct {
            client.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(client)
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, BoxError> {
        let Roots::File(path) = &self.settings.roots else { return Ok(Arc::clone(&self.system)) };
        let found = tls::parse_certificates(&read("sslrootcert", path)?);
        let mut roots = RootCertStore::empty();
        for certificate in found.map_err(|why| unusable("sslrootcert", path, &why))? {
            roots.add(certificate).map_err(|why| unusable("sslrootcert", path, &format!("is unusable: {why}")))?;
        }
        Ok(Arc::new(roots))
    }
}

fn read(parameter: &str, path: &Path) -> Result<Vec<u8>, BoxError> {
    std::fs::read(path).map_err(|error| unusable(parameter, path, &format!("cannot be read: {error}")))
}

fn unusable(parameter: &str, path: &Path, why: &str) -> BoxError {
    format!("store.url: {parameter} `{}` {why}", path.display()).into()
}

impl MakeTlsConnect<Socket> for PgTls {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = OptionalHandshake;
    type Error = BoxError;

    fn make_tls_connect(&mut self, host: &str) -> Result<OptionalHandshake, BoxError> {
        if self.settings.mode == SslMode::Disable {
            return Ok(OptionalHandshake(None));
        }
        Ok(OptionalHandshake(Some(MakeTlsConnect::<Socket>::make_tls_connect(
            &mut MakeRustlsConnect::new(self.client()?),
            host,
        )?)))
    }
}

/// One TLS handshake; `None` where TLS is switched off.
pub(super) struct OptionalHandshake(Option<<MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect>);

impl TlsConnect<Socket> for OptionalHandshake {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type Error = HandshakeError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Stream, HandshakeError>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            match self.0 {
                Some(connect) => Ok(connect.connect(socket).await?),
                None => Err(std::io::Error::other("TLS is switched off").into()),
            }
        })
    }
}

/// Verifies a server without checking its name. The server must prove in any case that it has its certificate's key.
#[derive(Debug)]
struct LenientVerifier {
    /// The authorities of which one must have signed the certificate; `None` accepts any.
    roots: Option<Arc<RootCertStore>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for LenientVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(certificate)?;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, between, now, self.algorithms.all)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

//! The TLS client that a PostgreSQL URL describes, made of its files.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslNegotiation;

use super::postgres_tls::{Identity, PostgresTls, Roots, SslMode};
use super::{ParseResult, PostgresUrl};
use oncegate_trust::tls::{self, Authorities, CertificateFileError};

/// Reads a file of certificates or of a key.
type ReadFile<'a> = dyn FnMut(&Path) -> io::Result<Vec<u8>> + 'a;

/// Makes the client of a URL; `None` where it has cleartext only. `system` are the system's authorities.
/// A problem names the parameter, and has neither the path nor anything of the file.
pub fn postgres_client_tls(
    url: &PostgresUrl,
    system: &Arc<RootCertStore>,
    read: &mut ReadFile<'_>,
) -> ParseResult<Option<Arc<ClientConfig>>> {
    let settings = url.tls();
    let lenient_verifier =
        |roots| Arc::new(LenientVerifier { roots, algorithms: tls::provider().signature_verification_algorithms });
    let builder = tls::start_config(ClientConfig::builder_with_provider);
    let builder = match settings.mode {
        SslMode::Disable => return Ok(None),
        SslMode::Prefer | SslMode::Require => {
            builder.dangerous().with_custom_certificate_verifier(lenient_verifier(None))
        }
        SslMode::VerifyCa => {
            let roots = read_roots(settings, system, read)?;
            builder.dangerous().with_custom_certificate_verifier(lenient_verifier(Some(roots)))
        }
        SslMode::VerifyFull => builder.with_root_certificates(read_roots(settings, system, read)?),
    };
    let mut client = match &settings.identity {
        None => builder.with_no_client_auth(),
        Some(Identity { certificate, key }) => {
            let chain = tls::parse_certificates(&read_file("sslcert", certificate, read)?);
            let chain = chain.map_err(|why| unusable("sslcert", &why))?;
            let secret = tls::parse_private_key(&read_file("sslkey", key, read)?);
            let secret = secret.map_err(|why| unusable("sslkey", &why))?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| match tls::explain_rejection(error) {
                CertificateFileError::Certificate(why) => unusable("sslcert", &why),
                CertificateFileError::Key(why) => unusable("sslkey", &why),
            })?
        }
    };
    if url.hosts().iter().any(|host| host.get_ssl_negotiation() == SslNegotiation::Direct) {
        // TLS begins without a request in plain text, so ALPN names the protocol.
        client.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(Some(Arc::new(client)))
}

fn read_roots(
    settings: &PostgresTls,
    system: &Arc<RootCertStore>,
    read: &mut ReadFile<'_>,
) -> Result<Arc<RootCertStore>, String> {
    let path = match &settings.roots {
        Roots::File(path) => path,
        Roots::System if system.is_empty() => {
            return Err("needs a certificate authority, and none is known here: install ca-certificates, or write an \
                        `sslrootcert`"
                .into());
        }
        Roots::System => return Ok(Arc::clone(system)),
    };
    let authorities = Authorities::parse(&read_file("sslrootcert", path, read)?);
    Ok(authorities.map_err(|why| unusable("sslrootcert", &why))?.roots)
}

fn read_file(parameter: &str, path: &Path, read: &mut ReadFile<'_>) -> Result<Vec<u8>, String> {
    read(path).map_err(|error| unusable(parameter, &format!("cannot be read: {error}")))
}

fn unusable(parameter: &str, why: &str) -> String {
    format!("has an `{parameter}` whose file {why}")
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

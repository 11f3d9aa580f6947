//! Reads and checks `[tls]`: the certificate for clients.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;

use super::options::options;
use super::reader::Section;
use super::words::Word;
use crate::tls::{self, CertificateFileError, ClientCertificates};

/// TLS towards clients.
#[derive(Clone)]
pub struct TlsConfig {
    /// The file of the certificate and its chain.
    pub certificate: PathBuf,
    /// The file of its key.
    pub key: PathBuf,
    /// The file of the authorities of clients' certificates, and whether clients need one.
    pub clients: Option<(PathBuf, ClientCertificates)>,
    /// The rustls configuration made of them.
    pub server: Arc<ServerConfig>,
    /// Whether everybody on the machine may read the key's file.
    pub(super) readable_by_all: bool,
}

/// The files' paths; never their contents.
impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig")
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .field("clients", &self.clients)
            .finish_non_exhaustive()
    }
}

options! {
    /// The options of `[tls]`.
    pub(super) struct TlsOptions {
        /// a PEM file: the certificate, and behind it those up to its authority
        certificate: Text = "" => String, string();
        /// a PEM file: the certificate's private key
        key: Text = "" => String, string();
        /// a PEM file: the authorities of clients' certificates; empty to ask for none
        client_ca: Text = "" => String, string();
        /// a client without a certificate: refuse its connection, or serve it
        client: Choice(ClientCertificates::WORDS) = "required" => ClientCertificates, choice();
    }
}

/// Reads `[tls]`; `Some(None)` for cleartext.
pub(super) fn read(section: &Section<'_>) -> Option<Option<TlsConfig>> {
    let reader = section.reader();
    let TlsOptions { certificate, key, client_ca, client } = TlsOptions::read(section);
    let (certificate, key, authorities, clients) = (certificate?, key?, client_ca?, client?);
    match (certificate.value.is_empty(), key.value.is_empty()) {
        (true, true) if authorities.value.is_empty() => return Some(None),
        (true, true) => {
            reader.problem(&authorities.position, "needs `certificate` and `key` beside it");
            return None;
        }
        (false, false) => {}
        (certificate_is_missing, _) => {
            let (written, missing) = if certificate_is_missing { (&key, "certificate") } else { (&certificate, "key") };
            reader.problem(&written.position, format!("needs a `{missing}` beside it"));
            return None;
        }
    }
    let (chain, secret) = (reader.tls_file(&certificate), reader.tls_file(&key));
    let client_ca = match authorities.value.is_empty() {
        true => None,
        false => Some(reader.tls_file(&authorities)?),
    };
    let (chain, secret) = (chain?, secret?);
    let verifier = match client_ca.as_ref().map(|text| tls::client_verifier(text.as_bytes(), clients.value)).transpose()
    {
        Ok(verifier) => verifier,
        Err(message) => {
            reader.problem(&authorities.position, format!("`{}` {message}", authorities.value));
            return None;
        }
    };
    let server = match tls::server_config(chain.as_bytes(), secret.as_bytes(), verifier) {
        Ok(server) => server,
        Err(error) => {
            let (text, message) = match error {
                CertificateFileError::Certificate(message) => (&certificate, message),
                CertificateFileError::Key(message) => (&key, message),
            };
            reader.problem(&text.position, format!("`{}` {message}", text.value));
            return None;
        }
    };
    let clients = client_ca.is_some().then(|| (authorities.value.into(), clients.value));
    let readable_by_all = reader.environment().is_readable_by_all(Path::new(&key.value));
    let (certificate, key) = (certificate.value.into(), key.value.into());
    Some(Some(TlsConfig { certificate, key, clients, server, readable_by_all }))
}

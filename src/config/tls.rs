//! Reads and checks `[tls]`: the certificate for clients.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;

use super::reader::Section;
use crate::tls::{self, CertificateFileError};

/// TLS towards clients.
#[derive(Clone)]
pub struct TlsConfig {
    /// The file of the certificate and its chain.
    pub certificate: PathBuf,
    /// The file of its key.
    pub key: PathBuf,
    /// The rustls configuration made of both.
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
            .finish_non_exhaustive()
    }
}

/// Reads `[tls]`; `Some(None)` for cleartext.
pub(super) fn read(section: &Section<'_>) -> Option<Option<TlsConfig>> {
    let reader = section.reader();
    let (certificate, key) = (section.text("certificate"), section.text("key"));
    let (certificate, key) = (certificate?, key?);
    match (certificate.value.is_empty(), key.value.is_empty()) {
        (true, true) => return Some(None),
        (false, false) => {}
        (certificate_is_missing, _) => {
            let (written, missing) = if certificate_is_missing { (&key, "certificate") } else { (&certificate, "key") };
            reader.problem(&written.position, format!("needs a `{missing}` beside it"));
            return None;
        }
    }
    let (chain, secret) = (reader.tls_file(&certificate), reader.tls_file(&key));
    let (chain, secret) = (chain?, secret?);
    let server = match tls::server_config(chain.as_bytes(), secret.as_bytes()) {
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
    let readable_by_all = reader.environment().is_readable_by_all(Path::new(&key.value));
    let (certificate, key) = (certificate.value.into(), key.value.into());
    Some(Some(TlsConfig { certificate, key, server, readable_by_all }))
}

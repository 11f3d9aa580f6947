//! Reads and checks `[tls]`: the certificate for clients.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use sha2::{Digest, Sha256};

use super::reader::{ConfigReader, Section, Text};
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
    /// The version of the two files that was read.
    version: TlsFilesVersion,
}

/// The hash of the two files, by which a change is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsFilesVersion([u8; 32]);

impl TlsFilesVersion {
    fn new(certificate: &[u8], key: &[u8]) -> Self {
        let both = [certificate, key].map(Sha256::digest).concat();
        Self(Sha256::digest(both).into())
    }
}

impl TlsConfig {
    /// The version that was read.
    pub fn version(&self) -> TlsFilesVersion {
        self.version
    }

    /// Reads the files' version of now; `None` while one of them is missing.
    pub fn read_current_version(&self) -> Option<TlsFilesVersion> {
        let (certificate, key) = (std::fs::read(&self.certificate).ok()?, std::fs::read(&self.key).ok()?);
        Some(TlsFilesVersion::new(&certificate, &key))
    }
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
    let (chain, secret) = (read_file(reader, &certificate), read_file(reader, &key));
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
    let version = TlsFilesVersion::new(chain.as_bytes(), secret.as_bytes());
    let readable_by_all = reader.environment().is_readable_by_all(Path::new(&key.value));
    let (certificate, key) = (certificate.value.into(), key.value.into());
    Some(Some(TlsConfig { certificate, key, server, readable_by_all, version }))
}

fn read_file(reader: &ConfigReader<'_>, path: &Text) -> Option<String> {
    match reader.environment().read(Path::new(&path.value)) {
        Ok(text) => Some(text),
        Err(error) => {
            reader.problem(&path.position, format!("`{}` cannot be read: {error}", path.value));
            None
        }
    }
}

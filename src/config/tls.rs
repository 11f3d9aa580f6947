//! The certificate for clients.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use sha2::{Digest, Sha256};

use super::reader::{Reader, Section, Text};
use crate::tls::{self, Unusable};

/// TLS towards clients.
#[derive(Clone)]
pub struct Tls {
    /// Where the certificate and its chain are.
    pub certificate: PathBuf,
    /// Where its key is.
    pub key: PathBuf,
    /// What both make together.
    pub server: Arc<ServerConfig>,
    /// The key's file lets everybody on the machine read it.
    pub(super) readable_by_all: bool,
    /// What stood in them.
    version: Version,
}

/// Tells two contents of the files apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version([u8; 32]);

impl Version {
    fn of(certificate: &[u8], key: &[u8]) -> Self {
        let both = [certificate, key].map(Sha256::digest).concat();
        Self(Sha256::digest(both).into())
    }
}

impl Tls {
    /// What was read.
    pub fn version(&self) -> Version {
        self.version
    }

    /// What stands in the files now; `None` while one of them is not there.
    pub fn version_now(&self) -> Option<Version> {
        let (certificate, key) = (std::fs::read(&self.certificate).ok()?, std::fs::read(&self.key).ok()?);
        Some(Version::of(&certificate, &key))
    }
}

/// Where the files are; never what stands in them.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("certificate", &self.certificate).field("key", &self.key).finish_non_exhaustive()
    }
}

/// `Some(None)` is cleartext.
pub(super) fn read(section: &Section<'_>) -> Option<Option<Tls>> {
    let reader = section.reader();
    let (certificate, key) = (section.text("certificate"), section.text("key"));
    let (certificate, key) = (certificate?, key?);
    match (certificate.value.is_empty(), key.value.is_empty()) {
        (true, true) => return Some(None),
        (false, false) => {}
        (certificate_lacks, _) => {
            let (written, lacking) = if certificate_lacks { (&key, "certificate") } else { (&certificate, "key") };
            reader.problem(&written.place, format!("needs a `{lacking}` beside it"));
            return None;
        }
    }
    let (chain, secret) = (file(reader, &certificate), file(reader, &key));
    let (chain, secret) = (chain?, secret?);
    let server = match tls::server(chain.as_bytes(), secret.as_bytes()) {
        Ok(server) => server,
        Err(unusable) => {
            let (text, message) = match unusable {
                Unusable::Certificate(message) => (&certificate, message),
                Unusable::Key(message) => (&key, message),
            };
            reader.problem(&text.place, format!("`{}` {message}", text.value));
            return None;
        }
    };
    let version = Version::of(chain.as_bytes(), secret.as_bytes());
    let readable_by_all = reader.surroundings().is_readable_by_all(Path::new(&key.value));
    let (certificate, key) = (certificate.value.into(), key.value.into());
    Some(Some(Tls { certificate, key, server, readable_by_all, version }))
}

fn file(reader: &Reader<'_>, path: &Text) -> Option<String> {
    match reader.surroundings().read(Path::new(&path.value)) {
        Ok(text) => Some(text),
        Err(error) => {
            reader.problem(&path.place, format!("`{}` cannot be read: {error}", path.value));
            None
        }
    }
}

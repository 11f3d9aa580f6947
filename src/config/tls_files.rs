//! The versions of the files that TLS is made of.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The files of certificates, keys and authorities, each with the hash of its content, by which a change is noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles(BTreeMap<PathBuf, [u8; 32]>);

impl TlsFiles {
    /// Adds a file that was read.
    pub(super) fn add(&mut self, path: &Path, content: &[u8]) {
        self.0.insert(path.into(), Sha256::digest(content).into());
    }

    /// Reads the same files now; `None` while one of them is missing.
    pub fn read_again(&self) -> Option<Self> {
        let mut now = Self::default();
        for path in self.0.keys() {
            now.add(path, &std::fs::read(path).ok()?);
        }
        Some(now)
    }
}

//! The versions of the files that a configuration was made of, beside its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The files of certificates, keys and authorities, and those of `${file:…}`, each with the hash of its content, by
/// which a change is noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFiles(BTreeMap<PathBuf, [u8; 32]>);

impl SourceFiles {
    /// Adds a file that was read.
    pub fn add(&mut self, path: &Path, content: &[u8]) {
        self.0.insert(path.into(), Sha256::digest(content).into());
    }

    /// The files that both have, with another content.
    pub(super) fn list_changes<'a>(&'a self, newer: &'a Self) -> impl Iterator<Item = String> + 'a {
        let changed = self.0.iter().filter(|(path, hash)| newer.0.get(*path).is_some_and(|newer| newer != *hash));
        changed.map(|(path, _)| path.display().to_string())
    }

    /// Whether a file has the same content in both.
    pub fn is_same_at(&self, other: &Self, path: &Path) -> bool {
        self.0.get(path) == other.0.get(path)
    }

    /// Reads the same files now; `None` while one of them is missing. Blocks while it reads. A pipe, which can be read
    /// only once, counts as unchanged.
    pub fn read_again(&self) -> Option<Self> {
        let mut now = self.clone();
        for path in self.0.keys() {
            if std::fs::metadata(path).ok()?.is_file() {
                now.add(path, &std::fs::read(path).ok()?);
            }
        }
        Some(now)
    }
}

//! The versions of the files that a configuration was made of, beside its own.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The files of certificates, keys and authorities, those of `${file:…}`, and those that are included, each with the
/// hash of its content, by which a change is noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFiles {
    hashes: BTreeMap<PathBuf, [u8; 32]>,
    /// The files of the patterns.
    of_patterns: BTreeSet<PathBuf>,
}

impl SourceFiles {
    /// Adds a file that was read.
    pub fn add(&mut self, path: &Path, content: &[u8]) {
        self.hashes.insert(path.into(), Sha256::digest(content).into());
    }

    /// Adds all files of a pattern, see [`list`](Self::list), as they were read.
    pub fn add_pattern<'a>(&mut self, pattern: &Path, files: impl Iterator<Item = (&'a Path, &'a [u8])>) {
        let mut hasher = Sha256::new();
        for (path, content) in files {
            // Both with their lengths: what is behind must not pass for a part of them.
            for part in [path.as_os_str().as_encoded_bytes(), content] {
                hasher.update(part.len().to_le_bytes());
                hasher.update(part);
            }
            self.of_patterns.insert(path.into());
        }
        self.hashes.insert(pattern.into(), hasher.finalize().into());
    }

    /// The files that a pattern had, and that are not there in the newer ones.
    pub fn list_gone<'a>(&'a self, newer: &'a Self) -> impl Iterator<Item = String> + 'a {
        self.of_patterns.difference(&newer.of_patterns).map(|path| path.display().to_string())
    }

    /// The files of a pattern, in the order of their names: a path that may have one `*` in its last segment. A hidden
    /// file is none of them.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(pattern: &Path) -> io::Result<Vec<PathBuf>> {
        if !is_pattern(pattern) {
            return Ok(vec![pattern.into()]);
        }
        let folder = pattern.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = pattern.with_file_name(entry?.file_name());
            if Self::matches(pattern, &path) && path.is_file() {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// Whether a pattern has this path.
    pub fn matches(pattern: &Path, path: &Path) -> bool {
        let [wanted, name] = [pattern, path].map(|path| path.file_name().and_then(OsStr::to_str).unwrap_or_default());
        let (before, behind) = wanted.split_once('*').unwrap_or((wanted, ""));
        let rest = name.strip_prefix(before).filter(|_| !name.starts_with('.') && pattern.parent() == path.parent());
        rest.is_some_and(|rest| rest.ends_with(behind) && (wanted.contains('*') || rest.is_empty()))
    }

    /// The files that both have, with another content.
    pub(super) fn list_changes<'a>(&'a self, newer: &'a Self) -> impl Iterator<Item = String> + 'a {
        // What is behind a pattern is told by its options.
        let files = self.hashes.iter().filter(|(path, _)| !is_pattern(path));
        let changed = files.filter(|(path, hash)| newer.hashes.get(*path).is_some_and(|newer| newer != *hash));
        changed.map(|(path, _)| path.display().to_string())
    }

    /// Whether a file has the same content in both.
    pub fn is_same_at(&self, other: &Self, path: &Path) -> bool {
        self.hashes.get(path) == other.hashes.get(path)
    }

    /// Reads the same files now; `None` while one of them is missing. Blocks while it reads. A pipe, which can be read
    /// only once, counts as unchanged.
    pub fn read_again(&self) -> Option<Self> {
        let mut now = Self { of_patterns: BTreeSet::new(), ..self.clone() };
        for path in self.hashes.keys() {
            if is_pattern(path) {
                let read = |path: PathBuf| std::fs::read(&path).map(|content| (path, content));
                let files: Vec<_> = Self::list(path).ok()?.into_iter().map(read).collect::<io::Result<_>>().ok()?;
                now.add_pattern(path, files.iter().map(|(path, content)| (&**path, &**content)));
            } else if std::fs::metadata(path).ok()?.is_file() {
                now.add(path, &std::fs::read(path).ok()?);
            }
        }
        Some(now)
    }
}

fn is_pattern(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.contains('*'))
}

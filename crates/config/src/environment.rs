//! The process in which a configuration is loaded: environment variables, files and certificate authorities.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use oncegate_settings::SourceFiles;
use oncegate_trust::tls::Authorities;

/// Environment variables, files and certificate authorities. A trait, so that tests need none of them.
pub trait Environment {
    /// The value of an environment variable; `None` if it is not set or is not UTF-8.
    fn variable(&self, name: &str) -> Option<String>;

    /// Reads a whole file as text.
    ///
    /// # Errors
    /// The operating system's.
    fn read(&self, path: &Path) -> io::Result<String>;

    /// The files of a pattern: a path with `*` in its last segment. In the order of their names.
    ///
    /// # Errors
    /// The operating system's.
    fn list(&self, pattern: &Path) -> io::Result<Vec<PathBuf>>;

    /// Whether everybody on the machine may read a file.
    fn is_readable_by_all(&self, path: &Path) -> bool;

    /// Whether a file is a database of SQLite's, or empty.
    fn is_database(&self, path: &Path) -> bool;

    /// The authorities that services are verified with.
    fn authorities(&self) -> Authorities;

    /// Whether a variable or a file that is missing counts as right: the secrets are elsewhere.
    fn lacks_secrets(&self) -> bool {
        false
    }
}

/// The first bytes of each database (<https://www.sqlite.org/fileformat.html>, section 1.3.1).
const SQLITE_HEADER: &[u8] = b"SQLite format 3\0";

/// The environment and the files of this process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        std::fs::read_to_string(path)
    }

    fn list(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        SourceFiles::list(pattern)
    }

    fn is_readable_by_all(&self, path: &Path) -> bool {
        const OTHERS_READ: u32 = 0o004;
        std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & OTHERS_READ != 0)
    }

    fn is_database(&self, path: &Path) -> bool {
        let mut header = Vec::new();
        let read = File::open(path).and_then(|file| file.take(SQLITE_HEADER.len() as u64).read_to_end(&mut header));
        read.is_ok() && (header.is_empty() || header == SQLITE_HEADER)
    }

    fn authorities(&self) -> Authorities {
        Authorities::from_system()
    }
}

/// A place where the files and variables of the configuration are absent, such as a pipeline: what is missing counts as
/// right.
#[derive(Clone, Copy, Debug)]
pub struct WithoutSecrets;

impl Environment for WithoutSecrets {
    fn variable(&self, name: &str) -> Option<String> {
        ProcessEnvironment.variable(name)
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        ProcessEnvironment.read(path)
    }

    fn list(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        ProcessEnvironment.list(pattern)
    }

    fn is_readable_by_all(&self, _: &Path) -> bool {
        false
    }

    fn is_database(&self, _: &Path) -> bool {
        false
    }

    fn authorities(&self) -> Authorities {
        ProcessEnvironment.authorities()
    }

    fn lacks_secrets(&self) -> bool {
        true
    }
}

/// The variables and files of a test.
#[cfg(test)]
#[derive(Default)]
pub(super) struct FakeEnvironment {
    pub variables: std::collections::HashMap<String, String>,
    pub files: std::collections::HashMap<PathBuf, String>,
    pub readable_by_all: bool,
}

#[cfg(test)]
impl FakeEnvironment {
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    pub fn with_file(mut self, path: &str, text: &str) -> Self {
        self.files.insert(path.into(), text.into());
        self
    }
}

#[cfg(test)]
impl Environment for FakeEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        self.files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found: Vec<_> = self.files.keys().filter(|path| SourceFiles::matches(pattern, path)).cloned().collect();
        found.sort();
        Ok(found)
    }

    fn is_readable_by_all(&self, _: &Path) -> bool {
        self.readable_by_all
    }

    fn is_database(&self, _: &Path) -> bool {
        true
    }

    fn authorities(&self) -> Authorities {
        Authorities::empty()
    }
}

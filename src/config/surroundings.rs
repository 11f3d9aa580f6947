//! What a configuration may ask of the process it is loaded in.

use std::io;
use std::path::Path;

/// The environment and the files. A parameter, so that tests need neither.
pub trait Surroundings {
    /// An environment variable; `None` if it is not set or is not UTF-8.
    fn variable(&self, name: &str) -> Option<String>;

    /// A whole file, as text.
    ///
    /// # Errors
    /// What the operating system says.
    fn read(&self, path: &Path) -> io::Result<String>;
}

/// The environment and the files of this process.
#[derive(Clone, Copy, Debug)]
pub struct Process;

impl Surroundings for Process {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        std::fs::read_to_string(path)
    }
}

/// An environment and files that a test writes down.
#[cfg(test)]
#[derive(Default)]
pub(super) struct Written {
    pub variables: std::collections::HashMap<String, String>,
    pub files: std::collections::HashMap<std::path::PathBuf, String>,
}

#[cfg(test)]
impl Written {
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
impl Surroundings for Written {
    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        self.files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

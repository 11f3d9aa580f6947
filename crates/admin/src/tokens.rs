//! The tokens of a running listener: the configured ones, or one that is drawn at the first start and kept in a file.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use oncegate_settings::{AdminConfig, AdminListenerConfig, AdminToken, show_whole_path};

/// The tokens that the listener accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminTokens {
    /// The token of operators; `None` for an open listener.
    pub operator: Option<AdminToken>,
    /// The token that may look and not change.
    pub reader: Option<AdminToken>,
    /// Those of operators of one service alone.
    pub of_services: Vec<(Arc<str>, AdminToken)>,
    /// Whether the operators' token is the configured one.
    is_configured: bool,
}

/// The reason why there is no token.
#[derive(Debug, thiserror::Error)]
#[error("{what}: set admin.token (or ONCEGATE_ADMIN_TOKEN), or admin.token_file to a file that can be written")]
pub struct TokenFileError {
    what: String,
    source: io::Error,
}

impl AdminTokens {
    /// The tokens of a configuration. Where it has none for operators, the token of the file, which is created if need
    /// be.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn load(listener: &AdminListenerConfig, config: &AdminConfig) -> Result<Self, TokenFileError> {
        let (reader, of_services) = (config.read_token.clone(), config.service_tokens.clone());
        if listener.open || config.token.is_some() {
            let operator = config.token.clone();
            return Ok(Self { is_configured: operator.is_some(), operator, reader, of_services });
        }
        let Some(file) = &listener.token_file else {
            let what = "there is no place for the admin token's file".to_owned();
            return Err(TokenFileError { what, source: io::ErrorKind::NotFound.into() });
        };
        let token = read_or_create(file).map_err(|source| TokenFileError {
            what: format!("the admin token in {} cannot be read or created", show_whole_path(file)),
            source,
        })?;
        if fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o004 != 0) {
            tracing::warn!(
                file = show_whole_path(file),
                "everybody on this machine can read the admin token: `chmod 600` its file"
            );
        }
        tracing::info!(file = show_whole_path(file), "the admin listener's token is in this file");
        Ok(Self { operator: Some(token), reader, of_services, is_configured: false })
    }

    /// The tokens after a reload with this configuration. A listener without a configured token for operators gets one
    /// only by a restart, and does not lose it otherwise.
    pub fn after_reload(&self, config: &AdminConfig) -> Self {
        let operator = config.token.as_ref().filter(|_| self.is_configured).or(self.operator.as_ref()).cloned();
        let (reader, of_services) = (config.read_token.clone(), config.service_tokens.clone());
        Self { operator, reader, of_services, is_configured: self.is_configured }
    }
}

fn read_or_create(file: &Path) -> io::Result<AdminToken> {
    match read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    // Complete before it has its name: another instance may start at the same moment.
    let mut name = [0; 8];
    getrandom::fill(&mut name).map_err(io::Error::other)?;
    let draft = file.with_extension(format!("new-{:016x}", u64::from_ne_bytes(name)));
    let linked = write(&draft, &BASE64_STANDARD.encode(random)).and_then(|()| fs::hard_link(&draft, file));
    // What is left of it after a full disk, too.
    let _ = fs::remove_file(&draft);
    match linked {
        // The other instance was first.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => read(file),
    }
}

fn write(file: &Path, token: &str) -> io::Result<()> {
    let mut written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    writeln!(written, "{token}")?;
    written.sync_all()
}

fn read(file: &Path) -> io::Result<AdminToken> {
    let text = fs::read_to_string(file)?;
    AdminToken::parse(text.trim_end()).map_err(|problem| io::Error::new(io::ErrorKind::InvalidData, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_drawn_once_and_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state/oncegate/admin-token");
        let token = read_or_create(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "no draft is left");
        assert_eq!(read_or_create(&file).unwrap(), token);
        let other = read_or_create(&folder.path().join("other")).unwrap();
        assert_ne!(other, token);
    }

    #[test]
    fn instances_that_start_at_once_have_one_token() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("admin-token");
        let tokens: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| read_or_create(&file))).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect()
        });
        assert!(!tokens.is_empty() && tokens.iter().all(|token| *token == tokens[0]));
    }

    #[test]
    fn a_file_without_a_token_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("admin-token");
        fs::write(&file, "short\n").unwrap();
        assert_eq!(read_or_create(&file).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(fs::read_to_string(&file).unwrap(), "short\n");
    }
}

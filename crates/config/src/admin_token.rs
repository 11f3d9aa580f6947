//! The tokens of the admin listener, and the file that keeps one that nobody configured.

use std::fmt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::StoreLocation;
use super::environment::Environment;
use super::problem::ParseResult;

/// 96 bits, if they are random and in base64: nobody guesses them over a network.
const TOKEN_LENGTH_MIN: usize = 16;

/// A token of the admin listener. Never printed, and compared in constant time.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(Box<str>);

impl AdminToken {
    /// Checks the text of a token.
    pub fn parse(text: &str) -> ParseResult<Self> {
        // The characters of RFC 6750, section 2.1, which a field carries as they are.
        let is_sendable = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        match text.len() {
            _ if !text.bytes().all(is_sendable) => {
                Err("has characters that cannot be sent: write letters, digits, `-`, `.`, `_`, `~`, `+`, `/` and `=`"
                    .into())
            }
            0..TOKEN_LENGTH_MIN => {
                Err("is too short to be secret: 16 characters at least, such as `openssl rand -base64 32` prints"
                    .into())
            }
            _ => Ok(Self(text.into())),
        }
    }

    /// The token itself, for a client that presents it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether a presented token is this one. The digests are compared to their ends: the time does not depend on where
    /// they begin to differ.
    pub fn matches(&self, presented: &[u8]) -> bool {
        let (own, presented) = (Sha256::digest(self.0.as_bytes()), Sha256::digest(presented));
        own.as_slice().ct_eq(presented.as_slice()).into()
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(..)")
    }
}

/// The default place of the token's file: beside the SQLite file, else in the service's state directory (systemd sets
/// `STATE_DIRECTORY`), else in the user's (XDG Base Directory Specification). `None` without any of them.
pub(super) fn default_file(store: &StoreLocation, environment: &dyn Environment) -> Option<PathBuf> {
    if let StoreLocation::Sqlite(path) = store {
        let mut name = path.file_name()?.to_owned();
        name.push(".admin-token");
        return Some(path.with_file_name(name));
    }
    let folder = |name: &str| environment.variable(name).filter(|folder| Path::new(folder).is_absolute());
    // systemd separates several directories by colons.
    let state = folder("STATE_DIRECTORY").and_then(|list| list.split(':').next().map(PathBuf::from));
    let user = || folder("XDG_STATE_HOME").map(PathBuf::from);
    let home = || folder("HOME").map(|home| Path::new(&home).join(".local/state"));
    state
        .or_else(|| user().or_else(home).map(|folder| folder.join("oncegate")))
        .map(|folder| folder.join("admin-token"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::FakeEnvironment;

    #[test]
    fn the_file_is_beside_the_store_or_in_a_state_directory() {
        let file = |store: &str, variables: &[(&str, &str)]| {
            let environment = variables
                .iter()
                .fold(FakeEnvironment::default(), |environment, (name, value)| environment.with_variable(name, value));
            default_file(&StoreLocation::parse(store).unwrap(), &environment).map(|path| path.display().to_string())
        };
        let (state, xdg, home) =
            (("STATE_DIRECTORY", "/var/lib/a:/var/lib/b"), ("XDG_STATE_HOME", "/s"), ("HOME", "/home/u"));
        for (store, variables, expected) in [
            ("sqlite:/data/oncegate.db", &[state][..], Some("/data/oncegate.db.admin-token")),
            ("sqlite:oncegate.db", &[], Some("oncegate.db.admin-token")),
            ("memory:", &[state, xdg, home], Some("/var/lib/a/admin-token")),
            ("memory:", &[xdg, home], Some("/s/oncegate/admin-token")),
            ("memory:", &[home], Some("/home/u/.local/state/oncegate/admin-token")),
            ("memory:", &[("HOME", "relative")], None),
            ("memory:", &[], None),
        ] {
            assert_eq!(file(store, variables).as_deref(), expected, "{store} {variables:?}");
        }
    }
}

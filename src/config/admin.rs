//! Reads and checks `[admin]`.

use std::fmt;
use std::net::SocketAddr;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::AdminConfig;
use super::reader::{Located, Section, Text};
use super::value_parsers::socket_address;

/// 96 bits, if they are random and in base64: nobody guesses them over a network.
const TOKEN_LENGTH_MIN: usize = 16;

/// The token that operators present. Never printed, and compared in constant time.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(Box<str>);

impl AdminToken {
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

/// Reads the whole table.
pub(super) fn read(section: &Section<'_>, listen: &Option<Located<SocketAddr>>) -> Option<AdminConfig> {
    let found = read_address(section)?;
    if let Some(listen) = listen
        && listen.value == found.value
        && listen.value.port() != 0
    {
        section
            .reader()
            .problem((&listen.position).max(&found.position), "`listen` and `admin.listen` are the same address");
    }
    let token = read_token(section)?;
    if token.is_none() && !found.value.ip().is_loopback() {
        let message = format!(
            "`{}` is no loopback address, and there is no `admin.token`: anybody who reaches this listener could do \
             everything; set ONCEGATE_ADMIN_TOKEN or `admin.token` to what `openssl rand -base64 32` prints, or write \
             `127.0.0.1:8081`",
            found.value
        );
        section.reader().problem(&found.position, message);
        return None;
    }
    Some(AdminConfig { listen: found.value, token })
}

/// Reads the address alone.
pub(super) fn read_address(section: &Section<'_>) -> Option<Located<SocketAddr>> {
    section.parsed("listen", socket_address)
}

/// Reads the token alone; `Some(None)` where there is none: an unset variable leaves an empty text. Problems never show
/// it.
pub(super) fn read_token(section: &Section<'_>) -> Option<Option<AdminToken>> {
    let Text { value, position, .. } = section.text("token")?;
    // The characters of RFC 6750, section 2.1, which a field carries as they are.
    let is_sendable = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let problem = match value.len() {
        0 => return Some(None),
        _ if !value.bytes().all(is_sendable) => {
            "has characters that cannot be sent: write letters, digits, `-`, `.`, `_`, `~`, `+`, `/` and `=`"
        }
        1..TOKEN_LENGTH_MIN => {
            "is too short to be secret: 16 characters at least, such as `openssl rand -base64 32` prints"
        }
        _ => return Some(Some(AdminToken(value.into()))),
    };
    section.reader().problem(&position, problem);
    None
}

//! `[admin]`, read and checked.

use std::fmt;
use std::net::SocketAddr;

use sha2::{Digest, Sha256};

use super::Admin;
use super::reader::{Found, Section, Text};

/// 96 bits, if they are random and in base 64: beyond guessing over a network, however long somebody tries.
const TOKEN_LENGTH_MIN: usize = 16;

/// What operators show. Never printed, and compared in a time that tells nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(Box<str>);

impl AdminToken {
    /// For whoever shows it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether this is it. The digests are compared to their ends: where they begin to differ tells nothing of the token.
    pub fn is(&self, shown: &[u8]) -> bool {
        let (own, shown) = (Sha256::digest(self.0.as_bytes()), Sha256::digest(shown));
        own.iter().zip(shown.iter()).fold(0, |differ, (own, shown)| differ | (own ^ shown)) == 0
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(..)")
    }
}

/// Everything.
pub(super) fn read(section: &Section<'_>, listen: &Option<Found<SocketAddr>>) -> Option<Admin> {
    let found = address(section)?;
    if let Some(listen) = listen
        && listen.value == found.value
        && listen.value.port() != 0
    {
        section.reader().problem((&listen.place).max(&found.place), "`listen` and `admin.listen` are the same address");
    }
    let token = token(section)?;
    if token.is_none() && !found.value.ip().is_loopback() {
        let message = format!(
            "`{}` is no loopback address, and there is no `admin.token`: whoever reaches this listener could do \
             everything; set ONCEGATE_ADMIN_TOKEN or `admin.token` to what `openssl rand -base64 32` prints, or write \
             `127.0.0.1:8081`",
            found.value
        );
        section.reader().problem(&found.place, message);
        return None;
    }
    Some(Admin { listen: found.value, token })
}

/// The address alone.
pub(super) fn address(section: &Section<'_>) -> Option<Found<SocketAddr>> {
    section.parsed("listen", super::top::socket)
}

/// The token alone; `Some(None)` where there is none: an empty text is what an unset variable leaves. Never shows it.
pub(super) fn token(section: &Section<'_>) -> Option<Option<AdminToken>> {
    let Text { value, place, .. } = section.text("token")?;
    // What a field can carry as it is (RFC 6750 section 2.1).
    let may_be_sent = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let wrong = match value.len() {
        0 => return Some(None),
        _ if !value.bytes().all(may_be_sent) => {
            "has characters that cannot be sent: write letters, digits, `-`, `.`, `_`, `~`, `+`, `/` and `=`"
        }
        1..TOKEN_LENGTH_MIN => {
            "is too short to be secret: 16 characters at least, such as `openssl rand -base64 32` prints"
        }
        _ => return Some(Some(AdminToken(value.into()))),
    };
    section.reader().problem(&place, wrong);
    None
}

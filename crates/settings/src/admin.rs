//! The operators' listener, and who may use it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use http::uri::Authority;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::ParseResult;
use oncegate_domain::execution_risk::FourEyesAction;

/// 96 bits, if they are random and in base64: nobody guesses them over a network.
const TOKEN_LENGTH_MIN: usize = 16;

/// The settings of the operators' listener that a process keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminListenerConfig {
    /// The address for operators and probes.
    pub listen: SocketAddr,
    /// The file of a drawn token.
    pub token_file: Option<PathBuf>,
    /// Whether everybody on this machine is an operator.
    pub open: bool,
    /// Whether operators have a configured token. A reload may replace it, and neither add nor remove it.
    pub has_token: bool,
}

/// The settings of the operators' listener that a reload replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// The token of operators.
    pub token: Option<AdminToken>,
    /// The token that may look and not change.
    pub read_token: Option<AdminToken>,
    /// The tokens of operators of one service alone, each with its name.
    pub service_tokens: Vec<(Arc<str>, AdminToken)>,
    /// The issuer with which people sign in to the page.
    pub oidc: Option<Arc<OidcConfig>>,
    /// The actions that one person proposes and another one confirms.
    pub four_eyes: Vec<FourEyesAction>,
}

/// A token of the admin listener. Never printed, and compared in constant time.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("AdminToken(..)")]
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

/// The issuer with which operators sign in (OpenID Connect), and what its claims allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// The `iss` of its tokens, and the beginning of the address of its description.
    pub issuer: Box<str>,
    /// The name under which this page is registered with the issuer.
    pub client_id: Box<str>,
    /// The secret of a confidential client; `None` for a public one.
    pub client_secret: Option<ClientSecret>,
    /// The page's own address.
    pub url: PageUrl,
    /// The claim whose values say what a person may do.
    pub roles_claim: Box<str>,
    /// The values that may look.
    pub read: Vec<Box<str>>,
    /// The values that may look and change.
    pub operate: Vec<Box<str>>,
}

/// A secret of a client of an issuer. Never printed.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("ClientSecret(..)")]
pub struct ClientSecret(pub Box<str>);

/// The address of the page as browsers see it, in their spelling: lower case, without a default port. It is shown as
/// the origin that browsers send (RFC 6454 section 6.2).
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{}://{authority}", if *is_https { "https" } else { "http" })]
pub struct PageUrl {
    /// Whether browsers speak TLS to it.
    pub is_https: bool,
    /// The host, and the port unless it is the scheme's default.
    pub authority: Authority,
}

//! The issuer of callers' tokens, and the place of its keys.

use std::path::PathBuf;
use std::sync::Arc;

use http::uri::PathAndQuery;

use super::UpstreamTarget;
use oncegate_domain::macros::debug_as_display;
use oncegate_trust::jwt::TokenRules;

/// The issuer of callers' tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtConfig {
    /// The rules for its tokens.
    pub rules: TokenRules,
    /// The place of its keys.
    pub keys: IssuerKeys,
}

/// The place of an issuer's keys. A URL is shown without its path and its query, and a file without its text: they may
/// have a secret.
#[derive(Clone, PartialEq, Eq, derive_more::Display)]
pub enum IssuerKeys {
    /// The place that the issuer's description names.
    #[display("{}/.well-known/…", issuer.trim_end_matches('/'))]
    Described {
        /// The issuer, as its tokens name it.
        issuer: Box<str>,
        /// The service that has the description.
        upstream: Arc<UpstreamTarget>,
    },
    /// A file, and its text when the configuration was read.
    #[display("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Its text.
        text: Box<str>,
    },
    /// A URL.
    #[display("{upstream}/…")]
    Url {
        /// The service.
        upstream: Arc<UpstreamTarget>,
        /// The path and query to ask for.
        target: PathAndQuery,
    },
}

debug_as_display!(IssuerKeys);

impl JwtConfig {
    /// The service that is asked for the keys, if there is one.
    pub fn upstream(&self) -> Option<&UpstreamTarget> {
        match &self.keys {
            IssuerKeys::File { .. } => None,
            IssuerKeys::Described { upstream, .. } | IssuerKeys::Url { upstream, .. } => Some(upstream),
        }
    }
}

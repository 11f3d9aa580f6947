//! Reads and checks `[jwt]`: the issuer of callers' tokens, and its keys.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;

use super::oidc;
use super::options::options;
use super::reader::Section;
use super::scope::ScopeSource;
use super::service_url;
use super::upstream::UpstreamTarget;
use super::{Route, show_whole_path};
use oncegate_trust::jwt::{Algorithm, KeySet, TokenRules};

const EXAMPLE: &str = "write it like `https://login.example/.well-known/jwks.json`";

/// The longest `leeway`. Clocks that are synchronized differ by less than a second.
const LEEWAY_MAX: Duration = Duration::from_secs(300);

/// The issuer of callers' tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtConfig {
    /// The rules for its tokens.
    pub rules: TokenRules,
    /// The place of its keys.
    pub keys: IssuerKeys,
}

/// The place of an issuer's keys.
#[derive(Clone, PartialEq, Eq)]
pub enum IssuerKeys {
    /// The place that the issuer's description names.
    Described {
        /// The issuer, as its tokens name it.
        issuer: Box<str>,
        /// The service that has the description.
        upstream: Arc<UpstreamTarget>,
    },
    /// A file, and its text when the configuration was read.
    File {
        /// The file.
        path: PathBuf,
        /// Its text.
        text: Box<str>,
    },
    /// A URL.
    Url {
        /// The service.
        upstream: Arc<UpstreamTarget>,
        /// The path and query to ask for.
        target: PathAndQuery,
    },
}

/// The issuer's description, the file, or the service of the URL: its path and its query may have a secret.
impl fmt::Display for IssuerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Described { issuer, .. } => write!(f, "{}/.well-known/…", issuer.trim_end_matches('/')),
            Self::File { path, .. } => write!(f, "{}", path.display()),
            Self::Url { upstream, .. } => write!(f, "{upstream}/…"),
        }
    }
}

/// The same: a file may hold secrets.
impl fmt::Debug for IssuerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl JwtConfig {
    /// The service that is asked for the keys, if there is one.
    pub(super) fn upstream(&self) -> Option<&UpstreamTarget> {
        match &self.keys {
            IssuerKeys::File { .. } => None,
            IssuerKeys::Described { upstream, .. } | IssuerKeys::Url { upstream, .. } => Some(upstream),
        }
    }

    /// Keeps the claims that the routes' scopes read.
    pub(super) fn with_claims_of(mut self, routes: &[Route]) -> Self {
        let parts = routes.iter().flat_map(|route| &route.scope.parts);
        self.rules.claims = parts
            .filter_map(|part| match &part.source {
                ScopeSource::Jwt { claim, .. } => Some(claim.clone()),
                _ => None,
            })
            .collect();
        self
    }
}

options! {
    /// The options of `[jwt]`.
    pub(super) struct JwtOptions {
        /// the `iss` of the tokens; part of the scope
        issuer: Text = "" => String, string();
        /// the `aud` of the tokens: one of these
        audience: TextOrTexts = [] => Vec<Box<str>>, values(parse_audience);
        /// the issuer's keys (RFC 7517): a file, or a URL that is read every 5 minutes; empty for the URL that the
        /// issuer's description names
        jwks: Text = "" => String, string();
        /// the `alg` that tokens may have
        algorithms: Texts = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
            => Vec<Algorithm>, values(parse_algorithm);
        /// how far the issuer's clock may be from this machine's
        leeway: Duration = "30s" => Duration, parsed(parse_leeway);
    }
}

/// Reads the table. `Some(None)` where it is absent.
pub(super) fn read(section: &Section<'_>) -> Option<Option<JwtConfig>> {
    let JwtOptions { issuer, audience, jwks, algorithms, leeway } = JwtOptions::read(section);
    if !section.is_right(&["issuer", "audience", "jwks"]) {
        return None;
    }
    let missing = [("issuer", issuer.is_empty()), ("audience", audience.is_empty())];
    let missing: Vec<_> = missing.iter().filter(|(_, is_missing)| *is_missing).map(|(name, _)| *name).collect();
    if missing.len() == 2 && jwks.is_empty() {
        return Some(None);
    }
    for name in &missing {
        let beside = ["issuer", "audience", "jwks"].map(|name| section.position(name)).into_iter().max();
        let message = format!("needs `{name}` beside it: a token is checked for both");
        section.reader().problem(&beside.expect("there are three"), message);
    }
    if algorithms.is_empty() {
        section.problem("algorithms", "is empty: no token would do");
    }
    if algorithms.is_empty() || !missing.is_empty() || !section.is_right(&["algorithms", "leeway"]) {
        return None;
    }
    let keys = match jwks.is_empty() {
        true => described_keys(section, &issuer)?,
        false => read_keys(section, &jwks, &algorithms)?,
    };
    let rules = TokenRules { issuer: issuer.into(), audience, algorithms, leeway, claims: BTreeSet::new() };
    Some(Some(JwtConfig { rules, keys }))
}

fn parse_audience(text: &str) -> Result<Box<str>, String> {
    match text {
        "" => Err("is empty: write the `aud` of the tokens for this service".into()),
        text => Ok(text.into()),
    }
}

fn parse_leeway(text: &str) -> Result<Duration, String> {
    match super::parse_duration(text)? {
        leeway if leeway > LEEWAY_MAX => Err("is too long: clocks do not differ by more than 5m".into()),
        leeway => Ok(leeway),
    }
}

fn parse_algorithm(text: &str) -> Result<Algorithm, String> {
    text.parse().map_err(|_| {
        "is not known: write RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA, HS256, HS384 or HS512"
            .into()
    })
}

/// The keys of an issuer whose name is the address of its description.
fn described_keys(section: &Section<'_>, issuer: &str) -> Option<IssuerKeys> {
    match oidc::parse_issuer(issuer).and_then(|issuer| oidc::parse_issuer_url(&issuer)) {
        Ok((upstream, _)) => Some(IssuerKeys::Described { issuer: issuer.into(), upstream: Arc::new(upstream) }),
        Err(message) => {
            section
                .problem("issuer", format!("{message}; the keys of an issuer with another name are named in `jwks`"));
            None
        }
    }
}

fn read_keys(section: &Section<'_>, text: &str, algorithms: &[Algorithm]) -> Option<IssuerKeys> {
    let problem = |message: String| {
        section.problem("jwks", message);
        None
    };
    if text.contains("://") {
        return match service_url::parse(text, EXAMPLE) {
            Ok((upstream, target)) => Some(IssuerKeys::Url { upstream: Arc::new(upstream), target }),
            Err(message) => problem(message),
        };
    }
    let path = section.locate("jwks", text);
    // A URL that lacks its slashes is no path, and may have a password.
    let shown = if text.contains([':', '@']) { "its file".into() } else { format!("`{}`", show_whole_path(&path)) };
    match section.reader().environment().read(&path) {
        Ok(keys) => match KeySet::parse(keys.as_bytes(), algorithms) {
            Ok(_) => Some(IssuerKeys::File { path, text: keys.into() }),
            Err(message) => problem(format!("{shown} {message}")),
        },
        Err(error) => problem(format!("{shown} cannot be read: {error}")),
    }
}

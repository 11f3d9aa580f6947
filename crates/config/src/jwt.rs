//! Reads and checks `[jwt]`: the issuer of callers' tokens, and its keys.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::oidc::parse_issuer;
use super::options::options;
use super::reader::Section;
use super::value_parsers::not_empty;
use oncegate_settings::{
    IssuerKeys, JwtConfig, Route, ScopeSource, parse_duration, parse_issuer_url, parse_service_url, show_whole_path,
};
use oncegate_trust::jwt::{Algorithm, KeySet, TokenRules};

const EXAMPLE: &str = "write it like `https://login.example/.well-known/jwks.json`";

/// The longest `leeway`. Clocks that are synchronized differ by less than a second.
const LEEWAY_MAX: Duration = Duration::from_secs(300);

options! {
    struct JwtOptions {
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
        /// claims that each token must have, as `email=push@project.iam.gserviceaccount.com`
        require: Texts = [] => Vec<(Box<str>, Box<str>)>, values(parse_required);
        /// how far the issuer's clock may be from this machine's
        leeway: Duration = "30s" => Duration, parsed(parse_leeway);
    }
}

/// Reads the table. `Some(None)` where it is absent.
pub(super) fn read(section: &Section<'_>) -> Option<Option<JwtConfig>> {
    let JwtOptions { issuer, audience, jwks, algorithms, require, leeway } = JwtOptions::read(section);
    if !section.is_right(&["issuer", "audience", "jwks"]) {
        return None;
    }
    let missing = [("issuer", issuer.is_empty()), ("audience", audience.is_empty())];
    let missing: Vec<_> = missing.iter().filter(|(_, is_missing)| *is_missing).map(|(name, _)| *name).collect();
    if missing.len() == 2 && jwks.is_empty() {
        return Some(None);
    }
    for name in &missing {
        let message = format!("needs `{name}` beside it: a token is checked for both");
        section.conflict(&["issuer", "audience", "jwks"], message);
    }
    if algorithms.is_empty() {
        section.problem("algorithms", "is empty: no token would do");
    }
    if algorithms.is_empty() || !missing.is_empty() || !section.is_right(&["algorithms", "require", "leeway"]) {
        return None;
    }
    let keys = match jwks.is_empty() {
        true => described_keys(section, &issuer)?,
        false => read_keys(section, &jwks, &algorithms)?,
    };
    let (issuer, claims) = (issuer.into(), BTreeSet::new());
    let rules = TokenRules { issuer, audience, algorithms, leeway, claims, required: require };
    Some(Some(JwtConfig { rules, keys }))
}

fn parse_audience(text: &str) -> Result<Box<str>, String> {
    not_empty(text, "is empty: write the `aud` of the tokens for this service")
}

fn parse_required(text: &str) -> Result<(Box<str>, Box<str>), String> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, value)| !name.is_empty() && !value.is_empty())
        .ok_or("is no claim with its value: write it like `email=push@project.iam.gserviceaccount.com`")?;
    Ok((name.into(), value.into()))
}

fn parse_leeway(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
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
    match parse_issuer(issuer).and_then(|issuer| parse_issuer_url(&issuer)) {
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
        return match parse_service_url(text, EXAMPLE) {
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

/// The claims that the routes' scopes read.
pub(super) fn claims_of(routes: &[Route]) -> BTreeSet<Box<str>> {
    let parts = routes.iter().flat_map(|route| &route.scope.parts);
    let claims = parts.filter_map(|part| match &part.source {
        ScopeSource::Jwt { claim, .. } => Some(claim.clone()),
        _ => None,
    });
    claims.collect()
}

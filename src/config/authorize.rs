//! Reads and checks a route's `replay.authorize`: the URL that is asked before each replay.

use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;

use super::reader::Section;
use super::upstream::UpstreamTarget;

const EXAMPLE: &str = "write it like `http://auth:9000/check`";

/// A service that says whether a caller may still read a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizeConfig {
    /// The service.
    pub upstream: Arc<UpstreamTarget>,
    /// The path and query to ask.
    pub target: PathAndQuery,
    /// The time for which a permission counts; zero to ask each time.
    pub cache: Duration,
}

/// Reads `authorize` and `authorize_cache`. `Some(None)` where nobody is asked.
pub(super) fn read(section: &Section<'_>) -> Option<Option<Arc<AuthorizeConfig>>> {
    let (url, cache) = (section.text("authorize")?, section.duration("authorize_cache")?);
    if url.value.is_empty() {
        if !cache.value.is_zero() {
            section.reader().problem(&cache.position, "needs `authorize`");
            return None;
        }
        return Some(None);
    }
    match parse(&url.value) {
        Ok((upstream, target)) => {
            Some(Some(Arc::new(AuthorizeConfig { upstream: Arc::new(upstream), target, cache: cache.value })))
        }
        Err(problem) => {
            section.reader().problem(&url.position, problem);
            None
        }
    }
}

/// The problem never has the text, which may hold a password.
fn parse(text: &str) -> Result<(UpstreamTarget, PathAndQuery), String> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(format!("is no URL: {EXAMPLE}"));
    };
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(format!("has an unknown scheme: {EXAMPLE}"));
    }
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if path.contains('#') {
        return Err("has a fragment, which is never sent: leave `#` out".into());
    }
    let upstream = UpstreamTarget::parse(&format!("{scheme}://{host}"))?;
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let target = path.parse().map_err(|_| "has characters that no URL may have: percent-encode them")?;
    Ok((upstream, target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_service_and_a_path() {
        for (text, upstream, target) in [
            ("http://auth:9000/check?x=1", "http://auth:9000", "/check?x=1"),
            ("https://auth.example", "https://auth.example", "/"),
            ("http://auth?x", "http://auth", "/?x"),
        ] {
            let (found, path) = parse(text).unwrap();
            assert_eq!((&*found.to_string(), path.as_str()), (upstream, target), "{text}");
        }
        for wrong in ["auth", "ftp://auth/", "http://", "http://a/#x", "http://u:p@a/", "h2c://a/"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

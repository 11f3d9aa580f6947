//! Parses the URL of a service that Oncegate asks something of its own.

use http::uri::PathAndQuery;

use super::upstream::HAS_CREDENTIALS;
use super::{ParseResult, UpstreamTarget};

/// Splits a URL into its scheme, its host and what follows. `None` without a scheme.
pub(super) fn split(text: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let (host, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    Some((scheme, host, rest))
}

/// Parses `http://` or `https://` and a host, and returns with them what follows: a path, a query, both or nothing.
/// `example` ends the problem's text.
pub fn parse_service<'a>(text: &'a str, example: &str) -> ParseResult<(UpstreamTarget, &'a str)> {
    let Some((scheme, host, rest)) = split(text) else {
        return Err(format!("is no URL: {example}"));
    };
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(format!("has an unknown scheme: {example}"));
    }
    if rest.contains('@') {
        return Err(HAS_CREDENTIALS.into());
    }
    if rest.contains('#') {
        return Err("has a fragment, which is never sent: leave `#` out".into());
    }
    Ok((UpstreamTarget::from_parts(scheme, host, example)?, rest))
}

/// Parses `http://` or `https://`, a host, and a path with or without a query. `example` ends the problem's text.
pub fn parse_service_url(text: &str, example: &str) -> ParseResult<(UpstreamTarget, PathAndQuery)> {
    let (upstream, path) = parse_service(text, example)?;
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let target = path.parse().map_err(|_| "has characters that no URL may have: percent-encode them")?;
    Ok((upstream, target))
}

/// Parses the address of an endpoint of an issuer: HTTPS, or HTTP on this machine.
pub fn parse_issuer_url(text: &str) -> ParseResult<(UpstreamTarget, PathAndQuery)> {
    let (service, target) = parse_service_url(text, "write it like `https://login.example/realms/ops`")?;
    require_tls(&service)?;
    Ok((service, target))
}

/// Requires TLS, or a loopback address: a person between could change an answer and sign in as anybody, or read a
/// cookie and have the session.
pub fn require_tls(service: &UpstreamTarget) -> ParseResult<()> {
    match matches!(service, UpstreamTarget::Https(..)) || service.is_loopback() {
        true => Ok(()),
        false => Err("has no TLS: write `https://`; `http://` is for this machine alone".into()),
    }
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
            let (found, path) = parse_service_url(text, "").unwrap();
            assert_eq!((&*found.to_string(), path.as_str()), (upstream, target), "{text}");
        }
        for wrong in ["auth", "ftp://auth/", "http://", "http://a/#x", "http://u:p@a/", "http://u:1/p@a/", "h2c://a/"] {
            assert!(parse_service_url(wrong, "").is_err(), "{wrong}");
        }
    }
}

//! The URL of a server that is spoken to with a user and a password: a broker, the shared cache, or PostgreSQL.
//!
//! Readers of URLs disagree about an unescaped `@`, `/`, `?` or `#` in a password: libpq, its drivers, RFC 3986 and
//! WHATWG (the crate `url`) each end the user's part elsewhere. A URL that two of them read in two ways is refused,
//! since the end of a password would become a host, and hosts are printed.

use std::fmt;
use std::net::IpAddr;

use http::uri::Authority;
use percent_encoding::percent_decode_str;

use super::ParseResult;

/// The form of one kind of URL.
pub(super) struct ServerUrlForm {
    /// The server in a problem's words, such as `a broker`.
    pub server: &'static str,
    /// The scheme in cleartext, and its default port.
    pub cleartext: (&'static str, u16),
    /// The scheme with TLS, and its default port.
    pub tls: (&'static str, u16),
    /// The end of a problem's text: what is right.
    pub example: &'static str,
}

/// The parts of such a URL. User and password are decoded; `None` where they are empty.
pub(super) struct ServerUrl<'a> {
    /// Whether TLS is spoken.
    pub tls: bool,
    /// Its name or address, an IPv6 address without brackets.
    pub host: Box<str>,
    pub port: u16,
    pub user: Option<Box<str>>,
    pub password: Option<Box<str>>,
    /// The text after the first slash, as it is written.
    pub path: &'a str,
}

impl<'a> ServerUrl<'a> {
    /// Reads `scheme://user:password@host:port/path`. Every part but the scheme and the host may be missing.
    pub fn parse(text: &'a str, form: &ServerUrlForm) -> ParseResult<Self> {
        let ServerUrlForm { server, cleartext, tls, example } = form;
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("is no URL of {server}: {example}"));
        };
        let is = |name: &str| scheme.eq_ignore_ascii_case(name);
        let (tls, default_port) = match (is(cleartext.0), is(tls.0)) {
            (true, _) => (false, cleartext.1),
            (_, true) => (true, tls.1),
            (false, false) => return Err(format!("has an unknown scheme: {example}")),
        };
        let UrlParts { credentials, hosts, path, query } = UrlParts::split(rest)?;
        if query.is_some() {
            return Err(format!("has a query, which is not supported{UNESCAPED}"));
        }
        let (user, password) = credentials.unwrap_or_default();
        // Without an `@`, a port that is no number may be a user and the beginning of a password.
        let authority = parse_authority(hosts, example, UNESCAPED)?;
        let (host, port) = (bare_host(&authority).into(), authority.port_u16().unwrap_or(default_port));
        Ok(Self { tls, host, port, user: decode_part(user)?, password: decode_part(password)?, path })
    }
}

/// The parts of a URL behind its `://`, as they are written.
pub(super) struct UrlParts<'a> {
    /// The user and the password.
    pub credentials: Option<(&'a str, &'a str)>,
    pub hosts: &'a str,
    /// The text after the first slash.
    pub path: &'a str,
    pub query: Option<&'a str>,
}

impl<'a> UrlParts<'a> {
    /// Splits a URL that all readers split alike.
    pub fn split(rest: &'a str) -> ParseResult<Self> {
        let (authority, after) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (path, query) = after.split_once('?').map_or((after, None), |(path, query)| (path, Some(query)));
        let path = path.strip_prefix('/').unwrap_or(path);
        let problem = if authority.matches('@').count() > 1 || after.contains('@') {
            "an `@` that does not end the user and the password"
        } else if after.contains('#') {
            "a `#`, which begins a fragment"
        } else if path.contains('/') {
            "more than one `/` after the host"
        } else {
            let written = authority.split_once('@');
            let credentials = written.map(|(text, _)| text.split_once(':').unwrap_or((text, "")));
            return Ok(Self { credentials, hosts: written.map_or(authority, |(_, hosts)| hosts), path, query });
        };
        Err(format!("has {problem}{UNESCAPED}"))
    }
}

/// The end of a problem that an unescaped character in a password may be the cause of.
pub const UNESCAPED: &str = ": if the password has `@`, `/`, `?`, `#`, `:` or `%` in it, write `%40`, `%2F`, `%3F`, \
                                    `%23`, `%3A` or `%25`";

/// Parses `host` or `host:port`. `example` ends the text of a problem of the host, and `hint` of one of the port.
pub fn parse_authority(text: &str, example: &str, hint: &str) -> Result<Authority, String> {
    let authority: Authority = text.parse().map_err(|_| format!("has no host that can be parsed: {example}"))?;
    // The parser takes `host:`, `host:http` and `host:99999` for hosts without a port.
    let after_host = text.rsplit_once(']').map_or(text, |(_, after)| after);
    match authority.port_u16() {
        None if !after_host.contains(':') => {}
        Some(port) if port > 0 => {}
        _ => return Err(format!("has a port that is not a number from 1 to 65535{hint}")),
    }
    match bare_host(&authority).is_empty() {
        true => Err(format!("has no host: {example}")),
        false => Ok(authority),
    }
}

/// The host, an IPv6 address without the brackets that it has in a URL alone.
pub fn bare_host(authority: &Authority) -> &str {
    authority.host().trim_start_matches('[').trim_end_matches(']')
}

/// Checks that two hexadecimal digits follow each `%`.
pub(super) fn check_percents(text: &str) -> Result<(), String> {
    let is_hex = |after: &str| after.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    match text.split('%').skip(1).all(is_hex) {
        true => Ok(()),
        false => Err("has a `%` that is not followed by two hexadecimal digits (a `%` itself is `%25`)".into()),
    }
}

/// Decodes each `%XX` of a part; the result is UTF-8. `None` for an empty part.
pub(super) fn decode_part(text: &str) -> Result<Option<Box<str>>, String> {
    check_percents(text)?;
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| "has percent-encoded bytes that are no UTF-8")?;
    Ok((!decoded.is_empty()).then(|| decoded.into()))
}

/// Reads a port, from 1 on.
pub(super) fn parse_port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

/// Whether a host is this machine: a loopback address or name.
pub fn is_local(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A host and a port as a URL has them.
pub(super) struct HostAndPort<'a>(pub &'a str, pub u16);

impl fmt::Display for HostAndPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(host, port) = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

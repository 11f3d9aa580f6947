//! The services that requests go to.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use http::uri::Authority;
use rustls::pki_types::ServerName;

use super::{ParseResult, bare_host, is_local, parse_authority};

/// The address and the protocol of a service behind the proxy, shown as the URL in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, derive_more::Display)]
pub enum UpstreamTarget {
    /// HTTP/2 over cleartext TCP, by prior knowledge (RFC 9113, section 3.3).
    #[display("h2c://{_0}")]
    H2c(Authority),
    /// HTTP/1.1 over cleartext TCP.
    #[display("http://{_0}")]
    Http(Authority),
    /// HTTP/1.1 over TLS, with a service whose certificate must be for this name.
    #[display("https://{_0}")]
    Https(Authority, ServerName<'static>),
    /// HTTP/1.1 over this Unix socket.
    #[display("unix:{}", _0.display())]
    Unix(Arc<Path>),
}

const EXAMPLES: &str = "write `http://host:port`, `https://host:port`, `h2c://host:port` or `unix:/path/to.sock`";

/// The problem of a URL of a service with an `@`. It ends a user and a password, even behind an unescaped `/`, `?` or
/// `#` in them.
pub(super) const HAS_CREDENTIALS: &str = "has a user name or password, which is never sent: leave it out, and write any other `@` \
                                          as `%40`";

impl UpstreamTarget {
    /// Reads `http://host:port`, `https://host:port`, `h2c://host:port` (the port may be missing) or `unix:PATH`.
    pub fn parse(text: &str) -> ParseResult<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            // Some write `unix:///run/app.sock` for `unix:/run/app.sock`.
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path.starts_with('/') && !path.ends_with('/') {
                true => Ok(Self::Unix(Path::new(path).into())),
                false => Err("does not name a socket by its whole path: write `unix:/path/to.sock`".into()),
            };
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("has no scheme: {EXAMPLES}"));
        };
        Self::from_parts(scheme, rest.strip_suffix('/').unwrap_or(rest), EXAMPLES)
    }

    /// Reads a scheme and `host:port`. `example` ends the text of a problem.
    pub(super) fn from_parts(scheme: &str, host: &str, example: &str) -> Result<Self, String> {
        let authority = || match host {
            host if host.contains('@') => Err(HAS_CREDENTIALS.into()),
            host if host.contains(['/', '?', '#']) => {
                Err(format!("has a path or a query; the request's own is kept, so {example}"))
            }
            host => parse_authority(host, example, ""),
        };
        match &*scheme.to_ascii_lowercase() {
            "http" => authority().map(Self::Http),
            "h2c" => authority().map(Self::H2c),
            "https" => {
                let authority = authority()?;
                let name = ServerName::try_from(bare_host(&authority).to_owned());
                let name =
                    name.map_err(|_| "has a host that no certificate can name: write a DNS name or an address")?;
                Ok(Self::Https(authority, name))
            }
            _ => Err(format!("has an unknown scheme: {example}")),
        }
    }

    /// The value of `Host` for this service.
    pub fn host(&self) -> &str {
        match self {
            Self::H2c(authority) | Self::Http(authority) | Self::Https(authority, _) => authority.as_str(),
            Self::Unix(_) => "localhost",
        }
    }

    /// Whether the service is on this machine, by its address.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::H2c(authority) | Self::Http(authority) | Self::Https(authority, _) => is_local(bare_host(authority)),
            Self::Unix(_) => true,
        }
    }

    /// The host, an IPv6 address without its brackets, and the port; `None` for a socket.
    pub fn host_and_port(&self) -> Option<(&str, u16)> {
        let (authority, default_port) = match self {
            Self::H2c(authority) | Self::Http(authority) => (authority, 80),
            Self::Https(authority, _) => (authority, 443),
            Self::Unix(_) => return None,
        };
        Some((bare_host(authority), authority.port_u16().unwrap_or(default_port)))
    }

    /// Whether a connection to this service would reach a listener at this address. A host name is not resolved, except
    /// for `localhost`.
    pub fn leads_to(&self, listener: SocketAddr) -> bool {
        let Some((host, port)) = self.host_and_port() else { return false };
        let address: Option<IpAddr> = match host.parse() {
            Ok(address) => Some(address),
            Err(_) if host.eq_ignore_ascii_case("localhost") => Some(Ipv4Addr::LOCALHOST.into()),
            Err(_) => None,
        };
        let is_same_host = address.is_some_and(|address| {
            let is_own = address.is_loopback() || address.is_unspecified();
            address == listener.ip() || is_own && (listener.ip().is_loopback() || listener.ip().is_unspecified())
        });
        is_same_host && listener.port() != 0 && port == listener.port()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_host_or_a_socket() {
        for (text, shown) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://payments", "http://payments"),
            ("HTTP://payments:8080/", "http://payments:8080"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("h2c://[::1]", "h2c://[::1]"),
            ("https://payments", "https://payments"),
            ("https://[::1]:8443/", "https://[::1]:8443"),
            ("https://10.0.0.1", "https://10.0.0.1"),
            ("unix:/run/app.sock", "unix:/run/app.sock"),
            ("unix:///run/app.sock", "unix:/run/app.sock"),
        ] {
            assert_eq!(UpstreamTarget::parse(text).map(|upstream| upstream.to_string()), Ok(shown.into()));
        }
    }

    #[test]
    fn an_upstream_may_be_one_of_the_proxys_own_listeners() {
        for (upstream, listener, is_own) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", true),
            ("http://localhost:8080", "0.0.0.0:8080", true),
            ("h2c://LOCALHOST:8080", "[::1]:8080", true),
            ("http://[::1]:8080", "[::]:8080", true),
            ("http://0.0.0.0:8080", "127.0.0.1:8080", true),
            ("http://10.0.0.1:8080", "10.0.0.1:8080", true),
            ("https://127.0.0.1", "0.0.0.0:443", true),
            ("http://localhost", "0.0.0.0:80", true),
            ("http://127.0.0.1:8081", "127.0.0.1:8080", false),
            ("http://127.0.0.1:8080", "10.0.0.1:8080", false),
            ("http://10.0.0.2:8080", "0.0.0.0:8080", false),
            ("http://payments:8080", "0.0.0.0:8080", false),
            ("unix:/run/app.sock", "0.0.0.0:8080", false),
            ("http://127.0.0.1:1", "127.0.0.1:0", false),
        ] {
            let upstream = UpstreamTarget::parse(upstream).unwrap_or_else(|why| panic!("{upstream} {why}"));
            assert_eq!(upstream.leads_to(listener.parse().expect("an address")), is_own, "{upstream} {listener}");
        }
    }

    #[test]
    fn a_malformed_upstream_is_refused_with_the_reason() {
        for (text, why) in [
            ("https://pay%20ments", "host"),
            ("https://-.-", "certificate"),
            ("ftp://x", "unknown scheme"),
            ("unix:app.sock", "whole path"),
            ("unix:/", "whole path"),
            ("unix:", "whole path"),
            ("", "no scheme"),
            ("127.0.0.1:3000", "no scheme"),
            ("http://", "no host"),
            ("http://:3000", "host"),
            ("http://a b", "no host that can be parsed"),
            ("http://a:", "port"),
            ("http://a:0", "port"),
            ("http://a:99999", "port"),
            ("http://a:http", "port"),
            ("http://a/v1", "path"),
            ("http://a//", "path"),
            ("http://a?x=1", "query"),
            ("http://a#x", "query"),
            ("http://user:hunter2@a", "password"),
            ("http://user:1/hunter2@a", "%40"),
            ("http://user:1?hunter2@a", "%40"),
            ("http://user:1#hunter2@a", "%40"),
        ] {
            let message = UpstreamTarget::parse(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
            assert!(!message.contains("hunter2"));
        }
    }
}

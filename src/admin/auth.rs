//! Who may ask for what on the operators' listener.
//!
//! A listener on a loopback address is reached by every web page that runs on the same machine. A page can send requests
//! there (CSRF, told by its `Origin`), and, with a name of its own that it lets point here, read the answers too (DNS
//! rebinding, told by the `Host`). Neither knows a token, nor gets past the checks here: they hold with a token too, as a
//! browser may have been told it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::header::{AUTHORIZATION, HOST, HeaderValue, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Request};

use crate::config::AdminToken;

/// Whom an endpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Probes, which know no more than an address, and change nothing.
    Anybody,
    /// Those who came here by one of the listener's own names. Once the listener has a token: and who show it.
    Operators,
    /// Services that speak of their own attempts, which came here by one of the listener's own names: the reservation in
    /// the path is their right to, and they know no token of the listener's.
    Services,
}

/// Why somebody may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The token is missing, or is another one.
    Token,
    /// Not exactly one `Host`, or a foreign one.
    Host,
    /// A page from elsewhere asks.
    Origin,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token => "this needs the listener's token, and what was sent is not it: `Authorization: Bearer TOKEN`, which the command line takes from ONCEGATE_ADMIN_TOKEN or the file's `admin.token`",
            Self::Host => "the Host is not this listener: ask it by its address, or by localhost, with its port",
            Self::Origin => "the Origin is not this listener: other sites' pages may not ask here",
        })
    }
}

impl Access {
    /// Whether a request to the listener at this address, with this token, may go on.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check<B>(
        self,
        request: &Request<B>,
        listener: SocketAddr,
        token: Option<&AdminToken>,
    ) -> Result<(), Denied> {
        if self == Self::Anybody {
            return Ok(());
        }
        is_at_home(request, listener)?;
        match self == Self::Services || token.is_none_or(|token| shows(request.headers(), token)) {
            true => Ok(()),
            false => Err(Denied::Token),
        }
    }
}

/// Whether a request names the listener at this address by one of its own names, and comes from no other site's page.
///
/// # Errors
/// [`Denied::Host`] or [`Denied::Origin`].
pub fn is_at_home<B>(request: &Request<B>, listener: SocketAddr) -> Result<(), Denied> {
    let target = request.uri().authority();
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if is_own(host, listener) && target.is_none_or(|at| names(at, listener)) => {}
        _ => return Err(Denied::Host),
    }
    let mut origins = request.headers().get_all(ORIGIN).iter();
    if !origins.all(|origin| is_own_origin(origin, listener)) {
        return Err(Denied::Origin);
    }
    Ok(())
}

/// Whether the one `Authorization` field is the token (RFC 6750 section 2.1).
pub fn shows(headers: &HeaderMap, token: &AdminToken) -> bool {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return false };
    // A scheme's letters may be large or small (RFC 9110 section 11.1).
    let shown = field.as_bytes().split_at_checked(BEARER.len());
    shown.is_some_and(|(scheme, shown)| scheme.eq_ignore_ascii_case(BEARER) && token.is(shown.trim_ascii()))
}

const BEARER: &[u8] = b"Bearer ";

fn is_own_origin(origin: &HeaderValue, listener: SocketAddr) -> bool {
    let host = origin.as_bytes().strip_prefix(b"http://").and_then(|host| HeaderValue::from_bytes(host).ok());
    host.is_some_and(|host| is_own(&host, listener))
}

fn is_own(host: &HeaderValue, listener: SocketAddr) -> bool {
    Authority::try_from(host.as_bytes()).is_ok_and(|host| names(&host, listener))
}

/// Whether a host and port are the listener's: an address cannot be made to point elsewhere, `localhost` no more.
fn names(authority: &Authority, listener: SocketAddr) -> bool {
    let host = authority.host();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).parse::<IpAddr>();
    let is_own = match address.map(|address| address.to_canonical()) {
        Ok(address) => {
            address == listener.ip().to_canonical()
                || address == IpAddr::from(Ipv4Addr::LOCALHOST)
                || address == IpAddr::from(Ipv6Addr::LOCALHOST)
        }
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    };
    // Without a port it is the one of http://.
    let has_port = authority.as_str().len() > host.len();
    let port = if has_port { authority.port_u16() } else { Some(80) };
    is_own && port == Some(listener.port()) && !authority.as_str().contains('@')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(listener: &str, uri: &str, fields: &[(&str, &str)]) -> Result<(), Denied> {
        let mut request = Request::post(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("it is a request");
        Access::Operators.check(&request, listener.parse().expect("it is an address"), None)
    }

    #[test]
    fn the_listeners_own_names_are_its_address_and_those_of_loopback() {
        for (listener, host, is_own) in [
            ("127.0.0.1:8081", "127.0.0.1:8081", true),
            ("127.0.0.1:8081", "localhost:8081", true),
            ("127.0.0.1:8081", "LOCALHOST:8081", true),
            ("127.0.0.1:8081", "[::1]:8081", true),
            ("[::1]:8081", "[::1]:8081", true),
            ("[::ffff:10.0.0.7]:8081", "10.0.0.7:8081", true),
            ("10.0.0.7:8081", "10.0.0.7:8081", true),
            ("10.0.0.7:80", "10.0.0.7", true),
            ("127.0.0.1:80", "localhost", true),
            ("127.0.0.1:8081", "127.0.0.1", false),
            ("127.0.0.1:8081", "127.0.0.1:8080", false),
            ("127.0.0.1:8081", "127.0.0.1:", false),
            ("127.0.0.1:80", "127.0.0.1:", false),
            ("127.0.0.1:8081", "10.0.0.7:8081", false),
            ("127.0.0.1:8081", "127.0.0.2:8081", false),
            ("127.0.0.1:8081", "evil.example:8081", false),
            ("127.0.0.1:8081", "localhost.evil.example:8081", false),
            ("127.0.0.1:8081", "localhost.:8081", false),
            ("127.0.0.1:8081", "a@localhost:8081", false),
            ("127.0.0.1:8081", "evil@127.0.0.1:8081", false),
            ("127.0.0.1:8081", "", false),
            ("127.0.0.1:8081", "localhost:8081/x", false),
        ] {
            let expected = if is_own { Ok(()) } else { Err(Denied::Host) };
            assert_eq!(check(listener, "/", &[("host", host)]), expected, "{host} at {listener}");
        }
    }

    #[test]
    fn there_is_one_host_and_the_target_does_not_say_otherwise() {
        let own = ("host", "localhost:8081");
        let at = "127.0.0.1:8081";
        assert_eq!(check(at, "/", &[]), Err(Denied::Host));
        assert_eq!(check(at, "/", &[own, own]), Err(Denied::Host));
        assert_eq!(check(at, "http://evil.example/", &[own]), Err(Denied::Host));
        assert_eq!(check(at, "http://127.0.0.1:8081/", &[own]), Ok(()));
    }

    #[test]
    fn other_sites_pages_may_not_ask() {
        let own = ("host", "localhost:8081");
        for (origin, is_own) in [
            ("http://localhost:8081", true),
            ("http://127.0.0.1:8081", true),
            ("https://localhost:8081", false),
            ("http://localhost:3000", false),
            ("http://evil.example", false),
            ("http://evil.example:8081", false),
            ("null", false),
            ("", false),
        ] {
            let expected = if is_own { Ok(()) } else { Err(Denied::Origin) };
            assert_eq!(check("127.0.0.1:8081", "/", &[own, ("origin", origin)]), expected, "{origin}");
        }
    }
}

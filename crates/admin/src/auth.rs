//! Access to the endpoints of the operators' listener.
//!
//! Every web page in a browser on the same machine reaches a listener on a loopback address. A page can send requests
//! there (CSRF, recognised by the `Origin`), and, with a domain of its own that resolves to this address, read the
//! responses too (DNS rebinding, recognised by the `Host`). Neither knows a token, nor passes the checks here. The
//! checks apply to requests with a token as well, as a browser may know it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, HOST, HeaderValue, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Method, Request};

use super::guesses::TokenGuesses;
use super::tokens::AdminTokens;
use oncegate_domain::macros::named;
use oncegate_settings::PageUrl;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnNames {
    pub listener: SocketAddr,
    /// The page's address as browsers see it, where the configuration has one.
    pub url: Option<PageUrl>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Probes, which know only the address, and change nothing.
    Anybody,
    /// Operators: the request names the listener by one of its own names and, where the listener has a token, shows it.
    Operators,
    /// As for operators. A question, whatever its method: also one who may only look may ask it.
    Readers,
    /// Services that report about their own attempts: the request names the listener by one of its own names. The
    /// reservation in the path is the authorization; services do not know the listener's token.
    Services,
}

named! {
    pub enum Role {
        Operator => "operate",
        /// Looks, and changes nothing.
        Reader => "read",
    }
}

/// The role of a token, and its service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub role: Role,
    /// The only service that it is for; `None` for all.
    pub service: Option<Arc<str>>,
}

impl From<Role> for Grant {
    fn from(role: Role) -> Self {
        Self { role, service: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessDenied {
    #[error("{}", NEEDS_TOKEN)]
    NoToken,
    #[error("{}", NEEDS_TOKEN)]
    WrongToken,
    /// No token from the address is looked at for so long.
    #[error("too many wrong tokens have come from this address: tokens from it are not checked for up to a minute")]
    Slowed(Duration),
    #[error("this token may look and not change")]
    ReadOnly,
    #[error("this token is for one service alone")]
    OneService,
    /// There is not exactly one `Host`, or it is foreign.
    #[error(
        "the Host is not this listener: use its address, or localhost, with its port, or the host of admin.oidc.url"
    )]
    Host,
    #[error("the Origin is not this listener: other sites' pages may not ask here")]
    Origin,
}

const NEEDS_TOKEN: &str = "this needs the listener's token, and the request does not have it: send `Authorization: Bearer \
                           TOKEN`; the command line takes it from ONCEGATE_ADMIN_TOKEN, from the file's `admin.token`, or \
                           from the file that the instance's log names at its start";

impl Access {
    /// The grant of a request to the listener at this address, made by `peer`; `None` where it needs no token.
    pub fn check<B>(
        self,
        request: &Request<B>,
        own: &OwnNames,
        peer: IpAddr,
        tokens: &AdminTokens,
        guesses: &TokenGuesses,
    ) -> Result<Option<Grant>, AccessDenied> {
        if self == Self::Anybody {
            return Ok(None);
        }
        check_origin(request, own)?;
        if self == Self::Services {
            return Ok(None);
        }
        let grant = find_grant(request.headers(), peer, tokens, guesses)?;
        let only_reads = self == Self::Readers || matches!(*request.method(), Method::GET | Method::HEAD);
        match grant.role == Role::Operator || only_reads {
            true => Ok(Some(grant)),
            false => Err(AccessDenied::ReadOnly),
        }
    }
}

pub fn find_grant(
    headers: &HeaderMap,
    peer: IpAddr,
    tokens: &AdminTokens,
    guesses: &TokenGuesses,
) -> Result<Grant, AccessDenied> {
    match &tokens.operator {
        None => Ok(Role::Operator.into()),
        Some(_) if !headers.contains_key(AUTHORIZATION) => Err(AccessDenied::NoToken),
        Some(_) => check_token(shown_token(headers), peer, tokens, guesses),
    }
}

/// The grant of a token. A wrong token is counted; after too many from one address, none from there is looked at
/// for a while.
pub fn check_token(
    shown: Option<&[u8]>,
    peer: IpAddr,
    tokens: &AdminTokens,
    guesses: &TokenGuesses,
) -> Result<Grant, AccessDenied> {
    if let Some(wait) = guesses.wait_before_token(peer) {
        return Err(AccessDenied::Slowed(wait));
    }
    let of_all = [(&tokens.operator, Role::Operator), (&tokens.reader, Role::Reader)];
    let of_all = of_all.into_iter().filter_map(|(token, role)| Some((token.as_ref()?, role, None)));
    let of_one = tokens.of_services.iter().map(|(service, token)| (token, Role::Operator, Some(Arc::clone(service))));
    for (token, role, service) in of_all.chain(of_one) {
        if shown.is_some_and(|shown| token.matches(shown)) {
            return Ok(Grant { role, service });
        }
    }
    guesses.count_wrong_token(peer);
    Err(AccessDenied::WrongToken)
}

/// Checks that a request names the listener by one of its own names, and is not sent by another site's page.
// See docs/decisions/0029-guard-the-admin-listener.md.
pub fn check_origin<B>(request: &Request<B>, own: &OwnNames) -> Result<(), AccessDenied> {
    let target = request.uri().authority();
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if own.has_host(host) && target.is_none_or(|target| own.has(target)) => {}
        _ => return Err(AccessDenied::Host),
    }
    let mut origins = request.headers().get_all(ORIGIN).iter();
    if !origins.all(|origin| own.has_origin(origin)) {
        return Err(AccessDenied::Origin);
    }
    // Browsers name the relation to the page that sends a request. A link on another site may lead here.
    let is_cross_site = request.headers().get_all("sec-fetch-site").iter().any(|site| site == "cross-site");
    if is_cross_site && !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(AccessDenied::Origin);
    }
    Ok(())
}

/// The token in the one `Authorization` field (RFC 6750 section 2.1).
fn shown_token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return None };
    // The scheme is case-insensitive (RFC 9110 section 11.1).
    let (scheme, shown) = field.as_bytes().split_at_checked(BEARER.len())?;
    scheme.eq_ignore_ascii_case(BEARER).then(|| shown.trim_ascii())
}

const BEARER: &[u8] = b"Bearer ";

impl OwnNames {
    fn has_origin(&self, origin: &HeaderValue) -> bool {
        // The scheme counts: a page without TLS at the same host may be by anybody on the network.
        let is_url = || self.url.as_ref().is_some_and(|url| url.to_string().as_bytes() == origin.as_bytes());
        let host = origin.as_bytes().strip_prefix(b"http://").and_then(|host| Authority::try_from(host).ok());
        host.is_some_and(|host| is_name_of(&host, self.listener)) || is_url()
    }

    fn has_host(&self, host: &HeaderValue) -> bool {
        Authority::try_from(host.as_bytes()).is_ok_and(|host| self.has(&host))
    }

    fn has(&self, authority: &Authority) -> bool {
        is_name_of(authority, self.listener) || self.url.as_ref().is_some_and(|url| is_of_url(authority, url))
    }

    /// Whether a request names the page's own address, and browsers speak TLS to that.
    pub fn is_at_secure_url(&self, headers: &HeaderMap) -> bool {
        let host = headers.get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
        let url = self.url.as_ref().filter(|url| url.is_https);
        host.zip(url).is_some_and(|(host, url)| is_of_url(&host, url))
    }
}

fn is_of_url(authority: &Authority, url: &PageUrl) -> bool {
    let default_port = if url.is_https { ":443" } else { ":80" };
    let host = authority.as_str().strip_suffix(default_port).unwrap_or(authority.as_str());
    host.eq_ignore_ascii_case(url.authority.as_str())
}

/// Whether a host and port are the listener's by themselves. Only addresses and `localhost` are: nobody can make them
/// resolve to another address.
fn is_name_of(authority: &Authority, listener: SocketAddr) -> bool {
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
    // Without a port it is the default of http://.
    let has_port = authority.as_str().len() > host.len();
    let port = if has_port { authority.port_u16() } else { Some(80) };
    is_own && port == Some(listener.port()) && !authority.as_str().contains('@')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(listener: &str, uri: &str, fields: &[(&str, &str)]) -> Result<(), AccessDenied> {
        check_names(&OwnNames { listener: listener.parse().expect("it is an address"), url: None }, uri, fields)
    }

    fn check_names(own: &OwnNames, uri: &str, fields: &[(&str, &str)]) -> Result<(), AccessDenied> {
        let mut request = Request::post(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("it is a request");
        let (open, guesses) = (AdminTokens::default(), TokenGuesses::default());
        Access::Operators.check(&request, own, Ipv4Addr::LOCALHOST.into(), &open, &guesses).map(drop)
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
            let expected = if is_own { Ok(()) } else { Err(AccessDenied::Host) };
            assert_eq!(check(listener, "/", &[("host", host)]), expected, "{host} at {listener}");
        }
    }

    #[test]
    fn there_is_one_host_and_the_target_agrees_with_it() {
        let own = ("host", "localhost:8081");
        let at = "127.0.0.1:8081";
        assert_eq!(check(at, "/", &[]), Err(AccessDenied::Host));
        assert_eq!(check(at, "/", &[own, own]), Err(AccessDenied::Host));
        assert_eq!(check(at, "http://evil.example/", &[own]), Err(AccessDenied::Host));
        assert_eq!(check(at, "http://127.0.0.1:8081/", &[own]), Ok(()));
    }

    #[test]
    fn pages_of_other_sites_are_denied() {
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
            let expected = if is_own { Ok(()) } else { Err(AccessDenied::Origin) };
            assert_eq!(check("127.0.0.1:8081", "/", &[own, ("origin", origin)]), expected, "{origin}");
        }
    }

    #[test]
    fn the_pages_own_address_is_a_name_of_the_listener_and_its_origin_has_the_scheme() {
        let listener = "127.0.0.1:8081".parse().unwrap();
        let url = PageUrl { is_https: true, authority: Authority::from_static("oncegate.ops.example") };
        let own = OwnNames { listener, url: Some(url) };
        for (host, origin, expected) in [
            ("oncegate.ops.example", "https://oncegate.ops.example", Ok(())),
            ("Oncegate.Ops.Example:443", "https://oncegate.ops.example", Ok(())),
            // A proxy before the listener may name it by its address.
            ("127.0.0.1:8081", "https://oncegate.ops.example", Ok(())),
            ("localhost:8081", "http://localhost:8081", Ok(())),
            ("oncegate.ops.example:8081", "https://oncegate.ops.example", Err(AccessDenied::Host)),
            ("ops.example", "https://oncegate.ops.example", Err(AccessDenied::Host)),
            ("x@oncegate.ops.example", "https://oncegate.ops.example", Err(AccessDenied::Host)),
            ("oncegate.ops.example", "http://oncegate.ops.example", Err(AccessDenied::Origin)),
            ("oncegate.ops.example", "https://evil.example", Err(AccessDenied::Origin)),
            ("oncegate.ops.example", "null", Err(AccessDenied::Origin)),
        ] {
            assert_eq!(check_names(&own, "/", &[("host", host), ("origin", origin)]), expected, "{host} {origin}");
        }
    }

    #[test]
    fn a_form_of_another_site_is_denied_and_a_link_is_not() {
        let own = OwnNames { listener: "127.0.0.1:8081".parse().unwrap(), url: None };
        for (method, site, expected) in [
            ("POST", "cross-site", Err(AccessDenied::Origin)),
            ("DELETE", "cross-site", Err(AccessDenied::Origin)),
            ("GET", "cross-site", Ok(())),
            ("POST", "same-origin", Ok(())),
            ("POST", "none", Ok(())),
        ] {
            let request = Request::builder().method(method).header("host", "localhost:8081");
            let request = request.header("sec-fetch-site", site).body(()).unwrap();
            assert_eq!(check_origin(&request, &own), expected, "{method} {site}");
        }
    }
}

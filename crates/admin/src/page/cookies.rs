//! The page's cookies: that of a session, and the one that binds a sign-in with the issuer to its browser.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::{COOKIE, HeaderValue, SET_COOKIE};
use http::{HeaderMap, Response};

use oncegate_http::body::Body;
use oncegate_settings::PageUrl;

/// A cookie at the address by which a browser has come.
pub struct PageCookie {
    name: String,
    same_site: &'static str,
    is_secure: bool,
}

impl PageCookie {
    /// The session's. `is_at_url` says whether it is the `https://` address of `admin.oidc.url`, and `is_https` whether
    /// the browser speaks TLS to a proxy: this listener itself speaks none.
    pub fn of_session(listener: SocketAddr, is_at_url: bool, is_https: bool) -> Self {
        Self { is_secure: is_https || is_at_url, ..Self::new("", "Strict", listener, is_at_url) }
    }

    /// That of a sign-in. `Lax`, as the issuer's page leads back here, and a `Strict` one would not come along.
    pub fn of_sign_in(listener: SocketAddr, url: &PageUrl) -> Self {
        Self::new("-sign-in", "Lax", listener, url.is_https)
    }

    /// That of the service that a page is about, which is no secret.
    pub fn of_service(listener: SocketAddr, is_at_url: bool) -> Self {
        Self::new("-service", "Strict", listener, is_at_url)
    }

    /// With TLS, no other host and no page without TLS can set the cookie: nobody can have a person act in a session
    /// that somebody else has opened. Two instances on one machine have cookies of their own, as browsers send a
    /// machine's cookies to all its ports.
    fn new(kind: &str, same_site: &'static str, listener: SocketAddr, has_tls: bool) -> Self {
        let prefix = if has_tls { "__Host-" } else { "" };
        Self { name: format!("{prefix}oncegate{kind}-{}", listener.port()), same_site, is_secure: has_tls }
    }

    /// Returns its value in a request.
    pub fn find<'a>(&self, headers: &'a HeaderMap) -> Option<&'a [u8]> {
        let pairs = headers.get_all(COOKIE).iter().flat_map(|field| field.as_bytes().split(|byte| *byte == b';'));
        pairs.map(<[u8]>::trim_ascii).find_map(|pair| pair.strip_prefix(self.name.as_bytes())?.strip_prefix(b"="))
    }

    pub fn set(&self, response: &mut Response<Body>, value: &str, lifetime: Duration) {
        let Self { name, same_site, is_secure } = self;
        let (seconds, secure) = (lifetime.as_secs(), if *is_secure { "; Secure" } else { "" });
        let cookie = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite={same_site}{secure}");
        let cookie = HeaderValue::from_str(&cookie).expect("the cookie is visible ASCII");
        response.headers_mut().append(SET_COOKIE, cookie);
    }

    pub fn clear(&self, response: &mut Response<Body>) {
        self.set(response, "", Duration::ZERO);
    }
}

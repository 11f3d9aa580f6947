//! Signing in with the listener's token, and signing out; the page that offers this and the issuer.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use askama::Template;
use http::header::{HeaderValue, RETRY_AFTER, SET_COOKIE};
use http::{Method, Response, StatusCode};

use super::sessions::LIFETIME;
use super::{FORM, FormParams, PagePath, redirect_to, render_message, render_page, with_challenge};
use crate::admin::auth::{self, AccessDenied};
use crate::admin::{AdminListener, key_admin};
use oncegate_domain::fingerprint::form::escape;
use oncegate_http::body::Body;

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    service: &'a str,
    form: &'a str,
    next: &'a str,
    name: &'a str,
    trouble: Option<&'static str>,
    /// The way to the issuer, at the page's own address: its cookie belongs there.
    oidc: Option<OidcLink>,
}

struct OidcLink {
    issuer: String,
    href: String,
}

impl AdminListener {
    pub(super) fn show_sign_in(&self, query: &FormParams) -> Response<Body> {
        if self.tokens().operator.is_none() {
            return redirect_to("/");
        }
        self.render_sign_in(StatusCode::OK, query, None)
    }

    fn render_sign_in(&self, status: StatusCode, params: &FormParams, trouble: Option<&'static str>) -> Response<Body> {
        let next = parse_own_page(params.get("next")).unwrap_or_default();
        let oidc = self.config.borrow().admin.oidc.as_ref().map(|oidc| OidcLink {
            issuer: oidc.issuer.to_string(),
            href: format!("{}/sign-in/oidc?next={}", oidc.url, escape(next.as_bytes())),
        });
        let page = SignInPage {
            service: &self.instance.config.service,
            form: self.sessions.sign_in_form().reveal(),
            next,
            oidc,
            name: params.get("name"),
            trouble,
        };
        render_page(status, &page)
    }

    /// Opens a session for a visitor with the token.
    pub(super) fn sign_in(
        &self,
        form: &FormParams,
        session: SessionCookie,
        is_https: bool,
        peer: IpAddr,
    ) -> Response<Body> {
        let tokens = self.tokens();
        if tokens.operator.is_none() {
            return redirect_to("/");
        }
        if !self.sessions.sign_in_form().is(form.get(FORM).as_bytes()) {
            let why = Some("The form was out of date: this instance has been restarted since. Try again.");
            return self.render_sign_in(StatusCode::FORBIDDEN, form, why);
        }
        let role = match auth::check_token(Some(form.text("token").as_bytes()), peer, &tokens, &self.guesses) {
            Ok(role) => role,
            Err(denied) => {
                self.note_denied(peer, denied);
                let why = Some("This is not the listener's token.");
                return match denied {
                    AccessDenied::Slowed(wait) => slowed_response(wait),
                    _ => with_challenge(self.render_sign_in(StatusCode::UNAUTHORIZED, form, why)),
                };
            }
        };
        // As in the audit log: short, and in one line.
        let actor = key_admin::remote_actor(peer, Some(form.get("name").as_bytes()));
        tracing::info!(actor, "an operator has signed in");
        let cookie = self.sessions.sign_in(form.get("name").to_owned(), role, peer);
        let mut response = redirect_to(parse_own_page(form.get("next")).unwrap_or("/"));
        session.set(&mut response, is_https, cookie.reveal());
        response
    }
}

pub fn slowed_response(wait: Duration) -> Response<Body> {
    let why = "Too many wrong tokens have come from your address. Oncegate accepts none from there for a minute.";
    let mut response = render_message(StatusCode::TOO_MANY_REQUESTS, "Wait a minute", why);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
    response
}

pub fn sign_out_response(session: SessionCookie) -> Response<Body> {
    let mut response = redirect_to("/sign-in");
    session.write(&mut response, false, "", 0);
    response
}

/// The session's cookie at the address by which a browser has come.
#[derive(Clone, Copy)]
pub struct SessionCookie {
    pub listener: SocketAddr,
    /// Whether it is the `https://` address of `admin.oidc.url`. There no other host, and no page without TLS, can set the cookie:
    /// nobody can have a person act in a session that somebody else has opened.
    pub is_at_url: bool,
}

impl SessionCookie {
    /// The name. Two instances on one machine have a cookie each, as browsers send a machine's cookies to all its ports.
    pub fn name(self) -> String {
        let prefix = if self.is_at_url { "__Host-" } else { "" };
        format!("{prefix}oncegate-{}", self.listener.port())
    }

    /// Sets it. It is `Secure` where the browser speaks TLS to a proxy: this listener itself speaks none.
    pub fn set(self, response: &mut Response<Body>, is_https: bool, value: &str) {
        self.write(response, is_https, value, LIFETIME.as_secs());
    }

    fn write(self, response: &mut Response<Body>, is_https: bool, value: &str, seconds: u64) {
        let (name, secure) = (self.name(), if is_https || self.is_at_url { "; Secure" } else { "" });
        let cookie = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
        let cookie = HeaderValue::from_str(&cookie).expect("the cookie is visible ASCII");
        response.headers_mut().append(SET_COOKIE, cookie);
    }
}

/// Returns the page that a visitor wanted before signing in, if it is one of this listener: nobody is sent elsewhere.
pub fn parse_own_page(next: &str) -> Option<&str> {
    let path = next.split('?').next()?;
    let page = PagePath::parse(path)?;
    let is_to_visit =
        !matches!(page, PagePath::OidcCallback | PagePath::OidcSignIn | PagePath::SignIn | PagePath::Style);
    let is_page = page.methods().contains(&Method::GET) && is_to_visit;
    let is_plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    (is_page && is_plain).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_signing_in_nobody_is_sent_elsewhere() {
        for (next, is_own) in [
            ("/", true),
            ("/keys?state=unknown&route=pay", true),
            ("/keys/abcdef12/purge", true),
            ("//evil.example", false),
            ("//evil.example/keys", false),
            ("https://evil.example/", false),
            ("/\\evil.example", false),
            ("/keys\\..\\x", false),
            ("/keys?a\r\nSet-Cookie: x=y", false),
            ("/sign-out", false),
            ("/sign-in/oidc", false),
            ("/sign-in/oidc/callback?state=x", false),
            ("keys", false),
            ("", false),
        ] {
            assert_eq!(parse_own_page(next).is_some(), is_own, "{next:?}");
        }
    }
}

//! Signing in with the listener's token, and signing out.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use askama::Template;
use http::header::{HeaderValue, RETRY_AFTER, SET_COOKIE};
use http::{Method, Response, StatusCode};

use super::sessions::LIFETIME;
use super::{FORM, FormParams, PagePath, redirect_to, render_message, render_page, with_challenge};
use crate::admin::auth::{self, AccessDenied};
use crate::admin::{AdminListener, key_admin};
use oncegate_http::body::Body;

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    service: &'a str,
    form: &'a str,
    next: &'a str,
    name: &'a str,
    trouble: Option<&'static str>,
}

impl AdminListener {
    pub(super) fn show_sign_in(&self, query: &FormParams) -> Response<Body> {
        if self.tokens().operator.is_none() {
            return redirect_to("/");
        }
        self.render_sign_in(StatusCode::OK, query, None)
    }

    fn render_sign_in(&self, status: StatusCode, params: &FormParams, trouble: Option<&'static str>) -> Response<Body> {
        let page = SignInPage {
            service: &self.instance.config.service,
            form: self.sessions.sign_in_form().reveal(),
            next: parse_own_page(params.get("next")).unwrap_or_default(),
            name: params.get("name"),
            trouble,
        };
        render_page(status, &page)
    }

    /// Opens a session for a visitor with the token.
    pub(super) fn sign_in(&self, form: &FormParams, listener: SocketAddr, peer: IpAddr) -> Response<Body> {
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
        set_cookie(&mut response, listener, cookie.reveal(), LIFETIME.as_secs());
        response
    }
}

pub fn slowed_response(wait: Duration) -> Response<Body> {
    let why = "Too many wrong tokens have come from your address. Oncegate accepts none from there for a minute.";
    let mut response = render_message(StatusCode::TOO_MANY_REQUESTS, "Wait a minute", why);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
    response
}

pub fn sign_out_response(listener: SocketAddr) -> Response<Body> {
    let mut response = redirect_to("/sign-in");
    set_cookie(&mut response, listener, "", 0);
    response
}

/// Returns the cookie's name: two instances on one machine have a cookie each.
pub fn cookie_name(listener: SocketAddr) -> String {
    format!("oncegate-{}", listener.port())
}

/// Sets the session's cookie. It is not `Secure`: this listener speaks no TLS, and behind a proxy that does, its `Host`
/// would be a foreign one.
fn set_cookie(response: &mut Response<Body>, listener: SocketAddr, value: &str, seconds: u64) {
    let name = cookie_name(listener);
    let cookie = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict");
    let cookie = HeaderValue::from_str(&cookie).expect("the cookie is visible ASCII");
    response.headers_mut().insert(SET_COOKIE, cookie);
}

/// Returns the page that a visitor wanted before signing in, if it is one of this listener: nobody is sent elsewhere.
fn parse_own_page(next: &str) -> Option<&str> {
    let path = next.split('?').next()?;
    let page = PagePath::parse(path)?;
    let is_page = page.methods().contains(&Method::GET) && !matches!(page, PagePath::SignIn | PagePath::Style);
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
            ("keys", false),
            ("", false),
        ] {
            assert_eq!(parse_own_page(next).is_some(), is_own, "{next:?}");
        }
    }
}

//! Signing in with the listener's token, and out.

use std::net::{IpAddr, SocketAddr};

use askama::Template;
use http::header::{HeaderValue, RETRY_AFTER, SET_COOKIE};
use http::{Response, StatusCode};

use super::sessions::LIFETIME;
use super::{FORM, Pairs, Place, html, message, see_other};
use crate::admin::{Admin, desk};
use crate::body::Body;

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignIn<'a> {
    service: &'a str,
    form: &'a str,
    next: &'a str,
    name: &'a str,
    trouble: Option<&'static str>,
}

impl Admin {
    /// The form for the token.
    pub(super) fn sign_in_page(&self, query: &Pairs) -> Response<Body> {
        if self.shared.config.admin.token.is_none() {
            return see_other("/");
        }
        self.ask_for_token(StatusCode::OK, query, None)
    }

    fn ask_for_token(&self, status: StatusCode, said: &Pairs, trouble: Option<&'static str>) -> Response<Body> {
        let anybody = self.sessions.anybody();
        let page = SignIn {
            service: &self.shared.config.service,
            form: anybody.form.reveal(),
            next: own_page(said.get("next")).unwrap_or_default(),
            name: said.get("name"),
            trouble,
        };
        html(status, &page)
    }

    /// Opens a session for whoever shows the token. A token is not looked at once too many of its sender's were wrong.
    pub(super) fn sign_in(&self, form: &Pairs, listener: SocketAddr, peer: IpAddr) -> Response<Body> {
        let Some(token) = &self.shared.config.admin.token else { return see_other("/") };
        if !self.sessions.anybody().form.is(form.get(FORM).as_bytes()) {
            let why = Some("The form was an old one: this instance has been started anew since. Try again.");
            return self.ask_for_token(StatusCode::FORBIDDEN, form, why);
        }
        if let Some(wait) = self.sessions.must_wait(peer) {
            let why = "Too many wrong tokens have come from your address. None is looked at for a minute.";
            let mut response = message(StatusCode::TOO_MANY_REQUESTS, "Wait a minute", why);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
            return response;
        }
        // For the log, as everywhere: short, and in one line.
        let actor = desk::actor(peer, Some(form.get("name").as_bytes()));
        if !token.is(form.get("token").trim().as_bytes()) {
            self.sessions.was_wrong(peer);
            tracing::warn!(actor, "a wrong token was shown to the operators' page");
            return self.ask_for_token(StatusCode::FORBIDDEN, form, Some("This is not the listener's token."));
        }
        tracing::info!(actor, "an operator has signed in");
        let cookie = self.sessions.sign_in(form.get("name").to_owned(), peer);
        let mut response = see_other(own_page(form.get("next")).unwrap_or("/"));
        set_cookie(&mut response, listener, cookie.reveal(), LIFETIME.as_secs());
        response
    }
}

/// The cookie is gone, and its session.
pub fn signed_out(listener: SocketAddr) -> Response<Body> {
    let mut response = see_other("/sign-in");
    set_cookie(&mut response, listener, "", 0);
    response
}

/// Two instances on one machine have a cookie each.
pub fn cookie_name(listener: SocketAddr) -> String {
    format!("oncegate-{}", listener.port())
}

/// Not `Secure`: this listener speaks no TLS, and behind somebody who does its `Host` would be a foreign one.
fn set_cookie(response: &mut Response<Body>, listener: SocketAddr, value: &str, seconds: u64) {
    let name = cookie_name(listener);
    let cookie = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict");
    let cookie = HeaderValue::from_str(&cookie).expect("a cookie of ours is visible ASCII");
    response.headers_mut().insert(SET_COOKIE, cookie);
}

/// Where somebody wanted to go, if that is a page of ours: nobody is sent elsewhere after signing in.
fn own_page(next: &str) -> Option<&str> {
    let path = next.split('?').next()?;
    let is_page = match Place::of(path)? {
        Place::Change(..) | Place::Key(_) | Place::Keys | Place::Log | Place::Overview | Place::Several => true,
        Place::Find | Place::SignIn | Place::SignOut | Place::Style => false,
    };
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
            assert_eq!(own_page(next).is_some(), is_own, "{next:?}");
        }
    }
}

//! Signing in with the listener's token; the page that offers this and the issuer.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use http::header::{HeaderValue, ORIGIN, RETRY_AFTER};
use http::{Method, Response, StatusCode};

use super::format::Shown;
use super::sessions::LIFETIME;
use super::{FORM, FormParams, PagePath, PageRequest, redirect_to, render_message, render_page, with_challenge};
use crate::AdminListener;
use crate::auth::{self, AccessDenied};
use crate::key_admin::actors::remote_actor;
use oncegate_http::body::Body;
use oncegate_settings::OidcConfig;

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    service: &'a str,
    form: &'a str,
    next: &'a str,
    name: &'a str,
    trouble: Option<&'static str>,
    /// The sign-in with the issuer begins at the page's own address: its cookie belongs there.
    oidc: Option<Arc<OidcConfig>>,
}

impl AdminListener {
    pub(super) fn answer_sign_in(&self, request: &PageRequest<'_>) -> Response<Body> {
        match &request.form {
            _ if self.tokens().operator.is_none() => redirect_to("/"),
            Some(form) => self.sign_in(form, request),
            None => self.render_sign_in(StatusCode::OK, &request.query, None),
        }
    }

    fn render_sign_in(&self, status: StatusCode, params: &FormParams, trouble: Option<&'static str>) -> Response<Body> {
        let next = parse_own_page(params.get("next")).unwrap_or_default();
        let page = SignInPage {
            service: &self.instance.config.service,
            form: self.sessions.sign_in_form().reveal(),
            next,
            oidc: self.config.borrow().admin.oidc.clone(),
            name: params.get("name"),
            trouble,
        };
        render_page(status, &page)
    }

    fn sign_in(&self, form: &FormParams, request: &PageRequest<'_>) -> Response<Body> {
        let peer = request.peer;
        if !self.sessions.sign_in_form().is(form.get(FORM).as_bytes()) {
            let why = Some("The form was out of date: this instance has been restarted since. Try again.");
            return self.render_sign_in(StatusCode::FORBIDDEN, form, why);
        }
        let role = match auth::check_token(Some(form.text("token").as_bytes()), peer, &self.tokens(), &self.guesses) {
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
        let actor = remote_actor(peer, Some(form.get("name").as_bytes()));
        tracing::info!(actor, "an operator has signed in");
        let cookie = self.sessions.sign_in(form.get("name").to_owned(), role, peer);
        let mut response = redirect_to(parse_own_page(form.get("next")).unwrap_or("/"));
        let is_https = request.head.headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https:"));
        request.session_cookie(is_https).set(&mut response, cookie.reveal(), LIFETIME);
        response
    }
}

pub fn slowed_response(wait: Duration) -> Response<Body> {
    let why = "Too many wrong tokens have come from your address. Oncegate accepts none from there for a minute.";
    let mut response = render_message(StatusCode::TOO_MANY_REQUESTS, "Wait a minute", why);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
    response
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

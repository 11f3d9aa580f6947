//! Signing in with the OpenID Connect issuer: the way to its page, and the way back.
//!
//! Nothing in an answer counts before its `state` is that of a sign-in of this browser: an error that somebody else has made up
//! changes and shows nothing.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use askama::Template;
use http::header::{HeaderValue, SET_COOKIE};
use http::{HeaderMap, Response, StatusCode};

use super::pending_sign_ins::SIGN_IN_MAX;
use super::sign_in_pages::{SessionCookie, parse_own_page};
use super::{FormParams, find_cookie, redirect_to, render_message, render_page};
use crate::admin::AdminListener;
use crate::admin::oidc::{self, Person, SignInFault};
use oncegate_http::body::Body;
use oncegate_settings::{OidcConfig, PageUrl};
use oncegate_trust::tls::Trust;

#[derive(Template)]
#[template(path = "signed_in.html")]
struct SignedInPage<'a> {
    name: &'a str,
    next: &'a str,
}

impl AdminListener {
    fn oidc_config(&self) -> Option<(Arc<OidcConfig>, Trust)> {
        // Also ends what was begun under an earlier configuration.
        self.tokens();
        let config = self.config.borrow();
        Some((Arc::clone(config.admin.oidc.as_ref()?), config.trust.clone()))
    }

    /// Does a step of a sign-in that has waited for the issuer. A reload that has changed the configuration meanwhile ends the
    /// sign-in; one that does so now waits, and ends what the step has opened.
    fn under_rules<T>(&self, config: &OidcConfig, step: impl FnOnce() -> T) -> Result<T, SignInFault> {
        let rules = self.current_rules();
        if rules.1.as_deref() != Some(config) {
            return Err(SignInFault::Unknown);
        }
        Ok(step())
    }

    /// Sends the browser to the issuer.
    pub(super) async fn begin_oidc_sign_in(
        &self,
        query: &FormParams,
        listener: SocketAddr,
        peer: IpAddr,
    ) -> Response<Body> {
        let Some((config, trust)) = self.oidc_config() else { return redirect_to("/") };
        let next = parse_own_page(query.get("next")).unwrap_or("/");
        let begun = self.oidc.issuer(&config, &trust).await.and_then(|issuer| {
            let begin = || self.pending_sign_ins.begin(Arc::clone(&config), Arc::clone(&issuer), next);
            Ok((self.under_rules(&config, begin)?, issuer))
        });
        let (begun, issuer) = match begun {
            Ok(begun) => begun,
            Err(fault) => return self.refuse_sign_in(&fault, &config, peer),
        };
        let mut response = redirect_to(&issuer.sign_in_url(&config, begun.texts()));
        set_browser_cookie(&mut response, &config.url, listener, begun.browser.reveal(), SIGN_IN_MAX.as_secs());
        response
    }

    /// Opens a session for a person whom the issuer has signed in.
    pub(super) async fn end_oidc_sign_in(
        &self,
        query: &FormParams,
        headers: &HeaderMap,
        listener: SocketAddr,
        session: SessionCookie,
        peer: IpAddr,
    ) -> Response<Body> {
        let Some((config, trust)) = self.oidc_config() else { return redirect_to("/") };
        let browser = find_cookie(headers, &browser_cookie_name(&config.url, listener)).unwrap_or_default();
        let mut response = match self.sign_person_in(query, browser, peer, &trust).await {
            Ok((person, next, cookie)) => {
                // Not a redirection: browsers leave a `SameSite=Strict` cookie out of a navigation that another site has begun, and
                // the issuer's page has begun this one.
                let mut response = render_page(StatusCode::OK, &SignedInPage { name: &person.name, next: &next });
                session.set(&mut response, config.url.is_https, &cookie);
                response
            }
            // Anybody can lead a browser here with a made-up answer, which must not end the sign-in that the browser has begun.
            Err(fault @ (SignInFault::Unknown | SignInFault::OtherBrowser)) => {
                return self.refuse_sign_in(&fault, &config, peer);
            }
            Err(fault) => self.refuse_sign_in(&fault, &config, peer),
        };
        set_browser_cookie(&mut response, &config.url, listener, "", 0);
        response
    }

    async fn sign_person_in(
        &self,
        query: &FormParams,
        browser: &[u8],
        peer: IpAddr,
        trust: &Trust,
    ) -> Result<(Person, String, String), SignInFault> {
        let answered = self.pending_sign_ins.take(query.get("state").as_bytes(), browser)?;
        let (config, issuer) = (&answered.config, &answered.issuer);
        issuer.check_name(config, query.get("iss"))?;
        if !query.get("error").is_empty() {
            return Err(SignInFault::Denied(oidc::clean_error(query.get("error"))));
        }
        let redeemed = self.oidc.redeem(config, issuer, query.get("code"), answered.texts(), answered.begun_ago, trust);
        let (person, role) = oidc::read_person(config, &redeemed.await?)?;
        let cookie = self.under_rules(config, || self.sessions.sign_person_in(person.clone(), role, peer))?;
        tracing::info!(actor = person.actor(peer), role = role.name(), "an operator has signed in");
        Ok((person, answered.next, cookie.reveal().to_owned()))
    }

    fn refuse_sign_in(&self, fault: &SignInFault, config: &OidcConfig, peer: IpAddr) -> Response<Body> {
        let (status, title, detail) = explain(fault, config);
        // Nobody needs a token to come here. A flood of made-up answers hides no other reason.
        if let Some(requests) = self.refused_sign_ins.count(&format!("{peer} {title}")) {
            tracing::warn!(issuer = &*config.issuer, %peer, requests, ?fault, "a sign-in with the issuer was refused");
        }
        render_message(status, title, &detail)
    }
}

fn explain(fault: &SignInFault, config: &OidcConfig) -> (StatusCode, &'static str, String) {
    let again = "Nobody was signed in. Begin again on the sign-in page.";
    match fault {
        SignInFault::Unknown => {
            let why = "This sign-in is not known here: it was begun more than ten minutes ago, or this instance has been restarted \
                       or has another configuration since, or another instance has begun it.";
            (StatusCode::BAD_REQUEST, "The sign-in is over", format!("{why} {again}"))
        }
        SignInFault::OtherBrowser => {
            let why = format!(
                "Another browser or another tab has begun this sign-in, or it was begun at another address than {}.",
                config.url
            );
            (StatusCode::BAD_REQUEST, "The sign-in is of another browser", format!("{why} {again}"))
        }
        SignInFault::Used => {
            let why = "The issuer has answered this sign-in before, and an answer counts once.";
            (StatusCode::BAD_REQUEST, "The sign-in was used already", format!("{why} {again}"))
        }
        SignInFault::OtherIssuer => {
            let why = format!("The answer does not say that it is by {}, which was asked.", config.issuer);
            (StatusCode::BAD_REQUEST, "The answer is by another issuer", format!("{why} {again}"))
        }
        SignInFault::Denied(error) => {
            let why = format!("{} has refused the sign-in: {error}.", config.issuer);
            (StatusCode::FORBIDDEN, "The issuer has refused", format!("{why} {again}"))
        }
        SignInFault::Issuer(problem) => {
            let why = format!("{} cannot be used: {problem}.", config.issuer);
            let token = "The listener's token still signs you in.";
            (StatusCode::BAD_GATEWAY, "The issuer does not answer as it should", format!("{why} {again} {token}"))
        }
        SignInFault::IdToken(fault) => {
            let why = format!("The ID token of {} was refused. {}", config.issuer, fault.detail());
            (StatusCode::BAD_GATEWAY, "The issuer's token was refused", format!("{why} {again}"))
        }
        SignInFault::NoRole { name, has_claim } => {
            let claim = &config.roles_claim;
            let why = match has_claim {
                true => format!("No value of its claim `{claim}` is in `admin.oidc.operate` or `admin.oidc.read`."),
                false => {
                    format!("Its ID token has no claim `{claim}` (`admin.oidc.roles_claim`): the issuer must add it.")
                }
            };
            (
                StatusCode::FORBIDDEN,
                "Your account has no role here",
                format!("{} has signed in as {name}. {why}", config.issuer),
            )
        }
    }
}

/// The name of the cookie that binds a sign-in to its browser. With TLS, no other host and no page without TLS can set it.
fn browser_cookie_name(url: &PageUrl, listener: SocketAddr) -> String {
    let prefix = if url.is_https { "__Host-" } else { "" };
    format!("{prefix}oncegate-sign-in-{}", listener.port())
}

/// Sets that cookie. `Lax`, as the issuer's page leads back here, and a `Strict` one would not come along.
fn set_browser_cookie(response: &mut Response<Body>, url: &PageUrl, listener: SocketAddr, value: &str, seconds: u64) {
    let name = browser_cookie_name(url, listener);
    let secure = if url.is_https { "; Secure" } else { "" };
    let cookie = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
    let cookie = HeaderValue::from_str(&cookie).expect("the cookie is visible ASCII");
    response.headers_mut().append(SET_COOKIE, cookie);
}

//! Signing in with the OpenID Connect issuer: the way to its page, and the way back.
//!
//! Nothing in an answer counts before its `state` is that of a sign-in of this browser: an error that somebody else has
//! made up changes and shows nothing.

use std::net::IpAddr;
use std::sync::Arc;

use askama::Template;
use http::{Response, StatusCode};

use super::cookies::PageCookie;
use super::pending_sign_ins::SIGN_IN_MAX;
use super::sessions::{LIFETIME, SessionSecret};
use super::sign_in_pages::parse_own_page;
use super::{FormParams, PageRequest, redirect_to, render_message, render_page};
use crate::AdminListener;
use crate::oidc::{self, SignIn, SignInFault};
use oncegate_http::body::Body;
use oncegate_settings::OidcConfig;
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

    /// Does a step of a sign-in that has waited for the issuer. A reload that has changed the configuration meanwhile
    /// ends the sign-in; one that does so now waits, and ends what the step has opened.
    fn under_rules<T>(&self, config: &OidcConfig, step: impl FnOnce() -> T) -> Result<T, SignInFault> {
        let rules = self.current_rules();
        if rules.1.as_deref() != Some(config) {
            return Err(SignInFault::Unknown);
        }
        Ok(step())
    }

    /// Sends the browser to the issuer.
    pub(super) async fn begin_oidc_sign_in(&self, request: &PageRequest<'_>) -> Response<Body> {
        let Some((config, trust)) = self.oidc_config() else { return redirect_to("/") };
        let next = parse_own_page(request.query.get("next")).unwrap_or("/");
        let begun = self.oidc.issuer(&config, &trust).await.and_then(|issuer| {
            self.under_rules(&config, || self.pending_sign_ins.begin(Arc::clone(&config), issuer, next))
        });
        let begun = match begun {
            Ok(begun) => begun,
            Err(fault) => return self.refuse_sign_in(&fault, &config, request.peer),
        };
        let mut response = redirect_to(&begun.sign_in.url(begun.state.reveal()));
        let cookie = PageCookie::of_sign_in(request.listener, &config.url);
        cookie.set(&mut response, begun.browser.reveal(), SIGN_IN_MAX);
        response
    }

    /// Opens a session for a person whom the issuer has signed in.
    pub(super) async fn end_oidc_sign_in(&self, request: &PageRequest<'_>) -> Response<Body> {
        let Some((config, trust)) = self.oidc_config() else { return redirect_to("/") };
        let cookie = PageCookie::of_sign_in(request.listener, &config.url);
        let browser = cookie.find(&request.head.headers).unwrap_or_default();
        let mut response = match self.sign_person_in(&request.query, browser, request.peer, &trust).await {
            Ok((name, sign_in, session)) => {
                // Not a redirection: browsers leave a `SameSite=Strict` cookie out of a navigation that another site
                // has begun, and the issuer's page has begun this one.
                let mut response = render_page(StatusCode::OK, &SignedInPage { name: &name, next: &sign_in.next });
                request.session_cookie(config.url.is_https).set(&mut response, session.reveal(), LIFETIME);
                response
            }
            // Anybody can lead a browser here with a made-up answer, which must not end the sign-in that the browser
            // has begun.
            Err(fault @ (SignInFault::Unknown | SignInFault::OtherBrowser)) => {
                return self.refuse_sign_in(&fault, &config, request.peer);
            }
            Err(fault) => self.refuse_sign_in(&fault, &config, request.peer),
        };
        cookie.clear(&mut response);
        response
    }

    async fn sign_person_in(
        &self,
        query: &FormParams,
        browser: &[u8],
        peer: IpAddr,
        trust: &Trust,
    ) -> Result<(String, Arc<SignIn>, SessionSecret), SignInFault> {
        let sign_in = self.pending_sign_ins.take(query.get("state").as_bytes(), browser)?;
        let config = &sign_in.config;
        sign_in.issuer.check_name(config, query.get("iss"))?;
        if !query.get("error").is_empty() {
            return Err(SignInFault::Denied(oidc::clean_error(query.get("error"))));
        }
        let token = self.oidc.redeem(&sign_in, query.get("code"), trust).await?;
        let (person, role) = oidc::read_person(config, &token)?;
        let session = self.under_rules(config, || self.sessions.sign_person_in(person.clone(), role, peer))?;
        tracing::info!(actor = person.actor(peer), role = role.name(), "an operator has signed in");
        Ok((person.name, sign_in, session))
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

/// The status, the title and the explanation of a refused sign-in.
fn explain(fault: &SignInFault, config: &OidcConfig) -> (StatusCode, &'static str, String) {
    let OidcConfig { issuer, url, roles_claim: claim, .. } = config;
    let (status, title, why) = match fault {
        SignInFault::Unknown => (
            StatusCode::BAD_REQUEST,
            "The sign-in is over",
            "This sign-in is not known here: it was begun more than ten minutes ago, or this instance has been restarted \
             or has another configuration since, or another instance has begun it."
                .to_owned(),
        ),
        SignInFault::OtherBrowser => (
            StatusCode::BAD_REQUEST,
            "The sign-in is of another browser",
            format!("Another browser or another tab has begun this sign-in, or it was begun at another address than {url}."),
        ),
        SignInFault::Used => (
            StatusCode::BAD_REQUEST,
            "The sign-in was used already",
            "The issuer has answered this sign-in before, and an answer counts once.".to_owned(),
        ),
        SignInFault::OtherIssuer => (
            StatusCode::BAD_REQUEST,
            "The answer is by another issuer",
            format!("The answer does not say that it is by {issuer}, which was asked."),
        ),
        SignInFault::Denied(error) => {
            (StatusCode::FORBIDDEN, "The issuer has refused", format!("{issuer} has refused the sign-in: {error}."))
        }
        SignInFault::Issuer(problem) => (
            StatusCode::BAD_GATEWAY,
            "The issuer does not answer as it should",
            format!("{issuer} cannot be used: {problem}."),
        ),
        SignInFault::IdToken(fault) => (
            StatusCode::BAD_GATEWAY,
            "The issuer's token was refused",
            format!("The ID token of {issuer} was refused. {}", fault.detail()),
        ),
        SignInFault::NoRole { name, has_claim } => {
            let why = match has_claim {
                true => format!("No value of its claim `{claim}` is in `admin.oidc.operate` or `admin.oidc.read`."),
                false => {
                    format!("Its ID token has no claim `{claim}` (`admin.oidc.roles_claim`): the issuer must add it.")
                }
            };
            (StatusCode::FORBIDDEN, "Your account has no role here", format!("{issuer} has signed in as {name}. {why}"))
        }
    };
    let then = match fault {
        SignInFault::NoRole { .. } => "",
        SignInFault::Issuer(_) => {
            " Nobody was signed in. Begin again on the sign-in page. The listener's token still signs you in."
        }
        _ => " Nobody was signed in. Begin again on the sign-in page.",
    };
    (status, title, why + then)
}

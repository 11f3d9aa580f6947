//! The OpenID Connect issuer that signs operators in: its description, the address of its page, and the exchange of a
//! code for an ID token (authorization code flow with PKCE; OpenID Connect Core 1.0, RFC 7636, RFC 9207).
//!
//! No task keeps keys: a sign-in is rare, and what it needs is read then, so that a rotated key or a moved endpoint
//! needs no restart. The description is also read every five minutes, so that a metric shows an issuer that is away.
//! There is no client library: the tokens are verified by the code that verifies callers' tokens. The crate
//! `openidconnect` would bring a second HTTP client, and a second implementation of RSA and of elliptic curves.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::auth::Role;
use super::key_admin::actors;
use oncegate_domain::urlencoded::escape;
use oncegate_engine::instance::metrics::{IssuerTable, Metrics};
use oncegate_http::body::Body;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_http::upstream::issuer::{IssuerDescription, IssuerEndpoint, parse_document};
use oncegate_settings::{Config, OidcConfig};
use oncegate_trust::jwt::{
    IdToken, IdTokenFault, IdTokenRules, KEY_SET_BYTES_MAX, KeySet, PUBLIC_KEY_ALGORITHMS, TokenRules,
};
use oncegate_trust::tls::Trust;

/// The path below the page's address to which the issuer sends people back.
pub const CALLBACK: &str = "/sign-in/oidc/callback";

/// The time for which a description counts. Anybody who reaches the page can begin a sign-in: the issuer is not asked
/// for each.
const DESCRIPTION_AGE_MAX: Duration = Duration::from_secs(300);

/// The time for which the failure to read one counts.
const FAILURE_AGE_MAX: Duration = Duration::from_secs(10);

/// The pauses between two looks at the issuer: while it can be read, and while it cannot.
const WATCH_EVERY: Duration = Duration::from_secs(300);
const WATCH_AGAIN: Duration = Duration::from_secs(30);

/// The largest answer with a token. One with many groups has 100 KB.
const DOCUMENT_BYTES_MAX: usize = 1 << 20;

/// The connections to each endpoint of the issuer. More people wait for theirs.
const CONNECTIONS: usize = 8;

/// The difference between the issuer's clock and this machine's that is allowed for, as in `jwt.leeway`.
const LEEWAY: Duration = Duration::from_secs(30);

/// The scopes (OpenID Connect Core section 5.4) that every issuer knows, and that bring the names of people.
const SCOPES: [&str; 3] = ["openid", "profile", "email"];

/// The way to the issuer of one listener.
pub struct OidcClient {
    slots: Arc<UpstreamSlots>,
    /// Locked while the issuer is asked: all who come meanwhile wait for the same answer.
    description: Arc<Mutex<Option<CachedDescription>>>,
}

struct CachedDescription {
    of: Arc<OidcConfig>,
    issuer: Result<Arc<Issuer>, String>,
    read_at: Instant,
}

impl CachedDescription {
    fn is_current(&self, config: &Arc<OidcConfig>) -> bool {
        let age_max = if self.issuer.is_ok() { DESCRIPTION_AGE_MAX } else { FAILURE_AGE_MAX };
        self.of == *config && self.read_at.elapsed() < age_max
    }
}

#[derive(Debug)]
pub struct Issuer {
    authorization: String,
    token: IssuerEndpoint,
    keys: IssuerEndpoint,
    /// Whether the client's secret goes into the form: the issuer does not take it in `Authorization`.
    posts_secret: bool,
    /// Whether each answer through the browser names the issuer (RFC 9207).
    names_itself: bool,
    /// Whether there is a scope with the name of the claim of the roles, which brings it.
    has_scope_of_roles: bool,
}

#[derive(Deserialize)]
struct TokenAnswer {
    id_token: String,
}

#[derive(Deserialize)]
struct TokenRefusal {
    error: String,
}

pub struct SignIn {
    pub issuer: Arc<Issuer>,
    pub config: Arc<OidcConfig>,
    /// Random texts that its answer is checked with.
    pub nonce: String,
    pub verifier: String,
    /// The page to which it leads.
    pub next: String,
    pub begun: Instant,
}

/// A person who has signed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// The issuer's own name of them, which never changes.
    pub subject: String,
    /// The issuer that has signed them in, as a digest.
    pub issuer: String,
    pub name: String,
}

impl Person {
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.subject, &self.issuer) == (&other.subject, &other.issuer)
    }

    pub fn actor(&self, peer: IpAddr) -> String {
        actors::person_actor(&self.name, &self.subject, &self.issuer, peer)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum SignInFault {
    /// There is no such sign-in, or it is too old.
    Unknown,
    /// Another browser has begun it.
    OtherBrowser,
    /// The issuer has answered it before.
    Used,
    /// The answer is by another issuer than the one that was asked (a mix-up).
    OtherIssuer,
    /// The issuer has refused it, with this error of RFC 6749 section 4.1.2.1.
    Denied(String),
    /// The issuer gives no usable answer.
    Issuer(String),
    /// Its token is refused.
    IdToken(IdTokenFault),
    /// The person has none of the roles. Without the claim, the issuer does not tell them.
    NoRole { name: String, has_claim: bool },
}

impl OidcClient {
    pub fn new() -> Self {
        Self { slots: Arc::new(UpstreamSlots::new(CONNECTIONS)), description: Arc::default() }
    }

    /// The issuer as it describes itself now, or has within the last five minutes. Where it gives no usable
    /// description, it is asked again after ten seconds.
    pub async fn issuer(&self, config: &Arc<OidcConfig>, trust: &Trust) -> Result<Arc<Issuer>, SignInFault> {
        let mut description = Arc::clone(&self.description).lock_owned().await;
        if let Some(known) = description.as_ref().filter(|known| known.is_current(config)) {
            return known.issuer.clone().map_err(SignInFault::Issuer);
        }
        let (of, slots, trust) = (Arc::clone(config), Arc::clone(&self.slots), trust.clone());
        // In a task of its own: a client that does not wait must not make the next one ask again.
        let reading = tokio::spawn(async move {
            let found = IssuerDescription::read(&of.issuer, &trust, &slots).await;
            let issuer = found.and_then(|found| Issuer::new(found, &of)).map(Arc::new);
            *description = Some(CachedDescription { of, issuer: issuer.clone(), read_at: Instant::now() });
            issuer
        });
        reading.await.unwrap_or_else(|error| Err(error.to_string())).map_err(SignInFault::Issuer)
    }

    /// Exchanges a code for an ID token, and verifies it with the issuer's keys as they are now.
    pub async fn redeem(&self, sign_in: &SignIn, code: &str, trust: &Trust) -> Result<IdToken, SignInFault> {
        let SignIn { issuer, config, nonce, begun, .. } = sign_in;
        let answer = issuer.token.read(sign_in.token_request(code), DOCUMENT_BYTES_MAX, trust, &self.slots).await;
        let unusable = |problem| SignInFault::Issuer(format!("its answer to the code: {problem}"));
        let token = answer.and_then(parse_json::<TokenAnswer>).map_err(unusable)?.id_token;
        let keys = Request::new(Body::empty());
        let keys = issuer.keys.read(keys, KEY_SET_BYTES_MAX, trust, &self.slots).await;
        let keys = keys.and_then(|(status, text)| match status {
            StatusCode::OK => KeySet::parse(&text, &PUBLIC_KEY_ALGORITHMS),
            status => Err(format!("the answer has status {}", status.as_u16())),
        });
        let keys = keys.map_err(|problem| SignInFault::Issuer(format!("its keys: {problem}")))?;
        let rules = TokenRules {
            issuer: config.issuer.clone(),
            audience: vec![config.client_id.clone()],
            algorithms: PUBLIC_KEY_ALGORITHMS.into(),
            leeway: LEEWAY,
            claims: Default::default(),
            required: Vec::new(),
        };
        let own = IdTokenRules { client_id: &config.client_id, nonce, begun_ago: begun.elapsed() };
        IdToken::verify(&token, &keys, &rules, own).map_err(SignInFault::IdToken)
    }

    /// Reads the description of the issuer again and again. Its absence then has an alert before somebody has to sign
    /// in.
    pub async fn watch(&self, mut live: watch::Receiver<Arc<Config>>, metrics: &Metrics) {
        let mut is_failing = false;
        loop {
            let config = Arc::clone(&live.borrow_and_update());
            let failure = match &config.admin.oidc {
                Some(oidc) => self.issuer(oidc, &config.trust).await.err(),
                None => None,
            };
            metrics.issuer_unreachable.set(IssuerTable::AdminOidc, failure.is_some());
            let was_failing = std::mem::replace(&mut is_failing, failure.is_some());
            match failure {
                Some(SignInFault::Issuer(problem)) if !was_failing => {
                    tracing::warn!(
                        problem,
                        "the issuer of [admin.oidc] cannot be read; operators sign in with the token alone"
                    );
                }
                None if was_failing => tracing::info!("the issuer of [admin.oidc] can be read again"),
                _ => {}
            }
            let issuer_of = |config: &Config| config.admin.oidc.as_ref().map(|oidc| oidc.issuer.clone());
            let is_other = |new: &Arc<Config>| issuer_of(new) != issuer_of(&config);
            tokio::select! {
                changed = live.wait_for(is_other) => if changed.is_err() { return },
                () = tokio::time::sleep(if is_failing { WATCH_AGAIN } else { WATCH_EVERY }) => {}
            }
        }
    }
}

impl Issuer {
    pub fn new(found: IssuerDescription, config: &OidcConfig) -> Result<Self, String> {
        found.endpoint("authorization_endpoint", &found.authorization_endpoint)?;
        let takes = |method: &str| found.token_endpoint_auth_methods_supported.iter().any(|known| known == method);
        Ok(Self {
            token: found.endpoint("token_endpoint", &found.token_endpoint)?,
            keys: found.keys()?,
            posts_secret: takes("client_secret_post") && !takes("client_secret_basic"),
            names_itself: found.authorization_response_iss_parameter_supported,
            has_scope_of_roles: found.scopes_supported.iter().any(|scope| **scope == *config.roles_claim),
            authorization: found.authorization_endpoint,
        })
    }

    /// Checks the issuer's own name in its answer through the browser.
    pub fn check_name(&self, config: &OidcConfig, named: &str) -> Result<(), SignInFault> {
        match named {
            "" if !self.names_itself => Ok(()),
            named if *named == *config.issuer => Ok(()),
            _ => Err(SignInFault::OtherIssuer),
        }
    }
}

impl SignIn {
    /// The address of the issuer's page that signs a person in.
    pub fn url(&self, state: &str) -> String {
        let Self { issuer, config, nonce, verifier, .. } = self;
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier));
        let roles = issuer.has_scope_of_roles.then_some(&*config.roles_claim).filter(|scope| !SCOPES.contains(scope));
        let scopes: Vec<_> = SCOPES.into_iter().chain(roles).collect();
        let query = encode_form(&[
            ("response_type", "code"),
            ("client_id", &config.client_id),
            ("redirect_uri", &redirect_uri(config)),
            ("scope", &scopes.join(" ")),
            ("state", state),
            ("nonce", nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let separator = if issuer.authorization.contains('?') { '&' } else { '?' };
        format!("{}{separator}{query}", issuer.authorization)
    }

    fn token_request(&self, code: &str) -> Request<Body> {
        let Self { issuer, config, verifier, .. } = self;
        let redirect = redirect_uri(config);
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &redirect),
            ("code_verifier", verifier),
        ];
        let mut request = Request::new(Body::empty());
        match &config.client_secret {
            Some(secret) if issuer.posts_secret => {
                fields.extend([("client_id", &*config.client_id), ("client_secret", &*secret.0)]);
            }
            Some(secret) => {
                // RFC 6749 section 2.3.1: both are encoded as in a form.
                let pair = format!("{}:{}", escape(config.client_id.as_bytes()), escape(secret.0.as_bytes()));
                let value = format!("Basic {}", BASE64_STANDARD.encode(pair));
                let mut value = HeaderValue::from_str(&value).expect("base64 is visible ASCII");
                value.set_sensitive(true);
                request.headers_mut().insert(AUTHORIZATION, value);
            }
            None => fields.push(("client_id", &config.client_id)),
        }
        *request.method_mut() = Method::POST;
        *request.body_mut() = Body::whole(encode_form(&fields));
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, form);
        request
    }
}

/// The person of a token, and what they may do.
pub fn read_person(config: &OidcConfig, token: &IdToken) -> Result<(Person, Role), SignInFault> {
    let values = token.values(&config.roles_claim);
    let has_one_of =
        |allowed: &[Box<str>]| values.iter().flatten().any(|value| allowed.iter().any(|allowed| **allowed == **value));
    let issuer = actors::issuer_digest(config);
    let person = Person { subject: token.subject().to_owned(), issuer, name: token.name().to_owned() };
    match (has_one_of(&config.operate), has_one_of(&config.read)) {
        (true, _) => Ok((person, Role::Operator)),
        (false, true) => Ok((person, Role::Reader)),
        (false, false) => Err(SignInFault::NoRole { name: person.name, has_claim: values.is_some() }),
    }
}

fn redirect_uri(config: &OidcConfig) -> String {
    format!("{}{CALLBACK}", config.url)
}

fn encode_form(fields: &[(&str, &str)]) -> String {
    let pairs = fields.iter().map(|(name, value)| format!("{name}={}", escape(value.as_bytes())));
    pairs.collect::<Vec<_>>().join("&")
}

/// Reads a document. Where it is an error of RFC 6749 section 5.2, the problem names it.
fn parse_json<T: DeserializeOwned>((status, text): (StatusCode, bytes::Bytes)) -> Result<T, String> {
    if status != StatusCode::OK {
        let named =
            serde_json::from_slice::<TokenRefusal>(&text).map(|refusal| format!(": {}", clean_error(&refusal.error)));
        return Err(format!("the answer has status {}{}", status.as_u16(), named.unwrap_or_default()));
    }
    parse_document((status, text))
}

/// The code of an error, which is short and has visible ASCII alone (RFC 6749 section 4.1.2.1).
pub fn clean_error(code: &str) -> String {
    code.chars().filter(char::is_ascii_graphic).take(64).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use oncegate_settings::PageUrl;

    #[test]
    fn an_issuer_with_tls_names_no_endpoint_without_it() {
        let describe = |issuer: &str, changed: &str, url: &str| {
            let mut found = json!({ "issuer": issuer });
            for name in ["authorization_endpoint", "token_endpoint", "jwks_uri"] {
                found[name] = json!(if name == changed { url.to_owned() } else { format!("{issuer}/x") });
            }
            let url = PageUrl { is_https: true, authority: http::uri::Authority::from_static("page.example") };
            let config = OidcConfig {
                issuer: issuer.into(),
                client_id: "page".into(),
                client_secret: None,
                url,
                roles_claim: "groups".into(),
                read: Vec::new(),
                operate: vec!["ops".into()],
            };
            Issuer::new(serde_json::from_value(found).unwrap(), &config).map(|_| ())
        };
        for name in ["authorization_endpoint", "token_endpoint", "jwks_uri"] {
            let refused = Err(format!("its `{name}` has no TLS, and the issuer has"));
            assert_eq!(describe("https://issuer.example", name, "http://127.0.0.1:9/x"), refused);
            assert_eq!(describe("https://issuer.example", name, "https://other.example/x"), Ok(()));
            assert_eq!(describe("http://127.0.0.1:9", name, "http://127.0.0.1:10/x"), Ok(()));
        }
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_not_quoted() {
        for answer in [r#"{"id_token":{"secret":1}}"#, r#""secret""#, r#"{"id_token":"secret"#, r#"{"secret":1}"#] {
            let problem = parse_json::<TokenAnswer>((StatusCode::OK, answer.into())).err().unwrap();
            assert!(problem.contains("cannot be read") && !problem.contains("secret"), "{answer}: {problem}");
            assert!(parse_json::<Value>((StatusCode::OK, r#"{"id_token":"x"}"#.into())).is_ok());
        }
    }
}

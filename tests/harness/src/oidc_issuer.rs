//! An OpenID Connect issuer: a real HTTP server that signs people in at once, keeps its codes, and checks what it is
//! asked for a token with. A test makes it break one rule.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, get_current_timestamp};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::issuer::{SigningKey, key_set};
use super::wire::Wire;

pub const CLIENT: &str = "oncegate page";
pub const SECRET: &str = "a secret: with & % signs";

/// The change that a test makes in the issuer's answers.
pub type Breach = fn(&mut IssuerAnswers);

/// The values in the issuer's answers.
pub struct IssuerAnswers {
    /// The claims of the ID token.
    pub claims: Value,
    /// The `error` instead of a code.
    pub error: Option<&'static str>,
    /// The `iss` beside the code.
    pub iss: Option<String>,
    /// Whether a key signs the token that is not published.
    pub signs_with_other_key: bool,
    /// Whether the endpoint for tokens answers with an error.
    pub refuses_code: bool,
}

/// A sign-in between the issuer's page and its endpoint for tokens.
struct IssuedCode {
    query: BTreeMap<String, String>,
    token: Option<String>,
}

struct Inner {
    address: SocketAddr,
    key: SigningKey,
    other_key: SigningKey,
    person: Mutex<Value>,
    breach: Mutex<Option<Breach>>,
    codes: Mutex<BTreeMap<String, IssuedCode>>,
    /// The path whose answers wait, and the number of requests for it that have come.
    held: watch::Sender<(&'static str, usize)>,
}

/// The running server.
pub struct OidcIssuer(Arc<Inner>);

impl OidcIssuer {
    pub async fn start(algorithm: Algorithm) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inner = Arc::new(Inner {
            address: listener.local_addr().unwrap(),
            key: SigningKey::new("a", algorithm),
            other_key: SigningKey::new("a", algorithm),
            person: Mutex::new(json!({})),
            breach: Mutex::default(),
            codes: Mutex::default(),
            held: watch::Sender::new(("", 0)),
        });
        let issuer = Self(Arc::clone(&inner));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(Arc::clone(&inner), stream));
            }
        });
        issuer
    }

    pub fn url(&self) -> String {
        self.0.url()
    }

    /// The short text for this issuer and its client in an actor of the audit log.
    pub fn digest(&self) -> String {
        let digest = Sha256::digest(format!("{}\n{CLIENT}", self.url()));
        digest[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Has the answers of this path below the issuer's address wait, or none.
    pub fn hold(&self, path: &'static str) {
        self.0.held.send_replace((path, 0));
    }

    /// Waits until a request waits.
    pub async fn wait_until_asked(&self) {
        self.0.held.subscribe().wait_for(|(_, asked)| *asked > 0).await.unwrap();
    }

    /// The next person who signs in, by the claims of the token, and the rule that the issuer breaks.
    pub fn sign_in_next(&self, person: Value, breach: Option<Breach>) {
        (*self.0.person.lock().unwrap(), *self.0.breach.lock().unwrap()) = (person, breach);
    }
}

impl Inner {
    fn url(&self) -> String {
        format!("http://{}/realm", self.address)
    }

    fn answer(&self, target: &str, authorization: Option<&str>, body: &[u8]) -> (u16, String, Vec<(String, String)>) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let json = |status: u16, document: Value| {
            (status, document.to_string(), vec![("Content-Type".to_owned(), "application/json".to_owned())])
        };
        let url = self.url();
        match path {
            "/realm/.well-known/openid-configuration" => json(
                200,
                json!({
                    "issuer": url, "authorization_endpoint": format!("{url}/page"), "token_endpoint": format!("{url}/token"),
                    "jwks_uri": format!("{url}/keys"), "authorization_response_iss_parameter_supported": true,
                    "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
                    "scopes_supported": ["openid", "groups"],
                }),
            ),
            "/realm/keys" => (200, key_set(&[self.key.jwk()]), Vec::new()),
            "/realm/page" => (302, String::new(), vec![("Location".to_owned(), self.sign_in(parse_form(query)))]),
            "/realm/token" => match self.redeem(authorization, &parse_form(std::str::from_utf8(body).unwrap())) {
                Ok(token) => json(200, json!({ "token_type": "Bearer", "access_token": "x", "id_token": token })),
                Err(why) => json(400, json!({ "error": "invalid_grant", "error_description": why })),
            },
            other => panic!("the issuer has no {other}"),
        }
    }

    /// Signs the person in, and returns the address to which the browser is sent back.
    fn sign_in(&self, query: BTreeMap<String, String>) -> String {
        let value = |name: &str| query.get(name).unwrap_or_else(|| panic!("the request has no {name}")).clone();
        assert_eq!((&*value("client_id"), &*value("response_type")), (CLIENT, "code"));
        assert_eq!(value("code_challenge_method"), "S256");
        assert!(value("scope").starts_with("openid profile email"), "{query:?}");
        let now = get_current_timestamp();
        let mut claims = json!({
            "iss": self.url(), "aud": CLIENT, "exp": now + 300, "iat": now, "nonce": value("nonce"), "sub": "subject-7"
        });
        claims.as_object_mut().unwrap().extend(self.person.lock().unwrap().as_object().unwrap().clone());
        let mut answers = IssuerAnswers {
            claims,
            error: None,
            iss: Some(self.url()),
            signs_with_other_key: false,
            refuses_code: false,
        };
        if let Some(breach) = *self.breach.lock().unwrap() {
            breach(&mut answers);
        }
        let key = if answers.signs_with_other_key { &self.other_key } else { &self.key };
        let token = (!answers.refuses_code).then(|| key.sign(&answers.claims));
        let (redirect, state) = (value("redirect_uri"), value("state"));
        let mut codes = self.codes.lock().unwrap();
        let code = format!("code-{}", codes.len());
        codes.insert(code.clone(), IssuedCode { query, token });
        let outcome = answers.error.map_or(format!("code={code}"), |error| format!("error={error}"));
        let iss = answers.iss.map_or(String::new(), |iss| format!("&iss={}", iss.replace(':', "%3A")));
        format!("{redirect}?{outcome}&state={state}{iss}")
    }

    /// Exchanges a code, once, for the client and the browser that it was given to.
    fn redeem(&self, authorization: Option<&str>, form: &BTreeMap<String, String>) -> Result<String, &'static str> {
        let escaped = |text: &str| text.replace('%', "%25").replace(' ', "+").replace(':', "%3A").replace('&', "%26");
        let client = format!("{}:{}", escaped(CLIENT), escaped(SECRET)).replace('+', "%20");
        let shown = authorization.and_then(|value| BASE64_STANDARD.decode(value.strip_prefix("Basic ")?).ok());
        let shown = String::from_utf8(shown.unwrap_or_default()).unwrap().replace('+', "%20");
        if shown != client {
            return Err("the client does not show its secret");
        }
        let issued = self.codes.lock().unwrap().remove(&form["code"]).ok_or("the code is not known")?;
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"]));
        if issued.query["code_challenge"] != challenge || form["grant_type"] != "authorization_code" {
            return Err("the verifier is wrong");
        }
        if issued.query["redirect_uri"] != form["redirect_uri"] {
            return Err("the redirect URI is another one");
        }
        issued.token.ok_or("this code is refused")
    }
}

async fn serve(inner: Arc<Inner>, stream: TcpStream) {
    let mut wire = Wire::new(stream);
    while let Ok(Some(head)) = wire.head().await {
        let field = |name: &str| head.fields.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone());
        let length = field("content-length").map_or(0, |length| length.parse().unwrap());
        let (mut framing, mut body, mut trailers) = (super::wire::Framing::Length(length), Vec::new(), Vec::new());
        while let Ok(Some(piece)) = wire.piece(&mut framing, &mut trailers).await {
            body.extend(piece);
        }
        let target = head.start.split(' ').nth(1).unwrap();
        let is_held = |held: &str| !held.is_empty() && target.ends_with(held);
        inner.held.send_if_modified(|(held, asked)| {
            *asked += usize::from(is_held(held));
            is_held(held)
        });
        inner.held.subscribe().wait_for(|(held, _)| !is_held(held)).await.unwrap();
        let (status, text, fields) = inner.answer(target, field("authorization").as_deref(), &body);
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let answer = format!("HTTP/1.1 {status} X\r\n{fields}Content-Length: {}\r\n\r\n{text}", text.len());
        if wire.write(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn parse_form(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    let decode = |text: &str| {
        let text = text.replace('+', " ");
        percent_encoding::percent_decode_str(&text).decode_utf8().unwrap().into_owned()
    };
    pairs.map(|(name, value)| (decode(name), decode(value))).collect()
}

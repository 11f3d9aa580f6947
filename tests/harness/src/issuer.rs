//! An issuer of tokens: its keys, the key set that it publishes, and the tokens that it signs.

use std::net::SocketAddr;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256};
use serde_json::{Value, json};

use super::upstream::{Answer, Upstream};

pub const ISSUER: &str = "https://login.example";
pub const AUDIENCE: &str = "shop";

/// A key pair with the name under which its public key is published.
pub struct SigningKey {
    pub id: String,
    pub algorithm: Algorithm,
    pair: KeyPair,
}

impl SigningKey {
    pub fn new(id: &str, algorithm: Algorithm) -> Self {
        let kind = match algorithm {
            Algorithm::RS256 => &PKCS_RSA_SHA256,
            Algorithm::ES256 => &PKCS_ECDSA_P256_SHA256,
            Algorithm::EdDSA => &PKCS_ED25519,
            other => panic!("no test needs {other:?}"),
        };
        Self { id: id.to_owned(), algorithm, pair: KeyPair::generate_for(kind).unwrap() }
    }

    fn encoding_key(&self) -> EncodingKey {
        let pem = self.pair.serialize_pem();
        match self.algorithm {
            Algorithm::RS256 => EncodingKey::from_rsa_pem(pem.as_bytes()).unwrap(),
            Algorithm::ES256 => EncodingKey::from_ec_pem(pem.as_bytes()).unwrap(),
            _ => EncodingKey::from_ed_der(&self.pair.serialize_der()),
        }
    }

    /// The public key as PEM.
    pub fn public_pem(&self) -> String {
        self.pair.public_key_pem()
    }

    /// The public key as it is published.
    pub fn jwk(&self) -> Value {
        let mut jwk = match self.algorithm {
            // The library does not read the public key out of this form of a private one.
            Algorithm::EdDSA => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": BASE64_URL_SAFE_NO_PAD.encode(self.pair.public_key_raw()) })
            }
            algorithm => {
                serde_json::to_value(Jwk::from_encoding_key(&self.encoding_key(), algorithm).unwrap()).unwrap()
            }
        };
        jwk["kid"] = json!(self.id);
        jwk
    }

    /// A token for this subject, whose `jti` makes it another one than the last.
    pub fn token(&self, subject: &str) -> String {
        self.sign(&claims(subject))
    }

    pub fn sign(&self, claims: &Value) -> String {
        self.sign_under(Some(&self.id), claims)
    }

    /// A token whose header names another key, or none.
    pub fn sign_under(&self, id: Option<&str>, claims: &Value) -> String {
        let header = Header { kid: id.map(str::to_owned), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.encoding_key()).unwrap()
    }
}

/// The claims of a good token.
pub fn claims(subject: &str) -> Value {
    let now = get_current_timestamp();
    json!({ "iss": ISSUER, "aud": AUDIENCE, "exp": now + 300, "nbf": now - 5, "jti": unique_number(), "sub": subject })
}

/// A number that differs from the last.
fn unique_number() -> u64 {
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// The text of a key set.
pub fn key_set(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

/// A server of key sets.
pub struct KeyServer(pub Upstream);

impl KeyServer {
    pub async fn start(keys: &[Value]) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), keys).await
    }

    pub async fn start_at(address: SocketAddr, keys: &[Value]) -> Self {
        let server = Self(Upstream::start_at(address).await);
        server.publish(keys);
        server
    }

    /// Publishes these keys from now on.
    pub fn publish(&self, keys: &[Value]) {
        self.0.answer_all(Answer::status(200).field("Content-Type", "application/json").body(key_set(keys)));
    }

    pub fn url(&self) -> String {
        format!("http://{}/jwks.json", self.0.address)
    }

    /// The number of reads.
    pub fn reads(&self) -> usize {
        self.0.calls()
    }
}

/// The `[jwt]` table, as a line at the top of the file, with the keys at this place and further keys.
pub fn jwt(keys: &str, more: &str) -> String {
    format!("jwt = {{ issuer = {ISSUER:?}, audience = {AUDIENCE:?}, jwks = {keys:?}{more} }}")
}

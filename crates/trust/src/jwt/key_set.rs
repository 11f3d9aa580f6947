//! The keys of an issuer (RFC 7517), each with the algorithms that it is for.

use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use serde::Deserialize;
use serde_json::Value;

use super::{Algorithm, TokenFault};

/// The largest key set that is read. Those of large issuers have some ten kilobytes.
pub const KEY_SET_BYTES_MAX: usize = 1 << 20;

/// The most keys of a set. Issuers publish two to ten.
const KEYS_MAX: usize = 100;

/// The keys of an issuer that can verify tokens.
#[derive(Debug)]
pub struct KeySet(Vec<VerificationKey>);

#[derive(Debug)]
struct VerificationKey {
    id: Option<Box<str>>,
    /// The algorithms that its type, its curve and its `alg` leave, among the allowed ones.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct KeySetDocument {
    keys: Vec<Value>,
}

impl KeySet {
    /// Reads a JSON Web Key Set. Keys that are for something else, or for no allowed algorithm, are left out.
    /// An error is the problem, beginning with a verb.
    pub fn parse(text: &[u8], allowed: &[Algorithm]) -> Result<Self, String> {
        if text.len() > KEY_SET_BYTES_MAX {
            return Err("is larger than 1 MiB".into());
        }
        let document: KeySetDocument = serde_json::from_slice(text)
            .map_err(|_| "is no JSON Web Key Set: it needs an object with the list `keys`".to_owned())?;
        if document.keys.len() > KEYS_MAX {
            return Err(format!("has more than {KEYS_MAX} keys"));
        }
        // One by one: a key of a kind that is not known here must not take the others with it.
        let keys = document.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
        let keys: Vec<_> = keys.filter_map(|key| VerificationKey::new(&key, allowed)).collect();
        if keys.is_empty() {
            return Err("has no key that verifies signatures by one of the allowed `algorithms`".into());
        }
        Ok(Self(keys))
    }

    /// The keys for a token with this `kid` and algorithm; without a `kid`, all keys for the algorithm.
    /// An error: no key has this `kid`, or none of those that have it is for the algorithm.
    pub(super) fn find(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<impl Iterator<Item = &DecodingKey>, TokenFault> {
        let named = move |key: &&VerificationKey| id.is_none_or(|id| key.id.as_deref() == Some(id));
        if !self.0.iter().any(|key| named(&key)) {
            return Err(TokenFault::UnknownKey);
        }
        let mut fitting = self.0.iter().filter(named).filter(move |key| key.algorithms.contains(&algorithm)).peekable();
        match fitting.peek() {
            Some(_) => Ok(fitting.map(|key| &key.key)),
            None => Err(TokenFault::Algorithm),
        }
    }
}

impl VerificationKey {
    /// `None` for a key that verifies no token here.
    fn new(jwk: &Jwk, allowed: &[Algorithm]) -> Option<Self> {
        let common = &jwk.common;
        let is_for_signatures = common.public_key_use.as_ref().is_none_or(|of| *of == PublicKeyUse::Signature);
        let verifies = common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
        if !is_for_signatures || !verifies {
            return None;
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        let own = common.key_algorithm;
        let mut algorithms = algorithms_of_type(&jwk.algorithm, &key).to_vec();
        // Both kinds of algorithms have the names of RFC 7518.
        algorithms.retain(|one| allowed.contains(one) && own.is_none_or(|own| own.to_string() == format!("{one:?}")));
        let id = common.key_id.as_deref().map(Into::into);
        (!algorithms.is_empty()).then_some(Self { id, algorithms, key })
    }
}

/// The algorithms that a key's type and curve allow. A public key of one type is never the secret of another algorithm.
fn algorithms_of_type(parameters: &AlgorithmParameters, key: &DecodingKey) -> &'static [Algorithm] {
    use Algorithm::{ES256, ES384, EdDSA, HS256, HS384, HS512, PS256, PS384, PS512, RS256, RS384, RS512};
    match parameters {
        AlgorithmParameters::RSA(_) => &[RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(of) => match of.curve {
            EllipticCurve::P256 => &[ES256],
            EllipticCurve::P384 => &[ES384],
            _ => &[],
        },
        AlgorithmParameters::OctetKeyPair(of) if of.curve == EllipticCurve::Ed25519 => &[EdDSA],
        // A secret that is shorter than the hash can be guessed more easily than the hash (RFC 7518 section 3.2).
        AlgorithmParameters::OctetKey(_) => match key.try_get_as_bytes().map_or(0, <[u8]>::len) {
            64.. => &[HS256, HS384, HS512],
            48.. => &[HS256, HS384],
            32.. => &[HS256],
            _ => &[],
        },
        _ => &[],
    }
}

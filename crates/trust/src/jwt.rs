//! JSON Web Tokens (RFC 7519): verifies a caller's token, or an operator's ID token, with the keys of its issuer.
//!
//! Nothing here opens a file or a connection. The signature is checked before any claim is believed, with keys of the
//! key set alone: keys and addresses of keys in the token's own header (`jwk`, `jku`, `x5c`, `x5u`) are never used.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};

pub use claims::ClaimReading;
use claims::UniqueClaims;
pub use id_token::{IdToken, IdTokenFault, IdTokenRules};
pub use jsonwebtoken::Algorithm;
pub use key_set::{KEY_SET_BYTES_MAX, KeySet};
use oncegate_domain::macros::named;

mod claims;
mod id_token;
mod key_set;

/// The keys tried for a token without a `kid`. An issuer signs with one or two at a time, and a try costs up to 0.1 ms.
const KEYS_TRIED_MAX: usize = 16;

/// The algorithms whose keys an issuer can publish: with them, nobody but the issuer makes tokens.
pub const PUBLIC_KEY_ALGORITHMS: [Algorithm; 9] = {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    [RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA]
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRules {
    /// The only `iss`.
    pub issuer: Box<str>,
    /// The `aud`, of which a token names one at least.
    pub audience: Vec<Box<str>>,
    pub algorithms: Vec<Algorithm>,
    /// The difference between the issuer's clock and this machine's that is allowed for.
    pub leeway: Duration,
    /// The claims that scopes read. No other claim is kept.
    pub claims: BTreeSet<Box<str>>,
    /// Claims that each token must have, with their values.
    pub required: Vec<(Box<str>, Box<str>)>,
}

named! {
    pub enum TokenFault {
        /// Its algorithm is not allowed, or its key is for another one.
        Algorithm => "algorithm",
        Audience => "audience",
        /// A claim that the scope reads names nobody.
        Claim => "claim",
        /// It has expired, or has no time of expiry.
        Expired => "expired",
        Issuer => "issuer",
        /// It is no signed token.
        Malformed => "malformed",
        NotYetValid => "not_yet_valid",
        /// A claim has another value than `jwt.require` has.
        Required => "required",
        /// Its signature is not by a key of the issuer.
        Signature => "signature",
        /// The issuer has published no key of its `kid`.
        UnknownKey => "unknown_key",
    }
}

impl TokenFault {
    /// The fault in a sentence for the caller.
    pub fn detail(self) -> &'static str {
        match self {
            Self::Algorithm => "The token's algorithm is not allowed here, or not the one that its key is for.",
            Self::Audience => "The token is for another audience.",
            Self::Claim => {
                "A claim of the token that identifies its caller is no text, boolean or whole number of 64 bits."
            }
            Self::Expired => "The token has expired, or does not say when it expires.",
            Self::Issuer => "The token is from another issuer.",
            Self::Malformed => "The token is no signed JSON Web Token that can be read.",
            Self::NotYetValid => "The token is not valid yet.",
            Self::Required => "The token is not for what is done here: a claim has another value than it must have.",
            Self::Signature => "The token's signature is not by a key of its issuer.",
            Self::UnknownKey => "The token names a key that its issuer has not published.",
        }
    }
}

/// A token whose signature and claims have been verified.
#[derive(Debug)]
pub struct VerifiedToken {
    claims: Vec<(Box<str>, ClaimReading)>,
    /// The time until which it counts, in seconds since 1970: its expiry and the leeway.
    valid_until: u64,
}

impl VerifiedToken {
    pub fn claim(&self, name: &str) -> &ClaimReading {
        let found = self.claims.iter().find(|(known, _)| **known == *name);
        found.map_or(&ClaimReading::Absent, |(_, reading)| reading)
    }

    pub fn is_current(&self, now: SystemTime) -> bool {
        // A clock before 1970 tells no time.
        now.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|now| now.as_secs() <= self.valid_until)
    }
}

/// Verifies a token: its signature by a key of the set that is for its algorithm, then `exp`, `nbf`, `iss` and `aud`.
pub fn verify(token: &str, keys: &KeySet, rules: &TokenRules) -> Result<VerifiedToken, TokenFault> {
    let found = verify_claims(token, keys, rules)?;
    let expiry = found.seconds("exp").ok_or(TokenFault::Expired)?;
    let claims = rules.claims.iter().map(|name| (name.clone(), found.read(name))).collect();
    Ok(VerifiedToken { claims, valid_until: expiry.saturating_add(rules.leeway.as_secs()) })
}

fn verify_claims(token: &str, keys: &KeySet, rules: &TokenRules) -> Result<UniqueClaims, TokenFault> {
    // No variant of `Algorithm` is `none`: such a header cannot be read.
    let header = decode_header(token).map_err(|_| TokenFault::Malformed)?;
    // RFC 7515 section 4.1.11: an extension that must be understood, and none is.
    if header.crit.is_some() {
        return Err(TokenFault::Malformed);
    }
    if !rules.algorithms.contains(&header.alg) {
        return Err(TokenFault::Algorithm);
    }
    let validation = validation(rules, header.alg);
    for key in keys.find(header.kid.as_deref(), header.alg)?.take(KEYS_TRIED_MAX) {
        match decode::<UniqueClaims>(token, key, &validation) {
            // The library takes a list of issuers too, if ours is in it. `iss` is one text (RFC 7519 section 4.1.1).
            Ok(found) if found.claims.text("iss") != Some(&*rules.issuer) => return Err(TokenFault::Issuer),
            Ok(found) => {
                let has = |(name, value): &(Box<str>, Box<str>)| found.claims.read(name).is_text(value);
                return if rules.required.iter().all(has) { Ok(found.claims) } else { Err(TokenFault::Required) };
            }
            Err(error) => match fault_after_signature(error.kind()) {
                Some(fault) => return Err(fault),
                // Not by this key.
                None => continue,
            },
        }
    }
    Err(TokenFault::Signature)
}

fn validation(rules: &TokenRules, algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    // Without this, a token that lacks one of them would pass its check.
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    validation.set_issuer(&[&rules.issuer]);
    validation.set_audience(&rules.audience);
    validation.validate_nbf = true;
    validation.leeway = rules.leeway.as_secs();
    validation
}

/// The fault of a token whose signature is right; `None` where the signature is not right by this key.
fn fault_after_signature(error: &ErrorKind) -> Option<TokenFault> {
    Some(match error {
        ErrorKind::ExpiredSignature => TokenFault::Expired,
        ErrorKind::ImmatureSignature => TokenFault::NotYetValid,
        ErrorKind::InvalidAudience => TokenFault::Audience,
        ErrorKind::InvalidIssuer => TokenFault::Issuer,
        ErrorKind::MissingRequiredClaim(claim) => match claim.as_str() {
            "exp" => TokenFault::Expired,
            "iss" => TokenFault::Issuer,
            _ => TokenFault::Audience,
        },
        ErrorKind::Base64(_) | ErrorKind::InvalidClaimFormat(_) | ErrorKind::Json(_) | ErrorKind::Utf8(_) => {
            TokenFault::Malformed
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests;

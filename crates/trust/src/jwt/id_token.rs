//! ID tokens (OpenID Connect Core 1.0 section 3.1.3.7): the rules that they have beyond those of all tokens.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::claims::UniqueClaims;
use super::{KeySet, TokenFault, TokenRules, verify_claims};

/// The values that an ID token of one sign-in must have, beyond those of [`TokenRules`].
#[derive(Clone, Copy, Debug)]
pub struct IdTokenRules<'a> {
    pub client_id: &'a str,
    /// The random text that this sign-in has sent.
    pub nonce: &'a str,
    /// The time since the sign-in began: no token of it is older.
    pub begun_ago: Duration,
}

/// The reason why an ID token signs nobody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::From)]
pub enum IdTokenFault {
    /// It breaks a rule of all tokens.
    Token(TokenFault),
    /// It was made for another client.
    AuthorizedParty,
    /// It is of another sign-in.
    Nonce,
    /// It was made before the sign-in began, in the future, or at no known time.
    IssuedAt,
    /// It names nobody.
    Subject,
}

impl IdTokenFault {
    /// The fault in a sentence for the person who signs in.
    pub fn detail(self) -> &'static str {
        match self {
            Self::Token(fault) => fault.detail(),
            Self::AuthorizedParty => {
                "The token is for several audiences, or for another party: its `azp` does not name this client."
            }
            Self::Nonce => "The token is of another sign-in: its `nonce` is not the one that was sent.",
            Self::IssuedAt => "The token does not say that it was made during this sign-in (`iat`).",
            Self::Subject => "The token names no person: it has no `sub`.",
        }
    }
}

/// A verified ID token.
#[derive(Debug)]
pub struct IdToken(UniqueClaims);

impl IdToken {
    /// Verifies an ID token, as [`verify`](super::verify) does, and then as one of this sign-in.
    pub fn verify(token: &str, keys: &KeySet, rules: &TokenRules, own: IdTokenRules<'_>) -> Result<Self, IdTokenFault> {
        let claims = verify_claims(token, keys, rules)?;
        let is_for_several = matches!(claims.get("aud"), Some(Value::Array(all)) if all.len() > 1);
        match claims.get("azp") {
            None if !is_for_several => {}
            Some(Value::String(party)) if party == own.client_id => {}
            _ => return Err(IdTokenFault::AuthorizedParty),
        }
        if claims.text("nonce") != Some(own.nonce) {
            return Err(IdTokenFault::Nonce);
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let earliest = now.saturating_sub(own.begun_ago + rules.leeway).as_secs();
        let latest = (now + rules.leeway).as_secs();
        if !claims.seconds("iat").is_some_and(|made| (earliest..=latest).contains(&made)) {
            return Err(IdTokenFault::IssuedAt);
        }
        match claims.text("sub") {
            None | Some("") => Err(IdTokenFault::Subject),
            Some(_) => Ok(Self(claims)),
        }
    }

    /// The person, as the issuer alone names them: it never changes, and is never given to another person.
    pub fn subject(&self) -> &str {
        self.0.text("sub").unwrap_or_default()
    }

    /// The person's name for other people. It may change, and two persons may have the same.
    pub fn name(&self) -> &str {
        let email = self.0.text("email").filter(|_| self.0.get("email_verified") != Some(&Value::Bool(false)));
        let names = [self.0.text("preferred_username"), email];
        names.into_iter().flatten().find(|name| !name.trim().is_empty()).unwrap_or_else(|| self.subject())
    }

    /// The texts of a claim: one text, or a list. The whole name counts first, as names may have dots; otherwise a dot
    /// leads into an object. `None` where there is no such claim.
    pub fn values(&self, path: &str) -> Option<Vec<&str>> {
        let inner = || {
            let mut parts = path.split('.');
            let first = self.0.get(parts.next()?)?;
            parts.try_fold(first, |value, part| value.get(part))
        };
        match self.0.get(path).or_else(inner)? {
            Value::String(text) => Some(vec![text]),
            Value::Array(all) => Some(all.iter().filter_map(Value::as_str).collect()),
            _ => Some(Vec::new()),
        }
    }
}

//! The caller's token: the Bearer token of `Authorization`, verified where the route's scope reads it.

use std::borrow::Cow;
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::gate::routing::ActiveRoute;
use crate::instance::token_verifier::{TokenError, TokenVerifier};
use oncegate_http::protocol::refusal::Refusal;
use oncegate_trust::jwt::{ClaimReading, TokenFault, VerifiedToken};

/// A request's token, as far as it identifies the caller.
#[derive(Clone, Debug)]
pub enum CallerToken {
    /// The request has none.
    Absent,
    /// Nobody has looked for it. A scope that reads it refuses the request.
    Unread,
    /// It was verified.
    Verified(Arc<VerifiedToken>),
}

impl CallerToken {
    /// The value of a claim as a part of a scope, with its issuer before it: the same name from another issuer is
    /// another caller, also where two configurations share a store. `None` if the request lacks it.
    pub(super) fn identify(&self, issuer: &str, claim: &str) -> Result<Option<Vec<u8>>, Refusal> {
        match self {
            Self::Absent => Ok(None),
            Self::Unread => Err(Refusal::IssuerUnavailable),
            Self::Verified(token) => match token.claim(claim) {
                ClaimReading::Absent => Ok(None),
                ClaimReading::Unusable => Err(Refusal::TokenInvalid(TokenFault::Claim)),
                ClaimReading::Value(value) => Ok(Some(claim_of_issuer(issuer, value))),
            },
        }
    }
}

/// A claim's value as a part of a scope: behind its issuer, whose length comes first.
pub(super) fn claim_of_issuer(issuer: &str, value: &[u8]) -> Vec<u8> {
    let length = (issuer.len() as u64).to_be_bytes();
    [&length, issuer.as_bytes(), value].concat()
}

/// The way to the caller's token.
#[derive(Clone, Copy)]
pub(in crate::gate) enum TokenSource<'a> {
    /// No scope reads it.
    Unread,
    /// It was verified before, or this is its refusal.
    Verified(&'a Result<CallerToken, Refusal>),
    Verifier(&'a TokenVerifier),
}

impl<'a> From<&'a ActiveRoute> for TokenSource<'a> {
    fn from(active: &'a ActiveRoute) -> Self {
        active.token_verifier.as_deref().map_or(Self::Unread, Self::Verifier)
    }
}

impl TokenSource<'_> {
    pub(super) async fn read(self, headers: &HeaderMap) -> Result<CallerToken, Refusal> {
        match self {
            Self::Unread => Ok(CallerToken::Unread),
            Self::Verified(token) => token.clone(),
            Self::Verifier(verifier) => Box::pin(verify_token(verifier, headers)).await,
        }
    }
}

/// Verifies the Bearer token of a request, if it has one.
///
/// # Errors
/// The token does not verify, cannot be verified now, or there are two `Authorization` fields.
pub async fn verify_token(verifier: &TokenVerifier, headers: &HeaderMap) -> Result<CallerToken, Refusal> {
    let Some(token) = bearer_token(headers)? else { return Ok(CallerToken::Absent) };
    match verifier.verify(token).await {
        Ok(token) => Ok(CallerToken::Verified(token)),
        Err(TokenError::NoKeys) => Err(Refusal::IssuerUnavailable),
        Err(TokenError::Refused(fault)) => Err(Refusal::TokenInvalid(fault)),
    }
}

/// The token behind the scheme `Bearer`, in any case (RFC 6750 section 2.1). Other schemes carry none.
fn bearer_token(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(value) = only(headers.get_all(AUTHORIZATION).iter())? else { return Ok(None) };
    let value = value.as_bytes().trim_ascii();
    let end = value.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(value.len());
    let (scheme, rest) = value.split_at(end);
    let token = rest.trim_ascii_start();
    if !scheme.eq_ignore_ascii_case(b"bearer") || token.is_empty() {
        return Ok(None);
    }
    str::from_utf8(token).map(Some).map_err(|_| Refusal::TokenInvalid(TokenFault::Malformed))
}

/// The one value that names the caller. With two, nobody can tell which one the service would believe.
pub(super) fn only<T>(mut values: impl Iterator<Item = T>) -> Result<Option<T>, Refusal> {
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(SENT_TWICE),
    }
}

/// The refusal of a request with two values that name the caller.
pub(super) const SENT_TWICE: Refusal = Refusal::ScopeMissing(
    Cow::Borrowed("A field, cookie or parameter that identifies the caller was sent more than once."),
    None,
);

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_token_is_what_follows_the_scheme_bearer() {
        for (value, token) in [
            ("Bearer a.b.c", Some("a.b.c")),
            ("bearer \t a.b.c ", Some("a.b.c")),
            ("Bearer", None),
            ("Bearer  ", None),
            ("Basic a.b.c", None),
            ("DPoP a.b.c", None),
            ("a.b.c", None),
            ("", None),
        ] {
            let headers = [(AUTHORIZATION, HeaderValue::from_static(value))].into_iter().collect();
            assert_eq!(bearer_token(&headers), Ok(token), "{value}");
        }
        assert_eq!(bearer_token(&HeaderMap::new()), Ok(None));
        let mut twice = HeaderMap::new();
        for value in ["Bearer a", "Bearer b"] {
            twice.append(AUTHORIZATION, HeaderValue::from_static(value));
        }
        assert!(bearer_token(&twice).is_err());
    }

    #[test]
    fn a_token_that_nobody_has_looked_for_identifies_nobody() {
        assert_eq!(CallerToken::Unread.identify("i", "sub"), Err(Refusal::IssuerUnavailable));
        assert_eq!(CallerToken::Absent.identify("i", "sub"), Ok(None));
    }
}

//! Computes the scope of a request's key: the hash that names the caller.

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderValue, Uri, request};

use crate::config::{ScopeRule, ScopeSource};
use crate::domain::fingerprint::form;
use crate::domain::scope::{Salt, Scope};
use crate::protocol::refusal::Refusal;

/// The parts of a scope: each part's configured name, and its value if the request has it.
pub(super) type ScopeParts<'a> = Vec<(&'a str, Option<Vec<u8>>)>;

/// Computes the scope by the route's rule. `trusted` says whether the peer may name callers with `header:` parts.
pub(in crate::gate) fn compute_scope(
    salt: &Salt,
    rule: &ScopeRule,
    head: &request::Parts,
    trusted: bool,
) -> Result<Scope, Refusal> {
    let caller = scope_parts(rule, head, trusted)?;
    Ok(Scope::from_parts(salt, caller.iter().map(|(name, value)| (*name, value.as_deref()))))
}

/// Reads the parts of the scope.
pub(super) fn scope_parts<'a>(
    rule: &'a ScopeRule,
    head: &request::Parts,
    trusted: bool,
) -> Result<ScopeParts<'a>, Refusal> {
    let mut parts = Vec::with_capacity(rule.parts.len());
    for part in &rule.parts {
        let value = match &part.source {
            ScopeSource::Authorization => single(&head.headers, &AUTHORIZATION)?.map(as_bytes),
            ScopeSource::Header(name) => single(&head.headers, name)?.map(as_bytes),
            ScopeSource::Cookie(name) => cookie(&head.headers, name)?,
            ScopeSource::Query(name) => query(&head.uri, name)?,
        };
        if value.is_some() && matches!(part.source, ScopeSource::Header(_)) && !trusted {
            return Err(Refusal::KeyInvalid(
                "A header of this route's scope was sent by a peer that is not among the trusted proxies.",
            ));
        }
        if value.is_none() && !part.optional {
            return Err(Refusal::KeyInvalid(
                "The request lacks a field, cookie or parameter that identifies its caller on this route.",
            ));
        }
        parts.push((&*part.name, value));
    }
    let anonymous = parts.iter().all(|(_, value)| value.is_none());
    if rule.is_default && anonymous && head.headers.contains_key(COOKIE) {
        return Err(Refusal::KeyInvalid(
            "The request has a cookie, and no field that identifies its caller on this route.",
        ));
    }
    Ok(parts)
}

/// The one value of a field that names the caller.
fn single<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Result<Option<&'a HeaderValue>, Refusal> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(AMBIGUOUS),
    }
}

/// With two values, nobody can tell which one the service would believe.
const AMBIGUOUS: Refusal =
    Refusal::KeyInvalid("A field, cookie or parameter that identifies the caller was sent more than once.");

fn as_bytes(value: &HeaderValue) -> Vec<u8> {
    value.as_bytes().to_vec()
}

fn cookie(headers: &HeaderMap, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
    let pairs = headers.get_all(COOKIE).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    let mut values = pairs.filter_map(|pair| {
        let at = memchr::memchr(b'=', pair)?;
        (pair[..at].trim_ascii() == name.as_bytes()).then(|| pair[at + 1..].trim_ascii().to_vec())
    });
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(AMBIGUOUS),
    }
}

fn query(uri: &Uri, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
    let pairs = form::pairs(uri.query().unwrap_or_default().as_bytes());
    let mut values = pairs.filter(|(key, _)| key == name.as_bytes()).map(|(_, value)| value);
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(AMBIGUOUS),
    }
}

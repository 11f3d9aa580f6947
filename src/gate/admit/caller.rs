//! Who is calling: the scope of a request's key.

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderValue, Uri, request};

use crate::config::{ScopeRule, ScopeSource};
use crate::domain::fingerprint::form;
use crate::domain::scope::{Salt, Scope};
use crate::gate::refuse::Refusal;

/// What tells a caller from others: each part's name as configured, and its value where the request has it.
pub(super) type Caller<'a> = Vec<(&'a str, Option<Vec<u8>>)>;

/// The caller by the route's rule. `trusted` says whether the peer may tell callers apart by fields of its own.
pub(in crate::gate) fn scope(
    salt: &Salt,
    rule: &ScopeRule,
    head: &request::Parts,
    trusted: bool,
) -> Result<Scope, Refusal> {
    let caller = parts(rule, head, trusted)?;
    Ok(Scope::of(salt, caller.iter().map(|(name, value)| (*name, value.as_deref()))))
}

/// The parts that a scope is made of.
pub(super) fn parts<'a>(rule: &'a ScopeRule, head: &request::Parts, trusted: bool) -> Result<Caller<'a>, Refusal> {
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
                "A field that tells callers apart was sent by a peer that is not trusted to set it.",
            ));
        }
        if value.is_none() && !part.optional {
            return Err(Refusal::KeyInvalid(
                "The request lacks what tells its caller from others, and its key is therefore nobody's.",
            ));
        }
        parts.push((&*part.name, value));
    }
    let anonymous = parts.iter().all(|(_, value)| value.is_none());
    if rule.is_default && anonymous && head.headers.contains_key(COOKIE) {
        return Err(Refusal::KeyInvalid(
            "The caller seems to be known by a cookie, which this route's scope does not look at.",
        ));
    }
    Ok(parts)
}

/// The one value of a field that says who is calling.
fn single<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Result<Option<&'a HeaderValue>, Refusal> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(AMBIGUOUS),
    }
}

/// Two of them, and whom the service would believe is anybody's guess.
const AMBIGUOUS: Refusal = Refusal::KeyInvalid("What tells this request's caller from others was sent more than once.");

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

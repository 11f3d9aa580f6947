//! The identity of a request: the four values by which its record is found.

use std::sync::Arc;

use http::{Method, request};

use super::scope::CallerProofs;
use super::{key_location, scope};
use crate::config::{KeySpace, Route};
use crate::domain::ids::RecordId;
use crate::domain::key::{Key, KeyLimits};
use crate::domain::normal_path::key_path;
use crate::domain::scope::{Salt, Scope};
use crate::domain::space::SpaceHash;
use crate::protocol::refusal::Refusal;

/// All that a request's identity depends on.
#[derive(Clone, Copy)]
pub(super) struct IdentityInput<'a> {
    pub(super) head: &'a request::Parts,
    /// The body; `None` while it has not been read.
    pub(super) body: Option<&'a [u8]>,
    pub(super) proofs: CallerProofs<'a>,
    pub(super) route: &'a Route,
    /// The lengths of keys: the route's own, or wider ones where a key outside of those may be stored.
    pub(super) key_limits: KeyLimits,
    pub(super) service: &'a Arc<str>,
    pub(super) salt: &'a Salt,
}

/// The identity of a keyed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestIdentity {
    pub(super) service: Arc<str>,
    pub(super) scope: Scope,
    pub(super) space: SpaceHash,
    pub(super) key: Key,
}

/// The result of looking for a request's identity.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IdentitySearch {
    /// The request has a key.
    Found(RequestIdentity),
    /// The head has no key, and the body may have one.
    InBody,
    /// The request has no key.
    NoKey,
}

/// Finds the identity of a request.
///
/// # Errors
/// The refusal of a request whose key cannot be used, or whose caller cannot be identified.
pub(super) fn identify(input: &IdentityInput<'_>) -> Result<IdentitySearch, Refusal> {
    let IdentityInput { head, proofs, route, service, salt, .. } = *input;
    let key = match find_key(input)? {
        KeySearch::Found(key) => key,
        KeySearch::InBody => return Ok(IdentitySearch::InBody),
        KeySearch::NoKey => return Ok(IdentitySearch::NoKey),
    };
    let space = key_space(route, &head.method, head.uri.path());
    Ok(IdentitySearch::Found(RequestIdentity {
        service: Arc::clone(service),
        scope: scope::compute_scope(salt, &route.scope, head, proofs)
            .map_err(|refusal| scope::with_challenge(refusal, route, &head.headers))?,
        space,
        key,
    }))
}

/// The result of looking for a request's key.
pub(super) enum KeySearch {
    /// The request has this key.
    Found(Key),
    /// The head has no key, and the body may have one.
    InBody,
    /// The request has no key.
    NoKey,
}

/// Finds the key of a request.
///
/// # Errors
/// The refusal of a request whose key cannot be used.
pub(super) fn find_key(input: &IdentityInput<'_>) -> Result<KeySearch, Refusal> {
    let IdentityInput { head, body, route, key_limits, .. } = *input;
    let in_head = key_location::in_head(head, &route.key)?;
    let found = match (in_head, body) {
        (Some(key), _) => Some(key),
        (None, None) if key_location::may_be_in_body(&route.key) => return Ok(KeySearch::InBody),
        (None, None) => None,
        (None, Some(body)) => key_location::in_body(&head.headers, body, &route.key)?,
    };
    let Some(key) = found else { return Ok(KeySearch::NoKey) };
    let key = Key::parse(&key, route.key.syntax, key_limits)?;
    key_location::check_other_fields(head, &route.key, key_limits, &key)?;
    Ok(KeySearch::Found(key))
}

impl RequestIdentity {
    /// The id of the record.
    pub(super) fn record_id(&self) -> RecordId {
        RecordId::derive(&self.service, &self.scope, &self.space, &self.key)
    }
}

/// The space in which the key is unique, as it is stored: a path may have kilobytes, which an anonymous client could fill the
/// store with.
pub(super) fn key_space(route: &Route, method: &Method, path: &str) -> SpaceHash {
    SpaceHash::from_text(&key_space_text(route, method, path))
}

/// The space in which the key is unique, for people. All spellings of a path that a lenient service may take for the same are one
/// space, whatever the route's `spelling`: a key must not be executed once for each of them.
pub(super) fn key_space_text(route: &Route, method: &Method, path: &str) -> String {
    match route.space {
        // Another host's route may have the same path.
        KeySpace::Path => {
            let host = route.host.as_deref().unwrap_or_default();
            [method.as_str(), " ", host, &key_path(path)].concat()
        }
        KeySpace::Route => ["route ", route.space_name()].concat(),
        KeySpace::Service => "service".to_owned(),
    }
}

#[cfg(test)]
mod tests;

//! The identity of a request: the four values by which its record is found.
//!
//! The key itself is found by `key_location`, and the parts of the scope by `scope`.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;

use super::caller_token::CallerToken;
use super::fingerprinting::{Fingerprinting, LARGE_BODY, LARGE_DOCUMENT};
use super::incoming::Incoming;
use super::key_location::{self, FoundKey};
use super::scope;
use crate::instance::metrics::MethodLabel;
use oncegate_domain::ids::RecordId;
use oncegate_domain::key::Key;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::place::{Place, PlaceValue, RequestPlaces};
use oncegate_domain::scope::{Salt, Scope};
use oncegate_domain::space::SpaceHash;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::{Route, ScopePart, ScopeRule, ScopeSource};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestIdentity {
    pub(super) service: Arc<str>,
    pub(super) scope: Scope,
    pub(super) space: SpaceHash,
    pub(super) key: Key,
    /// The length of what the client sent for the key, in characters.
    pub(super) key_length: usize,
}

/// The result of looking for the identity that a request's key is a part of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeySearch<T> {
    Found(T),
    /// The body has the key, or a part of the scope, or may have it.
    InBody,
    NoKey,
}

/// The values at the places of a request that its identity is made of.
struct IdentityValues {
    key: Option<FoundKey>,
    /// One for each part of the scope that is a place, in their order.
    scope: Vec<PlaceValue>,
}

impl IdentityValues {
    fn read(
        (route, scope): (&Route, &ScopeRule),
        reader: &RequestPlaces<'_>,
        body: Option<&[u8]>,
        salt: &Salt,
    ) -> Result<Self, Refusal> {
        let key = key_location::find(route, reader, body, salt)?;
        if let (Some(body), true) = (body, key.is_some()) {
            key_location::check_readable(scope.places(), reader.headers, body)?;
        }
        // The caller of a request without a key does not matter.
        let places = scope.places().take_while(|_| key.is_some());
        let scope = places.map(|place| key_location::read_place(place, reader, body.unwrap_or_default())).collect();
        Ok(Self { key, scope })
    }
}

impl Incoming<'_> {
    /// Finds the identity of a request. `body` is `None` while it has not been read. The caller's token is read only
    /// for a request that has a key. A large body is read on the thread of `fingerprinting`.
    ///
    /// # Errors
    /// The refusal of a request whose key cannot be used, or whose caller cannot be identified.
    pub(super) async fn identify(
        &self,
        body: Option<&Bytes>,
        fingerprinting: Option<&Fingerprinting>,
    ) -> Result<KeySearch<RequestIdentity>, Refusal> {
        let Self { route, scope, .. } = *self;
        let rule = &route.options.key;
        let is_given = self.given_key.is_some();
        let has_document = rule.places().chain(scope.places()).any(Place::is_slow);
        let large_body = if has_document { LARGE_DOCUMENT } else { LARGE_BODY };
        let values = match (body.filter(|body| body.len() >= large_body), fingerprinting) {
            // The thread of the consumers serves no client.
            _ if is_given => IdentityValues { key: None, scope: self.read_scope_places(body) },
            (Some(body), Some(fingerprinting)) if rule.may_be_in_body() || scope.reads_body() => {
                self.read_on_thread(body, fingerprinting).await?
            }
            _ => {
                let body = body.map(|body| &body[..]);
                IdentityValues::read((route, scope), &self.place_reader(), body, self.realm.salt)?
            }
        };
        let found = match (self.given_key, values.key) {
            // A message's key is mostly a field.
            (Some(given), _) => key_location::make_key(rule, true, &[given], self.realm.salt)?,
            (None, Some(_)) if body.is_none() && scope.reads_body() => return Ok(KeySearch::InBody),
            (None, Some(found)) => found,
            (None, None) if body.is_none() && rule.may_be_in_body() => return Ok(KeySearch::InBody),
            (None, None) => return Ok(KeySearch::NoKey),
        };
        let token = self.token.read(&self.head.headers).await?;
        let scope = self.compute_scope(&token, values.scope);
        Ok(KeySearch::Found(RequestIdentity {
            service: Arc::clone(self.realm.service),
            scope: scope.map_err(|refusal| scope::with_challenge(refusal, self.route, &self.head.headers))?,
            space: SpaceHash::from_text(&self.key_space()),
            key: found.key,
            key_length: found.length,
        }))
    }

    /// The values of the scope's places.
    pub(in crate::gate) fn read_scope_places(&self, body: Option<&Bytes>) -> Vec<PlaceValue> {
        let (reader, body) = (self.place_reader(), body.map(|body| &body[..]).unwrap_or_default());
        self.scope.places().map(|place| key_location::read_place(place, &reader, body)).collect()
    }

    /// The scope of a request without a key, for counts alone: `None` where its head does not name the caller that a
    /// key would have. No token is verified for it, and no body is read.
    pub(super) fn name_caller(&self) -> Option<Scope> {
        let is_elsewhere = |part: &ScopePart| match &part.source {
            ScopeSource::Jwt { .. } => true,
            ScopeSource::Place(place) => place.is_in_body(),
            ScopeSource::Authorization | ScopeSource::ClientCertificate => false,
        };
        if self.scope.parts.is_empty()
            || self.scope.parts.iter().any(is_elsewhere)
            || !MethodLabel::from_method(&self.head.method).changes_state()
        {
            return None;
        }
        self.compute_scope(&CallerToken::Absent, self.read_scope_places(None)).ok()
    }

    async fn read_on_thread(&self, body: &Bytes, thread: &Fingerprinting) -> Result<IdentityValues, Refusal> {
        let (route, scope, salt) = (Arc::clone(self.route), self.scope.clone(), self.realm.salt.clone());
        let (mut head, ()) = Request::new(()).into_parts();
        (head.uri, head.headers) = (self.head.uri.clone(), self.head.headers.clone());
        let body = body.clone();
        let read = move || {
            let path = RequestPath::new(head.uri.path());
            let reader = key_location::place_reader(&route, &path, &head);
            IdentityValues::read((&route, &scope), &reader, Some(&body), &salt)
        };
        thread.run_on_thread(read).await
    }

    /// The space in which the key is unique. It is stored as a hash: a path may have kilobytes, with which an anonymous
    /// client could fill the store. All spellings of a path that a lenient service may take for the same are one space,
    /// whatever the route's `spelling`: a key must not be executed once for each of them.
    pub(super) fn key_space(&self) -> String {
        let Self { head, path, route, operation, .. } = *self;
        // A key in the path names the operation, and not the space in which it is unique.
        let names = route.options.key.own_places().filter_map(|place| match place {
            Place::Path(name) => Some(name),
            _ => None,
        });
        let without_key = names.fold(None, |path_so_far: Option<String>, name| match &path_so_far {
            None => route.path.without_segment(name, path),
            Some(before) => route.path.without_segment(name, &RequestPath::new(before)).or(path_so_far),
        });
        let key_path = without_key.map_or_else(|| path.key_path(), |path| RequestPath::new(&path).key_path());
        route.space_parts().space_of(&head.method, &key_path, operation)
    }
}

impl RequestIdentity {
    pub(super) fn record_id(&self) -> RecordId {
        RecordId::derive(&self.service, &self.scope, &self.space, &self.key)
    }
}

#[cfg(test)]
mod tests;

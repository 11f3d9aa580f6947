//! The identity of a request: the four values by which its record is found.
//!
//! The key itself is found by `key_location`, and the parts of the scope by `scope`.

use std::sync::Arc;

use super::incoming::Incoming;
use super::{key_location, scope};
use oncegate_domain::ids::RecordId;
use oncegate_domain::key::{Key, KeyLimits};
use oncegate_domain::scope::Scope;
use oncegate_domain::space::SpaceHash;
use oncegate_http::protocol::refusal::Refusal;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestIdentity {
    pub(super) service: Arc<str>,
    pub(super) scope: Scope,
    pub(super) space: SpaceHash,
    pub(super) key: Key,
}

/// The result of looking for a request's key, or for the identity that the key is a part of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeySearch<T> {
    Found(T),
    /// The head has no key, and the body may have one.
    InBody,
    NoKey,
}

impl Incoming<'_> {
    /// Finds the identity of a request. `body` is `None` while it has not been read. The caller's token is read only
    /// for a request that has a key.
    ///
    /// # Errors
    /// The refusal of a request whose key cannot be used, or whose caller cannot be identified.
    pub(super) async fn identify(&self, body: Option<&[u8]>) -> Result<KeySearch<RequestIdentity>, Refusal> {
        let key = match self.find_key(body)? {
            KeySearch::Found(key) => key,
            KeySearch::InBody => return Ok(KeySearch::InBody),
            KeySearch::NoKey => return Ok(KeySearch::NoKey),
        };
        let token = self.token.read(&self.head.headers).await?;
        let scope = self.compute_scope(&token);
        Ok(KeySearch::Found(RequestIdentity {
            service: Arc::clone(self.realm.service),
            scope: scope.map_err(|refusal| scope::with_challenge(refusal, self.route, &self.head.headers))?,
            space: SpaceHash::from_text(&self.key_space()),
            key,
        }))
    }

    /// Finds the key of a request. A key of any length is found: it may be stored under other limits than the route's.
    ///
    /// # Errors
    /// The refusal of a request whose key cannot be used.
    fn find_key(&self, body: Option<&[u8]>) -> Result<KeySearch<Key>, Refusal> {
        let Self { head, route, .. } = *self;
        if let Some(key) = self.given_key {
            return Ok(KeySearch::Found(Key::parse(key, route.options.key.syntax, KeyLimits::WIDEST)?));
        }
        let found = match (key_location::in_head(head, &route.options.key)?, body) {
            (Some(key), _) => Some(key),
            (None, None) if key_location::may_be_in_body(&route.options.key) => return Ok(KeySearch::InBody),
            (None, None) => None,
            (None, Some(body)) => key_location::in_body(&head.headers, body, &route.options.key)?,
        };
        let Some(key) = found else { return Ok(KeySearch::NoKey) };
        let key = Key::parse(&key, route.options.key.syntax, KeyLimits::WIDEST)?;
        let body = body.filter(|_| route.options.dialect.is_jsonrpc());
        key_location::check_other_places(head, body, &route.options.key, &key)?;
        Ok(KeySearch::Found(key))
    }

    /// The space in which the key is unique. It is stored as a hash: a path may have kilobytes, with which an anonymous
    /// client could fill the store. All spellings of a path that a lenient service may take for the same are one space,
    /// whatever the route's `spelling`: a key must not be executed once for each of them.
    pub(super) fn key_space(&self) -> String {
        let Self { head, path, route, operation, .. } = *self;
        route.space_parts().space_of(&head.method, &path.key_path(), operation)
    }
}

impl RequestIdentity {
    pub(super) fn record_id(&self) -> RecordId {
        RecordId::derive(&self.service, &self.scope, &self.space, &self.key)
    }
}

#[cfg(test)]
mod tests;

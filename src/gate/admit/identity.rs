//! The identity of a request: the four values by which its record is found.
//!
//! The key itself is found by `key_location`, and the parts of the scope by `scope`.

use std::sync::Arc;

use super::incoming::Incoming;
use super::token::{CallerToken, verify_token};
use super::{key_location, scope};
use oncegate_domain::ids::RecordId;
use oncegate_domain::key::Key;
use oncegate_domain::scope::Scope;
use oncegate_domain::space::SpaceHash;
use oncegate_http::protocol::refusal::Refusal;

/// The identity of a keyed request.
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
    /// The request has a key.
    Found(T),
    /// The head has no key, and the body may have one.
    InBody,
    /// The request has no key.
    NoKey,
}

impl Incoming<'_> {
    /// Finds the identity of a request. `body` is `None` while it has not been read. If the route's scope reads the caller's token, and
    /// the request has a key, the token is verified first.
    ///
    /// # Errors
    /// The refusal of a request whose key cannot be used, or whose caller cannot be identified.
    pub(super) async fn identify(&self, body: Option<&[u8]>) -> Result<KeySearch<RequestIdentity>, Refusal> {
        let token = match self.verifier {
            Some(verifier) if matches!(self.find_key(body)?, KeySearch::Found(_)) => {
                Box::pin(verify_token(verifier, &self.head.headers)).await?
            }
            Some(_) | None => CallerToken::Unread,
        };
        self.identify_with(body, &token)
    }

    /// Finds the identity of a request with this token.
    ///
    /// # Errors
    /// As for [`Self::identify`].
    pub(super) fn identify_with(
        &self,
        body: Option<&[u8]>,
        token: &CallerToken,
    ) -> Result<KeySearch<RequestIdentity>, Refusal> {
        let key = match self.find_key(body)? {
            KeySearch::Found(key) => key,
            KeySearch::InBody => return Ok(KeySearch::InBody),
            KeySearch::NoKey => return Ok(KeySearch::NoKey),
        };
        Ok(KeySearch::Found(RequestIdentity {
            service: Arc::clone(self.realm.service),
            scope: self
                .compute_scope(token)
                .map_err(|refusal| scope::with_challenge(refusal, self.route, &self.head.headers))?,
            space: SpaceHash::from_text(&self.key_space()),
            key,
        }))
    }

    /// Finds the key of a request.
    ///
    /// # Errors
    /// The refusal of a request whose key cannot be used.
    pub(super) fn find_key(&self, body: Option<&[u8]>) -> Result<KeySearch<Key>, Refusal> {
        let Self { head, route, key_limits, .. } = *self;
        if let Some(key) = self.given_key {
            return Ok(KeySearch::Found(Key::parse(key, route.options.key.syntax, key_limits)?));
        }
        let found = match (key_location::in_head(head, &route.options.key)?, body) {
            (Some(key), _) => Some(key),
            (None, None) if key_location::may_be_in_body(&route.options.key) => return Ok(KeySearch::InBody),
            (None, None) => None,
            (None, Some(body)) => key_location::in_body(&head.headers, body, &route.options.key)?,
        };
        let Some(key) = found else { return Ok(KeySearch::NoKey) };
        let key = Key::parse(&key, route.options.key.syntax, key_limits)?;
        key_location::check_other_places(
            head,
            body.filter(|_| route.options.dialect.is_jsonrpc()),
            &route.options.key,
            key_limits,
            &key,
        )?;
        Ok(KeySearch::Found(key))
    }

    /// The space in which the key is unique. It is stored as a hash: a path may have kilobytes, with which an anonymous client could
    /// fill the store. All spellings of a path that a lenient service may take for the same are one space, whatever the route's
    /// `spelling`: a key must not be executed once for each of them.
    pub(super) fn key_space(&self) -> String {
        let Self { head, path, route, operation, .. } = *self;
        route.space_parts().space_of(&head.method, &path.key_path(), operation)
    }
}

impl RequestIdentity {
    /// The id of the record.
    pub(super) fn record_id(&self) -> RecordId {
        RecordId::derive(&self.service, &self.scope, &self.space, &self.key)
    }
}

#[cfg(test)]
mod tests;

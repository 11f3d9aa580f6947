//! A request or message on its route, as it came: the value that each step of its admission reads.

use std::sync::Arc;

use http::request;

use crate::instance::token_verifier::TokenVerifier;
use oncegate_domain::fingerprint::Secrets;
use oncegate_domain::jsonrpc::RpcOperation;
use oncegate_domain::key::KeyLimits;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::scope::Salt;
use oncegate_http::protocol::fields::RequestOrigin;
use oncegate_settings::{Route, ScopeRule};

/// A request or message on its route, with all that its identity depends on but its body.
#[derive(Clone, Copy)]
pub(in crate::gate) struct Incoming<'a> {
    pub(in crate::gate) head: &'a request::Parts,
    pub(in crate::gate) path: &'a RequestPath<'a>,
    pub(in crate::gate) origin: &'a RequestOrigin,
    pub(in crate::gate) route: &'a Route,
    /// The rule that identifies the caller: the route's, or that of the consumer which has the message.
    pub(in crate::gate) scope: &'a ScopeRule,
    /// The key of a message, which its consumer has found. The key of a request is looked for.
    pub(in crate::gate) given_key: Option<&'a [u8]>,
    /// The lengths of keys: the route's own, or wider ones where a key outside of those may be stored.
    pub(in crate::gate) key_limits: KeyLimits,
    /// The verifier of the caller's token, where the route's scope reads it.
    pub(in crate::gate) verifier: Option<&'a TokenVerifier>,
    /// The operation that the body names, where it is a part of the key's space.
    pub(in crate::gate) operation: Option<&'a RpcOperation>,
    pub(in crate::gate) realm: Realm<'a>,
    pub(in crate::gate) secrets: &'a Secrets,
}

/// The realm of a key: within it, the scope, the space and the key name one record.
#[derive(Clone, Copy)]
pub(in crate::gate) struct Realm<'a> {
    pub(in crate::gate) service: &'a Arc<str>,
    pub(in crate::gate) salt: &'a Salt,
}

impl<'a> Incoming<'a> {
    /// A request on a route whose scope reads no token.
    pub(in crate::gate) fn new(
        (head, path): (&'a request::Parts, &'a RequestPath<'a>),
        origin: &'a RequestOrigin,
        route: &'a Route,
        realm: Realm<'a>,
        secrets: &'a Secrets,
    ) -> Self {
        let (scope, key_limits) = (&route.scope, route.options.key.limits);
        let (given_key, verifier, operation) = (None, None, None);
        Self { head, path, origin, route, scope, given_key, key_limits, verifier, operation, realm, secrets }
    }
}

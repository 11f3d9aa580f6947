//! The reservation of a request that is admitted: what the store is asked for.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use http::request;

use super::identity::RequestIdentity;
use crate::instance::Instance;
use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::fingerprint::Fingerprint;
use oncegate_domain::ids::Token;
use oncegate_domain::kept_path;
use oncegate_machine::fill_random;
use oncegate_settings::{Route, RouteMode};

impl Instance {
    /// The reservation of a keyed request.
    pub(super) fn reserve_request(
        &self,
        head: &request::Parts,
        route: &Route,
        identity: RequestIdentity,
        fingerprint: Fingerprint,
    ) -> ReserveRequest {
        let id = identity.record_id();
        let RequestIdentity { service, scope, space, key } = identity;
        ReserveRequest {
            id,
            service,
            scope,
            space,
            key,
            path: kept_path(route, head),
            route: Arc::clone(&route.name),
            recipe: route.recipe.clone(),
            fingerprint,
            instance: self.instance_lease.id(),
            token: fresh_token(),
            time_limit: self.attempt_time_limit(route),
            holder: None,
        }
    }
}

/// The part of the request's target that the record keeps: the path and query if `reconcile.url` uses them, else the path for
/// people. Nobody looks at the keys of a route that observes.
fn kept_path(route: &Route, head: &request::Parts) -> Option<Bytes> {
    let url_uses_path = route.reconcile.as_ref().is_some_and(|reconcile| reconcile.lookup.names_path());
    match (route.options.mode, head.uri.path_and_query()) {
        (_, Some(target)) if url_uses_path => Some(kept_path::keep_target(target.as_str())),
        (RouteMode::Enforce, _) => Some(kept_path::keep_path(head.uri.path())),
        (RouteMode::Observe | RouteMode::Off, _) => None,
    }
}

/// A token: 128 bits from the operating system's generator.
pub fn fresh_token() -> Token {
    thread_local! {
        /// Tokens are drawn many at once: one system call for each token took a twentieth of a replay's time.
        static DRAWN: RefCell<Vec<[u8; 16]>> = const { RefCell::new(Vec::new()) };
    }
    DRAWN.with_borrow_mut(|drawn| {
        if drawn.is_empty() {
            drawn.resize(TOKENS_AT_ONCE, [0; 16]);
            fill_random(drawn.as_flattened_mut()).expect("the operating system has random numbers");
        }
        Token::from_random(drawn.pop().expect("some were just drawn"))
    })
}

/// A kibibyte for each thread.
const TOKENS_AT_ONCE: usize = 64;

//! Compares the routes with those that the service had before it was started: the requests whose keys are found in
//! another way, or guarded no more.
//!
//! A reload refuses to change how keys are found. A restart may, because only the operator knows whether keys are still
//! needed: so each change is logged with its consequence.

use std::sync::Arc;

use super::key_changes::{KeyChanges, compare_routes};
use super::keyed_route::{KeyedRoute, keyed_routes};
use oncegate_config::Config;
use oncegate_store::{RememberRouteIdentitiesParams, RouteIdentity, Store, StoreError};

/// Stores the routes, and logs a warning for each change since the last time.
///
/// # Errors
/// The store's.
pub(super) async fn warn_of_changes(store: &Store, service: &Arc<str>, config: &Config) -> Result<(), StoreError> {
    let before = remember(store, service, config).await?;
    let before: Vec<_> =
        before.iter().filter_map(|before| KeyedRoute::from_stored(&before.route, &before.finds)).collect();
    let KeyChanges { lookups, unguarded } = compare_routes(&before, &keyed_routes(config));
    for change in lookups {
        tracing::warn!(
            requests = change.requests,
            route = %change.before,
            new_route = %change.now,
            changed = change.changed,
            "these requests find their keys in another way than at the last start: earlier keys, also those in flight, \
             protect nothing any more, and their retries are executed again"
        );
    }
    for lost in unguarded {
        tracing::warn!(
            requests = lost.requests,
            route = %lost.before,
            "these requests were guarded at the last start and are not any more: retries of earlier ones are executed \
             again"
        );
    }
    Ok(())
}

/// Stores the routes, and returns those that were stored before.
///
/// # Errors
/// The store's.
pub(super) async fn remember(
    store: &Store,
    service: &Arc<str>,
    config: &Config,
) -> Result<Vec<RouteIdentity>, StoreError> {
    let identity = |route: KeyedRoute| RouteIdentity { finds: route.to_stored(), route: route.name };
    let identities = keyed_routes(config).into_iter().map(identity).collect();
    store.remember_route_identities(RememberRouteIdentitiesParams { service: Arc::clone(service), identities }).await
}

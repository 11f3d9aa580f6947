//! Compares the routes with those that the store remembers of the last start or reload.
//!
//! A start refuses to change how keys are found, as a reload does, unless the file or a flag names exactly this change:
//! an instance with the earlier routes may still be running, and would execute the same keys. Only the operator knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::StartError;
use super::key_changes::{KeyChanges, compare_routes};
use super::keyed_route::{KeyedRoute, keyed_routes};
use crate::instance::Instance;
use oncegate_config::Config;
use oncegate_store::{RememberRouteIdentitiesParams, RouteIdentity, Store, StoreError};

/// The changes since the routes that the store remembers.
pub struct RememberedChanges {
    /// The changes of how keys are found and of what is guarded.
    pub changes: KeyChanges,
    /// The digest of exactly this change.
    pub digest: String,
    /// The routes that another version of this program has remembered in a form of its own. They are not compared.
    pub unreadable: Vec<Arc<str>>,
}

/// Compares the routes of a configuration with those that the store remembers.
pub fn compare_with_remembered(remembered: &[RouteIdentity], config: &Config) -> RememberedChanges {
    let (mut before, mut unreadable) = (Vec::new(), Vec::new());
    for identity in remembered {
        match KeyedRoute::from_stored(&identity.route, &identity.finds) {
            Some(route) => before.push(route),
            None => unreadable.push(Arc::clone(&identity.route)),
        }
    }
    let changes = compare_routes(&before, &keyed_routes(config));
    RememberedChanges { changes, digest: digest(&[remembered, &identities(config)]), unreadable }
}

/// Logs each change since the last time.
///
/// # Errors
/// [`StartError::RouteChanges`], where keys would be found elsewhere and `accepted` is not the digest of this change;
/// and [`StartError::RouteIdentities`].
pub(super) async fn check_changes(
    store: &Store,
    service: &Arc<str>,
    accepted: Option<&str>,
    config: &Config,
) -> Result<(), StartError> {
    let remembered = store.list_route_identities(Arc::clone(service)).await.map_err(StartError::RouteIdentities)?;
    let RememberedChanges { changes: KeyChanges { lookups, unguarded }, digest, unreadable } =
        compare_with_remembered(&remembered, config);
    let is_accepted = accepted == Some(&*digest);
    for change in &lookups {
        let (requests, changed) = (&*change.requests, &*change.changed);
        let (route, new_route) = (&change.before, &change.now);
        match is_accepted {
            true => tracing::warn!(
                requests, %route, %new_route, changed,
                "these requests find their keys in another way than at the last start, as store.accept_route_changes accepts: \
                 earlier keys, also those in flight, protect nothing any more, and their retries are executed again"
            ),
            false => tracing::error!(
                requests, %route, %new_route, changed,
                "these requests would not find their earlier keys any more, and their retries would be executed again; the \
                 start is refused"
            ),
        }
    }
    for lost in unguarded {
        tracing::warn!(
            requests = lost.requests,
            route = %lost.before,
            changed = lost.changed,
            "these requests were guarded at the last start and are not any more as they were: retries of earlier ones are \
             executed again"
        );
    }
    for route in unreadable {
        tracing::warn!(%route, "another version of this program has remembered this route, which is not compared");
    }
    match lookups.is_empty() || is_accepted {
        true => Ok(()),
        false => Err(StartError::RouteChanges(digest)),
    }
}

/// Stores the routes.
///
/// # Errors
/// The store's.
pub(super) async fn remember(store: &Store, service: &Arc<str>, config: &Config) -> Result<(), StoreError> {
    let (service, identities) = (Arc::clone(service), identities(config));
    store.remember_route_identities(RememberRouteIdentitiesParams { service, identities }).await
}

/// Shows the digest of the routes among the metrics.
pub(super) fn publish(instance: &Instance, config: &Config) {
    let gauge = &instance.observability.metrics.route_identities;
    gauge.clear();
    gauge.get_or_create(&[("identity", digest(&[&identities(config)]))]).set(1);
}

fn identities(config: &Config) -> Vec<RouteIdentity> {
    let identity = |route: KeyedRoute<'_>| RouteIdentity { finds: route.to_stored(), route: route.name };
    keyed_routes(config).into_iter().map(identity).collect()
}

/// A digest of lists of routes, whatever their order: 16 hexadecimal digits.
fn digest(lists: &[&[RouteIdentity]]) -> String {
    let by_name = |list: &&[RouteIdentity]| -> BTreeMap<Arc<str>, String> {
        list.iter().map(|identity| (Arc::clone(&identity.route), identity.finds.clone())).collect()
    };
    let text = serde_json::to_vec(&lists.iter().map(by_name).collect::<Vec<_>>()).expect("it is JSON");
    HEXLOWER.encode(&Sha256::digest(text)[..8])
}

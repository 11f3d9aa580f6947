//! Compares the routes with those that the store remembers of the last start or reload.
//!
//! A start refuses to change how keys are found, as a reload does, unless the file or a flag names exactly this change:
//! an instance with the earlier routes may still be running, and would execute the same keys. Only the operator knows.

use std::sync::Arc;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::StartError;
use super::key_changes::{KeyChanges, compare_routes};
use super::keyed_route::{from_stored, keyed_routes, to_stored};
use oncegate_engine::instance::Instance;
use oncegate_settings::{Config, StartConfig};
use oncegate_store::{RememberRouteIdentitiesParams, RouteIdentities, Store, StoreError};

/// The most comparisons of a start, each after another instance has stored its routes in between.
const COMPARISONS_MAX: usize = 5;

/// The changes since the routes that the store remembers.
pub struct RememberedChanges {
    /// The changes of how keys are found and of what is guarded.
    pub changes: KeyChanges,
    /// Whether another version of this program has remembered the routes in a form of its own. They are not compared.
    pub is_unreadable: bool,
    /// The digest of exactly this change. A change back, and the same one again, have others.
    pub digest: String,
}

impl RememberedChanges {
    /// Whether a start needs the operator's word that no other instance finds the keys elsewhere.
    pub fn must_be_accepted(&self) -> bool {
        self.is_unreadable || !self.changes.lookups.is_empty()
    }
}

/// The routes of a start, which were compared with those that the store had remembered.
pub(super) struct ComparedRoutes {
    pub config: Arc<Config>,
    /// `None` where the store remembered nothing.
    generation: Option<i64>,
}

/// Compares the routes of a configuration with those that the store remembers.
pub fn compare_with_remembered(remembered: Option<&RouteIdentities>, config: &Config) -> RememberedChanges {
    let now = keyed_routes(config);
    let before = remembered.map(|remembered| from_stored(&remembered.finds));
    let is_unreadable = before == Some(None);
    let changes = compare_routes(&before.flatten().unwrap_or_default(), &now);
    let digest = digest(&(remembered.map(|before| (before.generation, &*before.finds)), to_stored(&now)));
    RememberedChanges { changes, is_unreadable, digest }
}

/// Logs each change since the last time.
///
/// # Errors
/// [`StartError::RouteChanges`], where keys would be found elsewhere and `accepted` is not the digest of this change.
pub(super) fn check_changes(
    remembered: Option<&RouteIdentities>,
    accepted: Option<&str>,
    config: &Config,
) -> Result<(), StartError> {
    let compared = compare_with_remembered(remembered, config);
    let must_be_accepted = compared.must_be_accepted();
    let RememberedChanges { changes: KeyChanges { lookups, unguarded }, is_unreadable, digest } = compared;
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
    match (is_unreadable, is_accepted) {
        (false, _) => {}
        (true, true) => tracing::warn!(
            "another version of this program has remembered its routes, which are not compared, as store.accept_route_changes accepts"
        ),
        (true, false) => tracing::error!(
            "another version of this program has remembered its routes, which cannot be compared; the start is refused"
        ),
    }
    match must_be_accepted && !is_accepted {
        true => Err(StartError::RouteChanges(digest)),
        false => Ok(()),
    }
}

/// Compares the routes of a start with those that the store remembers.
pub(super) async fn compare(
    store: &Store,
    start: &StartConfig,
    config: Arc<Config>,
) -> Result<ComparedRoutes, StartError> {
    let remembered = store.find_route_identities(Arc::clone(&start.service)).await;
    let remembered = remembered.map_err(StartError::RouteIdentities)?;
    check_changes(remembered.as_ref(), start.store.accept_route_changes.as_deref(), &config)?;
    Ok(ComparedRoutes { config, generation: remembered.map(|remembered| remembered.generation) })
}

/// Stores the routes of a start. Where another instance has stored others since the comparison, this compares again.
pub(super) async fn remember_at_start(
    store: &Store,
    start: &StartConfig,
    mut compared: ComparedRoutes,
) -> Result<RouteIdentities, StartError> {
    for _ in 0..COMPARISONS_MAX {
        let finds = to_stored(&keyed_routes(&compared.config));
        let taken = remember(store, &start.service, compared.generation, &finds).await;
        if let Some(generation) = taken.map_err(StartError::RouteIdentities)? {
            return Ok(RouteIdentities { generation, finds });
        }
        compared = compare(store, start, compared.config).await?;
    }
    let cause = "other instances store their routes all the time";
    Err(StartError::RouteIdentities(StoreError::Unavailable(cause.into())))
}

/// Stores the routes of a reload, where they are others than this instance's `own`, which it has stored last. The
/// routes that another instance has stored since stay: with the earlier ones, the next start would not be compared with
/// it.
pub(super) async fn remember_reloaded(
    store: &Store,
    service: &Arc<str>,
    own: &mut RouteIdentities,
    config: &Config,
) -> Result<(), StoreError> {
    let finds = to_stored(&keyed_routes(config));
    if own.finds == finds {
        return Ok(());
    }
    if let Some(generation) = remember(store, service, Some(own.generation), &finds).await? {
        *own = RouteIdentities { generation, finds };
        return Ok(());
    }
    match store.find_route_identities(Arc::clone(service)).await? {
        // Another instance has reloaded the same, or the answer to an earlier try was lost.
        Some(stored) if stored.finds == finds => *own = stored,
        _ => tracing::warn!(
            "another instance of this service has stored other routes, and those of this reload are not stored: the next start is \
             compared with the other instance's"
        ),
    }
    Ok(())
}

async fn remember(
    store: &Store,
    service: &Arc<str>,
    from: Option<i64>,
    finds: &str,
) -> Result<Option<i64>, StoreError> {
    let (service, finds) = (Arc::clone(service), finds.to_owned());
    store.remember_route_identities(RememberRouteIdentitiesParams { service, from, finds }).await
}

/// Shows the digest of the routes among the metrics.
pub(super) fn publish(instance: &Instance, config: &Config) {
    let gauge = &instance.observability.metrics.route_identities;
    gauge.clear();
    gauge.get_or_create(&[("identity", digest(&to_stored(&keyed_routes(config))))]).set(1);
}

/// A digest of 16 hexadecimal digits.
fn digest(content: &impl serde::Serialize) -> String {
    let text = serde_json::to_vec(content).expect("it is JSON");
    HEXLOWER.encode(&Sha256::digest(text)[..8])
}

//! Compares the routes with those that the store remembers of the last start or reload.
//!
//! A start refuses to change how keys are found, as a reload does, unless the file or a flag names exactly this change:
//! an instance with the earlier routes may still be running, and would execute the same keys. Only the operator knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::StartError;
use super::key_changes::{HostedRoutes, KeyChanges, compare_routes};
use super::keyed_route::{from_stored, keyed_routes, keyed_routes_of, to_stored};
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

/// The routes that the store remembers of the services of a configuration, and of those that had one of its hosts.
pub type RememberedRoutes = Vec<RouteIdentities>;

/// The routes of a start, which were compared with those that the store had remembered.
pub(super) struct ComparedRoutes {
    pub config: Arc<Config>,
    remembered: RememberedRoutes,
}

/// Compares the routes of a configuration with those that the store remembers.
pub fn compare_with_remembered(remembered: &RememberedRoutes, config: &Config) -> RememberedChanges {
    let (now, mut changes, mut is_unreadable) = (HostedRoutes::of(config), KeyChanges::default(), false);
    let routes: Vec<_> = remembered.iter().map(|remembered| from_stored(&remembered.finds)).collect();
    let known = routes.iter().flatten().flatten().flat_map(|route| &route.requests.hosts).map(|host| &**host);
    let known: Vec<&str> = known.collect();
    for (remembered, before) in remembered.iter().zip(&routes) {
        is_unreadable |= before.is_none();
        let mut before = before.clone().unwrap_or_default();
        if config.service(&remembered.service).is_none() {
            // Its other hosts are another gate's.
            before.iter_mut().for_each(|route| route.requests.hosts.retain(|host| has_host(config, host)));
        }
        changes.extend(compare_routes(&before, &known, &now));
    }
    let before: Vec<_> = remembered.iter().map(|before| (before.generation, &*before.finds)).collect();
    let digest = digest(&(before, to_stored(&keyed_routes(config))));
    RememberedChanges { changes, is_unreadable, digest }
}

/// The same routes without the hosts of this configuration, which has taken them over: what is remembered of a service
/// that is not configured here, once its change was accepted.
fn without_hosts(finds: &str, config: &Config) -> String {
    let mut routes = from_stored(finds).unwrap_or_default();
    routes.iter_mut().for_each(|route| route.requests.hosts.retain(|host| !has_host(config, host)));
    routes.retain(|route| !route.requests.hosts.is_empty());
    to_stored(&routes)
}

/// Finds the routes that the store remembers of the services of a configuration. A service with another name that had
/// one of its hosts counts, too: its keys would not be found any more.
pub(super) async fn find_remembered(store: &Store, config: &Config) -> Result<RememberedRoutes, StoreError> {
    Ok(select_remembered(store.list_route_identities().await?, config))
}

/// Selects these of all that the store remembers.
pub fn select_remembered(mut all: Vec<RouteIdentities>, config: &Config) -> RememberedRoutes {
    all.retain(|remembered| {
        let had_host = || {
            let routes = from_stored(&remembered.finds).unwrap_or_default();
            routes.iter().any(|route| route.requests.hosts.iter().any(|host| has_host(config, host)))
        };
        config.service(&remembered.service).is_some() || had_host()
    });
    all
}

fn has_host(config: &Config, host: &str) -> bool {
    config.services.iter().any(|service| service.hosts.iter().any(|own| **own == *host))
}

/// Logs each change since the last time.
///
/// # Errors
/// [`StartError::RouteChanges`], where keys would be found elsewhere and `accepted` is not the digest of this change.
pub(super) fn check_changes(
    remembered: &RememberedRoutes,
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
    let remembered = find_remembered(store, &config).await.map_err(StartError::RouteIdentities)?;
    check_changes(&remembered, start.store.accept_route_changes.as_deref(), &config)?;
    Ok(ComparedRoutes { config, remembered })
}

/// Stores the routes of a start. Where another instance has stored others since the comparison, this compares again.
pub(super) async fn remember_at_start(
    store: &Store,
    start: &StartConfig,
    mut compared: ComparedRoutes,
) -> Result<RememberedRoutes, StartError> {
    let mut stored = BTreeMap::new();
    for _ in 0..COMPARISONS_MAX {
        let mut is_all_taken = true;
        for service in compared.config.service_names() {
            let finds = to_stored(&keyed_routes_of(&compared.config, service));
            let before = compared.remembered.iter().find(|before| before.service == **service);
            if stored.contains_key(service) && before.is_some_and(|before| before.finds == finds) {
                continue;
            }
            let taken = remember(store, service, before.map(|before| before.generation), &finds).await;
            match taken.map_err(StartError::RouteIdentities)? {
                Some(generation) => {
                    let own = RouteIdentities { service: service.to_string(), generation, finds };
                    stored.insert(Arc::clone(service), own);
                }
                None => is_all_taken = false,
            }
        }
        let config = &compared.config;
        for gone in compared.remembered.iter().filter(|before| config.service(&before.service).is_none()) {
            let (service, finds) = (gone.service.as_str().into(), without_hosts(&gone.finds, config));
            remember(store, &service, Some(gone.generation), &finds).await.map_err(StartError::RouteIdentities)?;
        }
        if is_all_taken {
            return Ok(stored.into_values().collect());
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
    own: &mut RememberedRoutes,
    config: &Config,
) -> Result<(), StoreError> {
    for service in config.service_names() {
        let finds = to_stored(&keyed_routes_of(config, service));
        let before = own.iter().find(|own| own.service == **service);
        if before.is_some_and(|own| own.finds == finds) {
            continue;
        }
        let stored = match remember(store, service, before.map(|own| own.generation), &finds).await? {
            Some(generation) => Some(RouteIdentities { service: service.to_string(), generation, finds }),
            // Another instance has reloaded the same, or the answer to an earlier try was lost.
            None => {
                let mut all = store.list_route_identities().await?.into_iter();
                all.find(|stored| stored.service == **service && stored.finds == finds)
            }
        };
        match stored {
            Some(stored) => {
                own.retain(|own| own.service != **service);
                own.push(stored);
            }
            None => tracing::warn!(
                %service,
                "another instance of this service has stored other routes, and those of this reload are not stored: the next start \
                 is compared with the other instance's"
            ),
        }
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

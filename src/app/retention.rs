//! Writes the routes' retention to the store, for services that complete their keys there themselves, and after a reload
//! also how the routes find their keys, and which have events.
//!
//! A function in the database cannot read the proxy's configuration file, and a column in each row would cost every
//! reservation something that hardly any row needs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::route_identities;
use crate::instance::Instance;
use crate::instance::event_routes;
use oncegate_config::{Config, RouteMode};
use oncegate_domain::service_report::RouteRetention;
use oncegate_store::{Store, StoreError, StoreRouteRetentionParams};

/// The pause between two tries while the store is unavailable.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Writes the retention of the routes that guard.
///
/// # Errors
/// The store's.
pub(super) async fn publish(store: &Store, config: &Config) -> Result<(), StoreError> {
    let guarding = config.routes.iter().filter(|route| route.mode == RouteMode::Enforce);
    let by_name = guarding.flat_map(|route| route.names().map(move |name| (name, route)));
    let retention = by_name.map(|(name, route)| RouteRetention {
        route: Arc::clone(name),
        ttl: route.ttl,
        remember: route.remember,
        body_max: route.max_response_body,
        drop_headers: route.replay.drop_headers.clone(),
        encrypted: config.store.encrypt,
    });
    let (service, retention) = (Arc::clone(&config.service), retention.collect());
    store.store_route_retention(StoreRouteRetentionParams { service, retention }).await
}

/// The next start compares its routes with those of the last reload.
async fn write_all(store: &Store, config: &Config) -> Result<(), StoreError> {
    publish(store, config).await?;
    event_routes::store_routes(store, &[config]).await?;
    route_identities::remember(store, config).await
}

/// Writes the retention and the routes of each new configuration, until `stop`.
pub(super) async fn publish_changes(
    instance: Arc<Instance>,
    mut live: watch::Receiver<Arc<Config>>,
    stop: CancellationToken,
) {
    let publish_each = async {
        while live.changed().await.is_ok() {
            let mut config = Arc::clone(&live.borrow_and_update());
            while let Err(error) = write_all(&instance.store, &config).await {
                tracing::warn!(%error, "the store has not taken what a reload has changed of the routes; the next try is in a second");
                tokio::time::sleep(RETRY_PAUSE).await;
                config = Arc::clone(&live.borrow_and_update());
            }
        }
    };
    stop.run_until_cancelled(publish_each).await;
}

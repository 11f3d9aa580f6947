//! Writes the routes' retention to the store, for services that complete their keys there themselves, and after a
//! reload also how the routes find their keys, and which have events.
//!
//! A function in the database cannot read the proxy's configuration file, and a column in each row would cost every
//! reservation something that hardly any row needs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::route_identities::{self, RememberedRoutes};
use oncegate_domain::service_report::RouteRetention;
use oncegate_engine::instance::Instance;
use oncegate_engine::instance::event_routes;
use oncegate_settings::{Config, RouteMode, StartConfig};
use oncegate_store::{Store, StoreError, StoreRouteRetentionParams};

/// The pause between two tries while the store is unavailable.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Writes the retention of the routes that guard.
pub(super) async fn publish(store: &Store, start: &StartConfig, config: &Config) -> Result<(), StoreError> {
    for service in config.service_names() {
        let guarding = config.routes_of(service).filter(|route| route.options.mode == RouteMode::Enforce);
        let by_name = guarding.flat_map(|route| route.names().map(move |name| (name, route)));
        let retention = by_name.map(|(name, route)| RouteRetention {
            route: Arc::clone(name),
            ttl: route.options.ttl,
            remember: route.options.remember,
            body_max: route.options.max_response_body,
            drop_headers: route.options.replay.drop_headers.clone(),
            encrypted: start.store.encrypt,
        });
        let (service, retention) = (Arc::clone(service), retention.collect());
        store.store_route_retention(StoreRouteRetentionParams { service, retention }).await?;
    }
    Ok(())
}

/// Writes the retention and the routes of each new configuration, until `stop`, and before those of the start, if that
/// could not. `own` is how the routes found keys when this instance has stored that last.
pub(super) async fn publish_changes(
    instance: Arc<Instance>,
    mut live: watch::Receiver<Arc<Config>>,
    mut own: RememberedRoutes,
    is_written: bool,
    stop: CancellationToken,
) {
    let publish_each = async {
        let mut is_due = !is_written;
        while is_due || live.changed().await.is_ok() {
            write_until_taken(&instance, &mut live, &mut own).await;
            is_due = false;
        }
    };
    stop.run_until_cancelled(publish_each).await;
}

async fn write_until_taken(instance: &Instance, live: &mut watch::Receiver<Arc<Config>>, own: &mut RememberedRoutes) {
    let Instance { store, config: start, .. } = instance;
    loop {
        let config = Arc::clone(&live.borrow_and_update());
        let write = async {
            publish(store, start, &config).await?;
            event_routes::store_routes(store, &[&*config]).await?;
            route_identities::remember_reloaded(store, own, &config).await
        };
        let Err(error) = write.await else { return };
        warn_of_retry(&error);
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Logs that something of the routes is not written, and written again after the pause.
pub(super) fn warn_of_retry(error: &StoreError) {
    tracing::warn!(%error, "the store has not taken how the routes find their keys and what they keep; the next try is in a second");
}

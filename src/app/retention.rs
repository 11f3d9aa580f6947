//! Writes the routes' retention to the store, for services that complete their keys there themselves.
//!
//! A function in the database cannot read the proxy's configuration file, and a column in each row would cost every
//! reservation something that hardly any row needs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, RouteMode};
use crate::domain::service_report::RouteRetention;
use crate::instance::Instance;
use crate::store::{Store, StoreError};

/// The pause between two tries while the store is unavailable.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Writes the retention of the routes that guard.
///
/// # Errors
/// The store's.
pub(super) async fn publish(store: &dyn Store, config: &Config) -> Result<(), StoreError> {
    let guarding = config.routes.iter().filter(|route| route.mode == RouteMode::Enforce);
    let retention = guarding.map(|route| RouteRetention {
        route: Arc::clone(&route.name),
        ttl: route.ttl,
        remember: route.remember,
        body_max: route.max_response_body,
        drop_headers: route.drop_headers.clone(),
    });
    store.service_reports().store_route_retention(Arc::clone(&config.service), retention.collect()).await
}

/// Writes the retention of each new configuration, until `stop`.
pub(super) async fn publish_changes(
    instance: Arc<Instance>,
    mut live: watch::Receiver<Arc<Config>>,
    stop: CancellationToken,
) {
    let publish_each = async {
        while live.changed().await.is_ok() {
            let mut config = Arc::clone(&live.borrow_and_update());
            while publish(&*instance.store, &config).await.is_err() {
                tokio::time::sleep(RETRY_PAUSE).await;
                config = Arc::clone(&live.borrow_and_update());
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = publish_each => {}
    }
}

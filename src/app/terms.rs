//! What the routes say about what is kept, left in the store for services that complete their keys there themselves.
//!
//! The proxy reads its own file. A function in the database cannot, and a column in each row would cost every reservation
//! something for what hardly any row needs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Mode};
use crate::domain::testimony::Terms;
use crate::gate::Shared;
use crate::store::{Store, StoreError};

/// Between two tries, where the store is away.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Leaves the terms of the routes that guard.
///
/// # Errors
/// The store's.
pub(super) async fn leave(store: &dyn Store, config: &Config) -> Result<(), StoreError> {
    let guarding = config.routes.iter().filter(|route| route.mode == Mode::Enforce);
    let terms = guarding.map(|route| Terms {
        route: Arc::clone(&route.name),
        ttl: route.ttl,
        remember: route.remember,
        body_max: route.max_response_body,
        drop_headers: route.drop_headers.clone(),
    });
    store.testimony().leave_terms(Arc::clone(&config.service), terms.collect()).await
}

/// Leaves those of each new configuration, until `stop`.
pub(super) async fn follow(shared: Arc<Shared>, mut live: watch::Receiver<Arc<Config>>, stop: CancellationToken) {
    let follow = async {
        while live.changed().await.is_ok() {
            let mut config = Arc::clone(&live.borrow_and_update());
            while leave(&*shared.store, &config).await.is_err() {
                tokio::time::sleep(TRY_AGAIN).await;
                config = Arc::clone(&live.borrow_and_update());
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow => {}
    }
}

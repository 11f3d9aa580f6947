//! Which routes have events, as the store's triggers read it.

use std::collections::BTreeMap;
use std::sync::Arc;

use oncegate_settings::{Config, Word};
use oncegate_store::{EventRoute, Store, StoreError, StoreEventRoutesParams};

/// Tells the store which routes of a service have events: those of all these configurations, of which the last one
/// counts. From then on each settlement of their keys writes them.
pub async fn store_routes(store: &Store, service: &Arc<str>, configs: &[&Config]) -> Result<(), StoreError> {
    store.store_event_routes(params(service, configs, false)).await
}

/// Tells the store again which routes have events. What it has stays: another instance may have stored a newer
/// configuration.
pub async fn restore_routes(store: &Store, service: &Arc<str>, config: &Config) -> Result<(), StoreError> {
    store.store_event_routes(params(service, &[config], true)).await
}

fn params(service: &Arc<str>, configs: &[&Config], keeps_stored: bool) -> StoreEventRoutesParams {
    let mut routes = BTreeMap::new();
    for sink in configs.iter().flat_map(|config| &config.events) {
        for route in &sink.routes {
            let types = sink.types.iter().map(|kind| kind.word()).collect();
            let (route, name) = (Arc::clone(route), Arc::clone(&sink.name));
            let told = EventRoute { route: Arc::clone(&route), sink: Arc::clone(&name), types, body: sink.body };
            routes.insert((route, name), told);
        }
    }
    StoreEventRoutesParams { service: Arc::clone(service), routes: routes.into_values().collect(), keeps_stored }
}

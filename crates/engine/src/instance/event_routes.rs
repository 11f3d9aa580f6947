//! Which routes have events, as the store's triggers read it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oncegate_settings::{Config, Word};
use oncegate_store::{EventRoute, Store, StoreError, StoreEventRoutesParams};

/// Tells the store which routes of each service have events: those of all these configurations, of which the last one
/// counts. From then on each settlement of their keys writes them.
pub async fn store_routes(store: &Store, configs: &[&Config]) -> Result<(), StoreError> {
    for params in params(configs, false) {
        store.store_event_routes(params).await?;
    }
    Ok(())
}

/// Tells the store again which routes have events. What it has stays: another instance may have stored a newer
/// configuration.
pub async fn restore_routes(store: &Store, config: &Config) -> Result<(), StoreError> {
    for params in params(&[config], true) {
        store.store_event_routes(params).await?;
    }
    Ok(())
}

fn params(configs: &[&Config], keeps_stored: bool) -> Vec<StoreEventRoutesParams> {
    let services: BTreeSet<_> = configs.iter().flat_map(|config| config.service_names()).collect();
    services.into_iter().map(|service| params_of(service, configs, keeps_stored)).collect()
}

fn params_of(service: &Arc<str>, configs: &[&Config], keeps_stored: bool) -> StoreEventRoutesParams {
    let mut routes = BTreeMap::new();
    for (config, sink) in configs.iter().flat_map(|config| config.events.iter().map(move |sink| (config, sink))) {
        for route in sink.routes.iter().filter(|route| config.is_of_service(route, service)) {
            let types = sink.types.iter().map(|kind| kind.word()).collect();
            let (route, name) = (Arc::clone(route), Arc::clone(&sink.name));
            let told = EventRoute { route: Arc::clone(&route), sink: Arc::clone(&name), types, body: sink.body };
            routes.insert((route, name), told);
        }
    }
    StoreEventRoutesParams { service: Arc::clone(service), routes: routes.into_values().collect(), keeps_stored }
}

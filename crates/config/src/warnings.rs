//! Warnings about a configuration that is valid and may not be what its author wants.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{EventTarget, LoadedConfig, Route, StoreLocation, jwt};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::path_samples::sample_paths;
use oncegate_domain::route_table::{RouteMatch, RouteTable, Spelling};

pub(super) fn collect(config: &LoadedConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(tls) = config.tls.as_ref().filter(|tls| tls.readable_by_all) {
        warnings.push(format!("tls.key: everybody on this machine can read `{}`: `chmod o-r` it", tls.key.display()));
    }
    let exposed: BTreeSet<_> = config.upstream_tls().filter_map(|tls| tls.exposed_key.as_ref()).collect();
    warnings.extend(exposed.into_iter().map(|key| {
        format!("upstream_tls.key: everybody on this machine can read `{}`: `chmod o-r` it", key.display())
    }));
    if let StoreLocation::Postgres(url) = &config.store_url {
        warnings.extend(url.warning());
    }
    if let Some(server) = &config.redis {
        if config.secrets.is_empty() {
            warnings.push(
                "cache.redis without a `secret`: everybody who can write to the Redis server can forge replays, and everybody who \
                 can read there sees the stored responses"
                    .into(),
            );
        }
        if server.exposes_password() {
            warnings.push(
                "cache.redis: its password crosses the network in cleartext, and anybody in between can read it: write \
                 `rediss://`"
                    .into(),
            );
        }
    }
    for source in config.consumers.iter().filter_map(|consumer| consumer.source.kafka()) {
        if source.cluster.exposes_password() {
            warnings.push(format!(
                "kafka of group `{}`: its password crosses the network in cleartext, and anybody in between can read it: write \
                 `tls = true`, or a `sasl` of scram",
                source.group
            ));
        }
    }
    for sink in &config.events {
        if let EventTarget::Http { upstream, secret: None, .. } = &sink.target {
            warnings.push(format!(
                "events `{}`: no `secret` signs what {upstream} gets, so whoever reaches it can make up events",
                sink.name
            ));
        }
    }
    let room = config.start.limits.held_bodies / 8 * 7;
    for route in config.routes.iter().filter(|route| route.max_request_body as u64 > room) {
        warnings.push(format!(
            "route `{}`: a body of max_request_body never finds room in limits.held_bodies, seven eighths of which are for large \
             bodies: its retries get 503 overloaded for ever",
            route.name
        ));
    }
    if config.store_url == StoreLocation::Memory {
        warnings.push("store.url is `memory:`: after a restart every retry is executed again".into());
    }
    // A key inside of a payment that is a part of the fingerprint is of no use without the payment.
    let has_proof = |route: &Route| route.key.payload_headers().any(|name| route.recipe.reads_field(name.as_str()));
    for route in config.routes.iter().filter(|route| route.scope.parts.is_empty() && !has_proof(route)) {
        let name = &route.name;
        warnings.push(format!("route `{name}`: scope is `none`: any caller who knows a key gets its stored response"));
    }
    for route in config.routes.iter().filter(|route| !route.scope.parts.is_empty()) {
        if route.reconcile.as_ref().is_some_and(|reconcile| reconcile.lookup.confuses_callers()) {
            warnings.push(format!(
                "route `{}`: reconcile.url has `{{key}}` but neither `{{id}}` nor `{{scope}}`: two callers may use one key, \
                 and one would be answered from the other's record; write `{{id}}`, which the service has as the first 64 \
                 digits of `Oncegate-Reservation`",
                route.name
            ));
        }
    }
    warnings.extend(jwt::warnings(config));
    warnings.extend(find_unreachable_paths(&config.routes));
    warnings
}

/// The paths of a route that are refused because a lenient service may take them for another route's.
fn find_unreachable_paths(routes: &[Arc<Route>]) -> Vec<String> {
    let (mut table, mut exact) = (RouteTable::default(), RouteTable::default());
    for route in routes {
        table.insert(&route.methods, route.host.as_deref(), &route.path, route.guarded_spelling(), &route.name);
        exact.insert(&route.methods, route.host.as_deref(), &route.path, Spelling::Pass, &route.name);
    }
    let mut warnings = Vec::new();
    for path in sample_paths(&routes.iter().map(|route| &route.path).collect::<Vec<_>>()) {
        for route in routes {
            let host = route.host.as_deref().unwrap_or_default();
            for method in &route.methods {
                if let RouteMatch::Ambiguous(other) = table.find(method, host, &RequestPath::new(&path))
                    && exact.find(method, host, &RequestPath::new(&path)) == RouteMatch::Route(&route.name)
                {
                    warnings.push(format!(
                        "route `{}`: {method} `{path}` is refused (path-ambiguous): some services take it for a path of route \
                         `{other}`, whose `spelling` decides",
                        route.name
                    ));
                }
            }
        }
    }
    warnings
}

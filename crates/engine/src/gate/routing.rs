//! Finds the route of a request.

use std::collections::HashMap;
use std::sync::Arc;

use super::authorize::Authorizer;
use super::renewed_scope::RenewableParts;
use crate::instance::latency::{LatencyEwma, RouteLatencies};
use crate::instance::metrics::{Metrics, RouteMetrics};
use crate::instance::replay_permissions::ReplayPermissions;
use crate::instance::token_verifier::TokenVerifier;
use oncegate_domain::route_table::{METHODS, RouteTable, Spelling};
use oncegate_http::upstream::UpstreamClient;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_settings::{Config, Route};

/// A route with the parts that one worker needs to serve it. Cheap to clone.
#[derive(Clone)]
pub struct ActiveRoute {
    pub route: Arc<Route>,
    pub upstream: UpstreamClient,
    /// The service that is asked before each replay.
    pub authorizer: Option<Arc<Authorizer>>,
    pub token_verifier: Option<Arc<TokenVerifier>>,
    pub latency: Arc<LatencyEwma>,
    pub metrics: Arc<RouteMetrics>,
    /// The parts of scopes that its service can renew; `None` where there are none.
    pub renewable: Option<Arc<RenewableParts>>,
}

/// The routes by method and path; the most specific path wins.
pub struct Router {
    pub(super) table: RouteTable<ActiveRoute>,
    /// The routes that requests would have if each observed route enforced. Where that is no observed route, it is the
    /// same.
    pub(super) foretold: RouteTable<ActiveRoute>,
    /// The routes to vendors, for what no route guards: nobody else may get what is meant for a vendor, such as a
    /// credential.
    pub(super) beside: RouteTable<ActiveRoute>,
    names: HashMap<Arc<str>, ActiveRoute>,
    /// The parts of all routes' scopes that a service can renew.
    pub(super) renewable: Option<Arc<RenewableParts>>,
}

impl Router {
    /// Builds the table. The configuration has made sure that no two routes have the same host, path and method.
    pub fn new(
        config: &Config,
        latencies: &RouteLatencies,
        metrics: &Metrics,
        slots: &UpstreamSlots,
        permissions: &Arc<ReplayPermissions>,
        token_verifier: Option<&Arc<TokenVerifier>>,
    ) -> Self {
        let renewable = RenewableParts::of(config, &metrics.scope_renewals);
        let mut pools: HashMap<_, UpstreamClient> = HashMap::new();
        let (mut table, mut foretold, mut beside) = <(RouteTable<_>, RouteTable<_>, RouteTable<_>)>::default();
        let mut names = HashMap::new();
        for route in &config.routes {
            let (target, tls) = (&route.upstream, &route.upstream_tls);
            let (connect, idle) = (route.options.connect_timeout, route.options.upstream_idle_timeout);
            let upstream = pools
                .entry((Arc::clone(target), tls.pool_key(), connect, idle))
                .or_insert_with(|| UpstreamClient::new(target, connect, idle, tls, slots))
                .clone();
            let authorizer = route.options.replay.authorize.as_ref().map(|authorize| {
                let tls = route.tls_towards(&authorize.upstream);
                let client = UpstreamClient::new(&authorize.upstream, connect, idle, &tls, slots);
                Arc::new(Authorizer { config: Arc::clone(authorize), client, permissions: Arc::clone(permissions) })
            });
            let active = ActiveRoute {
                route: Arc::clone(route),
                upstream,
                authorizer,
                token_verifier: token_verifier.filter(|_| route.scope.reads_token()).cloned(),
                latency: latencies.of(&route.name),
                metrics: metrics.route_metrics(&route.name, route.path.to_string().into()),
                renewable: renewable.clone(),
            };
            let (methods, host, path) = (&route.options.methods, route.options.host.as_deref(), &route.path);
            table.insert(methods, host, path, route.guarded_spelling(), &active);
            foretold.insert(methods, host, path, route.foretold_spelling(), &active);
            if route.vendor.is_some() {
                beside.insert(&METHODS, host, path, Spelling::Pass, &active);
            }
            names.extend(route.names().map(|name| (Arc::clone(name), active.clone())));
        }
        Self { table, foretold, beside, names, renewable }
    }

    /// The route whose keys are stored under that name.
    pub fn named(&self, name: &str) -> Option<&ActiveRoute> {
        self.names.get(name)
    }
}

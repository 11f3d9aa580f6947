//! Finds the route of a request.

use std::collections::HashMap;
use std::sync::Arc;

use super::authorize::Authorizer;
use super::renewed_scope::RenewableParts;
use crate::instance::instance_salt::{InstanceSalt, InstanceSalts};
use crate::instance::latency::{LatencyEwma, RouteLatencies};
use crate::instance::metrics::{Metrics, RouteMetrics};
use crate::instance::replay_permissions::ReplayPermissions;
use crate::instance::token_verifier::TokenVerifier;
use crate::instance::weekly_counts::RouteCounts;
use http::Method;
use oncegate_domain::normal_path::{RequestPath, path_behind_authority};
use oncegate_domain::route_table::{METHODS, RouteMatch, RouteTable, Spelling};
use oncegate_http::upstream::UpstreamClient;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_settings::{Config, Route, RouteMode, Service, UpstreamTarget, UpstreamTlsConfig};

/// A route with the parts that one worker needs to serve it. Cheap to clone.
#[derive(Clone)]
pub struct ActiveRoute {
    pub route: Arc<Route>,
    pub upstream: UpstreamClient,
    /// The service that is asked before each replay.
    pub authorizer: Option<Arc<Authorizer>>,
    /// The salt of its service's scopes.
    pub salt: Arc<InstanceSalt>,
    pub token_verifier: Option<Arc<TokenVerifier>>,
    pub latency: Arc<LatencyEwma>,
    pub metrics: Arc<RouteMetrics>,
    /// The parts of scopes that its service can renew; `None` where there are none.
    pub renewable: Option<Arc<RenewableParts>>,
}

/// A service with its routes by method and path; the most specific path wins.
pub struct ServiceRouter {
    service: Arc<Service>,
    /// The connections for requests that no route guards.
    pub(super) pass_through: UpstreamClient,
    pub(super) table: RouteTable<ActiveRoute>,
    /// The routes that requests would have if each observed route enforced. Where that is no observed route, it is the
    /// same.
    pub(super) foretold: RouteTable<ActiveRoute>,
    /// The routes whose paths are theirs with all methods: those to vendors, as nobody else may get what is meant for a
    /// vendor, such as a credential; and those that verify signatures, as their services count on a verified sender.
    beside: RouteTable<ActiveRoute>,
    /// The counts of requests that no route matches.
    pub(super) weekly: Arc<RouteCounts>,
}

impl ServiceRouter {
    fn new(service: &Arc<Service>, pass_through: UpstreamClient, metrics: &Metrics) -> Self {
        let (table, foretold, beside) = Default::default();
        let weekly = metrics.weekly.of(&(Arc::clone(&service.name), "".into()));
        Self { service: Arc::clone(service), pass_through, table, foretold, beside, weekly }
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        *self.service.name == *name
    }

    /// The route whose path is that of a request which no route guards.
    pub(super) fn find_beside(&self, method: &Method, path: &RequestPath<'_>) -> Option<&ActiveRoute> {
        match self.beside.find(method, path) {
            RouteMatch::Ambiguous(active) | RouteMatch::Route(active) => Some(active),
            RouteMatch::NoRoute => None,
        }
    }
}

/// The services by their hosts.
pub struct Router {
    services: Vec<ServiceRouter>,
    /// The place of each host's service.
    hosts: HashMap<Box<str>, usize>,
    names: HashMap<Arc<str>, ActiveRoute>,
    /// The parts of all routes' scopes that a service can renew.
    pub(super) renewable: Option<Arc<RenewableParts>>,
}

impl Router {
    /// Builds the tables. The configuration has made sure that no two services have the same host, and no two routes of
    /// one the same path and method.
    pub fn new(
        config: &Config,
        latencies: &RouteLatencies,
        metrics: &Metrics,
        slots: &UpstreamSlots,
        salts: &InstanceSalts,
        permissions: &Arc<ReplayPermissions>,
        token_verifier: Option<&Arc<TokenVerifier>>,
    ) -> Self {
        let renewable = RenewableParts::of(config, &metrics.scope_renewals);
        let mut pools: HashMap<_, UpstreamClient> = HashMap::new();
        let mut pool = |target: &Arc<UpstreamTarget>, tls: &UpstreamTlsConfig, connect, idle| {
            let pool = pools.entry((Arc::clone(target), tls.pool_key(), connect, idle));
            pool.or_insert_with(|| UpstreamClient::new(target, connect, idle, tls, slots)).clone()
        };
        let (mut services, mut hosts, mut names) = (Vec::new(), HashMap::new(), HashMap::new());
        for service in &config.services {
            let Service { upstream, tls, connect_timeout, upstream_idle_timeout, .. } = &**service;
            let pass_through = pool(upstream, tls, *connect_timeout, *upstream_idle_timeout);
            hosts.extend(service.hosts.iter().map(|host| (host.clone(), services.len())));
            services.push(ServiceRouter::new(service, pass_through, metrics));
        }
        for route in &config.routes {
            let (connect, idle) = (route.options.connect_timeout, route.options.upstream_idle_timeout);
            let upstream = pool(&route.service.upstream, &route.upstream_tls, connect, idle);
            let authorizer = route.options.replay.authorize.as_ref().map(|authorize| {
                let tls = route.tls_towards(&authorize.upstream);
                let client = UpstreamClient::new(&authorize.upstream, connect, idle, &tls, slots);
                Arc::new(Authorizer { config: Arc::clone(authorize), client, permissions: Arc::clone(permissions) })
            });
            let active = ActiveRoute {
                route: Arc::clone(route),
                upstream,
                authorizer,
                salt: salts.of(&route.service.name),
                token_verifier: token_verifier.filter(|_| route.scope.reads_token()).cloned(),
                latency: latencies.of(&route.full_name()),
                metrics: metrics.route_metrics(route),
                renewable: renewable.clone(),
            };
            let (methods, path) = (&route.options.methods, &route.path);
            let own = services.iter_mut().find(|own| own.service.name == route.service.name);
            let own = own.expect("a route's service is one of the file");
            own.table.insert(methods, path, route.guarded_spelling(), &active);
            own.foretold.insert(methods, path, route.foretold_spelling(), &active);
            if route.vendor.is_some() || (route.signature.is_some() && route.options.mode == RouteMode::Enforce) {
                own.beside.insert(&METHODS, path, Spelling::Pass, &active);
            }
            names.extend(route.names().map(|name| (Arc::clone(name), active.clone())));
        }
        Self { services, hosts, names, renewable }
    }

    /// The service of a host: its own, else the one at the top of the file, which has no hosts; `None` where that is
    /// missing too.
    pub fn service_of(&self, host: &str) -> Option<&ServiceRouter> {
        let found = if self.hosts.is_empty() { None } else { self.hosts.get(&*host.to_ascii_lowercase()) };
        let of_all_hosts = || self.services.iter().find(|own| own.service.hosts.is_empty());
        found.map(|place| &self.services[*place]).or_else(of_all_hosts)
    }

    /// The service of this name.
    pub fn service_named(&self, name: &str) -> Option<&ServiceRouter> {
        self.services.iter().find(|own| *own.service.name == *name)
    }

    /// The route of another service at the same upstream that a path with an authority leads to: what stands there may
    /// take the authority for the host.
    // See docs/decisions/0018-read-paths-as-services-do.md.
    pub(super) fn find_behind_authority(
        &self,
        own: &ServiceRouter,
        method: &Method,
        path: &RequestPath<'_>,
    ) -> Option<&ActiveRoute> {
        if ![path.sent(), path.normal()].into_iter().any(|read| path_behind_authority(read).is_some()) {
            return None;
        }
        let is_beside = |other: &&ServiceRouter| {
            !Arc::ptr_eq(&other.service, &own.service) && other.service.upstream == own.service.upstream
        };
        self.services.iter().filter(is_beside).find_map(|other| match other.foretold.find(method, path) {
            RouteMatch::Ambiguous(active) => Some(active),
            RouteMatch::NoRoute | RouteMatch::Route(_) => None,
        })
    }

    /// The route whose keys are stored under that name.
    pub fn named(&self, name: &str) -> Option<&ActiveRoute> {
        self.names.get(name)
    }
}

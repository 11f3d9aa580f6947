//! Which route a request belongs to.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::Method;

use super::meters::{Meters, RouteMeters};
use super::pace::{Pace, Paces};
use crate::config::{self, Config, Route};
use crate::domain::route_table::RouteTable;
use crate::upstream::Upstream;

/// A route with what one worker needs to serve it. Cheap to clone.
#[derive(Clone)]
pub struct Guard {
    /// The policy.
    pub route: Arc<Route>,
    /// Where its requests go.
    pub upstream: Upstream,
    /// How long its attempts take.
    pub pace: Arc<Pace>,
    /// What its requests are counted with.
    pub meters: Arc<RouteMeters>,
}

/// The routes by method and path; the most specific path wins.
pub struct Router {
    table: RouteTable<Guard>,
    names: HashMap<Arc<str>, Guard>,
}

impl Router {
    /// The checked routes, of which the configuration has made sure that no two are the same, each with its pace.
    pub fn new(config: &Config, paces: &Paces, meters: &Meters) -> Self {
        let mut pools: HashMap<(Arc<config::Upstream>, Duration, Duration), Upstream> = HashMap::new();
        let mut table = RouteTable::default();
        let mut names = HashMap::new();
        for route in &config.routes {
            let pool = (Arc::clone(&route.upstream), route.connect_timeout, route.upstream_idle_timeout);
            let upstream = pools
                .entry(pool)
                .or_insert_with_key(|(target, connect, idle)| Upstream::new(target, *connect, *idle, &config.trust))
                .clone();
            let guard = Guard {
                route: Arc::clone(route),
                upstream,
                pace: paces.of(&route.name),
                meters: meters.of(&route.name),
            };
            table.insert(&route.methods, route.host.as_deref(), &route.path, &guard);
            names.insert(Arc::clone(&route.name), guard);
        }
        Self { table, names }
    }

    /// The route of a request, if one guards it.
    pub fn find(&self, method: &Method, host: &str, path: &str) -> Option<&Guard> {
        self.table.find(method, host, path)
    }

    /// The route of that name.
    pub fn named(&self, name: &str) -> Option<&Guard> {
        self.names.get(name)
    }
}

//! The settings that a process keeps from its start to its end, and those that a reload replaces, as two types. A value
//! of the one cannot be read from the other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{AdminListenerConfig, Config, StoreLocation, TelemetryConfig};

/// The fewest connections to PostgreSQL: one each for the lease, the sweep, upkeep and reservations, and two for
/// settlements. With fewer, one kind of work could starve another.
pub const STORE_CONNECTIONS_MIN: usize = 6;

/// The settings that a process keeps from its start to its end. Each field has the name of its option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartConfig {
    /// The address for clients.
    pub listen: SocketAddr,
    /// The name of the service, which is part of every key.
    pub service: Arc<str>,
    /// The time between a failing `/readyz` and the end of listening.
    pub drain_delay: Duration,
    /// The time that running attempts have at the end.
    pub drain_timeout: Duration,
    /// The bounds on what clients can hold.
    pub limits: LimitsConfig,
    /// The operators' listener.
    pub admin: AdminListenerConfig,
    /// The store of keys. A reload may change the URL, see [`Config::store_url`].
    pub store: StoreConfig,
    /// The cache of completed responses.
    pub cache: CacheConfig,
    /// Logs and traces.
    pub telemetry: TelemetryConfig,
    /// Whether changes of keys write events, for which the start makes triggers.
    pub events: bool,
}

/// The bounds on what clients can hold. Beyond them, new work is refused; nothing that runs is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the reader declares each option with its meaning")]
pub struct LimitsConfig {
    pub connections: usize,
    pub connections_per_peer: usize,
    pub held_bodies: u64,
    pub body_rate: u64,
    pub upstream_connections: usize,
}

/// The store, and how it is used. Its URL is shown without its password.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the reader declares each option with its meaning")]
pub struct StoreConfig {
    pub url: StoreLocation,
    pub max_connections: usize,
    pub timeout: Duration,
    pub migrate: bool,
    pub accept_route_changes: Option<Box<str>>,
    pub distribute: bool,
    pub encrypt: bool,
    pub lease: LeaseConfig,
    pub sweep_every: Duration,
    pub reap_every: Duration,
}

/// An instance's right to run attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the reader declares each option with its meaning")]
pub struct LeaseConfig {
    pub heartbeat: Duration,
    pub expiry: Duration,
}

/// The settings of the cache that a process keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// The bytes of responses in memory.
    pub memory: u64,
    /// Whether instances share a cache. A reload may name another server, and neither the first one nor none.
    pub is_shared: bool,
}

impl StartConfig {
    /// The options of a newer file that take effect with a restart.
    pub fn list_restart_changes(&self, newer: &Self) -> Vec<&'static str> {
        // A field that is left out of the list is an unused one here.
        let Self { listen, service, drain_delay, drain_timeout, limits, admin, store, cache, telemetry, events } = self;
        let mut newer_store = newer.store.clone();
        // A reload has moved the store there, or is refused.
        newer_store.url = store.url.clone();
        // It is for one start.
        newer_store.accept_route_changes.clone_from(&store.accept_route_changes);
        let changes = [
            ("listen", *listen != newer.listen),
            ("service", *service != newer.service),
            ("drain_delay", *drain_delay != newer.drain_delay),
            ("drain_timeout", *drain_timeout != newer.drain_timeout),
            ("limits", *limits != newer.limits),
            ("admin", *admin != newer.admin),
            ("store", *store != newer_store),
            ("cache", *cache != newer.cache),
            ("telemetry", *telemetry != newer.telemetry),
            // Triggers that no route needs any more write nothing.
            ("events", !events && newer.events),
        ];
        changes.into_iter().filter_map(|(option, differs)| differs.then_some(option)).collect()
    }
}

/// A checked configuration, as one load has found it.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The settings that only a start uses.
    pub start: StartConfig,
    /// The settings that a reload uses too.
    pub live: Config,
}

impl LoadedConfig {
    /// The part that a reload replaces, in a process that was started with these settings: they count in all that
    /// depends on both parts.
    pub fn into_reload(self, running: &StartConfig) -> Config {
        let Self { start, mut live } = self;
        for route in &mut live.routes {
            let route = Arc::make_mut(route);
            route.quiet_after = route.quiet_after - start.store.lease.expiry + running.store.lease.expiry;
        }
        live
    }
}

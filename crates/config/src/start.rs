//! The settings that a process keeps from its start to its end, and those that a reload replaces, as two types. A value of the
//! one cannot be read from the other.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Config, LimitsConfig, StoreConfig, StoreLocation, TelemetryConfig};

/// Declares the settings, and their comparison: none can be left out of it.
macro_rules! start_config {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$about:meta])+ $field:ident: $type:ty,)+ }) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$about])+ pub $field: $type,)+
        }

        impl $name {
            /// The options of the file whose values differ from the other ones.
            fn list_differences(&self, other: &Self) -> Vec<&'static str> {
                [$((stringify!($field), self.$field != other.$field)),+]
                    .into_iter()
                    .filter_map(|(option, differs)| differs.then_some(option))
                    .collect()
            }
        }
    };
}

start_config! {
    /// The settings that a process keeps from its start to its end. Each field has the name of its option.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct StartConfig {
        /// The address for clients.
        listen: SocketAddr,
        /// The name of the service, which is part of every key.
        service: Arc<str>,
        /// The time between a failing `/readyz` and the end of listening.
        drain_delay: Duration,
        /// The time that running attempts have at the end.
        drain_timeout: Duration,
        /// The bounds on what clients can hold.
        limits: LimitsConfig,
        /// The operators' listener.
        admin: AdminListenerConfig,
        /// The store of keys. A reload may change the URL, see [`Config::store_url`].
        store: StoreConfig,
        /// The cache of completed responses.
        cache: CacheConfig,
        /// Logs and traces.
        telemetry: TelemetryConfig,
        /// Whether changes of keys write events, for which the start makes triggers.
        events: bool,
    }
}

/// The settings of the operators' listener that a process keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminListenerConfig {
    /// The address for operators and probes.
    pub listen: SocketAddr,
    /// The file of a drawn token.
    pub token_file: Option<PathBuf>,
    /// Whether everybody on this machine is an operator.
    pub open: bool,
    /// Whether operators have a configured token. A reload may replace it, and neither add nor remove it.
    pub has_token: bool,
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
        let mut newer = newer.clone();
        // A reload has moved the store there.
        if let (StoreLocation::Postgres(_), StoreLocation::Postgres(_)) = (&self.store.url, &newer.store.url) {
            newer.store.url = self.store.url.clone();
        }
        // It is for one start.
        newer.store.accept_route_changes.clone_from(&self.store.accept_route_changes);
        // Triggers that no route needs any more write nothing.
        newer.events |= self.events;
        self.list_differences(&newer)
    }
}

/// A checked configuration, as one load has found it.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The settings that only a start uses.
    pub start: StartConfig,
    /// The settings that a reload uses too.
    pub(super) live: Config,
}

impl LoadedConfig {
    /// Both parts, for a start.
    pub fn into_parts(self) -> (StartConfig, Config) {
        (self.start, self.live)
    }

    /// The part that a reload replaces, in a process that was started with these settings: they count in all that depends on both
    /// parts.
    pub fn into_reload(self, running: &StartConfig) -> Config {
        let Self { start, mut live } = self;
        for route in &mut live.routes {
            let route = Arc::make_mut(route);
            route.quiet_after = route.quiet_after - start.store.lease.expiry + running.store.lease.expiry;
        }
        live
    }
}

impl Deref for LoadedConfig {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.live
    }
}

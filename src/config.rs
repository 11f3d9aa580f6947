//! The configuration: the file as written, then checked.
//!
//! [`load`] finds every problem of a file in one go and names file, line, column, key and what would be right. What it
//! returns was checked whole: no field needs another look, and no default stands anywhere else than in [`keys`].
//! Nothing here opens a socket or a database; whether the store and the upstream are there is for others to find out.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::domain::fingerprint::Secrets;
use crate::tls::Trust;

pub use admin::AdminToken;
pub use broker::Broker;
pub use consumers::{Consumer, MessageKey};
pub use delivery::Delivery;
pub use describe::describe;
pub use location::Location;
pub use lookup::Lookup;
pub use otlp::Collector;
pub use postgres_tls::{Identity, PostgresTls, Roots, SslMode};
pub use problem::{Problem, Problems};
pub use reconcile::Reconcile;
pub use route::{ForwardKey, InFlight, KeyRule, KeySource, Mode, Route, Space, StoreDown};
pub use schema::schema;
pub use scope::{ScopePart, ScopeRule, ScopeSource};
pub use surroundings::{Process, Surroundings};
pub use tls::{Tls, Version};
pub use units::duration;
pub use upstream::Upstream;

mod admin;
mod broker;
mod consumers;
mod delivery;
mod describe;
mod fingerprint;
mod interpolate;
mod key;
pub mod keys;
mod location;
mod lookup;
mod nearest;
mod otlp;
mod postgres_tls;
mod problem;
mod reader;
mod reconcile;
mod route;
mod routes;
mod schema;
mod scope;
mod statuses;
mod surroundings;
mod tls;
mod top;
mod units;
mod upstream;
mod wording;

pub use routes::parse_ttl as ttl;

/// What flags say.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--listen`, for `listen`.
    pub listen: Option<String>,
    /// `--upstream`, for the `upstream` at the top.
    pub upstream: Option<String>,
    /// `--store`, for `store.url`.
    pub store: Option<String>,
    /// `--admin`, for `admin.listen`.
    pub admin: Option<String>,
}

/// Reads and checks a configuration. A flag counts for more than a variable, that for more than the file, and that for
/// more than a default; an empty variable counts as none. Without a file the defaults are all there is beside them.
///
/// # Errors
/// Everything that is wrong.
pub fn load(file: Option<&Path>, overrides: &Overrides, surroundings: &dyn Surroundings) -> Result<Config, Problems> {
    top::load(file, overrides, surroundings)
}

/// The address of the operators' listener alone, from the same places as in [`load`]. The rest may be as it will, as long
/// as the file is TOML: whoever asks a running instance need not have its secrets or its upstream.
///
/// # Errors
/// What is wrong with the address, or with the file.
pub fn admin_listen(
    file: Option<&Path>,
    overrides: &Overrides,
    surroundings: &dyn Surroundings,
) -> Result<SocketAddr, Problems> {
    top::admin_listen(file, overrides, surroundings)
}

/// What an instance wants to be shown by those who ask more than probes do, in the same way.
///
/// # Errors
/// What is wrong with it, or with the file.
pub fn admin_token(file: Option<&Path>, surroundings: &dyn Surroundings) -> Result<Option<AdminToken>, Problems> {
    top::admin_token(file, surroundings)
}

/// The name of the service that a file is about, in the same way.
///
/// # Errors
/// What is wrong with it, or with the file.
pub fn service_name(file: &Path, surroundings: &dyn Surroundings) -> Result<Arc<str>, Problems> {
    top::service_name(file, surroundings)
}

/// A configuration that was checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients are listened for.
    pub listen: SocketAddr,
    /// For requests that no route guards.
    pub pass: Pass,
    /// Tells services that share a database apart.
    pub service: Arc<str>,
    /// What fingerprints are made and read with.
    pub secrets: Secrets,
    /// Whose forwarding fields and `header:` scope parts are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether state-changing requests that no route guards are refused.
    pub refuse_unguarded: bool,
    /// Between failing readiness and closing the door.
    pub drain_delay: Duration,
    /// How long running attempts may take to finish at shutdown.
    pub drain_timeout: Duration,
    /// What stands before the slug in a problem's `type`.
    pub problem_base: Box<str>,
    /// What clients are spoken to with; `None` for cleartext.
    pub tls: Option<Tls>,
    /// Who vouches for `https://` services.
    pub trust: Trust,
    /// The operators' listener.
    pub admin: Admin,
    /// Where keys are kept.
    pub store: Store,
    /// How many bytes of completed responses are kept in memory; 0 for none.
    pub cache_memory: u64,
    /// What is logged.
    pub log: Log,
    /// Where traces go; `None` for no traces.
    pub otlp: Option<Collector>,
    /// In the order of the file; at least one.
    pub routes: Vec<Arc<Route>>,
    /// Queues whose messages are requests.
    pub consumers: Vec<Arc<Consumer>>,
    /// What is allowed and dangerous, to be said at start.
    pub warnings: Vec<String>,
}

/// What becomes of requests that no route guards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The one at the top: where they go, and where routes without an upstream of their own send theirs.
    pub upstream: Arc<Upstream>,
    /// For a connection to it, as `[defaults]` has it.
    pub connect_timeout: Duration,
    /// How long an unused connection to it is kept, as `[defaults]` has it.
    pub upstream_idle_timeout: Duration,
}

/// The operators' listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// A loopback address, where there is no token.
    pub listen: SocketAddr,
    /// What operators must show.
    pub token: Option<AdminToken>,
}

/// Where keys are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Which store, and where. Shown without its password.
    pub location: Location,
    /// Connections to the database; at least one.
    pub max_connections: usize,
    /// For any one operation.
    pub timeout: Duration,
    /// Bring an old schema up to date at start, rather than refuse it.
    pub migrate: bool,
    /// How often an instance renews its lease.
    pub heartbeat: Duration,
    /// How long a lease lives without being renewed; twice a heartbeat at least.
    pub expiry: Duration,
    /// How often lapsed leases are looked for.
    pub sweep_every: Duration,
    /// How often keys past their ttl are deleted.
    pub reap_every: Duration,
}

/// What is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// A filter that `tracing_subscriber::EnvFilter` reads.
    pub filter: String,
    /// How.
    pub format: LogFormat,
}

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    /// One object a line.
    Json,
    /// For people.
    Text,
}

#[cfg(test)]
mod tests;

//! The configuration: the file, read and checked.
//!
//! [`load()`] finds every problem of a file in one go and reports each with file, line, column, key and a remedy. The
//! result is checked as a whole: its users check no field again. Each option is declared once, by `options!`. Nothing here
//! opens a socket or a database: whether the store and the upstream are reachable is checked elsewhere.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use oncegate_domain::fingerprint::Secrets;
use oncegate_trust::tls::Trust;

pub use admin::AdminConfig;
pub use admin_token::AdminToken;
pub use authorize::{AuthorizeConfig, ReplayOptions};
pub use broker::Broker;
pub use consumers::{AmqpSource, Consumer, MessageKey, MessageSource};
pub use cors::CorsPolicy;
pub use delivery::DeliveryMode;
pub use describe::describe;
pub use dialect::{Dialect, FIRST_SENT};
pub use environment::{Environment, ProcessEnvironment};
pub use events::{EventKey, EventSink, EventTarget, EventType, KafkaTopic, WebhookSecret, parse_sink_name};
pub use exposure::{StartExposure, start_exposure};
pub use file_access::has_written_secret;
pub use file_options::TOP;
use file_options::UnguardedPolicy;
pub use jwt::{IssuerKeys, JwtConfig};
pub use kafka::{FirstOffset, KafkaSource, RecordOrder};
pub use kafka_cluster::{KafkaCluster, KafkaLogin, KafkaTls, SaslMechanism};
pub use key::{ForwardKey, KeyRule, KeySource};
pub use key_doc::{KeyDoc, ValueKind};
pub use limits::{CallerLimits, LimitsConfig};
use lint::Lint;
pub use load::{admin_listen, admin_token, load, service_name};
pub use location::StoreLocation;
pub use oidc::{OidcConfig, PageUrl, parse_issuer_url};
pub use postgres_client_tls::postgres_client_tls;
pub use postgres_tls::{PostgresTls, SslMode};
pub use postgres_url::PostgresUrl;
pub use problem::{ConfigProblem, ConfigProblems, ParseResult};
pub use reconcile::ReconcileConfig;
pub use reconcile_url::ReconcileUrl;
pub use redis_server::RedisServer;
pub use route::Route;
pub use route_options::{
    BODY_BYTES_MAX, InFlightPolicy, KeySpace, OnClientGone, RouteMode, RouteOptions, SameBodyPolicy, StoreDownPolicy,
    StreamMode, parse_ttl,
};
pub use route_settings::RouteSetting;
pub use schema::schema;
pub use scope::{ScopePart, ScopeRule, ScopeSource};
pub use service_url::parse as parse_service_url;
pub use source_files::SourceFiles;
pub use start::{AdminListenerConfig, CacheConfig, LoadedConfig, StartConfig};
pub use store::{LeaseConfig, STORE_CONNECTIONS_MIN, StoreConfig};
pub use telemetry::{LogFormat, OtlpCollector, TelemetryConfig};
pub use tls::TlsConfig;
pub use units::parse_duration;
pub use upstream::UpstreamTarget;
pub use upstream_tls::UpstreamTlsConfig;
pub use value_origins::{ValueOrigin, ValueOrigins};
pub use words::Word;
use written_options::WrittenOptions;

mod admin;
mod admin_token;
mod authorize;
mod broker;
mod challenge;
mod consumers;
mod cors;
mod delivery;
mod describe;
mod dialect;
mod environment;
mod events;
mod exposure;
mod file_access;
mod file_options;
mod fingerprint;
mod interpolate;
mod jwt;
mod kafka;
mod kafka_cluster;
mod key;
mod key_doc;
mod kind;
mod limits;
mod lint;
mod load;
mod location;
mod methods;
mod nearest;
mod oidc;
mod options;
mod outcome;
mod postgres_client_tls;
mod postgres_parameters;
mod postgres_tls;
mod postgres_url;
mod problem;
mod reader;
mod reconcile;
mod reconcile_url;
mod redis_server;
mod route;
mod route_options;
mod route_settings;
mod routes;
mod schema;
mod scope;
mod secrets;
mod server_url;
mod service_url;
mod source_files;
mod start;
mod statuses;
mod store;
mod telemetry;
mod tls;
mod units;
mod upstream;
mod upstream_tls;
mod value_origins;
mod value_parsers;
mod warnings;
mod wording;
mod words;
mod written_options;

/// The values of command-line flags, which overrule the file; the comments are their help.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Overrides {
    /// Where clients connect, e.g. 127.0.0.1:8080 [env: ONCEGATE_LISTEN]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// The service, e.g. http://127.0.0.1:3000 [env: ONCEGATE_UPSTREAM]
    #[arg(long, value_name = "URL")]
    pub upstream: Option<String>,
    /// sqlite:PATH, postgres://USER@HOST/DB or memory: [env: ONCEGATE_STORE_URL]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Where operators and probes connect [env: ONCEGATE_ADMIN_LISTEN]
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
    /// Accepts one change of how stored keys are found, by the digest that the refusal of the start names
    #[arg(long, value_name = "DIGEST")]
    pub accept_route_changes: Option<String>,
    /// The parts of a request that identify its caller, e.g. authorization,header:x-tenant, or none: all callers share their
    /// keys. For each route without a scope of its own
    #[arg(long, value_name = "PARTS")]
    pub scope: Option<String>,
}

/// The name of the configuration where no file was read.
pub const NO_FILE: &str = "no file: defaults";

/// Returns the whole path of a file, whatever the working directory is.
pub fn show_whole_path(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// The part of a checked configuration that a reload replaces. [`StartConfig`] is the other part.
#[derive(Clone, Debug)]
pub struct Config {
    /// The networks whose forwarding fields and `header:` scope parts are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// The handling of state-changing requests that no route guards.
    unguarded: UnguardedPolicy,
    /// The URI before the slug in a problem's `type`.
    pub problem_base: Box<str>,
    /// The lints whose warnings the file allows.
    allow: Vec<Lint>,
    /// Settings for requests that no route guards.
    pub pass: PassThroughConfig,
    /// The keys of fingerprints and of sealed requests.
    pub secrets: Secrets,
    /// The origins whose pages may read the answers that no route owns.
    pub cors: Arc<CorsPolicy>,
    /// TLS towards clients; `None` for cleartext.
    pub tls: Option<TlsConfig>,
    /// The files beside the configuration's own: of TLS on either side, and those of `${file:…}`.
    pub files: SourceFiles,
    /// The issuer of callers' tokens; `None` where no scope reads one.
    pub jwt: Option<Arc<JwtConfig>>,
    /// The authorities that the collector of traces, brokers, the shared cache and the issuer of tokens are verified with.
    pub trust: Trust,
    /// The tokens and the issuer of operators.
    pub admin: AdminConfig,
    /// The place of the store. A reload may change the URL of PostgreSQL, if it leads to the same store.
    pub store_url: StoreLocation,
    /// The server of the shared cache.
    pub redis: Option<RedisServer>,
    /// The routes, in the order of the file; at least one.
    pub routes: Vec<Arc<Route>>,
    /// The queues whose messages are requests.
    pub consumers: Vec<Arc<Consumer>>,
    /// The places that events about settled keys go to.
    pub events: Vec<Arc<EventSink>>,
    /// The warnings of the lints that the file does not allow, logged at start.
    pub warnings: Vec<String>,
    /// What its file writes.
    written: WrittenOptions,
}

impl Config {
    /// The services that are called, each once.
    pub fn upstreams(&self) -> HashSet<&UpstreamTarget> {
        let routes = self.routes.iter().flat_map(|route| {
            let probed = route.reconcile.as_ref().map(|reconcile| &*reconcile.lookup.upstream);
            let asked = route.replay.authorize.as_ref().map(|authorize| &*authorize.upstream);
            [Some(&*route.upstream), probed, asked].into_iter().flatten()
        });
        let issuer = self.jwt.iter().filter_map(|jwt| jwt.upstream());
        let events = self.events.iter().filter_map(|sink| sink.target.upstream());
        std::iter::once(&*self.pass.upstream).chain(routes).chain(issuer).chain(events).collect()
    }

    /// TLS towards services: of unguarded requests, and of each route.
    pub(crate) fn upstream_tls(&self) -> impl Iterator<Item = &UpstreamTlsConfig> {
        std::iter::once(&self.pass.tls).chain(self.routes.iter().map(|route| &route.upstream_tls))
    }

    /// The options and the files whose values differ, those of [`StartConfig`] included.
    pub fn list_changes(&self, newer: &Self) -> Vec<String> {
        let options = self.written.list_changes(&newer.written).into_iter();
        options.chain(self.files.list_changes(&newer.files)).collect()
    }

    /// Whether state-changing requests that no route guards are refused.
    pub fn refuses_unguarded(&self) -> bool {
        self.unguarded == UnguardedPolicy::Refuse
    }

    /// Whether a route has the keys that are stored under this name.
    pub fn has_route(&self, name: &str) -> bool {
        self.routes.iter().any(|route| route.has_name(name))
    }
}

/// Settings from the top and from `[defaults]`, for requests and keys that have no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassThroughConfig {
    /// The `upstream` at the top of the file. Routes without an upstream of their own use it too.
    pub upstream: Arc<UpstreamTarget>,
    /// TLS towards it, from `[defaults]` and the top.
    pub tls: UpstreamTlsConfig,
    /// The time limit for connecting to it, from `[defaults]`.
    pub connect_timeout: Duration,
    /// The time for which an unused connection to it is kept, from `[defaults]`.
    pub upstream_idle_timeout: Duration,
    /// The time from acceptance after which a queued key whose route is gone is dead, from `[defaults]`.
    pub give_up_after: Duration,
}

#[cfg(test)]
mod tests;

//! The types of the configuration. The reader of the file, which makes them, is `oncegate-config`.
//!
//! A value is checked when it is made, and its users check it no more. What is a text in the file, such as a URL, has
//! its `parse` beside its type. Nothing here opens a socket or a database.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use oncegate_domain::fingerprint::Secrets;
use oncegate_trust::tls::Trust;

pub use admin::{AdminConfig, AdminListenerConfig, AdminToken, ClientSecret, OidcConfig, PageUrl};
pub use broker::{BROKER_NAME_BYTES_MAX, Broker};
pub use choices::{Word, one_of};
pub use consumers::{AmqpSource, Consumer, MessageKey, MessageKeyPlace, MessageSource};
pub use cors::CorsPolicy;
pub use dialect::{Dialect, FIRST_SENT};
pub use events::{EventKey, EventSink, EventTarget, EventType, KafkaTopic, WebhookSecret};
pub use jwt::{IssuerKeys, JwtConfig};
pub use kafka::{FirstOffset, KafkaCluster, KafkaLogin, KafkaSource, KafkaTls, RecordOrder, SaslMechanism};
pub use key::{ForwardKey, KeyPlace, KeyRule};
pub use location::StoreLocation;
pub use postgres_client_tls::postgres_client_tls;
pub use postgres_tls::{PostgresTls, SslMode};
pub use postgres_url::{PostgresUrl, UrlText};
pub use reconcile_url::{ReconcileConfig, ReconcileUrl};
pub use redis_server::RedisServer;
pub use refusal_forms::{DocumentForm, REFUSALS, RefusalForm, RefusalForms, RefusalMatch};
pub use replay::{AuthorizeConfig, ReplayPolicy};
pub use route::{BODY_BYTES_MAX, CallerLimits, ROUTE_SETTINGS, Route, RouteOptions, RouteSetting};
pub use route_choices::*;
pub use scope::{ScopePart, ScopeRule, ScopeSource};
pub use server_url::{UNESCAPED, bare_host, is_local, parse_authority};
pub use service_url::{parse_issuer_url, parse_service, parse_service_url, require_tls};
pub use setting_texts::describe_scope;
pub use source_files::SourceFiles;
pub use start::{
    CacheConfig, LeaseConfig, LimitsConfig, LoadedConfig, STORE_CONNECTIONS_MIN, StartConfig, StoreConfig,
};
pub use telemetry::{LogFormat, OtlpCollector, TelemetryConfig, TraceSampler, parse_pairs};
pub use template::{Placeholder, PlaceholderValue, Template};
pub use tls::{PoolKey, TlsConfig, UpstreamTlsConfig};
pub use units::{DURATION_UNITS, SIZE_UNITS, parse_duration, parse_size, parse_ttl, show_duration, show_size};
pub use upstream::UpstreamTarget;
pub use value_origins::{ValueOrigin, ValueOrigins};
pub use vendor::{VendorKey, VendorRule};
pub use written_options::WrittenOptions;

mod admin;
mod broker;
mod choices;
mod consumers;
mod cors;
mod dialect;
mod events;
mod jwt;
mod kafka;
mod key;
mod location;
mod postgres_client_tls;
mod postgres_parameters;
mod postgres_tls;
mod postgres_url;
mod reconcile_url;
mod redis_server;
mod refusal_forms;
mod replay;
mod route;
mod route_choices;
mod scope;
mod server_url;
mod service_url;
mod setting_texts;
mod source_files;
mod start;
mod telemetry;
mod template;
mod tls;
mod units;
mod upstream;
mod value_origins;
mod vendor;
mod written_options;

/// The value of a text; or its problem, which begins with a verb and never shows a text that may hold a password.
pub type ParseResult<T> = Result<T, String>;

/// Returns the whole path of a file, whatever the working directory is.
pub fn show_whole_path(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// The part of a checked configuration that a reload replaces. [`StartConfig`] is the other part.
#[derive(Clone, Debug)]
pub struct Config {
    /// The networks whose forwarding fields and `header:` scope parts are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether state-changing requests that no route guards are refused.
    pub refuses_unguarded: bool,
    /// The URI before the slug in a problem's `type`.
    pub problem_base: Box<str>,
    /// The names of the warnings that the file allows.
    pub allow: Vec<&'static str>,
    /// The services behind the gate, each with hosts of its own but the one at the top of the file; at least one.
    pub services: Vec<Arc<Service>>,
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
    /// The authorities that the collector of traces, brokers, the shared cache and the issuer of tokens are verified
    /// with.
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
    /// The warnings that the file does not allow, logged at start.
    pub warnings: Vec<String>,
    /// The options that its file writes.
    pub written: WrittenOptions,
}

impl Config {
    /// The services that are called, each once.
    pub fn upstreams(&self) -> HashSet<&UpstreamTarget> {
        let routes = self.routes.iter().flat_map(|route| {
            let reconciled = route.reconcile.as_ref().map(|reconcile| &*reconcile.lookup.upstream);
            let asked = route.options.replay.authorize.as_ref().map(|authorize| &*authorize.upstream);
            [reconciled, asked].into_iter().flatten()
        });
        let issuer = self.jwt.iter().filter_map(|jwt| jwt.upstream());
        let events = self.events.iter().filter_map(|sink| sink.target.upstream());
        let services = self.services.iter().map(|service| &*service.upstream);
        services.chain(routes).chain(issuer).chain(events).collect()
    }

    /// The options and the files whose values differ, those of [`StartConfig`] included.
    pub fn list_changes(&self, newer: &Self) -> Vec<String> {
        let options = self.written.list_changes(&newer.written).into_iter();
        options.chain(self.files.list_changes(&newer.files)).collect()
    }

    /// The service of this name.
    pub fn service(&self, name: &str) -> Option<&Arc<Service>> {
        self.services.iter().find(|service| *service.name == *name)
    }

    /// The names of all services.
    pub fn service_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.services.iter().map(|service| &service.name)
    }

    /// The same with blanks between.
    pub fn joined_service_names(&self) -> Arc<str> {
        self.service_names().map(|name| &**name).collect::<Vec<_>>().join(" ").into()
    }

    /// Whether a route of this name belongs to a service.
    pub fn is_of_service(&self, route: &str, service: &str) -> bool {
        self.routes_of(service).any(|own| own.has_name(route))
    }

    /// The routes of a service, in the order of the file.
    pub fn routes_of(&self, service: &str) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.iter().filter(move |route| *route.service.name == *service)
    }

    /// Whether a route has the keys that are stored under this name.
    pub fn has_route(&self, name: &str) -> bool {
        self.routes.iter().any(|route| route.has_name(name))
    }
}

/// A service behind the gate. All requests of its hosts go to it, whatever their method and path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The name, which is part of every key.
    pub name: Arc<str>,
    /// Its hosts, in lower case and without a port; none for the one at the top of the file, which has all hosts that
    /// no other service has.
    pub hosts: Vec<Box<str>>,
    /// Where its requests go.
    pub upstream: Arc<UpstreamTarget>,
    /// TLS towards it, for requests that no route guards.
    pub tls: UpstreamTlsConfig,
    /// The time limit for connecting to it, for these.
    pub connect_timeout: Duration,
    /// The time for which an unused connection to it is kept, for these.
    pub upstream_idle_timeout: Duration,
    /// The time from acceptance after which a queued key whose route is gone is dead.
    pub give_up_after: Duration,
}

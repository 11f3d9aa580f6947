//! A route: which requests are guarded, and how.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use super::cors::CorsPolicy;
use super::delivery::DeliveryMode;
use super::dialect::Dialect;
use super::reconcile::ReconcileConfig;
use super::route_options::{KeySpace, RouteMode, RouteOptions, StoreDownPolicy};
use super::scope::ScopeRule;
use super::upstream::UpstreamTarget;
use super::upstream_tls::UpstreamTlsConfig;
use super::value_origins::ValueOrigins;
use oncegate_domain::fingerprint::Recipe;
use oncegate_domain::path_pattern::PathPattern;
use oncegate_domain::response_policy::StatusTable;
use oncegate_domain::route_table::Spelling;
use oncegate_domain::space::SpaceParts;

/// How far the clock of a client may be ahead of the store's.
const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);

/// A resolved route: values that the route does not have come from `[defaults]`, or are the defaults.
#[derive(Clone, Debug)]
pub struct Route {
    /// The values of its options, which are read as fields of the route itself.
    pub options: RouteOptions,
    /// The name in logs, metrics and the operators' tools; no two routes have the same.
    pub name: Arc<str>,
    /// Its earlier names, the oldest first: their keys are this route's keys.
    pub was: Vec<Arc<str>>,
    /// The paths that it guards.
    pub path: PathPattern,
    /// The service that its requests go to.
    pub upstream: Arc<UpstreamTarget>,
    /// TLS towards it, and towards the services that are asked about its keys.
    pub upstream_tls: UpstreamTlsConfig,
    /// The parts of a request that tell callers apart.
    pub scope: ScopeRule,
    /// The `WWW-Authenticate` of the 401 to a keyed request without credentials; `None` to answer it with 400.
    pub challenge: Option<Arc<HeaderValue>>,
    /// The recipe of a request's fingerprint.
    pub recipe: Recipe,
    /// The verdict on an attempt by its response's status.
    pub statuses: StatusTable,
    /// The time past its deadline after which nothing of an attempt can be running any more: a lease, and
    /// `reconcile.after`.
    pub quiet_after: Duration,
    /// The reconciliation of unknown outcomes, if the route has one.
    pub reconcile: Option<ReconcileConfig>,
    /// The origins whose pages may read its refusals and replays.
    pub cors: Arc<CorsPolicy>,
    /// The places that its values come from.
    pub origins: ValueOrigins,
}

impl Deref for Route {
    type Target = RouteOptions;

    fn deref(&self) -> &RouteOptions {
        &self.options
    }
}

impl Route {
    /// Whether the route reads a request field of this name, in lower case, for the key, the scope or the fingerprint.
    pub fn reads_field(&self, name: &str) -> bool {
        let mut fields = self.key.headers().chain(self.key.payload_headers()).chain(self.scope.header_names());
        fields.any(|field| *field == *name) || self.recipe.reads_field(name)
    }

    /// Whether the route guards requests, and forwards them while the store is away. What it accepts for later needs the store.
    pub fn bypasses(&self) -> bool {
        self.mode == RouteMode::Enforce
            && self.store_down == StoreDownPolicy::Bypass
            && self.delivery != DeliveryMode::Async
    }

    /// The handling of another spelling of the route's paths: only a route that enforces needs one.
    pub fn guarded_spelling(&self) -> Spelling {
        match self.mode {
            RouteMode::Enforce => self.spelling,
            RouteMode::Observe | RouteMode::Off => Spelling::Pass,
        }
    }

    /// The handling of another spelling of the route's paths if a route that observes enforced.
    pub fn foretold_spelling(&self) -> Spelling {
        if self.mode == RouteMode::Off { Spelling::Pass } else { self.spelling }
    }

    /// TLS towards a service. The name that was written for the upstream's certificate is the upstream's alone.
    pub fn tls_towards(&self, target: &UpstreamTarget) -> UpstreamTlsConfig {
        let is_upstream = *target == *self.upstream;
        let server_name = self.upstream_tls.server_name.clone().filter(|_| is_upstream);
        UpstreamTlsConfig { server_name, ..self.upstream_tls.clone() }
    }

    /// The greatest age of a request that says when it was first sent. In the dialect of repeatable requests its key is still
    /// remembered then, also if the client's clock was [ahead](Self::ahead_limit): a later retry could pass for a new request.
    pub fn age_limit(&self) -> Option<Duration> {
        match self.dialect {
            Dialect::Repeatability => Some(self.max_age.unwrap_or(self.ttl).min(self.ttl - self.ahead_limit())),
            Dialect::A2a
            | Dialect::Acp
            | Dialect::Graphql
            | Dialect::Ietf
            | Dialect::Jsonrpc
            | Dialect::Mcp
            | Dialect::Stripe
            | Dialect::Ucp
            | Dialect::X402 => self.max_age,
        }
    }

    /// The time by which a repeatable request may have been sent in the future: five minutes, and at most half of the TTL.
    pub fn ahead_limit(&self) -> Duration {
        AHEAD_MAX.min(self.ttl / 2)
    }

    /// Whether it limits the new keys of its callers.
    pub fn limits_new_keys(&self) -> bool {
        self.limits.new_keys_per_second.is_some() || self.limits.live_keys.is_some()
    }

    /// All names that its keys are stored under: its own and its earlier ones.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        std::iter::once(&self.name).chain(&self.was)
    }

    /// Whether keys that are stored under this name are its keys.
    pub fn has_name(&self, name: &str) -> bool {
        self.names().any(|own| **own == *name)
    }

    /// The parts that the spaces of its keys are made of.
    pub fn space_parts(&self) -> SpaceParts<'_> {
        match self.space {
            KeySpace::Path => {
                SpaceParts::Path { host: self.host.as_deref().map(Cow::Borrowed), operation: self.dialect.rpc_naming() }
            }
            KeySpace::Route => SpaceParts::Route(self.space_name().into()),
            KeySpace::Service => SpaceParts::Service,
        }
    }

    /// The name of its key space, which stays as it is when the route is renamed: its oldest name.
    pub fn space_name(&self) -> &str {
        self.was.first().unwrap_or(&self.name)
    }
}

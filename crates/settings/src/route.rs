//! A route: which requests are guarded, and how; its options, and what they amount to as people read it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::setting_texts::{describe_scope, key, reconciled, rule, statuses, upstream_tls};
use super::{
    CorsPolicy, DeliveryMode, Dialect, ForwardKey, InFlightPolicy, KeyRule, KeySpace, OnClientGone, ReconcileConfig,
    RefusalForms, ReplayPolicy, RouteKind, RouteMode, SameBodyPolicy, ScopePart, ScopeRule, Service, StoreDownPolicy,
    StreamMode, UpstreamTarget, UpstreamTlsConfig, ValueOrigin, ValueOrigins, Vendor, VendorRule, WebhookSender, Word,
    show_duration, show_size,
};
use oncegate_domain::batch::BatchPlace;
use oncegate_domain::execution_risk::RetryRule;
use oncegate_domain::fingerprint::Recipe;
use oncegate_domain::ids::RecordId;
use oncegate_domain::key_rate::KeyRate;
use oncegate_domain::outcome_rules::OutcomeRules;
use oncegate_domain::path_pattern::PathPattern;
use oncegate_domain::place::Place;
use oncegate_domain::quantity::quantity;
use oncegate_domain::response_policy::{OnUnknown, ResponseVerdict, StatusTable};
use oncegate_domain::retry::RetryPolicy;
use oncegate_domain::route_table::Spelling;
use oncegate_domain::space::SpaceParts;
use oncegate_trust::webhook::SignatureRule;

/// Many bodies are in memory at once, and each is written to a database.
pub const BODY_BYTES_MAX: usize = 64 << 20;

/// The most by which a client's clock may be ahead of the store's.
const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);

/// A resolved route: values that the route does not have come from `[defaults]`, or are the defaults.
#[derive(Clone, Debug)]
pub struct Route {
    /// The values of its options, those excepted that are fields here.
    pub options: RouteOptions,
    /// The name in logs, metrics and the operators' tools; no two routes have the same.
    pub name: Arc<str>,
    /// Its earlier names, the oldest first: their keys are this route's keys.
    pub was: Vec<Arc<str>>,
    /// The paths that it guards.
    pub path: PathPattern,
    /// The service that its requests go to.
    pub service: Arc<Service>,
    /// TLS towards it, and towards the services that are asked about its keys.
    pub upstream_tls: UpstreamTlsConfig,
    /// The parts of a request that tell callers apart.
    pub scope: ScopeRule,
    /// The signature that each request must have; `None` where none is verified.
    pub signature: Option<Arc<SignatureRule>>,
    /// The `WWW-Authenticate` of the 401 to a keyed request without credentials; `None` to answer it with 400.
    pub challenge: Option<Arc<HeaderValue>>,
    /// The recipe of a request's fingerprint.
    pub recipe: Recipe,
    /// The verdict on an attempt by its response's status.
    pub statuses: StatusTable,
    /// The time past its deadline after which nothing of an attempt can be running any more: a lease, and
    /// `reconcile.after`.
    pub quiet_after: Duration,
    /// The vendor's promises; `None` where the route leads to none.
    pub vendor: Option<Arc<VendorRule>>,
    /// The reconciliation of unknown outcomes, if the route has one.
    pub reconcile: Option<ReconcileConfig>,
    /// The origins whose pages may read its refusals and replays.
    pub cors: Arc<CorsPolicy>,
    /// The places that its values come from.
    pub origins: ValueOrigins,
}

/// The values of a route's options, by their names; those that need more than the option itself are fields of
/// [`Route`].
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the reader declares each option with its meaning")]
pub struct RouteOptions {
    pub methods: Vec<Method>,
    pub spelling: Spelling,
    pub mode: RouteMode,
    pub kind: RouteKind,
    pub sender: WebhookSender,
    pub vendor: Vendor,
    pub dialect: Dialect,
    pub refusals: Arc<RefusalForms>,
    pub operations: Vec<String>,
    pub key: KeyRule,
    /// The places whose values operators look keys up by.
    pub index: Vec<Place>,
    pub keep_client_address: bool,
    pub space: KeySpace,
    pub in_flight: InFlightPolicy,
    pub wait_timeout: Duration,
    pub same_body: SameBodyPolicy,
    pub same_body_window: Duration,
    pub connect_timeout: Duration,
    pub upstream_timeout: Duration,
    pub upstream_idle_timeout: Duration,
    pub stream: StreamMode,
    pub stream_idle_timeout: Duration,
    pub stream_timeout: Duration,
    pub on_client_gone: OnClientGone,
    pub outcome: Arc<OutcomeRules>,
    pub on_unknown: OnUnknown,
    pub ttl: Duration,
    /// The time past the TTL for which a completed key is remembered, to refuse late retries or to tell redeliveries;
    /// `None` to forget it.
    pub remember: Option<Duration>,
    pub max_request_body: usize,
    pub max_response_body: usize,
    pub store_down: StoreDownPolicy,
    pub max_age: Option<Duration>,
    pub forward_key: ForwardKey,
    pub set_headers: Arc<[(HeaderName, HeaderValue)]>,
    pub delivery: DeliveryMode,
    /// The list of a batch whose elements have keys of their own.
    pub split: Option<BatchPlace>,
    /// The status of the answer to a request that is accepted for later.
    pub accepted: StatusCode,
    pub retry: RetryPolicy,
    pub limits: CallerLimits,
    pub replay: ReplayPolicy,
    /// The names of the warnings that are meant.
    pub allow: Vec<&'static str>,
}

/// The new keys and the live keys of each caller; `None` for no limit.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the reader declares each option with its meaning")]
pub struct CallerLimits {
    pub new_keys_per_second: Option<KeyRate>,
    pub live_keys: Option<u32>,
}

impl Route {
    /// Whether the route reads a request field of this name, in lower case, for the key, the scope or the fingerprint.
    pub fn reads_field(&self, name: &str) -> bool {
        let mut fields = self.options.key.fields().chain(self.scope.header_names());
        fields.any(|field| *field == *name) || self.recipe.reads_field(name)
    }

    /// Whether the route guards requests, and forwards them while the store is away. What it accepts for later needs
    /// the store.
    pub fn bypasses(&self) -> bool {
        self.options.mode == RouteMode::Enforce
            && self.options.store_down == StoreDownPolicy::Bypass
            && self.options.delivery != DeliveryMode::Async
    }

    /// The handling of another spelling of the route's paths: only a route that enforces needs one.
    pub fn guarded_spelling(&self) -> Spelling {
        match self.options.mode {
            RouteMode::Enforce => self.options.spelling,
            RouteMode::Observe | RouteMode::Off => Spelling::Pass,
        }
    }

    /// The handling of another spelling of the route's paths if a route that observes enforced.
    pub fn foretold_spelling(&self) -> Spelling {
        if self.options.mode == RouteMode::Off { Spelling::Pass } else { self.options.spelling }
    }

    /// TLS towards a service. The name that was written for the upstream's certificate is the upstream's alone.
    pub fn tls_towards(&self, target: &UpstreamTarget) -> UpstreamTlsConfig {
        let is_upstream = *target == *self.service.upstream;
        let server_name = self.upstream_tls.server_name.clone().filter(|_| is_upstream);
        UpstreamTlsConfig { server_name, ..self.upstream_tls.clone() }
    }

    /// The greatest age of a request that says when it was first sent. In the dialect of repeatable requests its key is
    /// still remembered then, also if the client's clock was [ahead](Self::ahead_limit): a later retry could pass for a
    /// new request.
    pub fn age_limit(&self) -> Option<Duration> {
        let (dialect, ttl, max_age) = (self.options.dialect, self.options.ttl, self.options.max_age);
        match dialect == Dialect::Repeatability {
            true => Some(max_age.unwrap_or(ttl).min(ttl - self.ahead_limit())),
            false => max_age,
        }
    }

    /// The time by which a repeatable request may have been sent in the future: five minutes, and at most half of the
    /// TTL.
    pub fn ahead_limit(&self) -> Duration {
        AHEAD_MAX.min(self.options.ttl / 2)
    }

    /// Whether several callers may be one to the vendor: it sees the credential of the route and not theirs, or they
    /// are told apart by something that is no part of the vendor's own accounts.
    pub fn shares_credential(&self) -> bool {
        let is_theirs = self.options.set_headers.is_empty() && self.upstream_tls.certificate.is_none();
        let has_own = is_theirs && self.scope.parts.iter().all(ScopePart::is_credential);
        !self.scope.parts.is_empty() && !has_own
    }

    /// The key of a record as its vendor gets it; `None` where the route leads to none, or that reads none in a field.
    pub fn vendor_key(&self, key: &[u8], id: &RecordId) -> Option<(&HeaderName, HeaderValue)> {
        let own = self.vendor.as_ref()?.key.as_ref()?;
        Some((own.field()?, own.name(key, id, self.shares_credential())))
    }

    /// The time from a request's reservation within which it may be repeated under its key at the vendor. It is shorter
    /// than the vendor's window by a quarter: the vendor's clock and the store's are two.
    pub fn repeat_within(&self) -> Option<Duration> {
        let window = self.vendor.as_ref()?.window?;
        (self.options.on_unknown == OnUnknown::Vendor).then_some(window * 3 / 4)
    }

    /// The rule for further attempts of its keys.
    pub fn retry_rule(&self) -> RetryRule {
        RetryRule {
            on_unknown: self.options.on_unknown,
            quiet_after: self.quiet_after,
            redelivers: self.options.replay.until.is_some(),
        }
    }

    /// Whether it limits the new keys of its callers.
    pub fn limits_new_keys(&self) -> bool {
        self.options.limits.new_keys_per_second.is_some() || self.options.limits.live_keys.is_some()
    }

    /// The names of its service and of itself.
    pub fn full_name(&self) -> (Arc<str>, Arc<str>) {
        (Arc::clone(&self.service.name), Arc::clone(&self.name))
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
        match self.options.space {
            KeySpace::Path => SpaceParts::Path { operation: self.options.dialect.rpc_naming() },
            KeySpace::Route => SpaceParts::Route(self.space_name().into()),
            KeySpace::Service => SpaceParts::Service,
        }
    }

    /// The name of its key space, which stays as it is when the route is renamed: its oldest name.
    pub fn space_name(&self) -> &str {
        self.was.first().unwrap_or(&self.name)
    }
}

/// A setting's name, the keys that it is made of, and its value; `None` where it is off. A table's name stands for all
/// its keys.
type DescribedSetting = (&'static str, &'static [&'static str], fn(&Route) -> Option<String>);

/// The settings in order.
pub const ROUTE_SETTINGS: &[DescribedSetting] = &[
    ("was", &["was"], |route| (!route.was.is_empty()).then(|| route.was.join(", "))),
    ("matches", &["path", "methods"], |route| Some(matches(route))),
    ("spelling", &["spelling"], |route| Some(route.options.spelling.word().into())),
    ("mode", &["mode"], |route| Some(route.options.mode.name().into())),
    ("service", &["service"], |route| (!route.service.hosts.is_empty()).then(|| route.service.name.to_string())),
    ("upstream", &["upstream"], |route| Some(route.service.upstream.to_string())),
    ("upstream tls", &["upstream_tls"], |route| upstream_tls(&route.upstream_tls)),
    ("kind", &["kind"], |route| (route.options.kind != RouteKind::Standard).then(|| route.options.kind.word().into())),
    ("vendor", &["vendor"], |route| (route.options.vendor != Vendor::Off).then(|| route.options.vendor.word().into())),
    ("sets", &["set_headers"], |route| {
        let names: Vec<_> = route.options.set_headers.iter().map(|(name, _)| name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }),
    ("sender", &["sender", "signature"], |route| {
        let keys = route.signature.as_ref().map(|rule| rule.keys.len() as u64);
        let verified = keys.map(|keys| format!(", verified by {}", quantity(keys, "secret", "secrets")));
        let sender = route.options.sender;
        (sender != WebhookSender::None).then(|| format!("{}{}", sender.word(), verified.unwrap_or_default()))
    }),
    ("dialect", &["dialect"], |route| Some(route.options.dialect.word().into())),
    ("refusals", &["refusals"], |route| {
        let names: Vec<_> = route.options.refusals.names().map(|name| name.to_string()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }),
    ("operations", &["operations"], |route| {
        (!route.options.operations.is_empty()).then(|| route.options.operations.join(", "))
    }),
    ("key", &["key"], |route| Some(key(&route.options.key))),
    ("index", &["index", "keep_client_address"], |route| {
        let address = route.options.keep_client_address.then(|| "the client's address".to_owned());
        let kept: Vec<_> = route.options.index.iter().map(Place::to_string).chain(address).collect();
        (!kept.is_empty()).then(|| kept.join(", "))
    }),
    ("forwarded as", &["forward_key"], |route| Some(forwarded_as(route))),
    ("scope", &["scope"], |route| Some(describe_scope(&route.scope))),
    ("challenge", &["challenge"], |route| {
        Some(format!("401 with {}", route.challenge.as_ref()?.to_str().unwrap_or_default()))
    }),
    ("space", &["space"], |route| Some(route.options.space.word().into())),
    ("fingerprint", &["fingerprint"], |route| Some(format!("recipe {}", route.recipe))),
    ("ttl", &["ttl", "after_ttl", "remember", "replay.until", "max_age"], |route| Some(ttl(route))),
    ("in flight", &["in_flight", "wait_timeout"], |route| Some(in_flight(route))),
    ("same body", &["same_body", "same_body_window"], |route| Some(same_body(route))),
    ("timeouts", &["connect_timeout", "upstream_timeout", "upstream_idle_timeout"], |route| Some(timeouts(route))),
    ("stream", &["stream", "stream_idle_timeout", "stream_timeout", "on_client_gone"], |route| Some(stream(route))),
    ("stored", &["store_statuses"], |route| Some(statuses(&route.statuses, ResponseVerdict::Store))),
    ("released", &["release_statuses"], |route| Some(statuses(&route.statuses, ResponseVerdict::Release))),
    ("unknown", &["unknown_statuses"], |route| Some(statuses(&route.statuses, ResponseVerdict::Unknown))),
    ("outcome", &["outcome"], |route| {
        (!route.options.outcome.is_empty())
            .then(|| route.options.outcome.iter().map(rule).collect::<Vec<_>>().join("; "))
    }),
    ("store down", &["store_down"], |route| {
        (route.options.store_down == StoreDownPolicy::Bypass).then(|| "forwarded unguarded".into())
    }),
    ("on unknown", &["on_unknown", "reconcile.after"], |route| Some(on_unknown(route))),
    ("delivered", &["delivery", "split", "accepted", "retry"], delivered),
    (
        "reconciled",
        &["reconcile.url", "reconcile.every", "reconcile.max_attempts", "reconcile.confirmations"],
        |route| route.reconcile.as_ref().map(reconciled),
    ),
    ("bodies", &["max_request_body", "max_response_body"], |route| Some(bodies(route))),
    ("cors", &["cors"], |route| (!route.cors.is_empty()).then(|| route.cors.to_string())),
    ("new keys", &["limits.new_keys_per_second", "limits.burst"], |route| {
        route.options.limits.new_keys_per_second.map(|rate| rate.to_string())
    }),
    ("live keys", &["limits.live_keys"], |route| Some(format!("{} of each caller", route.options.limits.live_keys?))),
    ("authorized by", &["replay.authorize", "replay.authorize_cache"], |route| {
        route.options.replay.authorize.as_ref().map(|service| format!("{}/…", service.upstream))
    }),
    ("echoed", &["replay.echo"], |route| {
        let names: Vec<_> = route.options.replay.echo.iter().map(|name| name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }),
    ("not replayed", &["replay.drop_headers"], |route| Some(not_replayed(route))),
    ("allowed", &["allow"], |route| (!route.options.allow.is_empty()).then(|| route.options.allow.join(", "))),
];

/// A setting of a route: what its keys amount to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSetting<'a> {
    /// The setting's name.
    pub label: &'static str,
    /// Its value. Never has a secret or a password.
    pub value: String,
    /// The places that the value comes from, each with the keys that are written there.
    pub origins: Vec<(ValueOrigin, Vec<&'a str>)>,
}

impl Route {
    /// Its settings, in order; without those that are off.
    pub fn settings(&self) -> Vec<RouteSetting<'_>> {
        let setting = |(label, keys, describe): &DescribedSetting| {
            Some(RouteSetting { label, value: describe(self)?, origins: self.origins.find(keys) })
        };
        ROUTE_SETTINGS.iter().filter_map(setting).collect()
    }
}

fn matches(route: &Route) -> String {
    let methods: Vec<_> = route.options.methods.iter().map(|method| method.as_str()).collect();
    format!("{} {}{}", methods.join(" "), route.service.hosts.first().map_or("", |host| host), route.path)
}

fn bodies(route: &Route) -> String {
    let bodies = [route.options.max_request_body, route.options.max_response_body].map(|bytes| show_size(bytes as u64));
    format!("request {}, response {}", bodies[0], bodies[1])
}

fn not_replayed(route: &Route) -> String {
    let names: Vec<_> = route.options.replay.drop_headers.iter().map(|name| name.as_str()).collect();
    if names.is_empty() { "-".into() } else { names.join(", ") }
}

fn timeouts(route: &Route) -> String {
    let [connect, upstream, idle] =
        [route.options.connect_timeout, route.options.upstream_timeout, route.options.upstream_idle_timeout]
            .map(show_duration);
    format!("connect {connect}, upstream {upstream}, idle {idle}")
}

fn stream(route: &Route) -> String {
    let [idle, whole] = [route.options.stream_idle_timeout, route.options.stream_timeout].map(show_duration);
    let gone = match route.options.on_client_gone {
        OnClientGone::Cancel => "cancelled",
        OnClientGone::Continue => "continued",
    };
    format!("{}, idle {idle}, whole {whole}, {gone} without its client", route.options.stream.word())
}

fn on_unknown(route: &Route) -> String {
    match route.options.on_unknown {
        OnUnknown::Hold => "hold".into(),
        OnUnknown::Vendor => {
            format!("repeat under the vendor's key within {}", show_duration(route.repeat_within().unwrap_or_default()))
        }
        OnUnknown::Retry => "retry at once".into(),
        OnUnknown::RetryWhenQuiet => {
            format!("retry, {} past the attempt's deadline", show_duration(route.quiet_after))
        }
    }
}

/// The delivery policy; `None` where each request is answered at once.
fn delivered(route: &Route) -> Option<String> {
    let who = match route.options.delivery {
        DeliveryMode::Async => "",
        DeliveryMode::Prefer => ", if the client prefers that",
        DeliveryMode::Sync => return None,
    };
    let RetryPolicy { max_attempts, base, cap, give_up_after } = route.options.retry;
    let split = route.options.split.as_ref().map(|batch| format!(", split at {batch}")).unwrap_or_default();
    let [base, cap, give_up_after] = [base, cap, give_up_after].map(show_duration);
    Some(format!(
        "later{who}, after {}{split}; pauses from {base} to {cap}, dead after {} or {give_up_after}",
        route.options.accepted.as_u16(),
        quantity(max_attempts.into(), "attempt", "attempts")
    ))
}

fn forwarded_as(route: &Route) -> String {
    match &route.vendor {
        None => route.options.forward_key.to_string(),
        Some(vendor) => match &vendor.key {
            Some(key) => format!("the vendor reads it, in {}", key.place),
            None => "nothing: the vendor reads no key".into(),
        },
    }
}

fn ttl(route: &Route) -> String {
    let RouteOptions { remember, replay, .. } = &route.options;
    let late = match remember {
        Some(time) if replay.until.is_some() => format!("then executed anew and told for {}", show_duration(*time)),
        Some(time) => format!("then refused for {}", show_duration(*time)),
        None => "then forgotten".into(),
    };
    let age =
        route.age_limit().map_or(String::new(), |age| format!(", requests older than {} refused", show_duration(age)));
    format!("{}, {late}{age}", show_duration(route.options.ttl))
}

fn in_flight(route: &Route) -> String {
    let wait = show_duration(route.options.wait_timeout);
    match route.options.in_flight {
        InFlightPolicy::Accepted => "202".into(),
        InFlightPolicy::Conflict => {
            let refusal = ("in-flight", "same_key", 409);
            let form = route.options.refusals.find(refusal, |form| form.status);
            let status = form.map_or(409, |status| status.as_u16());
            format!("{status} (behind a proxy that hedges: `wait`), or with `Prefer: wait=N` wait up to {wait}")
        }
        InFlightPolicy::Wait => format!("wait up to {wait}"),
    }
}

fn same_body(route: &Route) -> String {
    let window = show_duration(route.options.same_body_window);
    match route.options.same_body {
        SameBodyPolicy::Allow => "allowed".into(),
        SameBodyPolicy::Refuse => format!("refused within {window}"),
        SameBodyPolicy::Warn => format!("logged within {window}"),
    }
}

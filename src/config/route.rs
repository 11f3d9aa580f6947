//! A route: which requests are guarded, and how.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method};

use super::delivery::Delivery;
use super::reconcile::Reconcile;
use super::scope::ScopeRule;
use super::upstream::Upstream;
use crate::domain::canonical_json::Pointer;
use crate::domain::fingerprint::Recipe;
use crate::domain::job::Retry;
use crate::domain::key;
use crate::domain::pattern::Pattern;
use crate::domain::policy::{OnUnknown, StatusTable};

/// A route as resolved: what it does not write itself comes from `[defaults]`, or is the default.
#[derive(Clone, Debug)]
pub struct Route {
    /// In logs, metrics and the operators' tools; no two routes have the same.
    pub name: Arc<str>,
    /// Which paths it guards.
    pub path: Pattern,
    /// The methods that are guarded; each once, at least one.
    pub methods: Vec<Method>,
    /// The only host whose requests it guards, in lower case and without a port.
    pub host: Option<Box<str>>,
    /// Whether it guards, or only looks.
    pub mode: Mode,
    /// Where its requests go.
    pub upstream: Arc<Upstream>,
    /// Where a request's key is, and what it may look like.
    pub key: KeyRule,
    /// Whose key it is.
    pub scope: ScopeRule,
    /// Within what a key is unique.
    pub space: Space,
    /// What makes two requests the same.
    pub recipe: Recipe,
    /// What a duplicate gets while the first attempt runs.
    pub in_flight: InFlight,
    /// How long a duplicate may wait.
    pub wait_timeout: Duration,
    /// For a connection to the upstream.
    pub connect_timeout: Duration,
    /// For the whole response, from the attempt's start.
    pub upstream_timeout: Duration,
    /// How long an unused connection to the upstream is kept.
    pub upstream_idle_timeout: Duration,
    /// What a response's status says about its attempt.
    pub statuses: StatusTable,
    /// What a retry of an unknown outcome gets.
    pub on_unknown: OnUnknown,
    /// How long past an attempt's deadline nothing of it can be running any more: a lease, and `reconcile.after`.
    pub quiet_after: Duration,
    /// How the service is asked what became of an attempt, where it is.
    pub reconcile: Option<Reconcile>,
    /// How long a key is remembered from its completion.
    pub ttl: Duration,
    /// How long past its TTL a completed key is remembered, to refuse late retries; `None` to forget it.
    pub remember: Option<Duration>,
    /// What becomes of a request whose key the store cannot reserve.
    pub store_down: StoreDown,
    /// How old a request may be, by its own word.
    pub max_age: Option<Duration>,
    /// Whether a request is answered at once or delivered later.
    pub delivery: Delivery,
    /// How long it is tried then.
    pub retry: Retry,
    /// The key as the service sees it.
    pub forward_key: ForwardKey,
    /// In bytes; a larger request is refused.
    pub max_request_body: usize,
    /// In bytes; a larger response is not kept.
    pub max_response_body: usize,
    /// Response fields that are not kept for replays.
    pub drop_headers: Vec<HeaderName>,
}

/// Where a request's key is, and what it may look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// Where to look; the first that is present counts. At least one.
    pub sources: Vec<KeySource>,
    /// Refuse a request without a key, rather than pass it unguarded.
    pub required: bool,
    /// What a key looks like.
    pub syntax: key::Syntax,
    /// How long it may be.
    pub limits: key::Limits,
}

/// Within what a key is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The method and the path as sent, without the query.
    Path,
    /// The route.
    Route,
    /// The whole service.
    Service,
}

/// A place where a key may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A value of a JSON body.
    Body(Pointer),
    /// A field of a form body.
    Form(Box<str>),
    /// A request field.
    Header(HeaderName),
    /// A query parameter.
    Query(Box<str>),
}

impl KeyRule {
    /// The request field that carries the key, if one does.
    pub fn header(&self) -> Option<&HeaderName> {
        self.sources.iter().find_map(|source| match source {
            KeySource::Header(name) => Some(name),
            KeySource::Body(_) | KeySource::Form(_) | KeySource::Query(_) => None,
        })
    }
}

/// Whether a route guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    Enforce,
    /// It looks on, and counts what would have happened.
    Observe,
    /// Its requests stream through.
    Off,
}

impl Mode {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Off => "off",
        }
    }
}

/// What a duplicate gets while the first attempt runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// 202.
    Accepted,
    /// 409.
    Conflict,
    /// The first attempt's answer, if it comes in time.
    Wait,
}

/// The key as the service sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardKey {
    /// With this step behind it, as a key of its own.
    Derive(Box<str>),
    /// Not at all: for services whose own client library re-sends what has one.
    None,
    /// As the client sent it.
    Same,
}

/// What becomes of a request whose key the store cannot reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreDown {
    /// It is forwarded, and nothing guards it.
    Bypass,
    /// 503.
    Reject,
}

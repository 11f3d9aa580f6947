//! A route: which requests are guarded, and how.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method};

use super::scope::ScopeRule;
use super::upstream::Upstream;
use crate::domain::fingerprint::Recipe;
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
    /// How long a key is remembered from its completion.
    pub ttl: Duration,
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
    /// The request field that carries it.
    pub header: HeaderName,
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

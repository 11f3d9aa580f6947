//! The state of one worker's gate: what all workers share, the configuration, and upstream connections of its own.
//!
//! The methods that handle requests are in the other files of this folder, and the journey itself in `gate.rs`.

use std::sync::{Arc, PoisonError, RwLock};

use futures_util::future::LocalBoxFuture;
use http::{HeaderMap, HeaderName};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::admit::fingerprinting::Fingerprinting;
use super::routing::Router;
use crate::instance::Instance;
use crate::instance::token_verifier::TokenVerifier;
use oncegate_http::body::body_budget::{BudgetExhausted, BudgetShare};
use oncegate_http::body::client_body::UNWATCHED_MAX;
use oncegate_http::downstream::balancer::WorkerInbox;
use oncegate_http::downstream::connection_limits::ConnectionLimits;
use oncegate_http::downstream::{self, DrainSignals};
use oncegate_http::protocol::fields;
use oncegate_http::protocol::refusal::{ReachedLimit, Refusal};
use oncegate_settings::Config;
use oncegate_store::StoreError;
use oncegate_store::breaker::is_refused_by_breaker;
use oncegate_telemetry::logs::error_causes;

/// One worker's gate: the state that all workers share, and upstream connections of its own.
pub struct Gate {
    pub(super) instance: Arc<Instance>,
    /// A child of [`Instance::draining`], one for each worker, so that workers do not contend for its lock.
    pub(super) draining: CancellationToken,
    live: RwLock<Arc<LiveConfig>>,
    pub(super) fingerprinting: Fingerprinting,
}

/// The part of a gate that a reload replaces as a whole. A request keeps the one that was current at its arrival.
pub struct LiveConfig {
    pub(super) config: Arc<Config>,
    pub(super) router: Router,
    /// Also where no scope reads a token, so that it keeps its keys over reloads.
    pub(super) token_verifier: Option<Arc<TokenVerifier>>,
    /// The fields that clients send keys in: those of all routes, and the two common ones.
    key_fields: Vec<HeaderName>,
}

impl LiveConfig {
    fn new(config: Arc<Config>, instance: &Instance) -> Self {
        let slots = &instance.upstream_slots;
        let token_verifier = config.jwt.as_ref().map(|jwt| instance.token_verifiers.for_config(jwt));
        let router = Router::new(
            &config,
            &instance.latencies,
            &instance.observability.metrics,
            slots,
            &instance.salts,
            &instance.replay_permissions,
            token_verifier.as_ref(),
        );
        let key_fields = key_fields(&config);
        Self { config, router, token_verifier, key_fields }
    }

    /// The field that would be one for keys if it had `-` for `_`, if the request has one with a value.
    pub(super) fn misspelled_key_field<'a>(&self, headers: &'a HeaderMap) -> Option<&'a HeaderName> {
        fields::find_misspelled(headers, |name| self.key_fields.iter().any(|field| field == name))
    }

    /// The field in which an unguarded request carries a key, if it does.
    pub(super) fn key_field(&self, headers: &HeaderMap) -> Option<&HeaderName> {
        self.key_fields.iter().find(|name| headers.get(*name).is_some_and(|value| !value.is_empty()))
    }
}

fn key_fields(config: &Config) -> Vec<HeaderName> {
    let mut names = vec![HeaderName::from_static("idempotency-key"), HeaderName::from_static("x-idempotency-key")];
    for name in config.routes.iter().flat_map(|route| route.options.key.headers()) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

impl Gate {
    /// Answers the requests of one worker's clients until the drain has ended, see [`downstream::serve`].
    // Boxed, as is the future of each part that the program runs: a future is compiled in the crate that boxes it, with
    // that crate's profile in `Cargo.toml`.
    pub fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        inbox: WorkerInbox,
        limits: Arc<ConnectionLimits>,
        drain: DrainSignals,
    ) -> LocalBoxFuture<'static, ()> {
        Box::pin(downstream::serve(listener, inbox, self, limits, Default::default(), drain))
    }

    /// A gate with connection pools of its own. Create it on the runtime that will use it.
    pub fn new(instance: Arc<Instance>, config: Arc<Config>) -> Self {
        let live = LiveConfig::new(config, &instance);
        let draining = instance.draining.child_token();
        Self { instance, draining, live: RwLock::new(Arc::new(live)), fingerprinting: Fingerprinting::default() }
    }

    /// The state of this process.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Uses another configuration for all requests from now on.
    pub fn reload(&self, config: Arc<Config>) {
        let live = LiveConfig::new(config, &self.instance);
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(live);
    }

    pub(super) fn live(&self) -> Arc<LiveConfig> {
        Arc::clone(&self.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts the body of a stored response until its client has taken it; `None` for a short one.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] if responses that their clients have not taken fill their memory. The first answer to a
    /// request is never refused.
    pub(super) fn hold_response(&self, length: usize, is_first_answer: bool) -> Result<Option<BudgetShare>, Refusal> {
        let budget = &self.instance.response_bodies;
        match length {
            ..=UNWATCHED_MAX => Ok(None),
            _ if is_first_answer => Ok(Some(budget.share_of(length))),
            _ => match budget.try_share_of(length) {
                Ok(share) => Ok(Some(share)),
                Err(BudgetExhausted) => Err(Refusal::Overloaded(ReachedLimit::HeldBodies)),
            },
        }
    }
}

/// Turns a store's error into a refusal. The error and its causes are logged here, once: nobody reads them after this.
pub(super) fn log_and_refuse(error: StoreError) -> Refusal {
    let cause = error_causes(&error);
    match error {
        StoreError::Corrupt(_) => {
            tracing::error!(cause, "{error}; requests with its key are refused until an operator mends it");
            Refusal::ResponseCorrupt
        }
        // The breaker has logged the outage once for all requests.
        error if is_refused_by_breaker(&error) => Refusal::StoreUnavailable,
        StoreError::Failed(_) | StoreError::Taken(_) | StoreError::TimedOut | StoreError::Unavailable(_) => {
            tracing::warn!(cause, "{error}; the request is refused");
            Refusal::StoreUnavailable
        }
    }
}

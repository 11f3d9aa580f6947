//! Readiness: whether new requests should be sent to this instance. Health only says that the process is alive.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::AdminListener;
use oncegate_domain::rfc3339;
use oncegate_engine::instance::Instance;
use oncegate_engine::instance::metrics::{IssuerTable, Metrics};
use oncegate_settings::{Route, RouteMode};
use oncegate_store::{self as store, StoreError};

/// The time for the store to answer. Probes give an instance a second, and should learn why it is not ready rather than
/// time out.
const PING_MAX: Duration = Duration::from_millis(800);

const NO_ISSUER_KEYS: &str =
    "issuer: the keys of [jwt] have not been read yet; requests with its tokens to routes that read them are refused";

/// Whether this instance should get new requests.
#[derive(Serialize, JsonSchema)]
pub(super) struct Readiness {
    #[serde(skip)]
    pub(super) status: StatusCode,
    /// Whether new requests should be sent here.
    ready: bool,
    /// `ready`, `bypassing` or `not ready`.
    #[serde(rename = "status")]
    name: &'static str,
    /// Why it is not ready, or is ready for some routes alone. The list is empty if it is ready for all.
    pub(super) reasons: Vec<String>,
    /// The routes, while the store is away.
    without_store: Option<RoutesWithoutStore>,
    /// The state of the instance's parts.
    #[serde(flatten)]
    parts: Map<String, Value>,
}

#[derive(Serialize, JsonSchema)]
struct RoutesWithoutStore {
    /// The routes that forward requests unguarded.
    bypassing: Vec<Arc<str>>,
    /// The routes that refuse requests.
    refusing: Vec<Arc<str>>,
}

/// The store as it answers now.
struct StoreCheck {
    /// The reason why it cannot be used.
    trouble: Option<String>,
    /// Whether it answers with errors: requests are not forwarded then, see `ClaimFailure::outage`.
    has_failed: bool,
    is_breaker_open: bool,
    /// The time since its last answer, where it cannot be used.
    silent_for: Option<Duration>,
}

impl StoreCheck {
    fn is_away(&self) -> bool {
        self.trouble.is_some() || self.is_breaker_open
    }
}

impl AdminListener {
    /// Returns whether new requests should be sent here, and if not, why. Takes less than a second, whatever the store
    /// does.
    pub(super) async fn readiness(&self) -> Readiness {
        let store = self.check_store().await;
        let mut reasons = self.find_obstacles(&store);
        // One route that bypasses makes the instance ready: its requests would be refused otherwise, and those of the
        // other routes get the same 503 here as from a load balancer without instances. The same holds for one that
        // reads no token.
        let live = Arc::clone(&self.config.borrow());
        let guarding = live.routes.iter().filter(|route| route.options.mode == RouteMode::Enforce);
        let lacks_keys = live.jwt.as_ref().is_some_and(|jwt| !self.instance.token_verifiers.for_config(jwt).has_keys());
        let needs_keys = |route: &&Arc<Route>| lacks_keys && route.scope.reads_token();
        let refuses_some = guarding.clone().any(|route| needs_keys(&route));
        let refuses_all = refuses_some && guarding.clone().all(|route| needs_keys(&route));
        let (bypassing, refusing): (Vec<_>, Vec<_>) = guarding.partition(|route| route.bypasses());
        let is_full = self.instance.in_flight.is_full_of_unstored_outcomes();
        let may_bypass = store.is_away() && !self.leaving.is_cancelled() && !store.has_failed && !is_full;
        let (status, name) = match reasons.is_empty() && !refuses_all {
            _ if may_bypass && !bypassing.is_empty() && !refuses_all => (StatusCode::OK, "bypassing"),
            true => (StatusCode::OK, "ready"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        };
        if refuses_some {
            reasons.push(NO_ISSUER_KEYS.to_owned());
        }
        let names = |routes: &[&Arc<Route>]| routes.iter().map(|route| Arc::clone(&route.name)).collect();
        let without_store =
            store.is_away().then(|| RoutesWithoutStore { bypassing: names(&bypassing), refusing: names(&refusing) });
        let parts = match self.describe(&store) {
            Value::Object(parts) => parts,
            _ => Map::new(),
        };
        Readiness { status, ready: status == StatusCode::OK, name, reasons, without_store, parts }
    }

    async fn check_store(&self) -> StoreCheck {
        let store = &self.instance.store;
        // An open breaker probes the store by itself.
        let (trouble, has_failed) = match store.health().is_open {
            true => (Some("it has not answered for some time".to_owned()), false),
            false => match timeout(PING_MAX, store.ping()).await {
                Ok(Ok(())) if self.instance.joined.is_cancelled() => (None, false),
                Ok(Ok(())) => (Some("this process has not used it since its start".to_owned()), false),
                Ok(Err(error)) => (Some(error.to_string()), matches!(error, StoreError::Failed(_))),
                Err(_) => (Some("the store did not answer in time".to_owned()), false),
            },
        };
        let health = store.health();
        let silent_for = trouble.is_some().then(|| health.silent_for.unwrap_or(PING_MAX));
        StoreCheck { trouble, has_failed, is_breaker_open: health.is_open, silent_for }
    }

    /// Returns the reasons why no route is ready.
    fn find_obstacles(&self, store: &StoreCheck) -> Vec<String> {
        let is_full = self.instance.in_flight.is_full_of_unstored_outcomes();
        let conditions = [
            (store.is_breaker_open, "breaker: open; requests that need the store are answered at once, without it"),
            (
                !self.instance.instance_lease.may_start(),
                "lease: it has run out and could not be renewed yet; no attempts are started",
            ),
            (
                store.is_away() && is_full,
                "memory: as many outcomes wait for the store as it holds; nothing is forwarded unguarded",
            ),
        ];
        let draining = self.leaving.is_cancelled().then(|| "draining".to_owned());
        let trouble = store.trouble.as_ref().map(|trouble| format!("store: {trouble}"));
        let holding = conditions.into_iter().filter(|(holds, _)| *holds).map(|(_, reason)| reason.to_owned());
        draining.into_iter().chain(trouble).chain(holding).collect()
    }

    /// Returns the state of the instance's parts.
    fn describe(&self, store: &StoreCheck) -> Value {
        let Instance { instance_lease, store_clock, bypassed, .. } = &*self.instance;
        let Metrics { consumers, events, issuer_unreachable: issuers, .. } = &self.instance.observability.metrics;
        let (clock, refused_reload) = (store_clock.view(), self.instance.reload_state.refusal());
        let silent_ms = store.silent_for.map(|silent| silent.as_millis() as u64);
        let is_lease_held = instance_lease.may_start();
        json!({
            "store": {
                "reachable": silent_ms.is_none(),
                "unreachable_for_ms": silent_ms,
                "schema": store::schema(),
                "clock": {
                    "watched_for_ms": clock.watched_for().as_millis() as u64,
                    "last_jump_ms": clock.last_jump().map(|jump| jump.signed_millis()),
                    "tasks_suspended": clock.has_jumped_lately(),
                },
            },
            "breaker": { "open": store.is_breaker_open },
            "lease": {
                "held": is_lease_held,
                "starts_attempts": is_lease_held && !self.instance.draining.is_cancelled(),
            },
            "draining": self.leaving.is_cancelled(),
            // A broker that is away keeps no request from being served.
            "consumers": consumers.list(),
            "events": events.list(),
            // One that cannot be read may still be known: then its earlier keys verify tokens.
            "issuers_unreachable": issuers.list_set().map(IssuerTable::name).collect::<Vec<_>>(),
            "bypassed": bypassed.load(Ordering::Relaxed),
            // The problems themselves need a token: they name files and settings.
            "reload": {
                "refused": refused_reload.is_some(),
                "refused_at": refused_reload.as_ref().map(|refusal| rfc3339::format(refusal.at)),
                "problems": refused_reload.as_ref().map_or(0, |refusal| refusal.count()),
            },
        })
    }
}

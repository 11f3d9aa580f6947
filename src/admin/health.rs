//! Readiness: whether new requests should be sent to this instance. Health only says that the process is alive.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::AdminListener;
use crate::instance::Instance;
use crate::instance::metrics::{IssuerTable, Metrics};
use oncegate_domain::rfc3339;
use oncegate_settings::{Route, RouteMode};
use oncegate_store::{self as store, StoreError};

/// The time for the store to answer. Probes give an instance a second, and should learn why it is not ready rather than
/// time out.
const PING_MAX: Duration = Duration::from_millis(800);

const NO_ISSUER_KEYS: &str =
    "issuer: the keys of [jwt] have not been read yet; requests with its tokens to routes that read them are refused";

/// Whether this instance should get new requests.
pub(super) struct Readiness {
    /// The reasons why it is not ready, or is ready for some routes alone; empty if it is ready for all.
    pub(super) reasons: Vec<String>,
    pub(super) status: StatusCode,
    /// The state behind that, for programs.
    pub(super) document: Value,
}

impl AdminListener {
    /// Returns whether new requests should be sent here, and if not, why. Takes less than a second, whatever the store does.
    pub(super) async fn readiness(&self) -> Readiness {
        let Instance { config, store, instance_lease, store_clock, bypassed, .. } = &*self.instance;
        let is_joined = self.instance.joined.is_cancelled();
        // An open breaker probes the store by itself.
        let (trouble, has_failed) = match store.health().is_open {
            true => (Some("it has not answered for some time".to_owned()), false),
            false => match timeout(PING_MAX, store.ping()).await {
                Ok(Ok(())) if !is_joined => (Some("this process has not used it since its start".to_owned()), false),
                Ok(Ok(())) => (None, false),
                // Requests are not forwarded then, see `ClaimFailure::outage`.
                Ok(Err(error)) => (Some(error.to_string()), matches!(error, StoreError::Failed(_))),
                Err(_) => (Some("the store did not answer in time".to_owned()), false),
            },
        };
        let health = store.health();
        let store_silent_for = trouble.is_some().then(|| health.silent_for.unwrap_or(PING_MAX));
        let (is_lease_held, is_draining) = (instance_lease.may_start(), self.leaving.is_cancelled());
        let is_away = trouble.is_some() || health.is_open;
        let is_full = self.instance.in_flight.is_full_of_unstored_outcomes();
        let mut reasons = Vec::new();
        if is_draining {
            reasons.push("draining".to_owned());
        }
        reasons.extend(trouble.map(|trouble| format!("store: {trouble}")));
        if health.is_open {
            reasons.push("breaker: open; requests that need the store are answered at once, without it".to_owned());
        }
        if !is_lease_held {
            reasons.push("lease: it has run out and could not be renewed yet; no attempts are started".to_owned());
        }
        if is_away && is_full {
            reasons.push(
                "memory: as many outcomes wait for the store as it holds; nothing is forwarded unguarded".to_owned(),
            );
        }
        // One route that bypasses makes the instance ready: its requests would be refused otherwise, and those of the other routes
        // get the same 503 here as from a load balancer without instances. The same holds for one that reads no token.
        let live = Arc::clone(&self.config.borrow());
        let guarding = live.routes.iter().filter(|route| route.options.mode == RouteMode::Enforce);
        let lacks_keys = live.jwt.as_ref().is_some_and(|jwt| !self.instance.token_verifiers.for_config(jwt).has_keys());
        let needs_keys = |route: &&Arc<Route>| lacks_keys && route.scope.reads_token();
        let refuses_some = guarding.clone().any(|route| needs_keys(&route));
        let refuses_all = refuses_some && guarding.clone().all(|route| needs_keys(&route));
        let (bypassing, refusing): (Vec<_>, Vec<_>) = guarding.partition(|route| route.bypasses());
        let is_bypassing = is_away && !is_draining && !has_failed && !is_full && !bypassing.is_empty() && !refuses_all;
        let names = |routes: &[&Arc<Route>]| routes.iter().map(|route| json!(route.name)).collect::<Vec<_>>();
        let without_store = is_away.then(|| json!({ "bypassing": names(&bypassing), "refusing": names(&refusing) }));
        let is_ready = reasons.is_empty() && !refuses_all;
        if refuses_some {
            reasons.push(NO_ISSUER_KEYS.to_owned());
        }
        let (status, name) = match (is_bypassing, is_ready) {
            (true, _) => (StatusCode::OK, "bypassing"),
            (false, true) => (StatusCode::OK, "ready"),
            (false, false) => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        };
        let Metrics { consumers, events, issuer_unreachable: issuers, .. } = &self.instance.observability.metrics;
        let (clock, refused_reload) = (store_clock.view(), self.instance.reload_state.refusal());
        let silent_ms = store_silent_for.map(|silent| silent.as_millis() as u64);
        let document = json!({
            "ready": status == StatusCode::OK,
            "status": name,
            "reasons": reasons,
            "without_store": without_store,
            "store": {
                "reachable": silent_ms.is_none(),
                "unreachable_for_ms": silent_ms,
                "schema": store::schema(&config.store.url),
                "clock": {
                    "watched_for_ms": clock.watched_for().as_millis() as u64,
                    "last_jump_ms": clock.last_jump().map(|jump| jump.signed_millis()),
                    "tasks_suspended": clock.has_jumped_lately(),
                },
            },
            "breaker": { "open": health.is_open },
            "lease": {
                "held": is_lease_held,
                "starts_attempts": is_lease_held && !self.instance.draining.is_cancelled(),
            },
            "draining": is_draining,
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
        });
        Readiness { reasons, status, document }
    }
}

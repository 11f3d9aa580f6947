//! Readiness: whether new requests should be sent to this instance. Health only says that the process is alive.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::AdminListener;
use crate::domain::rfc3339;
use crate::instance::Instance;
use crate::instance::reload_state::RefusedReload;
use crate::instance::store_clock::ClockView;
use crate::store;

/// The time for the store to answer. Probes give an instance a second, and should learn why it is not ready rather than
/// time out.
const PING_MAX: Duration = Duration::from_millis(800);

/// Whether this instance should get new requests, and the state behind that.
pub(super) struct Readiness {
    /// The reasons why it is not ready; empty if it is.
    pub(super) reasons: Vec<String>,
    /// The time since the store last answered; `None` where it answers.
    store_silent_for: Option<Duration>,
    schema: &'static str,
    clock: ClockView,
    is_breaker_open: bool,
    is_lease_held: bool,
    may_start_attempts: bool,
    is_draining: bool,
    bypassed: u64,
    refused_reload: Option<Arc<RefusedReload>>,
}

impl Readiness {
    pub(super) fn is_ready(&self) -> bool {
        self.reasons.is_empty()
    }

    pub(super) fn status(&self) -> StatusCode {
        if self.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    }

    pub(super) fn to_json(&self) -> Value {
        let silent_ms = self.store_silent_for.map(|silent| silent.as_millis() as u64);
        json!({
            "ready": self.is_ready(),
            "status": if self.is_ready() { "ready" } else { "not ready" },
            "reasons": self.reasons,
            "store": {
                "reachable": silent_ms.is_none(),
                "unreachable_for_ms": silent_ms,
                "schema": self.schema,
                "clock": {
                    "watched_for_ms": self.clock.watched_for().as_millis() as u64,
                    "last_jump_ms": self.clock.last_jump().map(|jump| jump.signed_millis()),
                    "tasks_suspended": self.clock.has_jumped_lately(),
                },
            },
            "breaker": { "open": self.is_breaker_open },
            "lease": { "held": self.is_lease_held, "starts_attempts": self.may_start_attempts },
            "draining": self.is_draining,
            "bypassed": self.bypassed,
            // The problems themselves need a token: they name files and settings.
            "reload": {
                "refused": self.refused_reload.is_some(),
                "refused_at": self.refused_reload.as_ref().map(|refusal| rfc3339::format(refusal.at)),
                "problems": self.refused_reload.as_ref().map_or(0, |refusal| refusal.count()),
            },
        })
    }
}

impl AdminListener {
    /// Returns whether new requests should be sent here, and if not, why. Takes less than a second, whatever the store does.
    pub(super) async fn readiness(&self) -> Readiness {
        let Instance { config, store, breaker, instance_lease, store_clock, bypassed, .. } = &*self.instance;
        // An open breaker probes the store by itself.
        let trouble = match breaker.health().is_open {
            true => Some("it has not answered for some time".to_owned()),
            false => match timeout(PING_MAX, store.ping()).await {
                Ok(answer) => answer.err().map(|error| error.to_string()),
                Err(_) => Some("the store did not answer in time".to_owned()),
            },
        };
        let health = breaker.health();
        let store_silent_for = trouble.is_some().then(|| health.silent_for.unwrap_or(PING_MAX));
        let (is_lease_held, is_draining) = (instance_lease.may_start(), self.leaving.is_cancelled());
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
        Readiness {
            reasons,
            store_silent_for,
            schema: store::schema(&config.store.location),
            clock: store_clock.view(),
            is_breaker_open: health.is_open,
            is_lease_held,
            may_start_attempts: is_lease_held && !self.instance.draining.is_cancelled(),
            is_draining,
            bypassed: bypassed.load(Ordering::Relaxed),
            refused_reload: self.instance.reload_state.refusal(),
        }
    }
}

//! Whether it is ready: another question than whether it is alive.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Admin;
use crate::gate::Shared;
use crate::store;

/// How long the store may take to answer. Probes give an instance a second, and want to be told why it is not ready
/// rather than to be left waiting.
const PING_MAX: Duration = Duration::from_millis(800);

impl Admin {
    /// Whether new requests should be sent here, and if not, why. Told within a second, whatever the store does.
    pub(super) async fn ready(&self) -> (StatusCode, Value) {
        let Shared { config, store, breaker, tenure, bypassed, .. } = &*self.shared;
        // An open breaker probes by itself, and need not be asked to.
        let trouble = match breaker.health().is_open {
            true => Some("it has not answered for some time".to_owned()),
            false => match timeout(PING_MAX, store.ping()).await {
                Ok(answer) => answer.err().map(|error| error.to_string()),
                Err(_) => Some("the store did not answer in time".to_owned()),
            },
        };
        let health = breaker.health();
        let silent_ms = trouble.is_some().then(|| health.silent_for.unwrap_or(PING_MAX).as_millis() as u64);
        let (held, draining) = (tenure.may_start(), self.leaving.is_cancelled());
        let mut reasons = Vec::new();
        if draining {
            reasons.push("draining".to_owned());
        }
        reasons.extend(trouble.map(|trouble| format!("store: {trouble}")));
        if health.is_open {
            reasons.push("breaker: open; what needs the store is answered at once, without asking it".to_owned());
        }
        if !held {
            reasons.push("lease: it has run out and could not be renewed yet; no attempts are started".to_owned());
        }
        let ready = reasons.is_empty();
        let (status, word) = match ready {
            true => (StatusCode::OK, "ready"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        };
        let told = json!({
            "ready": ready,
            "status": word,
            "reasons": reasons,
            "store": {
                "reachable": silent_ms.is_none(),
                "unreachable_for_ms": silent_ms,
                "schema": store::schema(&config.store.location),
            },
            "breaker": { "open": health.is_open },
            "lease": { "held": held, "starts_attempts": held && !self.shared.draining.is_cancelled() },
            "draining": draining,
            "bypassed": bypassed.load(Ordering::Relaxed),
        });
        (status, told)
    }
}

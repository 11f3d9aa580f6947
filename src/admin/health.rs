//! Whether it is ready: another question than whether it is alive.

use http::StatusCode;
use serde_json::{Value, json};

use super::Admin;

impl Admin {
    /// Whether new requests should be sent here, and if not, why.
    pub(super) async fn ready(&self) -> (StatusCode, Value) {
        let mut reasons = Vec::new();
        if self.leaving.is_cancelled() {
            reasons.push("draining".to_owned());
        }
        if let Err(error) = self.shared.store.ping().await {
            reasons.push(format!("store: {error}"));
        } else if !self.shared.tenure.may_start() {
            reasons.push("lease: it has run out, and could not be renewed yet".to_owned());
        }
        let (status, word) = match reasons.is_empty() {
            true => (StatusCode::OK, "ready"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        };
        (status, json!({ "status": word, "reasons": reasons }))
    }
}

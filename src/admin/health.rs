//! Alive, and ready: two questions that are not the same.

use std::sync::Arc;

use http::StatusCode;
use tokio_util::sync::CancellationToken;

use crate::gate::Shared;

/// What the probes look at.
pub struct Probes {
    shared: Arc<Shared>,
    leaving: CancellationToken,
}

impl Probes {
    /// `leaving` is cancelled by the first signal, before anything else happens.
    pub fn new(shared: Arc<Shared>, leaving: CancellationToken) -> Self {
        Self { shared, leaving }
    }

    /// Whether new requests should be sent here, and if not, why.
    pub async fn ready(&self) -> (StatusCode, serde_json::Value) {
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
        (status, serde_json::json!({ "status": word, "reasons": reasons }))
    }
}

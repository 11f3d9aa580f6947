//! `/api/v1/drain`: an operator or a shutdown hook drains the instance.

use http::StatusCode;
use serde_json::{Value, json};

use super::AdminListener;

impl AdminListener {
    /// Begins the drain, as the first signal does. A second request changes nothing.
    pub(super) fn drain(&self) -> (StatusCode, Value) {
        self.leaving.cancel();
        (StatusCode::ACCEPTED, self.drain_state().1)
    }

    /// Returns the instance's id, whether it drains, and how many attempts it is running. No state says that it has
    /// drained: then the process is gone.
    pub(super) fn drain_state(&self) -> (StatusCode, Value) {
        let state = if self.leaving.is_cancelled() { "draining" } else { "serving" };
        let instance = self.instance.instance_lease.id().to_string();
        (StatusCode::OK, json!({ "instance": instance, "state": state, "attempts": self.instance.in_flight.count() }))
    }
}

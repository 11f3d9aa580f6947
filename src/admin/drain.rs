//! Leaving, when an operator or a hook says so.

use http::StatusCode;
use serde_json::{Value, json};

use super::Admin;

impl Admin {
    /// Begins the drain, as the first signal would. Asking again changes nothing.
    pub(super) fn drain(&self) -> (StatusCode, Value) {
        self.leaving.cancel();
        (StatusCode::ACCEPTED, self.drain_state().1)
    }

    /// Who is asked, whether it drains, and how many attempts it is running. It never says that it has drained: then it
    /// is gone.
    pub(super) fn drain_state(&self) -> (StatusCode, Value) {
        let state = if self.leaving.is_cancelled() { "draining" } else { "serving" };
        let instance = self.shared.tenure.id().to_string();
        (StatusCode::OK, json!({ "instance": instance, "state": state, "attempts": self.shared.underway.count() }))
    }
}

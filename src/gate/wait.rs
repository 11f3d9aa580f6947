//! The wait of a duplicate for the attempt that is running, and the duplicate's outcome if the wait is over first.

use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use super::outcome::Outcome;
use crate::config::{InFlightPolicy, Route};
use crate::protocol::prefer;
use crate::protocol::refusal::{Refusal, RetryAfter};

/// One duplicate's wait.
pub struct WaitPolicy {
    /// The end of the wait.
    pub deadline: Instant,
    answers_accepted: bool,
}

impl WaitPolicy {
    /// The policy of the route and of the client: `Prefer: wait=N` (RFC 7240 section 4.3) counts in every `in_flight` mode,
    /// up to the route's `wait_timeout`.
    pub fn new(route: &Route, headers: &HeaderMap) -> Self {
        let default = match route.in_flight {
            InFlightPolicy::Wait => route.wait_timeout,
            InFlightPolicy::Accepted | InFlightPolicy::Conflict => Duration::ZERO,
        };
        let wait = prefer::wait_preference(headers).map_or(default, |wait| wait.min(route.wait_timeout));
        Self { deadline: Instant::now() + wait, answers_accepted: route.in_flight == InFlightPolicy::Accepted }
    }

    /// The outcome while the attempt is still running: 202 where the route says so, else a refusal.
    pub fn still_running(&self, retry_after: RetryAfter) -> Outcome {
        match self.answers_accepted {
            true => Outcome::InFlight(retry_after),
            false => Outcome::Refused(Refusal::InFlight(retry_after)),
        }
    }
}

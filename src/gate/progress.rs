//! The result of a request's own work: its outcome, or a wait that is left.
//!
//! The work itself is in `execute`, and the wait in `wait`.

use std::time::Duration;

use super::admit::GuardedRequest;
use super::outcome::Outcome;
use super::state::Gate;
use oncegate_domain::decision::{AcceptedProgress, KeyAnswer};
use oncegate_http::protocol::refusal::Refusal;

/// The end of a request's own work.
pub(super) enum RequestProgress {
    /// The request has its outcome.
    Ended(Outcome),
    /// The request has nothing to do but to wait.
    Waits(Box<GuardedRequest>, AwaitedEnd),
}

impl RequestProgress {
    /// The end of a request that is refused.
    pub(super) fn refused(refusal: Refusal) -> Self {
        Self::Ended(Outcome::Refused(refusal))
    }
}

/// The end that a request waits for, with what its client is told meanwhile: when to ask again, or how far a delivery is.
#[derive(Clone, Copy)]
pub(super) enum AwaitedEnd {
    /// The end of the key's attempt, which another request has started.
    Attempt(Duration),
    /// The end of the delivery of an earlier request with the key.
    Delivery(AcceptedProgress),
    /// The end of the delivery of this request.
    OwnDelivery(Duration),
}

impl Gate {
    /// The result of a request that starts no attempt, because its key's record has answered it.
    pub(super) fn answer(&self, guarded: Box<GuardedRequest>, answer: KeyAnswer) -> RequestProgress {
        guarded.count((&answer).into(), &self.instance);
        match answer {
            KeyAnswer::Accepted(progress) => RequestProgress::Waits(guarded, AwaitedEnd::Delivery(progress)),
            KeyAnswer::Join(retry_after) => RequestProgress::Waits(guarded, AwaitedEnd::Attempt(retry_after)),
            KeyAnswer::Refuse(refusal) => RequestProgress::refused(refusal.into()),
            KeyAnswer::Replay(completed) => RequestProgress::Ended(Outcome::Replayed(completed)),
        }
    }
}

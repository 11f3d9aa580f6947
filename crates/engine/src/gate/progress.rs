//! The progress of a request: its outcome, or the end that it has to wait for.

use std::time::Duration;

use super::admit::GuardedRequest;
use super::claim::Unclaimed;
use super::outcome::Outcome;
use super::state::log_and_refuse;
use crate::instance::Instance;
use oncegate_domain::decision::{AcceptedProgress, KeyAnswer, KeyRefusal};
use oncegate_http::protocol::refusal::Refusal;

/// The end of a request's own work.
pub(super) enum RequestProgress {
    Ended(Outcome),
    /// The request has nothing to do but to wait.
    Waits(Box<GuardedRequest>, AwaitedEnd),
}

/// The end that a request waits for, with what its client is told meanwhile: when to ask again, or how far a delivery
/// is.
#[derive(Clone, Copy)]
pub(super) enum AwaitedEnd {
    /// The end of the key's attempt, which another request has started.
    Attempt(Duration),
    /// The end of the delivery of an earlier request with the key.
    Delivery(AcceptedProgress),
    /// The end of the delivery of this request.
    OwnDelivery(Duration),
    /// The end of an unknown outcome, by its repetition at the vendor: this request's, or an earlier one's.
    Repetition { is_own: bool },
}

impl RequestProgress {
    pub(super) fn refused(refusal: Refusal) -> Self {
        Self::Ended(Outcome::Refused(refusal))
    }

    /// The end of a request that its key's record has answered, and the count of that.
    pub(super) fn answered(guarded: Box<GuardedRequest>, answer: KeyAnswer, instance: &Instance) -> Self {
        guarded.count((&answer).into(), instance);
        match answer {
            KeyAnswer::Accepted(progress) => Self::Waits(guarded, AwaitedEnd::Delivery(progress)),
            KeyAnswer::Join(retry_after) => Self::Waits(guarded, AwaitedEnd::Attempt(retry_after)),
            // Its repetitions at the vendor may tell.
            KeyAnswer::Refuse(KeyRefusal::OutcomeUnknown(Some(_))) if guarded.is_repeated() => {
                Self::Waits(guarded, AwaitedEnd::Repetition { is_own: false })
            }
            KeyAnswer::Refuse(refusal) => Self::refused(refusal.into()),
            KeyAnswer::Replay(completed) => Self::Ended(Outcome::Replayed(completed)),
        }
    }

    /// The end of a request that has not got its key. Logs the error of the store.
    pub(super) fn unclaimed(guarded: Box<GuardedRequest>, unclaimed: Unclaimed, instance: &Instance) -> Self {
        match unclaimed {
            Unclaimed::Answered(answer) => Self::answered(guarded, answer, instance),
            Unclaimed::Refused(refusal) => Self::refused(refusal),
            Unclaimed::Reserving(error) | Unclaimed::TakingOver(error) => Self::refused(log_and_refuse(error)),
        }
    }
}

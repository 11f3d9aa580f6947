//! Reserves the key of a request, or finds its record where the request may start no attempt.

use std::pin::pin;

use super::Gate;
use super::admit::GuardedRequest;
use super::bypass::ReserveFailure;
use super::response_context::ResponseContext;
use crate::domain::attempt::ReserveResult;
use crate::instance::request_trace::TraceStage;
use crate::protocol::refusal::{ReachedLimit, Refusal};
use crate::store::StoreError;

/// The cause where the store was away from the start on.
const NOT_JOINED: &str = "it was away when this process started, and has not been reached since";

/// The reason why this instance starts no attempt.
#[derive(Clone)]
pub(super) enum StartHindrance {
    /// It has no valid lease, or its drain is over.
    NoLease,
    /// Bodies, or outcomes that the store does not take, fill their memory. Requests without a body, whose responses may be large, would
    /// add to it.
    Overloaded,
    /// The request breaks a rule of its route.
    RuleBroken(Refusal),
}

impl StartHindrance {
    pub(super) fn into_refusal(self) -> Refusal {
        match self {
            Self::NoLease => Refusal::StoreUnavailable,
            Self::Overloaded => Refusal::Overloaded(ReachedLimit::HeldBodies),
            Self::RuleBroken(refusal) => refusal,
        }
    }
}

impl Gate {
    /// Reserves the key. With a hindrance this instance starts no attempt, and a caller over its route's limit uses no new key. Both
    /// can still get answers about attempts of others, and about the caller's earlier ones.
    pub(super) async fn reserve(
        &self,
        guarded: &GuardedRequest,
        may_start: Result<(), StartHindrance>,
        context: &ResponseContext,
    ) -> Result<ReserveResult, ReserveFailure> {
        if guarded.is_provisional {
            return Err(ReserveFailure::Store(StoreError::Unavailable(NOT_JOINED.into())));
        }
        let store = &self.instance.store;
        let failure = match may_start {
            Ok(()) => match guarded.use_new_key(&self.instance).await {
                Ok(permit) => {
                    let reserving = store.reserve(permit.mark(&guarded.reserve_request));
                    let reserved = context.timed(TraceStage::Reserve, pin!(reserving)).await;
                    if let Ok(ReserveResult::Taken(_)) = &reserved {
                        permit.give_back();
                    }
                    return reserved.map_err(ReserveFailure::Store);
                }
                Err(wait) => ReserveFailure::TooManyKeys(wait),
            },
            Err(StartHindrance::NoLease) => ReserveFailure::NoLease(None),
            Err(StartHindrance::Overloaded) => ReserveFailure::Overloaded,
            Err(StartHindrance::RuleBroken(refusal)) => ReserveFailure::RuleBroken(refusal),
        };
        match context.timed(TraceStage::Reserve, pin!(store.find(guarded.reserve_request.id))).await {
            Ok(Some(record)) => Ok(ReserveResult::Taken(record)),
            Ok(None) => Err(failure),
            Err(error) => Err(ReserveFailure::NoLease(Some(error))),
        }
    }
}

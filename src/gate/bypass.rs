//! Forwards a request although the store cannot reserve its key, where the route says so. Nothing guards such a request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::admit::GuardedRequest;
use super::decide::Decision;
use super::outcome::Outcome;
use super::response_context::ResponseContext;
use super::wait::WorkResult;
use super::{Gate, log_and_refuse};
use crate::config::StoreDownPolicy;
use crate::domain::attempt::AttemptLease;
use crate::domain::execution_risk::RecordSummary;
use crate::domain::state::KeyState;
use crate::instance::in_flight::{InFlightEntry, ReserveStatus};
use crate::protocol::refusal::{ReachedLimit, Refusal, RetryAfter};
use crate::store::StoreError;
use crate::telemetry::logs::error_causes;

/// The reason why there is no reservation.
pub(super) enum ReserveFailure {
    /// This instance has no valid lease, and asked the store for the record instead. The store failed, or has none.
    NoLease(Option<StoreError>),
    /// Bodies fill their memory, and the store has no record of the key.
    Overloaded,
    /// The request breaks a rule of its route, and the store has no record of the key.
    RuleBroken(Refusal),
    /// The store failed, or could not be asked.
    Store(StoreError),
    /// The caller may use no new key for so long, and the store has no record of this one.
    TooManyKeys(RetryAfter),
}

impl ReserveFailure {
    /// The error of a store that is away; `None` if the store has answered, be it that another request has the key or that
    /// this instance may start nothing, or if this process ends because the store has failed.
    fn outage(&self) -> Option<&StoreError> {
        match self {
            Self::NoLease(Some(error)) | Self::Store(error) => match error {
                StoreError::Corrupt(_) | StoreError::Failed(_) | StoreError::Taken(_) => None,
                StoreError::TimedOut | StoreError::Unavailable(_) => Some(error),
            },
            Self::NoLease(None) | Self::Overloaded | Self::RuleBroken(_) | Self::TooManyKeys(_) => None,
        }
    }

    fn into_refusal(self, guarded: &GuardedRequest) -> Refusal {
        match self {
            Self::NoLease(Some(error)) | Self::Store(error) => log_and_refuse(error),
            Self::NoLease(None) => Refusal::StoreUnavailable,
            Self::Overloaded => Refusal::Overloaded(ReachedLimit::HeldBodies),
            Self::RuleBroken(refusal) => refusal,
            Self::TooManyKeys(wait) => guarded.refuse_new_key(wait),
        }
    }
}

impl GuardedRequest {
    /// Whether the request may be forwarded unguarded while the store is away.
    pub(super) fn may_bypass(&self) -> bool {
        let is_allowed = !self.can_wait_for_store && self.broken_rule.is_none();
        is_allowed && self.route().store_down == StoreDownPolicy::Bypass
    }
}

impl Gate {
    /// Decides by the record that this instance has last seen, if that forbids an attempt and no attempt of the key has run here since.
    async fn decide_by_last_seen(&self, guarded: &GuardedRequest) -> Option<Decision> {
        let id = &guarded.reserve_request.id;
        let mut record = self.instance.last_seen.find(id).filter(|_| self.instance.in_flight.find(id).is_none())?;
        let until_quiet = RecordSummary::from(&record).until_quiet(guarded.rules().quiet_after);
        if matches!(record.state, KeyState::InFlight) && until_quiet.is_zero() {
            // It has ended since, and nobody here knows how.
            record.state = KeyState::Unknown;
        }
        match self.decide(guarded, record).await {
            Decision::TakeOver(_) => None,
            // The store has the response.
            Decision::Refuse(Refusal::ResponseNotKept) => Some(Decision::Refuse(Refusal::StoreUnavailable)),
            decision => Some(decision),
        }
    }

    /// Refuses the request, or forwards it unguarded unless this instance knows its key as running or executed, or has last seen
    /// it in a state that forbids an attempt, or holds too many outcomes for the store already: forgetting one would let a retry execute again.
    ///
    /// A reservation that failed may have been committed, so its token stays registered: otherwise the pass over orphans
    /// could release it. The attempt's outcome is published in the in-flight registry, and stored under its token when the
    /// store is back, unless another request has the key by then. A retry is therefore not executed again by this instance.
    pub(super) async fn without_reservation(
        &self,
        guarded: Box<GuardedRequest>,
        failure: ReserveFailure,
        mut entry: InFlightEntry,
        context: &ResponseContext,
    ) -> WorkResult {
        // A draining instance starts nothing. Another instance may have a store.
        let is_draining = self.instance.draining.is_cancelled();
        let Some(outage) = failure.outage().filter(|_| guarded.may_bypass() && !is_draining) else {
            return WorkResult::refused(failure.into_refusal(&guarded));
        };
        if self.instance.in_flight.is_full_of_unstored_outcomes() {
            tracing::warn!(route = %guarded.route().name,
                "as many outcomes wait for the store as this process may hold; the request is refused instead of bypassed");
            return WorkResult::refused(Refusal::StoreUnavailable);
        }
        let reserve_request = Arc::new(guarded.reserve_request.clone());
        let lease =
            AttemptLease { reserve_request, attempt: 1, taken_from: None, recovery_point: None, delivery: None };
        // Another instance may have purged the key, and this one not heard of it. Replaying a purged response is less bad
        // than executing again.
        let known = match self.instance.possibly_purged_record(&lease.reserve_request.id) {
            None => Box::pin(self.instance.possibly_purged_shared_record(&lease.reserve_request.id)).await,
            known => known,
        };
        let decided = match known {
            Some(record) => Some(self.decide(&guarded, record).await),
            None => self.decide_by_last_seen(&guarded).await,
        };
        let decision = match decided {
            Some(decision) => Err(decision),
            None => match self.start_attempt(&guarded, &lease, &mut entry).await {
                // Another attempt may have ended meanwhile: its record is in memory before it leaves the registry.
                Ok(()) => match self.instance.possibly_purged_record(&lease.reserve_request.id) {
                    Some(ended) => Err(self.decide(&guarded, ended).await),
                    None => Ok(()),
                },
                Err(decision) => Err(decision),
            },
        };
        if let Err(decision) = decision {
            return self.answer(guarded, decision);
        }
        self.instance.bypassed.fetch_add(1, Ordering::Relaxed);
        // One line for each request: after the outage an operator needs all of them, as a retry elsewhere executes again.
        let record = (!guarded.is_provisional).then(|| tracing::field::display(guarded.reserve_request.id));
        tracing::warn!(record, route = %guarded.route().name,
            key = %guarded.reserve_request.key.prefix(), cause = error_causes(outage),
            "the store cannot reserve; the request is forwarded unguarded");
        let status = if guarded.is_provisional { ReserveStatus::Unstorable } else { ReserveStatus::InDoubt };
        let entry = entry.with_reserve_status(status);
        // Without a reservation there is nothing that could lapse.
        let outcome = self.send(guarded, lease, entry, context, &|| true).await;
        WorkResult::Ended(Outcome::Bypassed(Box::new(outcome)))
    }
}

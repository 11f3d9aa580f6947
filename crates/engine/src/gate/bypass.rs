//! Forwards a request although the store cannot reserve its key, where the route says so. Nothing guards such a
//! request.
//!
//! `claim` finds out that the store is away, and `forward` sends the request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::admit::GuardedRequest;
use super::claim::Unclaimed;
use super::outcome::Outcome;
use super::progress::RequestProgress;
use super::response_context::ResponseContext;
use super::state::Gate;
use crate::instance::in_flight::{InFlightEntry, ReserveStatus};
use oncegate_domain::attempt::AttemptLease;
use oncegate_domain::decision::{Decision, KeyAnswer, KeyRefusal};
use oncegate_domain::execution_risk::RecordSummary;
use oncegate_domain::record::Record;
use oncegate_domain::state::KeyState;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_store::StoreError;
use oncegate_telemetry::logs::error_causes;

impl Unclaimed {
    /// The error of a store that is away. `None` if the store has answered, because then its answer counts. `None` too
    /// if the store has failed for good, because then this process ends.
    // See docs/decisions/0006-bypass-as-an-attempt.md.
    fn outage(&self) -> Option<&StoreError> {
        match self {
            Self::Reserving(error) => match error {
                StoreError::Corrupt(_) | StoreError::Failed(_) | StoreError::Taken(_) => None,
                StoreError::TimedOut | StoreError::Unavailable(_) => Some(error),
            },
            Self::Answered(_) | Self::Refused(_) | Self::TakingOver(_) => None,
        }
    }
}

impl Gate {
    /// The answer of the record that this instance has last seen, if that forbids an attempt and no attempt of the key
    /// has run here since.
    async fn answer_by_last_seen(&self, guarded: &GuardedRequest) -> Option<Result<KeyAnswer, Refusal>> {
        let id = &guarded.reserve_request.id;
        let mut record = self.instance.last_seen.find(id).filter(|_| self.instance.in_flight.find(id).is_none())?;
        let until_quiet = RecordSummary::from(&record).until_quiet(guarded.rules().retry.quiet_after);
        if matches!(record.state, KeyState::InFlight) && until_quiet.is_zero() {
            // It has ended since, and nobody here knows how.
            record.state = KeyState::Unknown;
        }
        match self.decide(guarded, record).await {
            Decision::TakeOver(_) => None,
            // The store has the response.
            Decision::Answer(KeyAnswer::Refuse(KeyRefusal::ResponseNotKept)) => Some(Err(Refusal::StoreUnavailable)),
            Decision::Answer(answer) => Some(Ok(answer)),
        }
    }

    /// Forwards the request unguarded, or refuses it. Three things forbid the request to be forwarded:
    ///
    /// - This instance runs or has executed an attempt of the key.
    /// - This instance has last seen the key in a state that forbids an attempt.
    /// - This process holds as many outcomes for the store as it may. It would have to forget one, and a retry would be
    ///   executed again.
    ///
    /// The store may have committed a reservation although its call failed. Therefore the token stays registered:
    /// otherwise the pass over orphans could release that reservation. The in-flight registry has the attempt's
    /// outcome, so this instance does not execute a retry again. When the store is back, it takes the outcome under the
    /// token, unless another request has the key by then.
    pub(super) async fn without_reservation(
        &self,
        guarded: Box<GuardedRequest>,
        unclaimed: Unclaimed,
        mut entry: InFlightEntry,
        context: &ResponseContext,
    ) -> RequestProgress {
        // A draining instance starts nothing. Another instance may have a store.
        let is_draining = self.instance.draining.is_cancelled();
        let Some(outage) = unclaimed.outage().filter(|_| guarded.may_bypass() && !is_draining) else {
            return RequestProgress::unclaimed(guarded, unclaimed, &self.instance);
        };
        if self.instance.in_flight.is_full_of_unstored_outcomes() {
            tracing::warn!(route = %guarded.route().name,
                "as many outcomes wait for the store as this process may hold; the request is refused instead of bypassed");
            return RequestProgress::refused(Refusal::StoreUnavailable);
        }
        let reserve_request = Arc::new(guarded.reserve_request.clone());
        let lease =
            AttemptLease { reserve_request, attempt: 1, taken_from: None, recovery_point: None, delivery: None };
        match self.answer_without_store(&guarded, &lease, &mut entry).await {
            Some(Ok(answer)) => return RequestProgress::answered(guarded, answer, &self.instance),
            Some(Err(refusal)) => return RequestProgress::refused(refusal),
            None => {}
        }
        self.instance.bypassed.fetch_add(1, Ordering::Relaxed);
        // One line for each request: after the outage an operator needs all of them, as a retry elsewhere executes
        // again.
        let record = (!guarded.is_provisional).then(|| tracing::field::display(guarded.reserve_request.id));
        tracing::warn!(record, route = %guarded.route().name,
            key = %guarded.reserve_request.key.prefix(), cause = error_causes(outage),
            "the store cannot reserve; the request is forwarded unguarded");
        let status = if guarded.is_provisional { ReserveStatus::Unstorable } else { ReserveStatus::InDoubt };
        let entry = entry.with_reserve_status(status);
        let outcome = self.forward(guarded, lease, entry, None, context).await;
        RequestProgress::Ended(Outcome::Bypassed(Box::new(outcome)))
    }

    /// The answer that this process knows for the key; `None` if it knows none, and the attempt has started here.
    async fn answer_without_store(
        &self,
        guarded: &GuardedRequest,
        lease: &AttemptLease,
        entry: &mut InFlightEntry,
    ) -> Option<Result<KeyAnswer, Refusal>> {
        let (instance, id) = (&self.instance, &lease.reserve_request.id);
        // Another instance may have purged the key, and this one not heard of it. Replaying a purged response is less
        // bad than executing again.
        let known = match instance.possibly_purged_record(id) {
            None => Box::pin(instance.possibly_purged_shared_record(id)).await,
            known => known,
        };
        if let Some(record) = known {
            return Some(Ok(self.answer_by(guarded, record).await));
        }
        if let Some(answered) = self.answer_by_last_seen(guarded).await {
            return Some(answered);
        }
        match self.start_attempt(guarded, lease, entry).await {
            // Another attempt may have ended meanwhile: its record is in memory before it leaves the registry.
            Ok(()) => Some(Ok(self.answer_by(guarded, instance.possibly_purged_record(id)?).await)),
            Err(answer) => Some(Ok(answer)),
        }
    }

    /// The answer of a record that this process has. A record that allows the next attempt does not start one here.
    async fn answer_by(&self, guarded: &GuardedRequest, record: Record) -> KeyAnswer {
        self.decide(guarded, record).await.answer_without_take_over(&guarded.rules())
    }
}

//! Takes a key for an attempt of this instance, and starts the attempt.
//!
//! The loop that decides when to take a key is in `claim`, and the attempt itself in `forward`.

use std::pin::pin;
use std::sync::Arc;

use super::admit::{GuardedRequest, fresh_token};
use super::claim::{KeyTaker, TakeResult};
use super::new_key::NewKeyPermit;
use super::response_context::ResponseContext;
use super::state::Gate;
use crate::instance::Instance;
use crate::instance::boot_time::BootInstant;
use crate::instance::in_flight::InFlightEntry;
use crate::instance::request_trace::TraceStage;
use oncegate_domain::attempt::{AttemptLease, ReserveResult};
use oncegate_domain::decision::{Decision, KeyAnswer};
use oncegate_domain::record::ExpectedRecord;
use oncegate_http::protocol::refusal::{ReachedLimit, Refusal};
use oncegate_store::{Store, StoreError, TakeOverParams};

/// Takes a key for an attempt.
pub(super) struct AttemptTaker<'a> {
    instance: &'a Arc<Instance>,
    /// The registration of the attempt's token. Without it the pass over orphans could release the reservation.
    pub(super) entry: InFlightEntry,
    /// The time of the last call of the store that could have reserved the key.
    pub(super) reserving_since: BootInstant,
    context: &'a ResponseContext,
}

impl<'a> AttemptTaker<'a> {
    /// Registers the token of the request.
    pub(super) fn new(instance: &'a Arc<Instance>, guarded: &GuardedRequest, context: &'a ResponseContext) -> Self {
        let entry = instance.in_flight.register(guarded.reserve_request.token);
        Self { instance, entry, reserving_since: BootInstant::now(), context }
    }

    async fn ask_store(
        &mut self,
        store: &Store,
        guarded: &mut GuardedRequest,
        permit: &NewKeyPermit,
        from: Option<ExpectedRecord>,
    ) -> Result<ReserveResult, StoreError> {
        let Some(from) = from else {
            let reserving = store.reserve(permit.mark(&guarded.reserve_request));
            return self.context.timed(TraceStage::Reserve, pin!(reserving)).await;
        };
        if from.token == guarded.reserve_request.token {
            // The record is this request's own reservation. The store's answer was lost, and the sweeper has made the key
            // unknown since. A token belongs to one attempt, so the next attempt needs another one.
            guarded.reserve_request.token = fresh_token();
            self.entry = self.instance.in_flight.register(guarded.reserve_request.token);
        }
        self.reserving_since = BootInstant::now();
        let taking_over = store.take_over(TakeOverParams { request: guarded.reserve_request.clone(), from });
        self.context.timed(TraceStage::Reserve, pin!(taking_over)).await
    }
}

impl KeyTaker for AttemptTaker<'_> {
    type Key = AttemptLease;

    async fn take(
        &mut self,
        store: &Store,
        guarded: &mut GuardedRequest,
        permit: &NewKeyPermit,
        from: Option<ExpectedRecord>,
    ) -> Result<TakeResult<AttemptLease>, StoreError> {
        Ok(match self.ask_store(store, guarded, permit, from).await? {
            ReserveResult::Fresh(lease) => TakeResult::Mine(lease),
            ReserveResult::Taken(record) => TakeResult::Taken(record),
        })
    }

    fn context(&self) -> &ResponseContext {
        self.context
    }
}

impl Gate {
    /// Whether this instance may start an attempt of the request.
    ///
    /// # Errors
    /// The refusal of a request that breaks a rule of its route, or that this instance cannot execute now: it has no valid lease, its
    /// drain is over, or a memory is full. Bodies fill one, and outcomes that the store does not take another. A request without a body
    /// may add to it too, because its response may be large.
    pub(super) fn may_start(&self, guarded: &GuardedRequest) -> Result<(), Refusal> {
        let Instance { instance_lease, in_flight, bodies, response_bodies, drain_expired, .. } = &*self.instance;
        if let Some(refusal) = &guarded.broken_rule {
            Err(refusal.clone())
        } else if !instance_lease.may_start() || drain_expired.is_cancelled() {
            Err(Refusal::StoreUnavailable)
        } else if bodies.is_full() || response_bodies.is_full() || in_flight.is_full_of_unstored_outcomes() {
            Err(Refusal::Overloaded(ReachedLimit::HeldBodies))
        } else {
            Ok(())
        }
    }

    /// Starts the attempt on this instance.
    ///
    /// # Errors
    /// The answer of another attempt of the key that has started on this instance and prevents this one.
    pub(super) async fn start_attempt(
        &self,
        guarded: &GuardedRequest,
        lease: &AttemptLease,
        entry: &mut InFlightEntry,
    ) -> Result<(), KeyAnswer> {
        let mut replaces = None;
        while entry.start(lease, replaces).is_err() {
            let newest = self.instance.in_flight.find(&lease.reserve_request.id);
            replaces = newest.as_ref().map(|record| record.token);
            let Some(record) = newest else { continue };
            if let Decision::Answer(answer) = self.decide(guarded, record).await {
                return Err(answer);
            }
        }
        Ok(())
    }
}

//! Claims the key of a request: takes it, or finds the record that answers the request.
//!
//! One loop for all requests: those that start an attempt now, those that are accepted for delivery, and the copies of
//! observed ones. A [`KeyTaker`] says which call of the store takes the key. The work that follows a claim is
//! elsewhere: `execute` forwards the request, `enqueue` answers 202, `observe` only counts, and `bypass` handles a
//! store that is away.

use std::pin::pin;
use std::sync::Arc;

use super::admit::{GuardedRequest, fresh_token};
use super::new_key::NewKeyPermit;
use super::response_context::ResponseContext;
use super::same_body::SameBodyNote;
use super::state::Gate;
use crate::instance::Instance;
use crate::instance::boot_time::BootInstant;
use crate::instance::in_flight::InFlightEntry;
use crate::instance::request_trace::TraceStage;
use oncegate_domain::attempt::{AttemptLease, ReserveResult};
use oncegate_domain::decision::{Decision, KeyAnswer};
use oncegate_domain::record::{ExpectedRecord, Record};
use oncegate_http::protocol::refusal::{ReachedLimit, Refusal};
use oncegate_store::{StoreError, TakeOverParams};

/// The number of tries of one request to take over a key whose record keeps changing.
const TAKE_OVERS_MAX: usize = 3;

/// The cause where the store was away from the start on.
const NOT_JOINED: &str = "it was away when this process started, and has not been reached since";

/// A way to take a key.
pub(super) trait KeyTaker: Send {
    type Key: Send;

    /// Takes a key that has no record, or one whose record is still `from`. Returns the record of a key that it did not
    /// get.
    fn take(
        &mut self,
        guarded: &mut GuardedRequest,
        permit: &NewKeyPermit,
        from: Option<ExpectedRecord>,
    ) -> impl Future<Output = Result<Result<Self::Key, Record>, StoreError>> + Send;
}

/// The reason why a request has not got its key.
pub(super) enum Unclaimed {
    Answered(KeyAnswer),
    /// The request may not take its key, and no record answers the request.
    Refused(Refusal),
    /// The store failed before it has said whether the key has a record.
    Reserving(StoreError),
    /// The store failed to take over the key, which has a record.
    TakingOver(StoreError),
}

impl Gate {
    /// Claims the request's key. A request that may not take its key (`may_take` is its refusal), and a caller over the
    /// limits of its route, still get the answer of the key's record.
    ///
    /// The loop reads the result of each take-over that it starts. A take-over whose result nobody reads would leave
    /// the key in flight, without an attempt that settles it. Therefore the loop starts at most [`TAKE_OVERS_MAX`], and
    /// then answers that the key is in flight: other requests keep taking the key over first, so one of them is
    /// running.
    ///
    /// # Errors
    /// The request does not get its key.
    pub(super) async fn claim<T: KeyTaker>(
        &self,
        taker: &mut T,
        guarded: &mut GuardedRequest,
        may_take: Result<(), Refusal>,
        context: &ResponseContext,
    ) -> Result<T::Key, Unclaimed> {
        if guarded.is_provisional {
            return Err(Unclaimed::Reserving(StoreError::Unavailable(NOT_JOINED.into())));
        }
        let instance = &*self.instance;
        let epoch = instance.cache.current_epoch();
        let may_take = may_take.and_then(|()| guarded.check_same_body(instance));
        let mut taken = match &may_take {
            Ok(_) => match guarded.use_new_key(instance).await {
                Ok(permit) => {
                    let taken = taker.take(guarded, &permit, None).await.map_err(Unclaimed::Reserving)?;
                    if taken.is_err() {
                        permit.give_back();
                    }
                    taken
                }
                Err(wait) => Err(self.find_answer(guarded, context, || guarded.refuse_new_key(wait)).await?),
            },
            Err(refusal) => Err(self.find_answer(guarded, context, || refusal.clone()).await?),
        };
        let mut take_overs = 0;
        loop {
            let record = match taken {
                Ok(key) => {
                    guarded.note_redelivery();
                    guarded.note_same_body(instance);
                    guarded.note_parts(instance);
                    may_take.into_iter().for_each(SameBodyNote::keep);
                    return Ok(key);
                }
                Err(record) => record,
            };
            match guarded.is_observed() {
                true => guarded.observed_beside = Some(record.running_for),
                false => instance.remember(&record, epoch),
            }
            match self.decide(guarded, record).await {
                Decision::TakeOver(found) if take_overs < TAKE_OVERS_MAX => {
                    if let Err(refusal) = may_take {
                        return Err(Unclaimed::Refused(refusal));
                    }
                    take_overs += 1;
                    guarded.is_redelivery = found.is_redelivered;
                    let permit = NewKeyPermit::default();
                    taken = taker.take(guarded, &permit, Some(found)).await.map_err(Unclaimed::TakingOver)?;
                }
                decision => return Err(Unclaimed::Answered(decision.answer_without_take_over(&guarded.rules()))),
            }
        }
    }

    /// Finds the record that answers a request which may not take its key: the caller's earlier request, or another's.
    ///
    /// # Errors
    /// The refusal of the request, if its key has no record.
    async fn find_answer(
        &self,
        guarded: &GuardedRequest,
        context: &ResponseContext,
        refusal: impl FnOnce() -> Refusal,
    ) -> Result<Record, Unclaimed> {
        let finding = self.instance.store.find(guarded.reserve_request.id);
        match context.timed(TraceStage::Reserve, pin!(finding)).await {
            Ok(Some(record)) => Ok(record),
            Ok(None) => Err(Unclaimed::Refused(refusal())),
            Err(error) => Err(Unclaimed::Reserving(error)),
        }
    }

    /// Whether this instance may start an attempt of the request.
    ///
    /// # Errors
    /// The refusal of a request that breaks a rule of its route, or that this instance cannot execute now: it has no
    /// valid lease, its drain is over, or a memory is full. Bodies fill one, and outcomes that the store does not take
    /// another. A request without a body may add to it too, because its response may be large.
    pub(super) fn may_start(&self, guarded: &GuardedRequest) -> Result<(), Refusal> {
        let Instance { instance_lease, in_flight, bodies, response_bodies, drain_expired, .. } = &*self.instance;
        guarded.check_rules()?;
        if !instance_lease.may_start() || drain_expired.is_cancelled() {
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
}

impl KeyTaker for AttemptTaker<'_> {
    type Key = AttemptLease;

    async fn take(
        &mut self,
        guarded: &mut GuardedRequest,
        permit: &NewKeyPermit,
        from: Option<ExpectedRecord>,
    ) -> Result<Result<AttemptLease, Record>, StoreError> {
        let store = &self.instance.store;
        let keeps = guarded.is_repeated();
        let reserved = match from {
            None if keeps => {
                let keeping = store.reserve_kept(guarded.keep(permit, None));
                self.context.timed(TraceStage::Reserve, pin!(keeping)).await?
            }
            None => {
                let reserving = store.reserve(permit.mark(&guarded.reserve_request));
                self.context.timed(TraceStage::Reserve, pin!(reserving)).await?
            }
            Some(from) => {
                if from.token == guarded.reserve_request.token {
                    // The record is this request's own reservation. The store's answer was lost, and the sweeper has
                    // made the key unknown since. A token belongs to one attempt, so the next attempt needs another
                    // one.
                    guarded.reserve_request.token = fresh_token();
                    self.entry = self.instance.in_flight.register(guarded.reserve_request.token);
                }
                self.reserving_since = BootInstant::now();
                if keeps {
                    let keeping = store.reserve_kept(guarded.keep(permit, Some(from)));
                    return Ok(into_lease(self.context.timed(TraceStage::Reserve, pin!(keeping)).await?));
                }
                let taking_over = store.take_over(TakeOverParams { request: guarded.reserve_request.clone(), from });
                self.context.timed(TraceStage::Reserve, pin!(taking_over)).await?
            }
        };
        Ok(into_lease(reserved))
    }
}

fn into_lease(reserved: ReserveResult) -> Result<AttemptLease, Record> {
    match reserved {
        ReserveResult::Fresh(lease) => Ok(lease),
        ReserveResult::Taken(record) => Err(record),
    }
}

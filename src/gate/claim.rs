//! Claims the key of a request: takes it, or finds the record that answers the request.
//!
//! One loop for all requests: those that start an attempt now, those that are accepted for delivery, and the copies of observed ones.
//! A [`KeyTaker`] says which call of the store takes the key. The work that follows a claim is elsewhere: an attempt starts in
//! `execute`, `enqueue` answers 202, `observe` only counts, and `bypass` handles a store that is away.

use std::pin::pin;

use super::admit::GuardedRequest;
use super::new_key::NewKeyPermit;
use super::response_context::ResponseContext;
use super::state::{Gate, log_and_refuse};
use crate::instance::request_trace::TraceStage;
use oncegate_domain::decision::{Decision, KeyAnswer};
use oncegate_domain::record::{ExpectedRecord, Record};
use oncegate_http::protocol::refusal::Refusal;
use oncegate_store::{Store, StoreError};

/// The number of tries of one request to take over a key whose record keeps changing.
const TAKE_OVERS_MAX: usize = 3;

/// The cause where the store was away from the start on.
const NOT_JOINED: &str = "it was away when this process started, and has not been reached since";

/// A way to take a key.
pub(super) trait KeyTaker: Send {
    /// The result of taking the key.
    type Key: Send;

    /// Takes a key that has no record, or one whose record is still `from`.
    fn take(
        &mut self,
        store: &Store,
        guarded: &mut GuardedRequest,
        permit: &NewKeyPermit,
        from: Option<ExpectedRecord>,
    ) -> impl Future<Output = Result<TakeResult<Self::Key>, StoreError>> + Send;

    /// The context that notes the time which the store takes.
    fn context(&self) -> &ResponseContext;
}

/// The store's answer to a request that takes its key.
pub(super) enum TakeResult<K> {
    /// The key is the request's.
    Mine(K),
    /// The key has this record.
    Taken(Record),
}

/// The result of a claim.
pub(super) enum Claim<K> {
    /// The key is the request's.
    Mine(K),
    /// The key's record answers the request.
    Answered(KeyAnswer),
}

/// The reason why a claim has no result.
pub(super) enum ClaimFailure {
    /// The request may not take its key, and no record answers the request.
    Refused(Refusal),
    /// The store failed before it has said whether the key has a record.
    Reserving(StoreError),
    /// The store failed to take over the key, which has a record.
    TakingOver(StoreError),
}

impl ClaimFailure {
    /// The refusal of the request. Logs the error of the store.
    pub(super) fn into_refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::Reserving(error) | Self::TakingOver(error) => log_and_refuse(error),
        }
    }
}

impl Gate {
    /// Claims the request's key. A request that may not take its key (`may_take` is its refusal), and a caller over the limits of its
    /// route, still get the answer of the key's record.
    ///
    /// The loop reads the result of each take-over that it starts. A take-over whose result nobody reads would leave the key in flight,
    /// without an attempt that settles it. Therefore the loop starts none after the last one that it may start, and answers that the
    /// key is in flight: other requests keep taking the key over first, so one of them is running.
    ///
    /// # Errors
    /// The request does not take its key, and no record answers it.
    pub(super) async fn claim<T: KeyTaker>(
        &self,
        taker: &mut T,
        guarded: &mut GuardedRequest,
        may_take: Result<(), Refusal>,
    ) -> Result<Claim<T::Key>, ClaimFailure> {
        let epoch = self.instance.cache.current_epoch();
        let mut result = self.take_new(taker, guarded, &may_take).await?;
        let mut take_overs = 0;
        loop {
            let record = match result {
                TakeResult::Mine(key) => return Ok(Claim::Mine(key)),
                TakeResult::Taken(record) => record,
            };
            if !guarded.is_observed() {
                self.instance.remember(&record, epoch);
            }
            match self.decide(guarded, record).await {
                Decision::TakeOver(found) if take_overs < TAKE_OVERS_MAX => {
                    may_take.clone().map_err(ClaimFailure::Refused)?;
                    take_overs += 1;
                    let (store, permit) = (&self.instance.store, NewKeyPermit::default());
                    let taken = taker.take(store, guarded, &permit, Some(found)).await;
                    result = taken.map_err(ClaimFailure::TakingOver)?;
                }
                decision => return Ok(Claim::Answered(decision.answer_without_take_over(&guarded.rules()))),
            }
        }
    }

    /// Takes a key without a record, or finds its record.
    async fn take_new<T: KeyTaker>(
        &self,
        taker: &mut T,
        guarded: &mut GuardedRequest,
        may_take: &Result<(), Refusal>,
    ) -> Result<TakeResult<T::Key>, ClaimFailure> {
        if guarded.is_provisional {
            return Err(ClaimFailure::Reserving(StoreError::Unavailable(NOT_JOINED.into())));
        }
        let store = &self.instance.store;
        let refused = match may_take {
            Ok(()) => match guarded.use_new_key(&self.instance).await {
                Ok(permit) => {
                    let taken = taker.take(store, guarded, &permit, None).await;
                    if let Ok(TakeResult::Taken(_)) = &taken {
                        permit.give_back();
                    }
                    return taken.map_err(ClaimFailure::Reserving);
                }
                Err(wait) => Err(wait),
            },
            Err(refusal) => Ok(refusal.clone()),
        };
        // The record answers the caller's earlier requests, and those of others.
        match taker.context().timed(TraceStage::Reserve, pin!(store.find(guarded.reserve_request.id))).await {
            Ok(Some(record)) => Ok(TakeResult::Taken(record)),
            Ok(None) => Err(ClaimFailure::Refused(refused.unwrap_or_else(|wait| guarded.refuse_new_key(wait)))),
            Err(error) => Err(ClaimFailure::Reserving(error)),
        }
    }
}

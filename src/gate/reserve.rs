//! Reserves the key of a request, or finds its record where the request may start no attempt.

use std::pin::pin;
use std::sync::Arc;

use super::Gate;
use super::admit::GuardedRequest;
use super::bypass::ReserveFailure;
use super::response_context::ResponseContext;
use crate::domain::attempt::{AttemptLease, ReserveRequest, ReserveResult};
use crate::domain::record::Record;
use crate::domain::response_policy::OnUnknown;
use crate::domain::state::KeyState;
use crate::instance::boot_time::BootInstant;
use crate::instance::request_trace::TraceStage;
use crate::seeded_bug::SeededBug;
use crate::store::StoreError;

impl Gate {
    /// Returns the key's record if this instance or the shared cache knows it. The store is asked only where another instance may
    /// have completed the key with a later attempt.
    ///
    /// # Errors
    /// That may be so, and the store cannot tell.
    pub(super) async fn find_known(&self, guarded: &GuardedRequest) -> Result<Option<Record>, StoreError> {
        let (instance, id) = (&self.instance, &guarded.reserve_request.id);
        match instance.known_record(id) {
            Some(own) if self.may_be_superseded(&own, guarded) => {
                let stored = instance.store.find(*id).await?;
                Ok(Some(stored.filter(|stored| matches!(stored.state, KeyState::Completed(_))).unwrap_or(own)))
            }
            None if instance.shared_cache.is_some() => Ok(Box::pin(instance.shared_record(id)).await),
            known => Ok(known),
        }
    }

    /// Whether another instance may have started a later attempt than the one that runs here or has its outcome still to store:
    /// the lease has ended since, and the route repeats what is unknown.
    fn may_be_superseded(&self, own: &Record, guarded: &GuardedRequest) -> bool {
        let is_settled = matches!(&own.state, KeyState::Completed(completed) if completed.expires_at.is_some());
        !is_settled
            && guarded.route().on_unknown != OnUnknown::Hold
            && !self.instance.instance_lease.has_held_since(BootInstant::ago(own.running_for))
    }

    /// Reserves the key. Without a lease (`may_start`) this instance starts no attempt, and a caller over its route's limit uses no
    /// new key. Both can still get answers about attempts of others, and about the caller's earlier ones.
    pub(super) async fn reserve(
        &self,
        guarded: &GuardedRequest,
        may_start: bool,
        context: &ResponseContext,
    ) -> Result<ReserveResult, ReserveFailure> {
        let store = &self.instance.store;
        if SeededBug::SendBeforeReserved.is_active()
            && let Ok(None) = store.find(guarded.reserve_request.id).await
        {
            return Ok(self.reserve_in_background(guarded.reserve_request.clone()));
        }
        let hindrance = match may_start {
            true => match guarded.use_new_key(&self.instance).await {
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
            false => ReserveFailure::NoLease(None),
        };
        match context.timed(TraceStage::Reserve, pin!(store.find(guarded.reserve_request.id))).await {
            Ok(Some(record)) => Ok(ReserveResult::Taken(record)),
            Ok(None) => Err(hindrance),
            Err(error) => Err(ReserveFailure::NoLease(Some(error))),
        }
    }

    /// The reservation of [`SeededBug::SendBeforeReserved`]: the attempt does not wait for it.
    fn reserve_in_background(&self, request: ReserveRequest) -> ReserveResult {
        let (store, reserve_request) = (Arc::clone(&self.instance.store), Arc::new(request.clone()));
        tokio::spawn(async move { store.reserve(request).await });
        let first =
            AttemptLease { reserve_request, attempt: 1, taken_from: None, recovery_point: None, delivery: None };
        ReserveResult::Fresh(first)
    }
}

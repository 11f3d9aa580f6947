//! Finds the newest record of a key: that of this instance, or the store's where another instance may have a later one.
//!
//! What the record means for a request is decided in `domain/decision`.

use super::admit::GuardedRequest;
use super::state::{Gate, log_and_refuse};
use crate::instance::boot_time::BootInstant;
use oncegate_domain::decision::{Decision, KeyAnswer, KeyRefusal, RequestComparison, decide};
use oncegate_domain::differing_parts::DifferingParts;
use oncegate_domain::fingerprint::{Fingerprint, Recipe};
use oncegate_domain::part_bits::PartKey;
use oncegate_domain::record::Record;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::state::KeyState;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_store::StoreError;

impl Gate {
    /// Decides by the key's record, if this instance or the shared cache knows it.
    ///
    /// # Errors
    /// As for [`Self::decide_by_newest`].
    pub(super) async fn decide_by_known(&self, guarded: &GuardedRequest) -> Result<Option<Decision>, Refusal> {
        let (instance, id) = (&self.instance, &guarded.reserve_request.id);
        match instance.known_record(id) {
            Some(own) => self.decide_by_newest(own, guarded).await.map(Some),
            None if instance.shared_cache.get().is_some() => match Box::pin(instance.shared_record(id)).await {
                Some(record) => Ok(Some(self.decide(guarded, record).await)),
                None => Ok(None),
            },
            None => Ok(None),
        }
    }

    /// Decides what a request does, given its key's record.
    pub(super) async fn decide(&self, guarded: &GuardedRequest, record: Record) -> Decision {
        let request = &guarded.reserve_request;
        let comparison = guarded.compare(&record, &self.fingerprinting).await;
        let is_incomparable = comparison == RequestComparison::Impossible;
        if is_incomparable && !guarded.is_observed() {
            self.instance.observability.log_incomparable(&record.recipe);
        }
        let first = match comparison {
            RequestComparison::Impossible | RequestComparison::Same => None,
            RequestComparison::Different | RequestComparison::DifferentWithoutBody => {
                Some((record.recipe.clone(), record.fingerprint))
            }
        };
        let mut decision =
            decide(guarded.store_clock.certain(record, request.time_limit), comparison, &guarded.rules());
        if let Decision::Answer(KeyAnswer::Refuse(KeyRefusal::KeyReused(differing))) = &mut decision
            && let Some(first) = first
        {
            *differing = Box::pin(self.find_differing_parts(guarded, first)).await;
            if comparison == RequestComparison::DifferentWithoutBody {
                *differing = std::mem::take(differing).of_possible_retry();
            }
            self.instance.observability.key_mismatches.keep(request.id, differing);
        }
        decision
    }

    /// The parts in which a request differs from the first one of its key. None are known where the store has no
    /// bits, or does not answer: the refusal stands without them.
    async fn find_differing_parts(
        &self,
        guarded: &GuardedRequest,
        (recipe, fingerprint): (Recipe, Fingerprint),
    ) -> DifferingParts {
        let (instance, id) = (&self.instance, guarded.reserve_request.id);
        // Nothing that is found by a provisional salt is in the store.
        if guarded.is_provisional {
            return DifferingParts::default();
        }
        let bits = match instance.recent_parts.find(&id, &fingerprint) {
            None => instance.store.find_parts(&id, &fingerprint).await.ok().flatten(),
            own => own,
        };
        let Some(bits) = bits else { return DifferingParts::default() };
        let part_key = PartKey::new(guarded.active.salt.current().salt, &id);
        guarded.compare_parts((&recipe, bits), part_key, &self.fingerprinting).await
    }

    /// Decides by a record that this instance has, or by the store's if another instance has made a later attempt. Only
    /// where that may be so is the store asked. While it is away no response of the own attempt is given, unless the
    /// route prefers any answer to none.
    ///
    /// # Errors
    /// The refusal of a request whose newest attempt only the store knows, and the store has failed.
    pub(super) async fn decide_by_newest(&self, own: Record, guarded: &GuardedRequest) -> Result<Decision, Refusal> {
        if guarded.is_provisional || !self.may_be_superseded(&own, guarded) {
            return Ok(self.decide(guarded, own).await);
        }
        // A bypass prefers any answer to none, and an attempt without a response gives nobody a wrong one.
        let own_suffices = guarded.may_bypass() || !matches!(own.state, KeyState::Completed(_));
        let newest = match self.instance.store.find(guarded.reserve_request.id).await {
            Ok(Some(stored)) => {
                if !matches!(stored.state, KeyState::Completed(_)) {
                    self.instance.last_seen.note(&stored);
                }
                let stored = guarded.store_clock.certain(stored, guarded.reserve_request.time_limit);
                let is_later = match stored.state {
                    // One past its TTL is what the own attempt has replaced.
                    KeyState::Completed(_) => !guarded.rules().retry.counts_as_none(&stored),
                    KeyState::InFlight => stored.token != own.token,
                    // After a failover it may be from before the own attempt.
                    _ => false,
                };
                if is_later { stored } else { own }
            }
            Ok(None) => own,
            Err(StoreError::TimedOut | StoreError::Unavailable(_)) if own_suffices => own,
            Err(error) => return Err(log_and_refuse(error)),
        };
        Ok(self.decide(guarded, newest).await)
    }

    /// Whether another instance may have started a later attempt than the one that runs here or has its outcome still
    /// to store: the lease has ended since, and the route repeats what is unknown.
    fn may_be_superseded(&self, own: &Record, guarded: &GuardedRequest) -> bool {
        let is_settled = matches!(&own.state, KeyState::Completed(completed) if completed.expires_at.is_some());
        !is_settled
            && guarded.route().options.on_unknown != OnUnknown::Hold
            && !self.instance.instance_lease.has_held_since(BootInstant::ago(own.running_for))
    }
}

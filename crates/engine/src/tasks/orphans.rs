//! Settles orphaned attempts: reserved for this instance in the store, but not running here.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::{PassResult, Task};
use crate::instance::Instance;
use crate::instance::boot_time::BootInstant;
use oncegate_domain::attempt::{AttemptOutcome, Settlement};
use oncegate_domain::ids::Token;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_store::{ListInFlightParams, ReservedAttempt, SettleResult, StoreError};

/// The task that settles orphaned attempts. There are two causes:
///
/// - A reservation can commit after its request has given up waiting for it. Nothing of such a request was sent: the
///   in-flight registry removes a token only after its outcome is stored, or if its attempt never started. The key is
///   released.
/// - A failover can lose the outcome of an attempt and keep its reservation. The registry remembers the attempts that
///   may have executed. Their keys become unknown.
pub struct OrphanedAttempts {
    instance: Arc<Instance>,
    /// The reservations that the last pass found.
    found_before: HashSet<Token>,
}

impl OrphanedAttempts {
    /// Creates the task; no reservation has been found yet.
    pub fn new(instance: Arc<Instance>) -> Self {
        Self { instance, found_before: HashSet::new() }
    }

    /// Settles one attempt, and reports a delivery that was not sent, so that it does not count.
    async fn settle(&self, settlement: Settlement, route: String) -> Result<(), StoreError> {
        let (id, token) = (settlement.id, settlement.token);
        let is_unsent = matches!(settlement.outcome, AttemptOutcome::Retryable { .. });
        match self.instance.store.settle(settlement.with_retry_in(is_unsent.then_some(PAUSE))).await? {
            SettleResult::Done { .. } if is_unsent => {
                tracing::info!(record = %id, "a reservation committed after its request had given up; the key is released");
                // Only now: a settlement that failed is repeated, and would be counted twice.
                self.instance.note_unsent_delivery(id, token);
            }
            SettleResult::Done { .. } => {
                let Instance { observability, config, .. } = &*self.instance;
                observability.metrics.count_found_unknown(&route, UnknownCause::Store, &config.service);
                tracing::warn!(record = %id, route, "the store had lost the outcome of this attempt; the key is unknown");
            }
            SettleResult::Fenced(_) => {}
        }
        Ok(())
    }
}

/// The time for which a released key stays retryable; the retry that follows takes it over with its route's own TTL.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The pause before an orphaned delivery is due again: long enough to report first that the attempt does not count.
const PAUSE: Duration = Duration::from_secs(1);

/// The settlements that run at once, a full batch of the store. A pass with so many failures ends.
const BATCH: usize = 256;

/// The replication lag, beyond a lease, that the memory of executed attempts covers. A standby that lags by more is
/// hardly ever promoted, and each minute costs memory.
const LAG_MAX: Duration = Duration::from_secs(5 * 60);

impl Task for OrphanedAttempts {
    const NAME: &'static str = "orphans";

    async fn run_once(&mut self) -> Result<PassResult, StoreError> {
        let Instance { store, instance_lease, in_flight, config, .. } = &*self.instance;
        let started = BootInstant::now();
        // First the registry, then the store. An attempt that ends between the two is still in the first list, and one
        // that had ended before is no longer in flight in the store. In the other order, an attempt that has just
        // become unknown would be taken for one that was never sent.
        // See docs/decisions/0002-repair-lost-rows.md.
        let running = in_flight.registered_tokens();
        let params = ListInFlightParams { instance: instance_lease.id(), older_than: config.store.timeout };
        let reserved = store.list_in_flight(params).await?;
        // Release only reservations that two passes in a row found. Such a reservation is older than this pass's look
        // at the registry, so if it is not registered, its attempt never started.
        let found_before =
            std::mem::replace(&mut self.found_before, reserved.iter().map(|attempt| attempt.token).collect());
        let orphans: Vec<_> = reserved.into_iter().filter(|attempt| !running.contains(&attempt.token)).collect();
        let executed = in_flight.recently_executed(orphans.iter().map(|attempt| attempt.token));
        // Never started, or executed with a lost outcome. Others may still be about to be registered.
        let settlements = orphans.into_iter().filter_map(|ReservedAttempt { id, token, route }| {
            if executed.contains(&token) {
                return Some(self.settle(Settlement::for_lost_outcome(id, token), route));
            }
            found_before.contains(&token).then(|| self.settle(Settlement::for_orphan(id, token, TTL), route))
        });
        // The store commits together what is settled at the same time. A row that another transaction has locked fails
        // alone, after the store's timeout; the others do not wait for it.
        let mut settled = stream::iter(settlements).buffer_unordered(BATCH);
        let mut failures = Vec::new();
        while let Some(result) = settled.next().await {
            failures.extend(result.err());
            if failures.len() >= BATCH {
                // It is the store, and not single rows.
                break;
            }
        }
        let count = failures.len();
        if let Some(error) = failures.pop() {
            tracing::warn!(count, "some orphaned attempts are not settled yet");
            // Not forgotten below: the next pass must know whether these attempts have executed.
            return Err(error);
        }
        // Last, and by the time when this pass began: attempts that ended before a long outage of the store are still
        // known to the first pass after it.
        in_flight.forget_executed(started, instance_lease.expiry() + LAG_MAX);
        Ok(PassResult::Idle)
    }
}

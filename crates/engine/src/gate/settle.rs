//! Stores the outcome of an attempt, and tries again in the background while the store is away.
//!
//! `attempt_end` makes the settlement. The store decides whether the settlement counts.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::routing::ActiveRoute;
use crate::instance::Instance;
use crate::instance::in_flight::{InFlightEntry, ReserveStatus};
use crate::instance::latency::LatencyEwma;
use crate::instance::metrics::LateCompletion;
use crate::instance::request_trace::StageError;
use crate::instance::running_stream::RunningStream;
use oncegate_cache::CacheEpoch;
use oncegate_domain::attempt::{AttemptLease, AttemptOutcome, ReserveRequest, ReserveResult, Settlement};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::record::Record;
use oncegate_domain::state::{CompletedResponse, KeyState};
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_settings::Route;
use oncegate_store::{SettleResult, StoreError, TakeOverParams};
use oncegate_telemetry::logs::error_causes;

/// The reason why an attempt's outcome is not stored yet. A task stores it when the store is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsettled {
    /// The attempt has no reservation, so nobody waits for its settlement.
    Bypassed,
    /// The store failed. Requests with the key are refused meanwhile.
    StoreFailed,
}

impl StageError for Unsettled {
    fn error_type(&self) -> Option<&'static str> {
        (*self == Self::StoreFailed).then_some("unavailable")
    }
}

/// The pauses between two tries of a settlement. The first is short, for a hiccup; the longest is rare enough for an
/// outage. No pause is longer than half a lease, so that one lease after the store's return every key is settled.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Stores an attempt's outcome, before the client gets its response.
pub(super) async fn persist(
    instance: &Arc<Instance>,
    settlement: Settlement,
    mut entry: InFlightEntry,
) -> Result<SettleResult, Unsettled> {
    count_unknown(instance, &settlement);
    if let Some(request) = settlement.unexecuted_request() {
        // An equal one under another key is no second execution.
        instance.observability.same_bodies.forget(&request.into());
    }
    if matches!(entry.reserve_status(), ReserveStatus::InDoubt | ReserveStatus::Unstorable) {
        persist_in_background(instance, settlement, entry);
        return Err(Unsettled::Bypassed);
    }
    entry.note_settlement(&settlement);
    let (id, epoch) = (settlement.id, instance.cache.current_epoch());
    let result = instance.store.settle(settlement.clone()).await;
    if let (Ok(result), false) = (&result, instance.instance_lease.has_held_since(entry.registered_at())) {
        count_late(instance, &settlement, result);
    }
    // The order matters: the completed record goes into the cache, then the attempt leaves the registry, then the wait
    // group looks. A duplicate finds the record in one of the two at any time.
    match &result {
        Ok(SettleResult::Done { expires_at }) => {
            remember_outcome(instance, settlement.outcome.clone(), *expires_at, &entry, epoch)
        }
        Ok(SettleResult::Fenced(Some(record))) => {
            warn_of_another_attempt(&settlement, record);
            instance.remember(record, epoch);
        }
        Ok(SettleResult::Fenced(None)) | Err(_) => {}
    }
    if result.is_ok() {
        entry.withdraw();
        instance.wait_groups.wake(id);
    }
    result.map_err(|error| {
        let cause = error_causes(&error);
        tracing::warn!(record = %settlement.id, cause, "{error}; the attempt's outcome is stored as soon as the store takes it");
        persist_in_background(instance, settlement, entry);
        Unsettled::StoreFailed
    })
}

/// Counts an outcome that is unknown, once for each attempt. A repetition at a vendor has found it unknown.
fn count_unknown(instance: &Instance, settlement: &Settlement) {
    if let (AttemptOutcome::Unknown(cause), Some(lease)) = (&settlement.outcome, settlement.lease_to_restore())
        && lease.delivery.is_none_or(|delivery| delivery.accepted_at.is_some())
    {
        let ReserveRequest { service, route, .. } = &*lease.reserve_request;
        instance.observability.metrics.count_unknown((service, route), *cause);
    }
}

fn remember_outcome(
    instance: &Instance,
    outcome: AttemptOutcome,
    expires_at: Option<SystemTime>,
    entry: &InFlightEntry,
    epoch: CacheEpoch,
) {
    let Some(record) = entry.record() else { return };
    let state = match outcome {
        AttemptOutcome::Completed { response, .. } => KeyState::Completed(CompletedResponse { response, expires_at }),
        AttemptOutcome::Retryable { .. } => KeyState::Retryable,
        AttemptOutcome::Unknown(_) => KeyState::Unknown,
    };
    // The times of the record are those of its reservation.
    let running_for = entry.registered_at().elapsed();
    let deadline_in_ms = record.deadline_in_ms - i64::try_from(running_for.as_millis()).unwrap_or(i64::MAX);
    instance.remember(&Record { state, running_for, deadline_in_ms, ..record.clone() }, epoch);
}

/// Stores an outcome in the background. The task tries until the store takes the settlement, or until the time of the
/// drain is over. It has no other limit: an outage may last longer than the TTL, because the TTL begins when the
/// outcome is stored.
///
/// The task owns the entry of the attempt. The attempt stays registered until its outcome is durable, and the registry
/// answers requests with the outcome meanwhile.
fn persist_in_background(instance: &Arc<Instance>, settlement: Settlement, mut entry: InFlightEntry) {
    entry.note_settlement(&settlement);
    entry.publish_outcome(&settlement.outcome);
    instance.wait_groups.wake(settlement.id);
    let instance_in_task = Arc::clone(instance);
    if entry.reserve_status() == ReserveStatus::Unstorable {
        // Requests find it until the process knows the store's salt, and then have other ids. No drain waits for that.
        tokio::spawn(async move {
            instance_in_task.joined.cancelled().await;
            drop(entry);
            instance_in_task.wait_groups.wake(settlement.id);
        });
        return;
    }
    instance.tracker.spawn(async move {
        let instance = instance_in_task;
        let mut pause = PAUSE_FIRST;
        let pause_max = PAUSE_MAX.min(instance.instance_lease.expiry() / 2);
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep(pause) => {}
                () = instance.drain_expired.cancelled() => {
                    tracing::error!(record = %settlement.id, "an attempt's outcome could not be stored; its key becomes unknown");
                    return entry.keep_registered();
                }
            }
            let epoch = instance.cache.current_epoch();
            match settle_or_take_over(&instance, &settlement, entry.reserve_status()).await {
                // The reservation was never committed, so there is nothing to remember. If it commits later, it is an
                // orphan.
                Ok(SettleResult::Fenced(None)) if entry.reserve_status() == ReserveStatus::InDoubt => return,
                Ok(result) => {
                    count_late(&instance, &settlement, &result);
                    if let SettleResult::Done { expires_at } = result {
                        remember_outcome(&instance, settlement.outcome.clone(), expires_at, &entry, epoch);
                    }
                    drop(entry);
                    instance.wait_groups.wake(settlement.id);
                    return log_late(&settlement, &result);
                }
                Err(StoreError::Corrupt(what)) => {
                    tracing::error!(record = %settlement.id, %what, "an attempt's outcome cannot be stored; requests with its key are refused");
                    return entry.keep_registered();
                }
                Err(_) => pause = (pause * 2).min(pause_max),
            }
        }
    });
}

/// Settles. If an attempt without a reservation meets a `retryable` record of another attempt, it takes the record over
/// first: otherwise the next request would execute again what this attempt may have executed.
async fn settle_or_take_over(
    instance: &Instance,
    settlement: &Settlement,
    reserve_status: ReserveStatus,
) -> Result<SettleResult, StoreError> {
    let result = instance.store.settle(settlement.clone()).await?;
    let (ReserveStatus::InDoubt, Some(lease), SettleResult::Fenced(Some(record))) =
        (reserve_status, settlement.lease_to_restore(), &result)
    else {
        return Ok(result);
    };
    if !matches!(record.state, KeyState::Retryable) {
        return Ok(result);
    }
    let params = TakeOverParams { request: ReserveRequest::clone(&lease.reserve_request), from: record.into() };
    match instance.store.take_over(params).await? {
        ReserveResult::Fresh(_) => instance.store.settle(settlement.clone()).await,
        ReserveResult::Taken(record) => Ok(SettleResult::Fenced(Some(record))),
    }
}

/// Logs that an attempt which may have executed has lost its key to another one, so that its outcome is dropped.
fn warn_of_another_attempt(settlement: &Settlement, record: &Record) {
    if record.token != settlement.token && settlement.lease_to_restore().is_some() {
        let (id, stands) = (record.id, record.state.name());
        tracing::warn!(record = %id, stands, "another attempt has the key, and this attempt's outcome is not stored");
    }
}

/// Logs a late settlement. If the record has another outcome, an operator needs to know of both.
fn log_late(settlement: &Settlement, result: &SettleResult) {
    let id = settlement.id;
    match result {
        SettleResult::Fenced(Some(record)) if !settlement.is_outcome_of(record) => {
            let stands = record.state.name();
            tracing::warn!(record = %id, stands, "an attempt's outcome differs from the stored state of its key, and is not stored");
        }
        SettleResult::Done { .. } | SettleResult::Fenced(_) => {
            tracing::info!(record = %id, "an attempt's outcome is stored after all")
        }
    }
}

/// Counts an outcome that comes when others may have given the attempt up: the lease ran out meanwhile, or the store
/// was away.
fn count_late(instance: &Instance, settlement: &Settlement, result: &SettleResult) {
    let late = match result {
        SettleResult::Done { .. } => LateCompletion::Taken,
        SettleResult::Fenced(Some(record)) if settlement.is_outcome_of(record) => LateCompletion::Taken,
        SettleResult::Fenced(_) => LateCompletion::Dropped,
    };
    instance.observability.metrics.late_completions.count(late);
}

/// An attempt of which bytes may have left. If its task ends without a settlement (a panic), the drop settles it as
/// unknown.
pub(super) struct RunningAttempt {
    pub(super) instance: Arc<Instance>,
    pub(super) route: Arc<Route>,
    pub(super) latency: Arc<LatencyEwma>,
    pub(super) began: Instant,
    /// The time by which the response must be there, or its beginning if it streams. The attempt's stored deadline is
    /// not before.
    pub(super) deadline: Instant,
    held: Option<(AttemptLease, InFlightEntry)>,
}

impl RunningAttempt {
    pub(super) fn new(
        instance: &Arc<Instance>,
        active: ActiveRoute,
        lease: AttemptLease,
        entry: InFlightEntry,
    ) -> Self {
        let (instance, ActiveRoute { route, latency, .. }, began) = (Arc::clone(instance), active, Instant::now());
        // A reload since the reservation may have given the route more time than the store waits for the attempt.
        let reserved_time = lease.reserve_request.time_limit.saturating_sub(instance.first_byte_within());
        let deadline = began + route.options.upstream_timeout.min(reserved_time);
        Self { instance, route, latency, began, deadline, held: Some((lease, entry)) }
    }

    /// The reservation that the attempt runs under, or would have run under.
    pub(super) fn request(&self) -> &Arc<ReserveRequest> {
        let (lease, _) = self.held.as_ref().expect("only into_parts takes the lease");
        &lease.reserve_request
    }

    /// The record and token of the attempt's reservation; `None` if the store may have none.
    pub(super) fn reservation(&self) -> Option<(RecordId, Token)> {
        let (lease, entry) = self.held.as_ref()?;
        let request = &lease.reserve_request;
        (entry.reserve_status() == ReserveStatus::Reserved).then_some((request.id, request.token))
    }

    /// Lets duplicates read the response while it comes in.
    pub(super) fn publish_stream(&self, stream: RunningStream) {
        if let Some((lease, entry)) = &self.held {
            let stream = Arc::new(stream);
            entry.publish_stream(&stream);
            self.instance.wait_groups.begin_stream(lease.reserve_request.id, &stream);
        }
    }

    /// Returns the lease, which the caller settles now.
    pub(super) fn into_parts(mut self) -> (AttemptLease, InFlightEntry) {
        self.held.take().expect("into_parts takes the attempt, so it runs once")
    }
}

impl Drop for RunningAttempt {
    fn drop(&mut self) {
        if let Some((lease, entry)) = self.held.take() {
            let settlement = lease.unknown(UnknownCause::Crashed);
            count_unknown(&self.instance, &settlement);
            persist_in_background(&self.instance, settlement, entry);
        }
    }
}

//! A circuit breaker around the store.
//!
//! After `FAILURES_MAX` failures in a row, calls that begin something fail at once as unavailable until the store has
//! answered again. Calls that end attempts, keep leases or clean up always go through: they delay no client, and must
//! not be lost.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::metrics::{Op, StoreMetrics};
use super::{
    AdminStore, ExpectedRecord, LeaseRenewal, PrimaryCheck, ReapScope, ReapedRows, RelocateFuture, RenewResult,
    ReservedAttempt, RouteIdentity, SaltStore, ServiceReports, SettleResult, Store, StoreError, StoreFuture,
    StoreLocation, SweptKey,
};
use crate::domain::attempt::{ReserveRequest, ReserveResult, Settlement};
use crate::domain::delivery::{EnqueueRequest, EnqueueResult, PickUpRequest, PickUpResult};
use crate::domain::ids::{InstanceId, RecordId, Token};
use crate::domain::key_holder::KeyHolder;
use crate::domain::probe::{Probe, ProbeFinding, ProbeSchedule, SettledKeyPage};
use crate::domain::record::Record;
use crate::domain::scope::Scope;
use crate::domain::state::StateKind;
use crate::telemetry::logs::error_causes;

/// The failures in a row that open the breaker. One locked row, or one lost connection, causes a few of them; a store
/// that has failed so many calls will fail the next one too.
const FAILURES_MAX: u32 = 5;

/// The pause between two probes. There is none before the first, which finds a store within milliseconds that failed
/// only briefly; then it grows up to the shortest time after which a client is told to retry.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_CAP: Duration = Duration::from_secs(1);

/// A store behind a breaker.
pub struct Breaker {
    store: Arc<dyn Store>,
    state: Mutex<BreakerState>,
    /// The runtime of the probes: a caller's own runtime may end earlier.
    runtime: Handle,
    me: Weak<Self>,
    metrics: StoreMetrics,
}

#[derive(Default)]
struct BreakerState {
    /// Failures in a row of calls that begin something.
    failures: u32,
    /// Incremented whenever the breaker opens: a call that began before and fails after it is not counted.
    period: u64,
    is_open: bool,
    /// The time of the first failure since the last answer; `None` if the last call was answered.
    silent_since: Option<Instant>,
    /// The pause before the next probe. It grows over several openings too, until a call is answered: a store may
    /// answer probes and nothing else.
    pause: Duration,
}

/// The store's health as far as recent calls show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreHealth {
    /// Whether calls that begin something are refused at once.
    pub is_open: bool,
    /// The time since the first failed call after the last answer; `None` if the last call was answered.
    pub silent_for: Option<Duration>,
}

/// The cause of a call that the breaker refused.
#[derive(Debug)]
struct BreakerOpen;

impl fmt::Display for BreakerOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it has failed repeatedly, and is not called until it answers a probe")
    }
}

impl std::error::Error for BreakerOpen {}

/// Whether a call failed before it reached the store: then it has certainly not been executed.
pub fn is_refused_by_breaker(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(cause) if cause.is::<BreakerOpen>())
}

impl Breaker {
    /// A breaker around a store. To be called on the runtime that is to probe the store.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let runtime = Handle::current();
        Arc::new_cyclic(|me| Self {
            store,
            state: Mutex::default(),
            runtime,
            me: me.clone(),
            metrics: StoreMetrics::default(),
        })
    }

    /// Returns the store's health.
    pub fn health(&self) -> StoreHealth {
        let state = self.lock();
        StoreHealth { is_open: state.is_open, silent_for: state.silent_since.map(|since| since.elapsed()) }
    }

    /// Returns the metrics of the calls.
    pub fn metrics(&self) -> &StoreMetrics {
        &self.metrics
    }

    /// Makes a call that begins something, unless the breaker is open.
    fn call_if_closed<'a, T: 'a>(
        &'a self,
        op: Op,
        call: impl FnOnce() -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let period = {
                let state = self.lock();
                if state.is_open {
                    return Err(StoreError::Unavailable(Box::new(BreakerOpen)));
                }
                state.period
            };
            let started = Instant::now();
            let answer = call().await;
            self.metrics.count(op, started, &answer);
            match failure_of_store(&answer) {
                None => self.record_answer(0),
                Some(error) => self.record_failure(error, Some(period)),
            }
            answer
        })
    }

    /// Calls the store while the breaker is closed. The call's failure does not count.
    fn call_unjudged<'a, T: 'a>(&'a self, op: Op, call: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        if self.lock().is_open {
            return Box::pin(async { Err(StoreError::Unavailable(Box::new(BreakerOpen))) });
        }
        Box::pin(async move {
            let started = Instant::now();
            let answer = call.await;
            self.metrics.count(op, started, &answer);
            answer
        })
    }

    /// Makes a call whether the breaker is open or not.
    fn call_always<'a, T: 'a>(&'a self, op: Op, call: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let started = Instant::now();
            let answer = call.await;
            self.metrics.count(op, started, &answer);
            match failure_of_store(&answer) {
                // One answered call does not prove that all calls work: the next failure opens the breaker again.
                None if self.lock().is_open => self.record_answer(FAILURES_MAX - 1),
                None => self.lock().silent_since = None,
                Some(error) => self.record_failure(error, None),
            }
            answer
        })
    }

    /// Records an answer and closes the breaker; `failures` is the number of failures that still count.
    fn record_answer(&self, failures: u32) {
        let mut state = self.lock();
        state.failures = failures;
        if failures == 0 {
            state.pause = Duration::ZERO;
        }
        let away = state.silent_since.take().map(|since| since.elapsed());
        if std::mem::take(&mut state.is_open) {
            drop(state);
            let away_ms = away.map_or(0, |away| away.as_millis() as u64);
            tracing::warn!(away_ms, "the store answers again");
        }
    }

    /// Records a failure. `period` is the period in which a counted call began.
    fn record_failure(&self, error: &StoreError, period: Option<u64>) {
        let mut state = self.lock();
        state.silent_since.get_or_insert_with(Instant::now);
        if state.is_open || period != Some(state.period) {
            return;
        }
        state.failures += 1;
        if state.failures >= FAILURES_MAX {
            state.is_open = true;
            state.period += 1;
            let period = state.period;
            drop(state);
            tracing::warn!(
                cause = error_causes(error),
                "{error} repeatedly: calls that begin something are refused at once until it answers"
            );
            self.runtime.spawn(ping_until_answered(self.me.clone(), period));
        }
    }

    /// Whether the breaker is still open since that period began.
    fn is_open_since(&self, period: u64) -> bool {
        let state = self.lock();
        state.is_open && state.period == period
    }

    /// Returns the pause before the next probe, and lengthens it.
    fn next_pause(&self) -> Duration {
        let mut state = self.lock();
        let pause = state.pause;
        state.pause = (pause * 2).clamp(PAUSE_FIRST, PAUSE_CAP);
        pause
    }

    fn lock(&self) -> MutexGuard<'_, BreakerState> {
        // Consistent between any two statements, so a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends one ping after the other until the store has answered a call, or the breaker is dropped.
async fn ping_until_answered(breaker: Weak<Breaker>, period: u64) {
    loop {
        let Some(pause) = breaker.upgrade().map(|breaker| breaker.next_pause()) else { return };
        sleep(pause).await;
        let Some(breaker) = breaker.upgrade() else { return };
        if !breaker.is_open_since(period) {
            return;
        }
        // An answer closes the breaker.
        drop(breaker.ping().await);
    }
}

/// Returns the failure if it concerns the store as a whole: a row that cannot be read is an answer.
fn failure_of_store<T>(answer: &Result<T, StoreError>) -> Option<&StoreError> {
    match answer {
        Err(
            error @ (StoreError::Failed(_) | StoreError::Taken(_) | StoreError::TimedOut | StoreError::Unavailable(_)),
        ) => Some(error),
        Ok(_) | Err(StoreError::Corrupt(_)) => None,
    }
}

impl Store for Breaker {
    fn reserve(&self, reserve_request: ReserveRequest) -> StoreFuture<'_, ReserveResult> {
        self.call_if_closed(Op::Reserve, || self.store.reserve(reserve_request))
    }

    fn take_over(&self, reserve_request: ReserveRequest, from: ExpectedRecord) -> StoreFuture<'_, ReserveResult> {
        self.call_if_closed(Op::TakeOver, move || self.store.take_over(reserve_request, from))
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettleResult> {
        self.call_always(Op::Settle, self.store.settle(settlement))
    }

    fn find(&self, id: RecordId) -> StoreFuture<'_, Option<Record>> {
        self.call_if_closed(Op::Find, move || self.store.find(id))
    }

    /// Its failures do not count: without the count the request goes on, and a limit must not open the breaker.
    fn count_live_keys(&self, holder: KeyHolder, limit: u32) -> StoreFuture<'_, u32> {
        self.call_unjudged(Op::CountLiveKeys, self.store.count_live_keys(holder, limit))
    }

    /// Its failures do not count either.
    fn move_live_keys(&self, id: RecordId, scope: Scope, holder: KeyHolder) -> StoreFuture<'_, u32> {
        self.call_unjudged(Op::MoveLiveKeys, self.store.move_live_keys(id, scope, holder))
    }

    fn renew_lease(&self, renewal: LeaseRenewal) -> StoreFuture<'_, RenewResult> {
        self.call_always(Op::RenewLease, self.store.renew_lease(renewal))
    }

    fn has_changed_primary(&self) -> bool {
        self.store.has_changed_primary()
    }

    fn relocate<'a>(&'a self, location: &'a StoreLocation) -> RelocateFuture<'a> {
        self.store.relocate(location)
    }

    fn check_primaries(&self) -> Pin<Box<dyn Future<Output = PrimaryCheck> + Send + '_>> {
        Box::pin(async {
            let check = self.store.check_primaries().await;
            self.metrics.primaries.set(i64::try_from(check.primaries).unwrap_or(i64::MAX));
            check
        })
    }

    fn release_lease(&self, instance: InstanceId) -> StoreFuture<'_, ()> {
        self.call_always(Op::ReleaseLease, self.store.release_lease(instance))
    }

    fn sweep(&self, expiry: Duration, limit: u32, as_of: SystemTime) -> StoreFuture<'_, Vec<SweptKey>> {
        self.call_always(Op::Sweep, self.store.sweep(expiry, limit, as_of))
    }

    fn list_in_flight(&self, instance: InstanceId, older_than: Duration) -> StoreFuture<'_, Vec<ReservedAttempt>> {
        self.call_always(Op::ListInFlight, self.store.list_in_flight(instance, older_than))
    }

    fn extend_deadline(&self, id: RecordId, token: Token, time_limit: Duration) -> StoreFuture<'_, bool> {
        self.call_always(Op::ExtendDeadline, self.store.extend_deadline(id, token, time_limit))
    }

    fn reap(&self, limit: u32, scope: ReapScope) -> StoreFuture<'_, ReapedRows> {
        self.call_always(Op::Reap, self.store.reap(limit, scope))
    }

    fn claim_probes(
        &self,
        service: &Arc<str>,
        schedules: Vec<ProbeSchedule>,
        limit: u32,
        as_of: SystemTime,
    ) -> StoreFuture<'_, Vec<Probe>> {
        self.call_always(Op::ClaimProbes, self.store.claim_probes(service, schedules, limit, as_of))
    }

    fn apply_probe_finding(&self, finding: ProbeFinding) -> StoreFuture<'_, bool> {
        self.call_always(Op::Resolve, self.store.apply_probe_finding(finding))
    }

    fn list_settled_keys(
        &self,
        service: &Arc<str>,
        routes: Vec<Arc<str>>,
        since: Duration,
        after: Option<RecordId>,
        limit: u32,
    ) -> StoreFuture<'_, SettledKeyPage> {
        self.call_always(Op::ListSettledKeys, self.store.list_settled_keys(service, routes, since, after, limit))
    }

    fn enqueue(&self, order: EnqueueRequest, from: Option<ExpectedRecord>) -> StoreFuture<'_, EnqueueResult> {
        self.call_if_closed(Op::Enqueue, move || self.store.enqueue(order, from))
    }

    fn pick_up(&self, order: PickUpRequest) -> StoreFuture<'_, PickUpResult> {
        self.call_if_closed(Op::PickUp, move || self.store.pick_up(order))
    }

    fn give_up(&self, id: RecordId, token: Token, states: &'static [StateKind], note: String) -> StoreFuture<'_, bool> {
        self.call_always(Op::GiveUp, self.store.give_up(id, token, states, note))
    }

    fn failed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.store.failed()
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.call_always(Op::Ping, self.store.ping())
    }

    fn remember_route_identities(
        &self,
        service: Arc<str>,
        rules: Vec<RouteIdentity>,
    ) -> StoreFuture<'_, Vec<RouteIdentity>> {
        self.call_always(Op::RememberRouteIdentities, self.store.remember_route_identities(service, rules))
    }

    /// A start and a reload get the store's own answers.
    fn salts(&self) -> &dyn SaltStore {
        self.store.salts()
    }

    /// Reports end attempts and settle unknown keys, so they always go through.
    fn service_reports(&self) -> &dyn ServiceReports {
        self.store.service_reports()
    }

    /// Operators get the store's own answers.
    fn admin(&self) -> &dyn AdminStore {
        self.store.admin()
    }
}

#[cfg(test)]
mod tests;

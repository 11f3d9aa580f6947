//! A circuit breaker for the store's calls.
//!
//! After `FAILURES_MAX` failures in a row, calls that begin something fail at once as unavailable until the store has
//! answered again. Calls that end attempts, keep leases or clean up always go through: they delay no client, and must
//! not be lost.
//!
//! [`Breaker::admit`] is asked before each call, and [`Breaker::judge`] gets its answer. The breaker makes no calls
//! itself: while it is open, [`Store`](super::Store) pings.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::StoreError;
use super::metrics::Op;
use oncegate_telemetry::logs::error_causes;

/// The failures in a row that open the breaker. One locked row, or one lost connection, causes a few of them; a store
/// that has failed so many calls will fail the next one too.
const FAILURES_MAX: u32 = 5;

/// The pause between two pings. There is none before the first, which finds a store within milliseconds that failed
/// only briefly; then it grows up to the shortest time after which a client is told to retry.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_CAP: Duration = Duration::from_secs(1);

/// The way of a call through the breaker and the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// It ends something or keeps something: it is made whether the breaker is open or not.
    Always(Op),
    /// It begins something: an open breaker refuses it, and its failure counts.
    Begins(Op),
    /// Operators, services and a start or reload get the backend's own answer: neither judged nor counted.
    Direct,
    /// An open breaker refuses it, and its answer proves nothing.
    Unjudged(Op),
}

impl CallKind {
    /// The call's label in the metrics; `None` where it is not counted.
    pub fn op(self) -> Option<Op> {
        match self {
            Self::Always(op) | Self::Begins(op) | Self::Unjudged(op) => Some(op),
            Self::Direct => None,
        }
    }
}

#[derive(Default)]
pub struct Breaker(Mutex<BreakerState>);

#[derive(Default)]
struct BreakerState {
    /// Failures in a row of calls that begin something.
    failures: u32,
    /// A call that began in an earlier period and fails now is not counted.
    period: BreakerPeriod,
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
#[derive(Debug, thiserror::Error)]
#[error("it has failed repeatedly, and is not called until it answers a probe")]
struct BreakerOpen;

/// Whether a call failed before it reached the store: then it has certainly not been executed.
pub fn is_refused_by_breaker(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(cause) if cause.is::<BreakerOpen>())
}

/// The number of times that the breaker has opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BreakerPeriod(u64);

impl Breaker {
    pub fn health(&self) -> StoreHealth {
        let state = self.0.lock();
        StoreHealth { is_open: state.is_open, silent_for: state.silent_since.map(|since| since.elapsed()) }
    }

    /// Admits a call, or refuses it because the breaker is open. Returns the period in which the call begins.
    pub fn admit(&self, kind: CallKind) -> Result<BreakerPeriod, StoreError> {
        let state = self.0.lock();
        match kind {
            CallKind::Begins(_) | CallKind::Unjudged(_) if state.is_open => {
                Err(StoreError::Unavailable(Box::new(BreakerOpen)))
            }
            _ => Ok(state.period),
        }
    }

    /// Judges the answer of a call. Returns the period that begins if it opens the breaker: the store is to be pinged
    /// until [`Self::is_open_since`] denies it.
    pub fn judge<T>(
        &self,
        kind: CallKind,
        began: BreakerPeriod,
        answer: &Result<T, StoreError>,
    ) -> Option<BreakerPeriod> {
        match (kind, failure_of_store(answer)) {
            (CallKind::Direct | CallKind::Unjudged(_), _) => return None,
            (CallKind::Begins(_), None) => self.record_answer(0),
            (CallKind::Begins(_), Some(error)) => return self.record_failure(error, Some(began)),
            // One answered call does not prove that all calls work: the next failure opens the breaker again.
            (CallKind::Always(_), None) if self.0.lock().is_open => self.record_answer(FAILURES_MAX - 1),
            (CallKind::Always(_), None) => self.0.lock().silent_since = None,
            (CallKind::Always(_), Some(error)) => return self.record_failure(error, None),
        }
        None
    }

    /// Records an answer and closes the breaker; `failures` is the number of failures that still count.
    fn record_answer(&self, failures: u32) {
        let mut state = self.0.lock();
        state.failures = failures;
        if failures == 0 {
            state.pause = Duration::ZERO;
        }
        let away_ms = state.silent_since.take().map_or(0, |since| since.elapsed().as_millis() as u64);
        if std::mem::take(&mut state.is_open) {
            drop(state);
            tracing::warn!(away_ms, "the store answers again");
        }
    }

    /// Records a failure. `period` is the period in which a counted call began.
    fn record_failure(&self, error: &StoreError, period: Option<BreakerPeriod>) -> Option<BreakerPeriod> {
        let mut state = self.0.lock();
        state.silent_since.get_or_insert_with(Instant::now);
        if state.is_open || period != Some(state.period) {
            return None;
        }
        state.failures += 1;
        if state.failures < FAILURES_MAX {
            return None;
        }
        state.is_open = true;
        state.period.0 += 1;
        let opened = state.period;
        drop(state);
        tracing::warn!(
            cause = error_causes(error),
            "{error} repeatedly: calls that begin something are refused at once until it answers"
        );
        Some(opened)
    }

    pub fn is_open_since(&self, period: BreakerPeriod) -> bool {
        let state = self.0.lock();
        state.is_open && state.period == period
    }

    /// Returns the pause before the next ping, and lengthens it.
    pub fn next_pause(&self) -> Duration {
        let mut state = self.0.lock();
        let pause = state.pause;
        state.pause = (pause * 2).clamp(PAUSE_FIRST, PAUSE_CAP);
        pause
    }
}

/// Returns the failure if it concerns the store as a whole: a row that cannot be read is an answer.
fn failure_of_store<T>(answer: &Result<T, StoreError>) -> Option<&StoreError> {
    answer.as_ref().err().filter(|error| !matches!(error, StoreError::Corrupt(_)))
}

#[cfg(test)]
mod tests;

//! A store that does not answer is not waited for again and again.
//!
//! After some failures in a row whatever would begin something is told at once that the store is unavailable, until the
//! store has answered again. What ends attempts, keeps leases and puts things in order always goes through: it has
//! waited long enough for its turn, and nobody is held up by it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::meters::{Op, StoreMeters};
use super::{Books, Pending, Renewal, Renewed, Rule, Seen, Settled, Store, StoreError, Swept, Testimony};
use crate::domain::attempt::{InstanceId, Settlement, Token};
use crate::domain::job::{Enqueued, Order, PickUp, PickedUp};
use crate::domain::probe::{Finding, Page, Probe, Schedule};
use crate::domain::record::{Ask, Record, RecordId, Reservation};
use crate::domain::scope::Salt;
use crate::telemetry::logs::causes;

/// How many failures in a row open it. One row that somebody holds, or one lost connection, makes a few of them; a store
/// that has answered nobody so many times will not answer the next one either.
const FAILURES_MAX: u32 = 5;

/// Between two probes: none before the first, which finds a store that has only hiccuped within milliseconds, and then
/// growing up to what a client that was told to come again waits at least.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_CAP: Duration = Duration::from_secs(1);

/// A store behind a breaker.
pub struct Breaker {
    store: Arc<dyn Store>,
    state: Mutex<State>,
    /// Where it probes: what asks may be on a runtime that ends before.
    runtime: Handle,
    me: Weak<Self>,
    meters: StoreMeters,
}

#[derive(Default)]
struct State {
    /// Of what begins something, in a row.
    failures: u32,
    /// Grows whenever it opens: what was asked before and fails after tells nothing new.
    period: u64,
    is_open: bool,
    /// Since when nothing was answered; `None` as long as the last answer was one.
    silent_since: Option<Instant>,
    /// Before the next probe. It grows over openings too, until a question is answered: a store may answer probes and
    /// nothing else.
    pause: Duration,
}

/// How the store has answered lately, as far as anybody has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// What would begin something is refused at once.
    pub is_open: bool,
    /// How long ago it was that the first of all calls since the last answer failed; `None` if the last one was answered.
    pub silent_for: Option<Duration>,
}

/// Why a call was not made.
#[derive(Debug)]
struct Open;

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it has failed repeatedly, and is not asked before it answers a probe")
    }
}

impl std::error::Error for Open {}

/// Whether a call failed before the store was asked: then it has certainly not been executed.
pub fn was_not_asked(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(cause) if cause.is::<Open>())
}

impl Breaker {
    /// Around a store; to be made on the runtime that is to probe it.
    pub fn around(store: Arc<dyn Store>) -> Arc<Self> {
        let runtime = Handle::current();
        Arc::new_cyclic(|me| Self {
            store,
            state: Mutex::default(),
            runtime,
            me: me.clone(),
            meters: StoreMeters::default(),
        })
    }

    /// How the store has answered lately.
    pub fn health(&self) -> Health {
        let state = self.lock();
        Health { is_open: state.is_open, silent_for: state.silent_since.map(|since| since.elapsed()) }
    }

    /// How long its calls take, and which fail.
    pub fn meters(&self) -> &StoreMeters {
        &self.meters
    }

    /// Asks what begins something, unless it is open.
    fn begin<'a, T: 'a>(&'a self, op: Op, ask: impl FnOnce() -> Pending<'a, T> + Send + 'a) -> Pending<'a, T> {
        Box::pin(async move {
            let period = {
                let state = self.lock();
                if state.is_open {
                    return Err(StoreError::Unavailable(Box::new(Open)));
                }
                state.period
            };
            let begun = Instant::now();
            let answer = ask().await;
            self.meters.count(op, begun, &answer);
            match failure(&answer) {
                None => self.answered(0),
                Some(error) => self.failed(error, Some(period)),
            }
            answer
        })
    }

    /// Asks, come what may.
    fn pass<'a, T: 'a>(&'a self, op: Op, call: Pending<'a, T>) -> Pending<'a, T> {
        Box::pin(async move {
            let begun = Instant::now();
            let answer = call.await;
            self.meters.count(op, begun, &answer);
            match failure(&answer) {
                // That it does this does not prove that it does everything: the next failure opens again.
                None if self.lock().is_open => self.answered(FAILURES_MAX - 1),
                None => self.lock().silent_since = None,
                Some(error) => self.failed(error, None),
            }
            answer
        })
    }

    /// The store has answered; so many failures still count.
    fn answered(&self, failures: u32) {
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

    /// `period` is that of a call whose failure counts.
    fn failed(&self, error: &StoreError, period: Option<u64>) {
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
                cause = causes(error),
                "{error}, time and again: what needs it is refused at once until it answers"
            );
            self.runtime.spawn(probe(self.me.clone(), period));
        }
    }

    /// Whether it is still open since then.
    fn is_open_since(&self, period: u64) -> bool {
        let state = self.lock();
        state.is_open && state.period == period
    }

    /// The pause before the next probe.
    fn next_pause(&self) -> Duration {
        let mut state = self.lock();
        let pause = state.pause;
        state.pause = (pause * 2).clamp(PAUSE_FIRST, PAUSE_CAP);
        pause
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks one ping after the other until the store has answered something, or nobody has it any more.
async fn probe(breaker: Weak<Breaker>, period: u64) {
    loop {
        let Some(pause) = breaker.upgrade().map(|breaker| breaker.next_pause()) else { return };
        sleep(pause).await;
        let Some(breaker) = breaker.upgrade() else { return };
        if !breaker.is_open_since(period) {
            return;
        }
        // An answer closes it.
        drop(breaker.ping().await);
    }
}

/// The failure that says something about the store as a whole: a row that cannot be read is an answer.
fn failure<T>(answer: &Result<T, StoreError>) -> Option<&StoreError> {
    match answer {
        Err(error @ (StoreError::Taken(_) | StoreError::TimedOut | StoreError::Unavailable(_))) => Some(error),
        Ok(_) | Err(StoreError::Corrupt(_)) => None,
    }
}

impl Store for Breaker {
    fn reserve(&self, ask: Ask) -> Pending<'_, Reservation> {
        self.begin(Op::Reserve, || self.store.reserve(ask))
    }

    fn take_over(&self, ask: Ask, from: Seen) -> Pending<'_, Reservation> {
        self.begin(Op::TakeOver, move || self.store.take_over(ask, from))
    }

    fn settle(&self, settlement: Settlement) -> Pending<'_, Settled> {
        self.pass(Op::Settle, self.store.settle(settlement))
    }

    fn find(&self, id: RecordId) -> Pending<'_, Option<Record>> {
        self.begin(Op::Find, move || self.store.find(id))
    }

    fn salt(&self) -> Salt {
        self.store.salt()
    }

    fn renew(&self, renewal: Renewal) -> Pending<'_, Renewed> {
        self.pass(Op::Renew, self.store.renew(renewal))
    }

    fn retire(&self, instance: InstanceId) -> Pending<'_, ()> {
        self.pass(Op::Retire, self.store.retire(instance))
    }

    fn sweep(&self, expiry: Duration, limit: u32) -> Pending<'_, Vec<Swept>> {
        self.pass(Op::Sweep, self.store.sweep(expiry, limit))
    }

    fn standing(&self, instance: InstanceId, older_than: Duration) -> Pending<'_, Vec<(RecordId, Token)>> {
        self.pass(Op::Standing, self.store.standing(instance, older_than))
    }

    fn reap(&self, limit: u32) -> Pending<'_, u64> {
        self.pass(Op::Reap, self.store.reap(limit))
    }

    fn claim(&self, service: &Arc<str>, schedules: Vec<Schedule>, limit: u32) -> Pending<'_, Vec<Probe>> {
        self.pass(Op::Claim, self.store.claim(service, schedules, limit))
    }

    fn resolve(&self, finding: Finding) -> Pending<'_, bool> {
        self.pass(Op::Resolve, self.store.resolve(finding))
    }

    fn page(
        &self,
        service: &Arc<str>,
        routes: Vec<Arc<str>>,
        since: Duration,
        after: Option<RecordId>,
        limit: u32,
    ) -> Pending<'_, Page> {
        self.pass(Op::Page, self.store.page(service, routes, since, after, limit))
    }

    fn enqueue(&self, order: Order, from: Option<Seen>) -> Pending<'_, Enqueued> {
        self.begin(Op::Enqueue, move || self.store.enqueue(order, from))
    }

    fn pick_up(&self, order: PickUp) -> Pending<'_, PickedUp> {
        self.begin(Op::PickUp, move || self.store.pick_up(order))
    }

    fn bury(&self, id: RecordId, token: Token, states: &'static [&'static str], note: String) -> Pending<'_, bool> {
        self.pass(Op::Bury, self.store.bury(id, token, states, note))
    }

    fn ping(&self) -> Pending<'_, ()> {
        self.pass(Op::Ping, self.store.ping())
    }

    fn rules(&self, service: Arc<str>, rules: Vec<Rule>) -> Pending<'_, Vec<Rule>> {
        self.pass(Op::Rules, self.store.rules(service, rules))
    }

    /// It ends attempts, and settles what is unknown: it always goes through.
    fn testimony(&self) -> &dyn Testimony {
        self.store.testimony()
    }

    /// Operators want to hear from the store itself.
    fn books(&self) -> &dyn Books {
        self.store.books()
    }
}

#[cfg(test)]
mod tests;

//! The attempts of this process: reserved, running, or ended and not stored yet.
//!
//! One lock guards three tables, because an attempt moves between them: the tokens that this process still has to
//! settle, the newest attempt of each key (a duplicate joins it), and the tokens of attempts that may have executed
//! lately. It also guards the number of outcomes that are not stored yet.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::boot_time::BootInstant;
use super::running_stream::RunningStream;
use oncegate_domain::attempt::{AttemptLease, AttemptOutcome, Settlement};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::record::Record;
use oncegate_domain::state::{CompletedResponse, KeyState};
use recently_executed::RecentlyExecuted;
use waiting_outcomes::WaitingOutcomes;

mod recently_executed;
mod waiting_outcomes;

/// The registry of this process's attempts.
///
/// An in-flight row of this instance whose token is not registered here is an orphan. Either its reservation
/// committed after its request had given up, so nothing was sent; or a failover lost its stored outcome, so it may have
/// executed. [`Self::recently_executed`] tells the two apart. See `tasks::orphans`.
#[derive(Debug, Default)]
pub struct InFlightRegistry(Mutex<InFlightTables>);

#[derive(Debug, Default)]
struct InFlightTables {
    /// The attempts that this process still has to settle.
    registered: HashSet<Token>,
    /// The newest started attempt of each key, until its outcome is durable.
    newest: HashMap<RecordId, StartedAttempt>,
    waiting: WaitingOutcomes,
    executed: RecentlyExecuted,
}

/// An attempt with its record: as the reservation made it, or with its outcome once the attempt has ended.
#[derive(Clone, Debug)]
struct StartedAttempt {
    record: Arc<Record>,
    started_at: BootInstant,
    /// Its response, while that streams.
    stream: Option<Arc<RunningStream>>,
}

impl InFlightTables {
    /// The key's attempt, if it is the one with this token.
    fn attempt(&mut self, id: &RecordId, token: Token) -> Option<&mut StartedAttempt> {
        self.newest.get_mut(id).filter(|attempt| attempt.record.token == token)
    }
}

impl InFlightRegistry {
    /// Registers an attempt that is about to be reserved. Call it before the reservation is sent: otherwise the pass
    /// over orphans could take the row of a living request for an orphan.
    pub fn register(self: &Arc<Self>, token: Token) -> InFlightEntry {
        self.0.lock().registered.insert(token);
        InFlightEntry {
            registry: Arc::clone(self),
            token,
            reserve_status: ReserveStatus::Reserved,
            record: None,
            may_have_executed: false,
            waiting_bytes: None,
            registered_at: BootInstant::now(),
        }
    }

    /// Whether as many outcomes wait for the store as this process may hold.
    pub fn is_full_of_unstored_outcomes(&self) -> bool {
        self.0.lock().waiting.is_full()
    }

    /// The tokens of all registered attempts.
    pub fn registered_tokens(&self) -> HashSet<Token> {
        self.0.lock().registered.clone()
    }

    /// The number of registered attempts.
    pub fn count(&self) -> usize {
        self.0.lock().registered.len()
    }

    /// The subset of `tokens` whose attempts have ended and may have executed. Scans the whole table under the lock.
    pub fn recently_executed(&self, tokens: impl IntoIterator<Item = Token>) -> HashSet<Token> {
        let wanted: Vec<Token> = tokens.into_iter().collect();
        if wanted.is_empty() { HashSet::new() } else { self.0.lock().executed.find(wanted) }
    }

    /// Forgets the executed attempts that had ended more than `age` before `time`.
    pub fn forget_executed(&self, time: BootInstant, age: Duration) {
        self.0.lock().executed.forget(time, age);
    }

    /// The key's record, if its newest attempt of this process is running, or has ended and its outcome is not stored
    /// yet. The store may not know of either, and the key must not be executed again meanwhile. Where the route allows
    /// it, another instance may have started a later attempt; this is still the attempt of this process.
    pub fn find(&self, id: &RecordId) -> Option<Record> {
        let StartedAttempt { record, started_at, .. } = self.0.lock().newest.get(id)?.clone();
        let running_for = started_at.elapsed();
        let deadline_in_ms = record.deadline_in_ms - i64::try_from(running_for.as_millis()).unwrap_or(i64::MAX);
        Some(Record { running_for, deadline_in_ms, ..Record::clone(&record) })
    }

    /// The response of the key's newest attempt of this process, while that streams.
    pub fn find_stream(&self, id: &RecordId) -> Option<Arc<RunningStream>> {
        self.0.lock().newest.get(id)?.stream.clone()
    }

    /// The records of the attempts that run here.
    pub fn running(&self) -> Vec<RecordId> {
        let tables = self.0.lock();
        let running = tables.newest.iter().filter(|(_, attempt)| matches!(attempt.record.state, KeyState::InFlight));
        running.map(|(id, _)| *id).collect()
    }

    /// The keys of deliveries that run here or whose outcome is not stored yet. None of them may be picked up.
    pub fn running_deliveries(&self) -> Vec<RecordId> {
        let tables = self.0.lock();
        let records = tables.newest.values().map(|attempt| &attempt.record);
        records.filter(|record| record.accepted_at.is_some()).map(|record| record.id).collect()
    }
}

/// One attempt's entry in the registry. Drop it when the attempt's outcome is durable, or when the attempt never
/// started.
#[derive(Debug)]
pub struct InFlightEntry {
    registry: Arc<InFlightRegistry>,
    token: Token,
    reserve_status: ReserveStatus,
    record: Option<Arc<Record>>,
    may_have_executed: bool,
    /// The size of the published outcome, while it waits for the store.
    waiting_bytes: Option<usize>,
    registered_at: BootInstant,
}

/// Whether the store has the attempt's reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveStatus {
    /// The store was not asked, or its answer did not come: the reservation may have been committed, or may be yet.
    InDoubt,
    /// The store has it, or is being asked for it.
    Reserved,
    /// The store cannot have it: the record's id comes from a provisional salt.
    Unstorable,
}

/// Another attempt of the key has started on this instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherAttemptStarted;

impl InFlightEntry {
    /// The same entry with another reserve status.
    pub fn with_reserve_status(mut self, reserve_status: ReserveStatus) -> Self {
        self.reserve_status = reserve_status;
        self
    }

    /// The time of registration, which is before the reservation.
    pub fn registered_at(&self) -> BootInstant {
        self.registered_at
    }

    /// Whether the store has the attempt's reservation.
    pub fn reserve_status(&self) -> ReserveStatus {
        self.reserve_status
    }

    /// Starts the attempt: from now on it is the key's newest one on this instance.
    ///
    /// # Errors
    /// [`OtherAttemptStarted`] if the key's newest attempt here is not the one with the token `replaces` (`None`: no
    /// attempt). Nothing has changed then.
    pub fn start(&mut self, lease: &AttemptLease, replaces: Option<Token>) -> Result<(), OtherAttemptStarted> {
        let request = &lease.reserve_request;
        let record = Arc::new(Record {
            id: request.id,
            attempt: lease.attempt,
            token: request.token,
            recipe: request.recipe.clone(),
            fingerprint: request.fingerprint,
            running_for: Duration::ZERO,
            deadline_in_ms: i64::try_from(request.time_limit.as_millis()).unwrap_or(i64::MAX),
            past_ttl: false,
            late: false,
            recovery_point: lease.recovery_point.clone(),
            accepted_at: lease.delivery.and_then(|delivery| delivery.accepted_at),
            state: KeyState::InFlight,
            reading: None,
        });
        let started = StartedAttempt { record: Arc::clone(&record), started_at: BootInstant::now(), stream: None };
        let mut tables = self.registry.0.lock();
        if tables.newest.get(&request.id).map(|newest| newest.record.token) != replaces {
            return Err(OtherAttemptStarted);
        }
        tables.newest.insert(request.id, started);
        drop(tables);
        self.record = Some(record);
        Ok(())
    }

    /// The record as the attempt's reservation made it; `None` before [`Self::start`].
    pub fn record(&self) -> Option<&Record> {
        self.record.as_deref()
    }

    /// Notes the settlement that is about to be stored. If it says that the attempt may have executed, the registry
    /// keeps the token after this entry is gone, in case the store loses the settlement.
    pub fn note_settlement(&mut self, settlement: &Settlement) {
        self.may_have_executed = settlement.lease_to_restore().is_some();
    }

    /// Publishes the attempt's response while it streams.
    pub fn publish_stream(&self, stream: &Arc<RunningStream>) {
        let Some(record) = &self.record else { return };
        if let Some(started) = self.registry.0.lock().attempt(&record.id, self.token) {
            started.stream = Some(Arc::clone(stream));
        }
    }

    /// Publishes the outcome of an attempt that has ended and is not stored yet: [`InFlightRegistry::find`] answers
    /// with it.
    pub fn publish_outcome(&mut self, outcome: &AttemptOutcome) {
        let Some(record) = &self.record else { return };
        let state = match outcome {
            AttemptOutcome::Completed { response, .. } => {
                KeyState::Completed(CompletedResponse { response: response.clone(), expires_at: None })
            }
            AttemptOutcome::Retryable { .. } => KeyState::Retryable,
            AttemptOutcome::Unknown(_) => KeyState::Unknown,
        };
        let mut tables = self.registry.0.lock();
        if self.waiting_bytes.is_none() {
            let bytes = outcome.response_bytes();
            tables.waiting.add(bytes);
            self.waiting_bytes = Some(bytes);
        }
        let Some(started) = tables.attempt(&record.id, self.token) else { return };
        // Nobody joins it any more, and its bytes would count as long as the store is away.
        started.stream = None;
        // The first outcome that is published stays.
        if matches!(started.record.state, KeyState::InFlight) {
            started.record = Arc::new(Record { state, ..Record::clone(record) });
        }
    }

    /// Withdraws the attempt from [`InFlightRegistry::find`]: from now on the store answers for the key.
    pub fn withdraw(&mut self) {
        let Some(record) = self.record.take() else { return };
        let mut tables = self.registry.0.lock();
        if tables.attempt(&record.id, self.token).is_some() {
            tables.newest.remove(&record.id);
        }
        if let Some(bytes) = self.waiting_bytes.take() {
            tables.waiting.remove(bytes);
        }
    }

    /// Keeps the token registered for as long as this process lives: its outcome could not be stored, and nobody tries
    /// any more. Without this the pass over orphans would release the key. The sweeper makes it unknown.
    pub fn keep_registered(mut self) {
        self.withdraw();
        std::mem::forget(self);
    }
}

impl Drop for InFlightEntry {
    fn drop(&mut self) {
        self.withdraw();
        let mut tables = self.registry.0.lock();
        tables.registered.remove(&self.token);
        if self.may_have_executed {
            tables.executed.push(self.token, BootInstant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_whose_outcome_cannot_be_stored_stays_registered() {
        let registry = Arc::new(InFlightRegistry::default());
        let [ended, given_up] = [1, 2].map(|byte| Token::from_random([byte; 16]));
        drop(registry.register(ended));
        registry.register(given_up).keep_registered();
        assert_eq!(registry.registered_tokens(), HashSet::from([given_up]));
    }

    #[test]
    fn an_attempt_that_may_have_executed_is_remembered_past_its_end_and_a_released_one_is_not() {
        let registry = Arc::new(InFlightRegistry::default());
        let [executed, released, running] = [1, 2, 3].map(|byte| Token::from_random([byte; 16]));
        drop(registry.register(released));
        let _running = registry.register(running).that_may_have_executed();
        assert_eq!(registry.recently_executed([executed, running]), HashSet::new(), "a running attempt is registered");
        drop(registry.register(executed).that_may_have_executed());
        assert_eq!(registry.recently_executed([executed, released]), HashSet::from([executed]));
        let ended = BootInstant::now();
        registry.forget_executed(BootInstant::from_millis(ended.millis() + 1_000), Duration::from_secs(2));
        assert_eq!(registry.recently_executed([executed]), HashSet::from([executed]));
        registry.forget_executed(BootInstant::from_millis(ended.millis() + 3_000), Duration::from_secs(2));
        assert_eq!(registry.recently_executed([executed]), HashSet::new());
    }

    impl InFlightEntry {
        fn that_may_have_executed(mut self) -> Self {
            self.may_have_executed = true;
            self
        }
    }
}

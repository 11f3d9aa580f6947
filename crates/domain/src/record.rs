//! The record of one key: the stored facts about its newest attempt.

use std::time::{Duration, SystemTime};

use super::fingerprint::{Fingerprint, Recipe};
use super::ids::{RecordId, Token};
use super::recovery::RecoveryPoint;
use super::state::{CompletedResponse, KeyState, StateKind};
use super::unknown_cause::UnknownCause;

/// A key's record, as a request finds it.
#[derive(Clone, Debug)]
pub struct Record {
    pub id: RecordId,
    /// The newest attempt's number, 1 for the first; 0 where the key was accepted and no attempt has begun.
    pub attempt: u32,
    pub token: Token,
    pub recipe: Recipe,
    /// The fingerprint of the request that first used the key.
    pub fingerprint: Fingerprint,
    /// The time since the newest attempt was reserved, by the store's clock.
    pub running_for: Duration,
    /// The time until the newest attempt's own time limit, by the store's clock; negative once it has passed.
    pub deadline_in_ms: i64,
    /// Whether the record counts as none: its TTL has ended, and so has the time for which it is remembered past that.
    pub past_ttl: bool,
    /// Whether its TTL has ended and it is remembered, to refuse late retries or to tell redeliveries.
    pub late: bool,
    /// The last recovery point that the service has reported for its attempts.
    pub recovery_point: Option<RecoveryPoint>,
    /// When it was accepted for asynchronous delivery, where it was.
    pub accepted_at: Option<SystemTime>,
    pub state: KeyState,
    /// The store's times of this reading; `None` for what this process knows without the store.
    pub reading: Option<RecordReading>,
}

/// A record as a caller has read it. A takeover compares it with the store's, so that one of several callers wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedRecord {
    pub token: Token,
    pub state: StateKind,
    /// The time at which it was past its TTL, so that it counts as a new key; `None` if it was not.
    pub past_ttl_at: Option<SystemTime>,
    /// Whether it is past its TTL for a redelivery alone: to other requests it is still remembered.
    pub is_redelivered: bool,
}

impl From<&Record> for ExpectedRecord {
    fn from(record: &Record) -> Self {
        let past_ttl_at = record.reading.filter(|_| record.past_ttl).map(|reading| reading.at);
        Self { token: record.token, state: record.state.kind(), past_ttl_at, is_redelivered: false }
    }
}

impl ExpectedRecord {
    /// The record as a redelivery takes it over: the end of its TTL is enough.
    pub fn redelivered(record: &Record) -> Self {
        let late_at = record.reading.filter(|_| record.late).map(|reading| reading.at);
        let is_redelivered = late_at.is_some();
        Self { past_ttl_at: late_at, is_redelivered, ..Self::from(record) }
    }
}

impl Record {
    /// The record of a completed key, as a cache keeps it.
    pub fn completed(
        id: RecordId,
        (attempt, token): (u32, Token),
        (recipe, fingerprint): (Recipe, Fingerprint),
        accepted_at: Option<SystemTime>,
        completed: CompletedResponse,
    ) -> Self {
        Self {
            id,
            attempt,
            token,
            recipe,
            fingerprint,
            running_for: Duration::ZERO,
            deadline_in_ms: 0,
            past_ttl: false,
            late: false,
            // Only a later attempt in this life of the key would use it, and there is none after a completed one.
            recovery_point: None,
            accepted_at,
            state: KeyState::Completed(completed),
            reading: None,
        }
    }
}

/// The parts of a record that only the store knows, by its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordReading {
    pub at: SystemTime,
    /// The time since the state last changed; zero while an attempt is in flight.
    pub settled_for: Duration,
    /// The cause for which the newest attempt's outcome is unknown, or was; `None` if it never was.
    pub cause: Option<UnknownCause>,
    /// The time of the next question to the service about it; `None` where there was none yet.
    pub inquire_at: Option<SystemTime>,
}

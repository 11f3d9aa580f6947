//! The record of one key: what the store knows, and the states it can be found in.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::attempt::{InstanceId, Lease, Token};
use super::fingerprint::{Fingerprint, Recipe};
use super::key::Key;
use super::recovery::RecoveryPoint;
use super::response::StoredResponse;
use super::scope::Scope;

/// Names the record of one (service, scope, space, key): the SHA-256 of the four, each length-prefixed.
///
/// It is the primary key in every store, and the shard key of stores that shard. Being a hash it has one length whatever
/// clients send, and two different quadruples cannot be joined into the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId([u8; 32]);

impl RecordId {
    /// The id of a key within its service, scope and space.
    pub fn of(service: &str, scope: &Scope, space: &[u8], key: &Key) -> Self {
        let mut hash = Sha256::new();
        for part in [service.as_bytes(), scope.as_bytes(), space, key.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// As it stands in the store; `None` if the length is wrong.
    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// As it stands in the store.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a request asks of the store: this key, for this attempt, unless somebody has it.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The hash of the four below.
    pub id: RecordId,
    /// Services that share a store are kept apart by name.
    pub service: Arc<str>,
    /// Who is calling.
    pub scope: Scope,
    /// Within what the key is unique.
    pub space: Bytes,
    /// The client's name for the operation.
    pub key: Key,
    /// The path as sent, with its query, where the service is to be asked with it.
    pub path: Option<Bytes>,
    /// The route's name, for operators and metrics.
    pub route: Arc<str>,
    /// How `fingerprint` was made.
    pub recipe: Recipe,
    /// What makes two requests the same.
    pub fingerprint: Fingerprint,
    /// Under whose lease the attempt would run.
    pub instance: InstanceId,
    /// The attempt's token, if it becomes one.
    pub token: Token,
    /// How long the attempt may take, from its reservation by the store's clock.
    pub time_limit: Duration,
}

/// The store's answer to an [`Ask`].
#[derive(Debug)]
pub enum Reservation {
    /// The key was free and is now reserved, durably, for this attempt.
    Fresh(Lease),
    /// Somebody was here before.
    Taken(Record),
}

/// A key's record, as a request finds it.
#[derive(Clone, Debug)]
pub struct Record {
    /// Whose record.
    pub id: RecordId,
    /// The newest attempt's number, 1 for the first; 0 where it was accepted and none has begun.
    pub attempt: u32,
    /// The newest attempt's token.
    pub token: Token,
    /// How `fingerprint` was made.
    pub recipe: Recipe,
    /// What the key was first used for.
    pub fingerprint: Fingerprint,
    /// Since the newest attempt was reserved, by the store's clock.
    pub running_for: Duration,
    /// Until the newest attempt's own time limit, by the store's clock; negative once it has passed.
    pub deadline_in_ms: i64,
    /// Whether the record counts as none: its TTL has ended, and so has the time for which it is remembered past that.
    pub past_ttl: bool,
    /// Whether its TTL has ended and it is remembered, to refuse late retries.
    pub late: bool,
    /// How far its attempts have come, by their service's word.
    pub recovery_point: Option<RecoveryPoint>,
    /// When it was accepted for asynchronous delivery, where it was.
    pub accepted_at: Option<SystemTime>,
    /// What is known of its outcome.
    pub state: State,
}

/// What is known of the newest attempt's outcome.
#[derive(Clone, Debug)]
pub enum State {
    /// The response is stored.
    Completed(Completed),
    /// Nobody knows, and asking about it has been given up: an operator must decide.
    Dead,
    /// Completed once, and past its TTL: the response is gone, and late retries are refused.
    Expired,
    /// An attempt is running, or its instance has died and nobody has noticed yet.
    InFlight,
    /// Accepted for asynchronous delivery, waiting or between tries.
    Queued,
    /// The last attempt is known not to have executed, or its status is one to release.
    Retryable,
    /// The attempt may have executed.
    Unknown,
}

impl State {
    /// The state's name, as it stands in the store and in the API.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Completed(_) => "completed",
            Self::Dead => "dead",
            Self::Expired => "expired",
            Self::InFlight => "in_flight",
            Self::Queued => "queued",
            Self::Retryable => "retryable",
            Self::Unknown => "unknown",
        }
    }
}

/// A response with its end of life.
#[derive(Clone, Debug)]
pub struct Completed {
    /// What the upstream answered.
    pub response: StoredResponse,
    /// When it will be forgotten, by the store's clock; `None` as long as no store has it.
    pub expires_at: Option<SystemTime>,
}

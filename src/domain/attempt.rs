//! Who may execute: instances, attempts and their tokens.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::job::Delivery;
use super::record::{Ask, RecordId};
use super::recovery::RecoveryPoint;
use super::response::StoredResponse;

/// One running proxy process. Its lease, and with it the right to start attempts, lives in the store under this number.
///
/// Drawn at random at start and never reused: a restarted process is another instance.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct InstanceId(i64);

impl InstanceId {
    /// An identity out of random bits. The sign bit is dropped, so that the number reads the same in every store.
    pub fn from_random(bits: u64) -> Self {
        Self((bits >> 1).cast_signed())
    }

    /// As it stands in the store.
    pub fn from_stored(number: i64) -> Self {
        Self(number)
    }

    /// As it stands in the store.
    pub fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The fencing token of one attempt: 128 random bits.
///
/// Every attempt replaces its predecessor's token in the record, so holding the record's token is being its newest
/// attempt. Attempt numbers would not do: after a failover that lost a commit a number can come again, a token cannot.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// A token out of 16 random bytes; they must come from the operating system's generator.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// As it stands in the store; `None` if the length is wrong.
    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Whether the two are one, in a time that tells nothing of where they differ.
    pub fn is(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
    }

    /// As it stands in the store.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Tokens are capabilities: they are not printed, not even by `{:?}`.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The right to run one attempt. Not `Clone`, and ending the attempt takes it: an attempt cannot be settled in two ways.
#[derive(Debug)]
pub struct Lease {
    /// What was asked, and is now had: whose attempt it is and, by its token, which one beyond doubt.
    pub ask: Arc<Ask>,
    /// Which attempt, for people and for the upstream: 1 for the first.
    pub attempt: u32,
    /// How far an attempt before it has come, by its service's word.
    pub recovery_point: Option<RecoveryPoint>,
    /// Where it delivers what was accepted, and nobody waits for its answer.
    pub delivery: Option<Delivery>,
}

impl Lease {
    /// The whole response is in; it is to be replayed for `ttl`.
    pub fn complete(self, response: StoredResponse, ttl: Duration) -> Settlement {
        self.end(Ending::Completed { response, ttl, remember: None })
    }

    /// The attempt is known not to have executed (or its status is one to release); forgotten after `ttl`.
    pub fn release(self, ttl: Duration) -> Settlement {
        self.end(Ending::Retryable { ttl })
    }

    /// The upstream may have acted; nobody knows.
    pub fn unknown(self) -> Settlement {
        self.end(Ending::Unknown)
    }

    /// However it ended.
    pub fn end(self, ending: Ending) -> Settlement {
        Settlement { id: self.ask.id, token: self.ask.token, ending, again: None, lease: Some(Arc::new(self)) }
    }
}

/// How an attempt ended, to be written to the store. It may be written any number of times: the token makes it one.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// Whose attempt.
    pub id: RecordId,
    /// Which attempt.
    pub token: Token,
    /// How it ended.
    pub ending: Ending,
    /// When the next delivery is due, where there is one: what was accepted is queued again where others are retryable.
    pub again: Option<Duration>,
    /// What it ran under, as its row was made of that; `None` for what is only known by its name.
    lease: Option<Arc<Lease>>,
}

impl Settlement {
    /// A reservation that nobody waited for: of what stands in the store only its name is known, and that nothing was sent.
    pub fn of_stray(id: RecordId, token: Token, ttl: Duration) -> Self {
        Self { id, token, ending: Ending::Retryable { ttl }, again: None, lease: None }
    }

    /// What stands in flight although its end was stored: a failover has lost that. Only its name is known, and that the
    /// service may have acted.
    pub fn of_lost(id: RecordId, token: Token) -> Self {
        Self { id, token, ending: Ending::Unknown, again: None, lease: None }
    }

    /// What the service itself says that its attempt came to, beside the response that it gives or has given.
    pub fn of_service(id: RecordId, token: Token, ending: Ending) -> Self {
        Self { id, token, ending, again: None, lease: None }
    }

    /// The attempt whose row is to be written anew should the store have none. Either it had one before the first byte was
    /// sent, and a store without it has lost what it acknowledged; or there was no store to reserve in. `None` where
    /// nothing is lost with it: a key to be tried again
    /// is as good as one that was never seen.
    pub fn to_restore(&self) -> Option<&Lease> {
        match self.ending {
            Ending::Completed { .. } | Ending::Unknown => self.lease.as_deref(),
            Ending::Retryable { .. } => None,
        }
    }

    /// How long it is worth storing, from its attempt's end; `None` where it never lapses.
    pub fn ttl(&self) -> Option<Duration> {
        match self.ending {
            Ending::Completed { ttl, .. } | Ending::Retryable { ttl } => Some(ttl),
            Ending::Unknown => None,
        }
    }

    /// A delivery is due again so long after this.
    pub fn due_in(self, pause: Option<Duration>) -> Self {
        Self { again: pause, ..self }
    }

    /// A completed key is to be remembered for so long past its TTL.
    pub fn remembered(mut self, time: Option<Duration>) -> Self {
        if let Ending::Completed { remember, .. } = &mut self.ending {
            *remember = time;
        }
        self
    }
}

/// The three ways an attempt can end.
#[derive(Clone, Debug)]
pub enum Ending {
    /// Replay `response` until `ttl` after the store has taken it.
    Completed {
        /// What the upstream answered.
        response: StoredResponse,
        /// From completion, by the store's clock.
        ttl: Duration,
        /// How long past the TTL the key is remembered, to refuse late retries; `None` to forget it.
        remember: Option<Duration>,
    },
    /// Not executed, or to be treated so: the next request becomes the next attempt.
    Retryable {
        /// From settlement, by the store's clock.
        ttl: Duration,
    },
    /// It may have executed.
    Unknown,
}

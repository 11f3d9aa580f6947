//! Asynchronous delivery: a request that is accepted now and sent later.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::attempt::{AttemptLease, ReserveRequest};
use super::ids::{InstanceId, RecordId, Token};
use super::record::Record;
use super::response_policy::OnUnknown;
use super::retry::RetryPolicy;
use super::sealed::SealedBytes;

/// A request to the store: accept this key, with its request.
#[derive(Clone, Debug)]
pub struct EnqueueRequest {
    /// The key and its owner. Its token is the key's until the first attempt has one; no time limit runs yet.
    pub reserve_request: ReserveRequest,
    /// The request, readable only with the secret.
    pub sealed: SealedBytes,
}

/// The store's answer to an [`EnqueueRequest`].
#[derive(Debug)]
pub enum EnqueueResult {
    /// Accepted, durably: key and request in one transaction.
    Accepted,
    Taken(Record),
}

/// A request to the store: begin the attempts of the deliveries that are due.
#[derive(Clone, Debug)]
pub struct PickUpRequest {
    /// The service whose deliveries are picked up.
    pub service: Arc<str>,
    /// The instance whose lease the attempts run under.
    pub instance: InstanceId,
    /// One token for each attempt that may be begun.
    pub tokens: Vec<Token>,
    pub policies: Vec<DeliveryPolicy>,
    /// The keys that were delivered since the last call, whose requests are not needed any more.
    pub delivered: Vec<RecordId>,
    /// The keys to leave out: their attempts run here, or have ended here and are still to be stored.
    pub busy: Vec<RecordId>,
    /// The attempts that were begun and not sent, with their tokens: each that is its key's newest does not count.
    pub unsent: Vec<(RecordId, Token)>,
    /// The store's time by the caller's own clock. A time after it has not come, whatever the store's clock says.
    pub as_of: SystemTime,
}

impl PickUpRequest {
    /// The most keys to read. Without tokens no attempt begins, and a pass that only gives keys up reads more of them.
    pub fn rows_max(&self) -> usize {
        match self.tokens.len() {
            0 => GIVE_UP_ROWS_MAX,
            tokens => tokens,
        }
    }
}

/// The keys that are read to be given up: a moment's work.
pub const GIVE_UP_ROWS_MAX: usize = 1_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryPolicy {
    pub route: Arc<str>,
    pub on_unknown: OnUnknown,
    /// The time past its deadline after which an attempt cannot be running any more.
    pub quiet_after: Duration,
    /// The time limit of an attempt, from its reservation.
    pub time_limit: Duration,
    pub retry: RetryPolicy,
    /// The time from the reservation of a kept request within which it may be repeated; `None` where it may not.
    pub repeat_within: Option<Duration>,
    /// The most attempts of this route that one pick-up begins, and the most of its keys that it reads.
    pub slots: usize,
}

/// The store's answer to a [`PickUpRequest`].
#[derive(Debug, Default)]
pub struct PickUpResult {
    pub jobs: Vec<DeliveryJob>,
    pub given_up: Vec<GivenUpKey>,
}

/// A delivery whose next attempt has begun.
#[derive(Debug)]
pub struct DeliveryJob {
    pub lease: AttemptLease,
    pub sealed: SealedBytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUpKey {
    pub id: RecordId,
    pub route: Box<str>,
    /// The reason, as the audit log has it.
    pub note: String,
}

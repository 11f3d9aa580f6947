//! The writes of requests, see [`BatchedCall`].

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tokio_postgres::Row;

use super::call::{BatchedCall, CallAnswer};
use super::functions::{self, Function};
use crate::columns::{self, Columns, columns};
use crate::row::{RowReader, millis};
use crate::{ExpectedRecord, ExtendDeadlineParams};
use oncegate_domain::attempt::{ReserveRequest, Settlement};
use oncegate_domain::delivery::EnqueueRequest;
use oncegate_domain::ids::RecordId;
use oncegate_domain::record::Record;
use oncegate_domain::recovery::RecoveryPoint;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::state::KeyState;

fn path_bytes(request: &ReserveRequest) -> usize {
    request.path.as_ref().map_or(0, Bytes::len)
}

/// Reserves a key that has no record. The answer is whether it was reserved.
pub(super) struct ReserveCall {
    pub request: Arc<ReserveRequest>,
    /// Whether an earlier try may have been executed.
    pub in_doubt: bool,
}

impl BatchedCall for ReserveCall {
    type Answer = bool;

    const FUNCTION: &'static Function = &functions::RESERVE;
    const FUNCTIONS_OF_MANY: Option<[&'static Function; 2]> = Some([&functions::RESERVE_ALL, &functions::RESERVE_EACH]);

    fn goes_alone(&self, is_distributed: bool) -> bool {
        is_distributed && self.in_doubt
    }

    fn id(&self) -> RecordId {
        self.request.id
    }

    fn columns(&self) -> Columns<'_> {
        columns! { time_limit_ms: millis(self.request.time_limit), ..columns::reservation(&self.request) }
    }

    fn sent_bytes(&self) -> usize {
        self.request.key.as_bytes().len() + path_bytes(&self.request)
    }
}

/// Starts the next attempt of a record that is still as it was seen. The answer is the attempt's number and the
/// recovery point of earlier attempts, if it was started.
pub(super) struct TakeOverCall(pub Arc<ReserveRequest>, pub ExpectedRecord);

/// The number of an attempt that was started, and the recovery point of earlier ones.
type TakenOver = Option<(u32, Option<RecoveryPoint>)>;

impl CallAnswer for TakenOver {
    fn read(row: Option<&Row>) -> Result<Self, CorruptRow> {
        row.map(|row| Ok((row.read("attempt")?, row.read("recovery_point")?))).transpose()
    }
}

impl BatchedCall for TakeOverCall {
    type Answer = TakenOver;

    const FUNCTION: &'static Function = &functions::TAKE_OVER;

    fn id(&self) -> RecordId {
        self.0.id
    }

    fn columns(&self) -> Columns<'_> {
        columns! {
            time_limit_ms: millis(self.0.time_limit),
            ..columns::next_attempt(&self.0),
            ..columns::seen(Some(&self.1)),
        }
    }

    fn sent_bytes(&self) -> usize {
        path_bytes(&self.0)
    }
}

/// Ends an attempt. The answer is when the record lapses, or `None` where nothing was changed.
pub(super) struct SettleCall {
    pub settlement: Arc<Settlement>,
    /// Whether another transaction had locked the row at the last try.
    pub held: bool,
    /// Whether an earlier try may have been executed.
    pub in_doubt: bool,
}

/// When the record lapses: the outer option is whether it was written, the inner one whether it has a TTL.
type Settled = Option<Option<SystemTime>>;

impl CallAnswer for Settled {
    fn read(row: Option<&Row>) -> Result<Self, CorruptRow> {
        row.map(|row| row.read("expires_at")).transpose()
    }
}

impl BatchedCall for SettleCall {
    type Answer = Settled;

    const FUNCTION: &'static Function = &functions::SETTLE;
    const FUNCTIONS_OF_MANY: Option<[&'static Function; 2]> = Some([&functions::SETTLE_ALL, &functions::SETTLE_EACH]);

    fn goes_alone(&self, is_distributed: bool) -> bool {
        self.held || (is_distributed && self.in_doubt)
    }

    fn id(&self) -> RecordId {
        self.settlement.id
    }

    fn columns(&self) -> Columns<'_> {
        let Settlement { id, token, outcome, retry_in, .. } = &*self.settlement;
        columns! { id: id, token: token, due_ms: retry_in.map(millis), ..columns::outcome(outcome) }
    }

    fn sent_bytes(&self) -> usize {
        self.settlement.outcome.response_bytes()
    }
}

/// Writes the whole row of an ended attempt anew. Answers like [`SettleCall`]; `None` where another attempt has the row.
///
/// Only for settlements with a [`lease_to_restore`](Settlement::lease_to_restore).
pub(super) struct RestoreCall(pub Arc<Settlement>);

impl BatchedCall for RestoreCall {
    type Answer = Settled;

    const FUNCTION: &'static Function = &functions::RESTORE;

    fn id(&self) -> RecordId {
        self.0.id
    }

    fn columns(&self) -> Columns<'_> {
        let lost = self.0.lease_to_restore().expect("only settlements with a lease are restored");
        columns::restored(lost, &self.0)
    }

    fn sent_bytes(&self) -> usize {
        let names = self.0.lease_to_restore().map_or(0, |lost| lost.reserve_request.key.as_bytes().len());
        names + self.0.outcome.response_bytes()
    }
}

/// Moves the deadline of an attempt in flight. The answer is whether it is in flight.
pub(super) struct ExtendCall(pub Arc<ExtendDeadlineParams>);

impl BatchedCall for ExtendCall {
    type Answer = bool;

    const FUNCTION: &'static Function = &functions::EXTEND_DEADLINE;

    fn id(&self) -> RecordId {
        self.0.id
    }

    fn columns(&self) -> Columns<'_> {
        columns! { id: &self.0.id, token: &self.0.token, time_limit_ms: millis(self.0.time_limit) }
    }
}

/// Accepts a key for delivery, with its request: one that has no record, or one whose record is still as it was seen. The answer
/// is whether it was accepted.
pub(super) struct EnqueueCall(pub Arc<EnqueueRequest>, pub Option<ExpectedRecord>);

impl BatchedCall for EnqueueCall {
    type Answer = bool;

    const FUNCTION: &'static Function = &functions::ENQUEUE;

    fn id(&self) -> RecordId {
        self.0.reserve_request.id
    }

    fn columns(&self) -> Columns<'_> {
        let EnqueueRequest { reserve_request, sealed } = &*self.0;
        columns! {
            secret: &*sealed.secret,
            sealed: &sealed.bytes,
            ..columns::reservation(reserve_request),
            ..columns::seen(self.1.as_ref()),
        }
    }

    fn sent_bytes(&self) -> usize {
        let EnqueueRequest { reserve_request, sealed } = &*self.0;
        reserve_request.key.as_bytes().len() + path_bytes(reserve_request) + sealed.bytes.len()
    }
}

/// Whether a row may be taken over: the condition of `take_over.sql`.
pub(super) fn may_be_taken(record: &Record, from: ExpectedRecord) -> bool {
    let by_state = match record.state {
        KeyState::Completed(_) | KeyState::Expired => from.past_ttl_at.is_some(),
        KeyState::Dead | KeyState::InFlight | KeyState::Queued => false,
        KeyState::Retryable | KeyState::Unknown => true,
    };
    // A record that was settled after it was seen has another TTL.
    let is_settled_before = |at: SystemTime| {
        record.reading.is_some_and(|reading| reading.at.checked_sub(reading.settled_for).is_some_and(|then| then <= at))
    };
    by_state
        && record.token == from.token
        && record.state.kind() == from.state
        && from.past_ttl_at.is_none_or(|at| record.past_ttl && is_settled_before(at))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{HeaderMap, StatusCode};

    use super::super::lane::{BatchStatement, OVERHEAD_BYTES};
    use super::*;
    use crate::tests::reserve_request;
    use oncegate_domain::attempt::AttemptLease;
    use oncegate_domain::response::StoredResponse;
    use oncegate_domain::sealed::SealedBytes;
    use oncegate_domain::state::StateKind;

    #[test]
    fn the_size_of_a_call_counts_what_clients_and_services_send() {
        let reserve_request = Arc::new(ReserveRequest { path: Some("/payments".into()), ..reserve_request() });
        let lease = AttemptLease {
            reserve_request: Arc::clone(&reserve_request),
            attempt: 1,
            taken_from: None,
            recovery_point: None,
            delivery: None,
        };
        let (headers, trailers, body) = (HeaderMap::new(), HeaderMap::new(), Some(Bytes::from("abc")));
        let response = StoredResponse { status: StatusCode::OK, headers, body, trailers };
        let settlement = Arc::new(lease.complete(response, Duration::ZERO));
        let expected = ExpectedRecord { token: reserve_request.token, state: StateKind::Retryable, past_ttl_at: None };
        let sealed = SealedBytes { secret: "2026".into(), bytes: Bytes::from("12345") };
        let order = EnqueueRequest { reserve_request: (*reserve_request).clone(), sealed };
        let sizes = [
            ReserveCall { request: Arc::clone(&reserve_request), in_doubt: false }.bytes(),
            TakeOverCall(reserve_request, expected).bytes(),
            SettleCall { settlement: Arc::clone(&settlement), held: false, in_doubt: false }.bytes(),
            RestoreCall(settlement).bytes(),
            EnqueueCall(Arc::new(order), None).bytes(),
        ];
        // The key is one byte long, the path nine, the body three, the sealed request five.
        assert_eq!(sizes.map(|bytes| bytes - OVERHEAD_BYTES), [1 + 9, 9, 3, 1 + 3, 1 + 9 + 5]);
    }
}

//! The writes of one record that requests make. Each is a function in the database, and goes there with others of its
//! kind.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tokio_postgres::{Error, Row};

use super::client::PgClient;
use super::functions::{self, Function};
use super::lane::{LaneCall, OVERHEAD_BYTES};
use super::rows::changed;
use crate::columns::{self, Columns, columns};
use crate::row::millis;
use crate::{EnqueueParams, ExpectedRecord, ExtendDeadlineParams, TakeOverParams};
use oncegate_domain::attempt::{ReserveRequest, Settlement};
use oncegate_domain::delivery::EnqueueRequest;
use oncegate_domain::ids::RecordId;
use oncegate_domain::record::Record;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::service_report::{ReportKind, ServiceReport};
use oncegate_domain::state::KeyState;

/// A write of one record. The answer is the function's row where it has changed something.
pub(super) struct KeyCall<P> {
    id: RecordId,
    params: Arc<P>,
    columns: fn(&P) -> Columns<'_>,
    function: &'static Function,
    /// The function for many records, which takes arrays of the same columns and answers with the ids of those that it
    /// has changed; and the same for a cluster, which has a loop, as a cluster takes only statements of one record
    /// each. Without them, several calls share a transaction, and on a cluster each is sent by itself.
    functions_of_many: Option<[&'static Function; 2]>,
    /// The bytes that clients and services have sent of it.
    sent_bytes: usize,
    /// Whether another transaction had locked the row at the last try.
    held: bool,
    /// Whether an earlier try may have been executed.
    in_doubt: bool,
}

impl KeyCall<ReserveRequest> {
    pub fn reserve(request: Arc<ReserveRequest>, in_doubt: bool) -> Self {
        Self {
            functions_of_many: Some([&functions::RESERVE_ALL, &functions::RESERVE_EACH]),
            sent_bytes: request.key.as_bytes().len() + path_bytes(&request),
            in_doubt,
            ..Self::new(request.id, request, &functions::RESERVE, |request| {
                columns! { time_limit_ms: millis(request.time_limit), ..columns::reservation(request) }
            })
        }
    }
}

impl KeyCall<TakeOverParams> {
    /// Starts the next attempt of a record that is still as it was seen. The row has the attempt's number and the
    /// recovery point of earlier attempts.
    pub fn take_over(params: Arc<TakeOverParams>) -> Self {
        Self {
            sent_bytes: path_bytes(&params.request),
            ..Self::new(params.request.id, params, &functions::TAKE_OVER, |TakeOverParams { request, from }| {
                columns! {
                    time_limit_ms: millis(request.time_limit),
                    ..columns::next_attempt(request),
                    ..columns::seen(Some(from)),
                }
            })
        }
    }
}

impl KeyCall<Settlement> {
    /// Ends an attempt. The row has the time when the record lapses.
    pub fn settle(settlement: Arc<Settlement>, held: bool, in_doubt: bool) -> Self {
        Self {
            functions_of_many: Some([&functions::SETTLE_ALL, &functions::SETTLE_EACH]),
            sent_bytes: settlement.outcome.response_bytes(),
            held,
            in_doubt,
            ..Self::new(settlement.id, settlement, &functions::SETTLE, |settlement| {
                let Settlement { id, token, outcome, retry_in, .. } = settlement;
                columns! { id: id, token: token, due_ms: retry_in.map(millis), ..columns::outcome(outcome) }
            })
        }
    }

    /// Writes the whole row of an ended attempt anew, unless another attempt has it. The row is like that of
    /// [`Self::settle`].
    ///
    /// Only for settlements with a [`lease_to_restore`](Settlement::lease_to_restore).
    pub fn restore(settlement: Arc<Settlement>) -> Self {
        let names = settlement.lease_to_restore().map_or(0, |lost| lost.reserve_request.key.as_bytes().len());
        Self {
            sent_bytes: names + settlement.outcome.response_bytes(),
            ..Self::new(settlement.id, settlement, &functions::RESTORE, |settlement| {
                let lost = settlement.lease_to_restore().expect("only settlements with a lease are restored");
                columns::restored(lost, settlement)
            })
        }
    }
}

impl KeyCall<ExtendDeadlineParams> {
    pub fn extend(params: Arc<ExtendDeadlineParams>) -> Self {
        Self::new(params.id, params, &functions::EXTEND_DEADLINE, |params| {
            columns! { id: &params.id, token: &params.token, time_limit_ms: millis(params.time_limit) }
        })
    }
}

impl KeyCall<EnqueueParams> {
    /// Accepts a key for delivery, with its request: one that has no record, or one whose record is still as it was
    /// seen.
    pub fn enqueue(params: Arc<EnqueueParams>) -> Self {
        Self::keep(params, false)
    }

    /// The same, and begins the attempt. The row is like that of a takeover.
    pub fn reserve_kept(params: Arc<EnqueueParams>) -> Self {
        Self::keep(params, true)
    }

    fn keep(params: Arc<EnqueueParams>, starts: bool) -> Self {
        let EnqueueRequest { reserve_request, sealed } = &params.request;
        let columns: fn(&EnqueueParams) -> Columns<'_> = match starts {
            true => |EnqueueParams { request, from }| {
                let time_limit_ms = millis(request.reserve_request.time_limit);
                columns! { time_limit_ms: time_limit_ms, ..columns::kept(request, from.as_ref()) }
            },
            false => |EnqueueParams { request, from }| {
                columns! { time_limit_ms: None::<i64>, ..columns::kept(request, from.as_ref()) }
            },
        };
        Self {
            sent_bytes: reserve_request.key.as_bytes().len() + path_bytes(reserve_request) + sealed.bytes.len(),
            ..Self::new(reserve_request.id, Arc::clone(&params), &functions::ENQUEUE, columns)
        }
    }
}

impl KeyCall<ServiceReport> {
    /// Sets the recovery point of an attempt; or releases its key where it was not executed, or stores that report
    /// while it runs. The row has the state; there is none where the attempt is not the newest any more.
    pub fn report(report: Arc<ServiceReport>) -> Self {
        Self::new(report.handle.id, report, &functions::REPORT, |ServiceReport { service, handle, kind }| {
            let (ttl_ms, point) = match kind {
                ReportKind::NotExecuted(ttl) => (Some(millis(*ttl)), None),
                ReportKind::Reached(point) => (None, Some(point.as_str())),
            };
            columns! {
                id: &handle.id,
                token: &handle.token,
                service: &**service,
                ttl_ms: ttl_ms,
                recovery_point: point,
            }
        })
    }
}

fn path_bytes(request: &ReserveRequest) -> usize {
    request.path.as_ref().map_or(0, Bytes::len)
}

impl<P> KeyCall<P> {
    /// A call whose bytes are few, and which has no function of many.
    fn new(id: RecordId, params: Arc<P>, function: &'static Function, columns: fn(&P) -> Columns<'_>) -> Self {
        let (functions_of_many, sent_bytes, held, in_doubt) = (None, 0, false, false);
        Self { id, params, columns, function, functions_of_many, sent_bytes, held, in_doubt }
    }
}

impl<P: Send + Sync + 'static> LaneCall for KeyCall<P> {
    type Answer = Result<Option<Row>, CorruptRow>;

    // Answers have ids and no more, so of two calls for one record both would look done.
    const DISTINCT: bool = true;

    fn id(&self) -> RecordId {
        self.id
    }

    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + self.sent_bytes
    }

    fn goes_alone(&self, is_distributed: bool) -> bool {
        self.held || (is_distributed && self.in_doubt)
    }

    async fn run(client: &PgClient, calls: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let Some(Self { function, functions_of_many, .. }) = calls.first() else { return Ok(Vec::new()) };
        let columns: Vec<Columns<'_>> = calls.iter().map(|call| (call.columns)(&call.params)).collect();
        if let [alone] = &columns[..] {
            return Ok(vec![changed(client.call(function, alone).await?)]);
        }
        let Some([function, on_cluster]) = functions_of_many else {
            let answers = client.call_in_transaction(function, &columns).await?;
            return Ok(answers.into_iter().map(changed).collect());
        };
        let function = if client.is_distributed() { on_cluster } else { function };
        debug_assert!(calls.is_sorted_by_key(|call| call.id), "an answer is found by its place");
        let mut answers: Vec<_> = calls.iter().map(|_| Ok(None)).collect();
        for row in client.call_with_arrays(function, &columns).await? {
            let id = row.try_get::<_, &[u8]>("id")?;
            if let Ok(place) = calls.binary_search_by(|call| call.id.as_bytes().as_slice().cmp(id)) {
                answers[place] = Ok(Some(row));
            }
        }
        Ok(answers)
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
    let is_past_ttl = record.past_ttl || (from.is_redelivered && record.late);
    by_state
        && record.token == from.token
        && record.state.kind() == from.state
        && from.past_ttl_at.is_none_or(|at| is_past_ttl && is_settled_before(at))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{HeaderMap, StatusCode};

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
        let expected = ExpectedRecord {
            token: reserve_request.token,
            state: StateKind::Retryable,
            past_ttl_at: None,
            is_redelivered: false,
        };
        let sealed = SealedBytes { secret: "2026".into(), bytes: Bytes::from("12345") };
        let request = (*reserve_request).clone();
        let order = EnqueueRequest { reserve_request: request.clone(), sealed };
        let sizes = [
            KeyCall::reserve(reserve_request, false).bytes(),
            KeyCall::take_over(Arc::new(TakeOverParams { request, from: expected })).bytes(),
            KeyCall::settle(Arc::clone(&settlement), false, false).bytes(),
            KeyCall::restore(settlement).bytes(),
            KeyCall::enqueue(Arc::new(EnqueueParams { request: order, from: None })).bytes(),
        ];
        // The key is one byte long, the path nine, the body three, the sealed request five.
        assert_eq!(sizes.map(|bytes| bytes - OVERHEAD_BYTES), [1 + 9, 9, 3, 1 + 3, 1 + 9 + 5]);
    }
}

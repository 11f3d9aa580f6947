//! The batched statements: encoding requests as arrays, and decoding rows into answers.
//!
//! Every column is sent as an array, constant ones too: a constant beside an array of ids made the planner compare each
//! with each.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};

use super::batcher::BatchStatement;
use super::client::{Parameter, PgClient};
use crate::domain::attempt::{ReserveRequest, Settlement};
use crate::domain::ids::{RecordId, Token};
use crate::domain::record::Record;
use crate::domain::recovery::RecoveryPoint;
use crate::domain::response::CorruptRow;
use crate::domain::state::KeyState;
use crate::store::ExpectedRecord;
use crate::store::batch::ByteSize;
use crate::store::row::{self, OutcomeColumns, accepted_ms, body_bytes, millis, since_1970_ms, state_after};

const EXTEND_DEADLINE: &str = durable!("extend_deadline");
const RESERVE: &str = include_str!("sql/reserve.sql");
const RESERVE_ONE: &str = include_str!("sql/reserve_one.sql");
const RESTORE: &str = durable!("restore");
const SETTLE: &str = include_str!("sql/settle.sql");
const SETTLE_ONE: &str = include_str!("sql/settle_one.sql");
const SETTLE_SKIP_LOCKED: &str = include_str!("sql/settle_skip_locked.sql");
const TAKE_OVER: &str = durable!("take_over");

/// The size of a row beyond the data that clients send.
pub(super) const OVERHEAD_BYTES: usize = 256;

/// One value of each request, as a column of the statement's input.
pub(super) fn column<'a, S, T: 'a>(requests: &[&'a S], value: impl Fn(&'a S) -> T) -> Vec<T> {
    requests.iter().map(|request| value(request)).collect()
}

/// One value of each item, as a column of the statement's input.
fn map_all<'a, S, T: 'a>(all: &'a [S], value: impl Fn(&'a S) -> T) -> Vec<T> {
    all.iter().map(value).collect()
}

pub(super) fn holder_bytes(reserve_request: &ReserveRequest) -> Option<&[u8]> {
    reserve_request.holder.as_ref().map(|holder| holder.as_bytes().as_slice())
}

pub(super) fn path_bytes(reserve_request: &ReserveRequest) -> usize {
    reserve_request.path.as_ref().map_or(0, Bytes::len)
}

/// Reserves a key that has no record. The answer is whether it was reserved.
pub(super) struct ReserveStatement(pub Arc<ReserveRequest>);

impl ByteSize for ReserveStatement {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + self.0.key.as_bytes().len() + path_bytes(&self.0)
    }
}

impl BatchStatement for ReserveStatement {
    type Answer = bool;

    // Of two requests for one record, the token shows which one won.
    const DISTINCT: bool = false;

    fn id(&self) -> RecordId {
        self.0.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<bool>, Error> {
        if let [alone] = requests {
            return Ok(vec![alone.run_alone(client).await?]);
        }
        let recipes = column(requests, |q| q.0.recipe.to_stored());
        let parameters: [Parameter<'_>; 13] = [
            (/* id */ &column(requests, |q| q.0.id.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* service */ &column(requests, |q| &*q.0.service), Type::TEXT_ARRAY),
            (/* scope */ &column(requests, |q| q.0.scope.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* space */ &column(requests, |q| q.0.space.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* key */ &column(requests, |q| q.0.key.as_bytes()), Type::BYTEA_ARRAY),
            (/* route */ &column(requests, |q| &*q.0.route), Type::TEXT_ARRAY),
            (/* recipe */ &recipes, Type::TEXT_ARRAY),
            (/* fingerprint */ &column(requests, |q| q.0.fingerprint.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* instance */ &column(requests, |q| q.0.instance.get()), Type::INT8_ARRAY),
            (/* token */ &column(requests, |q| q.0.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* time_limit_ms */ &column(requests, |q| millis(q.0.time_limit)), Type::INT8_ARRAY),
            (/* path */ &column(requests, |q| q.0.path.as_deref()), Type::BYTEA_ARRAY),
            (/* holder */ &column(requests, |q| holder_bytes(&q.0)), Type::BYTEA_ARRAY),
        ];
        let mut won = HashSet::new();
        for row in client.call(RESERVE, &parameters).await? {
            won.insert(row.try_get::<_, Vec<u8>>("token")?);
        }
        // Removed, so that of two requests with one token only one wins.
        Ok(column(requests, |q| q.0.token).iter().map(|token| won.remove(token.as_bytes().as_slice())).collect())
    }
}

impl ReserveStatement {
    async fn run_alone(&self, client: &PgClient) -> Result<bool, Error> {
        let q = &*self.0;
        let rows = client
            .call(
                RESERVE_ONE,
                &[
                    (/* id */ &q.id.as_bytes().as_slice(), Type::BYTEA),
                    (/* service */ &&*q.service, Type::TEXT),
                    (/* scope */ &q.scope.as_bytes().as_slice(), Type::BYTEA),
                    (/* space */ &q.space.as_bytes().as_slice(), Type::BYTEA),
                    (/* key */ &q.key.as_bytes(), Type::BYTEA),
                    (/* route */ &&*q.route, Type::TEXT),
                    (/* recipe */ &q.recipe.to_stored(), Type::TEXT),
                    (/* fingerprint */ &q.fingerprint.as_bytes().as_slice(), Type::BYTEA),
                    (/* instance */ &q.instance.get(), Type::INT8),
                    (/* token */ &q.token.as_bytes().as_slice(), Type::BYTEA),
                    (/* time_limit_ms */ &millis(q.time_limit), Type::INT8),
                    (/* path */ &q.path.as_deref(), Type::BYTEA),
                    (/* holder */ &holder_bytes(q), Type::BYTEA),
                ],
            )
            .await?;
        rows.first().map_or(Ok(false), |row| row.try_get("reserved"))
    }
}

/// Starts the next attempt of a record that is still as it was seen. The answer is the attempt's number and the
/// recovery point of earlier attempts, if it was started.
pub(super) struct TakeOverStatement(pub Arc<ReserveRequest>, pub ExpectedRecord);

impl ByteSize for TakeOverStatement {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + path_bytes(&self.0)
    }
}

impl BatchStatement for TakeOverStatement {
    type Answer = Result<Option<(u32, Option<RecoveryPoint>)>, CorruptRow>;

    // With several sources for one row, PostgreSQL would pick an arbitrary one.
    const DISTINCT: bool = true;

    fn id(&self) -> RecordId {
        self.0.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let recipes = column(requests, |q| q.0.recipe.to_stored());
        let parameters: [Parameter<'_>; 11] = [
            (/* id */ &column(requests, |q| q.0.id.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* route */ &column(requests, |q| &*q.0.route), Type::TEXT_ARRAY),
            (/* recipe */ &recipes, Type::TEXT_ARRAY),
            (/* fingerprint */ &column(requests, |q| q.0.fingerprint.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* instance */ &column(requests, |q| q.0.instance.get()), Type::INT8_ARRAY),
            (/* token */ &column(requests, |q| q.0.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* time_limit_ms */ &column(requests, |q| millis(q.0.time_limit)), Type::INT8_ARRAY),
            (/* seen_token */ &column(requests, |q| q.1.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* seen_state */ &column(requests, |q| q.1.state.name()), Type::TEXT_ARRAY),
            (/* past_ttl_at */ &column(requests, |q| q.1.past_ttl_at.map(since_1970_ms)), Type::INT8_ARRAY),
            (/* path */ &column(requests, |q| q.0.path.as_deref()), Type::BYTEA_ARRAY),
        ];
        let mut attempts = HashMap::new();
        for row in client.query_typed(TAKE_OVER, &parameters).await? {
            let recovery_point = row::recovery_point(row.try_get("recovery_point")?);
            attempts.insert(row.try_get::<_, Vec<u8>>("id")?, (row.try_get::<_, i32>("attempt")?, recovery_point));
        }
        let attempt = |q: &&Self| {
            let (number, recovery_point) = attempts.remove(q.0.id.as_bytes().as_slice())?;
            Some(row::attempt(number.into()).and_then(|number| Ok((number, recovery_point?))))
        };
        Ok(requests.iter().map(attempt).map(Option::transpose).collect())
    }
}

/// When the record lapses: the outer option is whether it was written, the inner one whether it has a TTL.
type SettledRow = Result<Option<Option<SystemTime>>, CorruptRow>;

/// Ends an attempt. The answer is when the record lapses, or `None` where nothing was changed.
pub(super) struct SettleStatement {
    pub settlement: Arc<Settlement>,
    /// Whether another transaction had locked the row at the last try.
    pub held: bool,
}

impl ByteSize for SettleStatement {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + body_bytes(&self.settlement.outcome)
    }
}

impl BatchStatement for SettleStatement {
    type Answer = SettledRow;

    // With several sources for one row, PostgreSQL would pick an arbitrary one.
    const DISTINCT: bool = true;

    fn id(&self) -> RecordId {
        self.settlement.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let mut held = requests.iter().any(|q| q.held);
        if let [alone] = requests
            && !held
        {
            match alone.run_alone(client).await {
                Err(error) if is_locked(&error) => held = true,
                settled => return Ok(vec![settled?]),
            }
        }
        let terms = column(requests, |q| OutcomeColumns::from_outcome(&q.settlement.outcome));
        let parameters: [Parameter<'_>; 10] = [
            (/* id */ &column(requests, |q| q.settlement.id.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* token */ &column(requests, |q| q.settlement.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* state */ &column(requests, |q| state_after(&q.settlement.outcome)), Type::TEXT_ARRAY),
            (/* ttl_ms */ &map_all(&terms, |t| t.ttl_ms), Type::INT8_ARRAY),
            (/* status */ &map_all(&terms, |t| t.status), Type::INT2_ARRAY),
            (/* fields */ &map_all(&terms, |t| t.fields.as_deref()), Type::BYTEA_ARRAY),
            (/* body */ &map_all(&terms, |t| t.body), Type::BYTEA_ARRAY),
            (/* remember_ms */ &map_all(&terms, |t| t.remember_ms), Type::INT8_ARRAY),
            (/* due_ms */ &column(requests, |q| q.settlement.retry_in.map(millis)), Type::INT8_ARRAY),
            (/* cause */ &map_all(&terms, |t| t.cause.as_deref()), Type::TEXT_ARRAY),
        ];
        let settled = match held {
            true => client.query_typed(SETTLE_SKIP_LOCKED, &parameters).await,
            false => client.call(SETTLE, &parameters).await,
        };
        let rows = match settled {
            // The whole statement was rolled back.
            Err(error) if is_locked(&error) && !held => client.query_typed(SETTLE_SKIP_LOCKED, &parameters).await?,
            rows => rows?,
        };
        expiries(&rows, requests.iter().map(|q| q.settlement.id))
    }
}

/// Whether another transaction has locked one of the rows for longer than a settlement waits.
fn is_locked(error: &Error) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

impl SettleStatement {
    async fn run_alone(&self, client: &PgClient) -> Result<SettledRow, Error> {
        let settlement = &*self.settlement;
        let terms = OutcomeColumns::from_outcome(&settlement.outcome);
        let rows = client
            .call(
                SETTLE_ONE,
                &[
                    (/* id */ &settlement.id.as_bytes().as_slice(), Type::BYTEA),
                    (/* token */ &settlement.token.as_bytes().as_slice(), Type::BYTEA),
                    (/* state */ &state_after(&settlement.outcome), Type::TEXT),
                    (/* ttl_ms */ &terms.ttl_ms, Type::INT8),
                    (/* status */ &terms.status, Type::INT2),
                    (/* fields */ &terms.fields.as_deref(), Type::BYTEA),
                    (/* body */ &terms.body, Type::BYTEA),
                    (/* remember_ms */ &terms.remember_ms, Type::INT8),
                    (/* due_ms */ &settlement.retry_in.map(millis), Type::INT8),
                    (/* cause */ &terms.cause.as_deref(), Type::TEXT),
                ],
            )
            .await?;
        let Some(row) = rows.first() else { return Ok(Ok(None)) };
        let expires_at_ms: Option<i64> = row.try_get("expires_at_ms")?;
        Ok(if row.try_get("changed")? { expires_at_ms.map(row::time).transpose().map(Some) } else { Ok(None) })
    }
}

/// Writes the whole row of an ended attempt anew. Answers like [`SettleStatement`]; `None` where another attempt has the row, or
/// another transaction has locked it.
///
/// Only for settlements with a [`lease_to_restore`](Settlement::lease_to_restore): others are left out.
pub(super) struct RestoreStatement(pub Arc<Settlement>);

impl ByteSize for RestoreStatement {
    fn bytes(&self) -> usize {
        let names = self.0.lease_to_restore().map_or(0, |lost| lost.reserve_request.key.as_bytes().len());
        OVERHEAD_BYTES + names + body_bytes(&self.0.outcome)
    }
}

impl BatchStatement for RestoreStatement {
    type Answer = SettledRow;

    // Rows are returned by id, so of two requests for one record both would look restored.
    const DISTINCT: bool = true;

    fn id(&self) -> RecordId {
        self.0.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let lost: Vec<_> = requests.iter().filter_map(|q| Some((q.0.lease_to_restore()?, &*q.0))).collect();
        let reserve_requests = map_all(&lost, |(lease, _)| &*lease.reserve_request);
        let recipes = map_all(&reserve_requests, |reserve_request| reserve_request.recipe.to_stored());
        let terms = map_all(&lost, |(_, settlement)| OutcomeColumns::from_outcome(&settlement.outcome));
        let parameters: [Parameter<'_>; 25] = [
            (
                /* id */ &map_all(&reserve_requests, |reserve_request| reserve_request.id.as_bytes().as_slice()),
                Type::BYTEA_ARRAY,
            ),
            (
                /* service */ &map_all(&reserve_requests, |reserve_request| &*reserve_request.service),
                Type::TEXT_ARRAY,
            ),
            (
                /* scope */
                &map_all(&reserve_requests, |reserve_request| reserve_request.scope.as_bytes().as_slice()),
                Type::BYTEA_ARRAY,
            ),
            (
                /* space */
                &map_all(&reserve_requests, |reserve_request| reserve_request.space.as_bytes().as_slice()),
                Type::BYTEA_ARRAY,
            ),
            (
                /* key */ &map_all(&reserve_requests, |reserve_request| reserve_request.key.as_bytes()),
                Type::BYTEA_ARRAY,
            ),
            (/* route */ &map_all(&reserve_requests, |reserve_request| &*reserve_request.route), Type::TEXT_ARRAY),
            (/* recipe */ &recipes, Type::TEXT_ARRAY),
            (
                /* fingerprint */
                &map_all(&reserve_requests, |reserve_request| reserve_request.fingerprint.as_bytes().as_slice()),
                Type::BYTEA_ARRAY,
            ),
            (
                /* instance */ &map_all(&reserve_requests, |reserve_request| reserve_request.instance.get()),
                Type::INT8_ARRAY,
            ),
            (
                /* token */
                &map_all(&reserve_requests, |reserve_request| reserve_request.token.as_bytes().as_slice()),
                Type::BYTEA_ARRAY,
            ),
            (
                /* time_limit_ms */
                &map_all(&reserve_requests, |reserve_request| millis(reserve_request.time_limit)),
                Type::INT8_ARRAY,
            ),
            (/* attempt */ &map_all(&lost, |(lease, _)| i32::try_from(lease.attempt).ok()), Type::INT4_ARRAY),
            (/* state */ &map_all(&lost, |(_, settlement)| state_after(&settlement.outcome)), Type::TEXT_ARRAY),
            (/* ttl_ms */ &map_all(&terms, |t| t.ttl_ms), Type::INT8_ARRAY),
            (/* status */ &map_all(&terms, |t| t.status), Type::INT2_ARRAY),
            (/* fields */ &map_all(&terms, |t| t.fields.as_deref()), Type::BYTEA_ARRAY),
            (/* body */ &map_all(&terms, |t| t.body), Type::BYTEA_ARRAY),
            (/* remember_ms */ &map_all(&terms, |t| t.remember_ms), Type::INT8_ARRAY),
            (
                /* path */ &map_all(&reserve_requests, |reserve_request| reserve_request.path.as_deref()),
                Type::BYTEA_ARRAY,
            ),
            (/* accepted_ms */ &map_all(&lost, |(lease, _)| accepted_ms(lease)), Type::INT8_ARRAY),
            (
                /* replaced_token */
                &map_all(&lost, |(lease, _)| lease.taken_from.as_ref().map(|it| it.token.as_bytes().as_slice())),
                Type::BYTEA_ARRAY,
            ),
            (/* cause */ &map_all(&terms, |t| t.cause.as_deref()), Type::TEXT_ARRAY),
            (
                /* replaced_was_completed */
                &map_all(&lost, |(lease, _)| lease.taken_from.map(|it| it.was_completed)),
                Type::BOOL_ARRAY,
            ),
            (
                /* holder */ &map_all(&reserve_requests, |reserve_request| holder_bytes(reserve_request)),
                Type::BYTEA_ARRAY,
            ),
            (/* due_ms */ &map_all(&lost, |(_, settlement)| settlement.retry_in.map(millis)), Type::INT8_ARRAY),
        ];
        let rows = client.query_typed(RESTORE, &parameters).await?;
        expiries(&rows, requests.iter().map(|q| q.0.id))
    }
}

/// Moves the deadline of an attempt in flight.
pub(super) struct ExtendStatement {
    pub id: RecordId,
    pub token: Token,
    /// The new deadline, from now by the store's clock.
    pub time_limit: Duration,
}

/// The answer to an [`ExtendStatement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtendResult {
    /// The attempt is in flight, until then at least.
    Extended,
    /// Another transaction has locked the row of the attempt; nothing has changed.
    Held,
    /// The attempt is not in flight any more.
    NotInFlight,
}

impl ByteSize for ExtendStatement {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES
    }
}

impl BatchStatement for ExtendStatement {
    type Answer = ExtendResult;

    // With several sources for one row, PostgreSQL would pick an arbitrary one.
    const DISTINCT: bool = true;

    fn id(&self) -> RecordId {
        self.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let parameters: [Parameter<'_>; 3] = [
            (/* id */ &column(requests, |q| q.id.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* token */ &column(requests, |q| q.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* time_limit_ms */ &column(requests, |q| millis(q.time_limit)), Type::INT8_ARRAY),
        ];
        let mut in_flight = HashMap::new();
        for row in client.query_typed(EXTEND_DEADLINE, &parameters).await? {
            let result = if row.try_get("held")? { ExtendResult::Held } else { ExtendResult::Extended };
            in_flight.insert(row.try_get::<_, Vec<u8>>("id")?, result);
        }
        let result = |id: RecordId| in_flight.get(id.as_bytes().as_slice()).copied();
        Ok(column(requests, |q| result(q.id).unwrap_or(ExtendResult::NotInFlight)))
    }
}

/// When each record lapses; `None` for records of which no row was returned.
fn expiries(rows: &[Row], ids: impl Iterator<Item = RecordId>) -> Result<Vec<SettledRow>, Error> {
    let mut written = HashMap::new();
    for row in rows {
        written.insert(row.try_get::<_, Vec<u8>>("id")?, row.try_get::<_, Option<i64>>("expires_at_ms")?);
    }
    let expiry = |id: RecordId| Some(written.get(id.as_bytes().as_slice())?.map(row::time).transpose());
    Ok(ids.map(|id| expiry(id).transpose()).collect())
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
    use http::{HeaderMap, StatusCode};

    use super::super::deliveries::EnqueueStatement;
    use super::*;
    use crate::domain::attempt::AttemptLease;
    use crate::domain::attempt::tests::reserve_request;
    use crate::domain::delivery::EnqueueRequest;
    use crate::domain::response::StoredResponse;
    use crate::domain::sealed::SealedBytes;
    use crate::domain::state::StateKind;

    #[test]
    fn the_size_of_a_statement_counts_what_clients_and_services_send() {
        let reserve_request = Arc::new(ReserveRequest { path: Some("/payments".into()), ..reserve_request() });
        let settlement = |body: &'static str| {
            let reserve_request = Arc::clone(&reserve_request);
            let lease =
                AttemptLease { reserve_request, attempt: 1, taken_from: None, recovery_point: None, delivery: None };
            let (headers, trailers) = (HeaderMap::new(), HeaderMap::new());
            let body = Some(Bytes::from(body));
            Arc::new(lease.complete(StoredResponse { status: StatusCode::OK, headers, body, trailers }, Duration::ZERO))
        };
        let state = StateKind::Retryable;
        let expected = ExpectedRecord { token: reserve_request.token, state, past_ttl_at: None };
        let sealed = SealedBytes { secret: "2026".into(), bytes: Bytes::from("12345") };
        let order = EnqueueRequest { reserve_request: (*reserve_request).clone(), sealed };
        // The key is one byte long, the path nine, the body three, the sealed request five.
        assert_eq!(ReserveStatement(Arc::clone(&reserve_request)).bytes(), OVERHEAD_BYTES + 1 + 9);
        assert_eq!(TakeOverStatement(Arc::clone(&reserve_request), expected).bytes(), OVERHEAD_BYTES + 9);
        assert_eq!(SettleStatement { settlement: settlement("abc"), held: false }.bytes(), OVERHEAD_BYTES + 3);
        assert_eq!(RestoreStatement(settlement("abc")).bytes(), OVERHEAD_BYTES + 1 + 3);
        assert_eq!(EnqueueStatement(Arc::new(order)).bytes(), OVERHEAD_BYTES + 1 + 9 + 5);
    }
}

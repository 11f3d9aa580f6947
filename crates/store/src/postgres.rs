//! The store in PostgreSQL (13 or newer, behind PgBouncer in transaction mode too): any number of proxies share it.
//!
//! Every write of a key is a function in the database, see `functions`: of one id, except for `reap`; reservations and
//! settlements have another one for many ids. Calls of one kind may share a transaction, in READ COMMITTED, see `lane`,
//! and on a cluster see `key_calls`. No session that a pooler shares holds any state of ours: calls are prepared only
//! where none does, see `client`. The steps of one call (insert, conflict, read) are written here as they happen to
//! that one call.
//!
//! There is no `statement_timeout` for sessions: PgBouncer refuses it at connecting, and setting it later is session
//! state. Our own clock ends a call; `connect::PgConnection` describes what becomes of its statement. Some the server
//! ends too (`PgTry::bounded`). Operators can set one for the role (`alter role … set statement_timeout`), above the
//! store's `timeout`.

use std::sync::Arc;

use crate::row::{FoundRecord, RowReader, fresh};
use crate::{EnqueueParams, ExtendDeadlineParams, OpenError, SettleResult, StoreSettings, TakeOverParams};
use failure::PgFailure;
use key_calls::{KeyCall, may_be_taken};
use lane::{Lanes, ONE_ON_CLUSTER};
use lookups::Lookups;
use oncegate_domain::attempt::{ReserveRequest, ReserveResult, Settlement};
use oncegate_domain::delivery::{EnqueueRequest, EnqueueResult};
use oncegate_domain::ids::RecordId;
use oncegate_domain::record::Record;
use oncegate_domain::recovery::RecoveryPoint;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::service_report::ServiceReport;
use oncegate_domain::state::KeyState;
use oncegate_settings::PostgresUrl;
use pools::PgPools;
use retry::RetryPauses;
use service_reports::FindReservationCall;

pub(super) use call::PgTry;
pub use distribution::Distribution;
pub(super) use failure::{PgResult, open_error};
pub(super) use schema::{connect_to, distribution, migrate, pending, prepare, remembered_route_identities, warnings};
pub(super) use server::PgServer;

mod admin;
mod call;
mod client;
mod connect;
mod deliveries;
mod direct_connection;
mod distribution;
mod durability;
mod events;
mod failure;
pub(crate) mod functions;
mod horizons;
mod hosts;
mod identity;
mod key_calls;
mod lane;
mod lookups;
mod open_schemas;
mod pools;
mod primaries;
mod retry;
mod rows;
mod schema;
mod server;
mod service_reports;
mod session;
mod tls;
mod upkeep;
mod worker_connection;

/// The statements of one kind that run at once. Two keep a server busy and leave one free for a request that arrives
/// alone; more would make each batch, and with it the gain, smaller.
// See docs/decisions/0010-batch-without-a-timer.md.
const LANES: usize = 2;

/// The number of times that a key may vanish between the conflict and the read. A reaper would have to delete it each
/// time.
const ROUNDS_MAX: usize = 3;

/// The most records in one loop on a cluster. All of them wait for one another, and as many keys stay locked until a
/// node that died during their commit is back.
const LOOP_ON_CLUSTER: usize = 32;

pub struct Postgres {
    pub(crate) server: PgServer,
    pools: PgPools,
    reserve: Lanes<KeyCall<ReserveRequest>>,
    take_over: Lanes<KeyCall<TakeOverParams>>,
    find: Lookups,
    enqueue: Lanes<KeyCall<EnqueueParams>>,
    // The others are on the connections of settlements.
    settle: Lanes<KeyCall<Settlement>>,
    find_settled: Lookups,
    restore: Lanes<KeyCall<Settlement>>,
    extend: Lanes<KeyCall<ExtendDeadlineParams>>,
    find_reservation: Lanes<FindReservationCall>,
    report: Lanes<KeyCall<ServiceReport>>,
}

/// Makes the store without a connection to its server.
pub(super) async fn open_unprepared(url: &PostgresUrl, settings: &StoreSettings) -> Result<Postgres, OpenError> {
    let server = PgServer::open(url, settings.timeout).await?;
    let pools = PgPools::new(&server, settings.max_connections)?;
    let PgPools { begin, settle, replay, workers, .. } = &pools;
    Ok(Postgres {
        reserve: Lanes::open(begin, LANES, LOOP_ON_CLUSTER).beside(workers),
        take_over: Lanes::open(begin, LANES, ONE_ON_CLUSTER),
        find: Lookups::open(begin, LANES, replay).beside(workers),
        enqueue: Lanes::open(begin, LANES, ONE_ON_CLUSTER),
        settle: Lanes::open(settle, LANES, LOOP_ON_CLUSTER).beside(workers),
        find_settled: Lookups::open(settle, 1, settle),
        restore: Lanes::open(settle, 1, ONE_ON_CLUSTER),
        extend: Lanes::open(settle, 1, ONE_ON_CLUSTER),
        find_reservation: Lanes::open(settle, 1, ONE_ON_CLUSTER),
        report: Lanes::open(settle, 1, ONE_ON_CLUSTER),
        pools,
        server,
    })
}

impl PgTry<'_> {
    pub async fn reserve(self, request: Arc<ReserveRequest>) -> PgResult<ReserveResult> {
        for _ in 0..ROUNDS_MAX {
            let call = KeyCall::reserve(request.clone(), self.in_doubt);
            if self.store.reserve.call(call, self.deadline).await??.is_some() {
                return Ok(fresh(request, 1, None));
            }
            let look = self.store.find.find(request.id, self.in_doubt, self.deadline).await;
            if let Some(found) = look.map_err(PgFailure::for_taken_key)? {
                return Ok(self.taken(&request, found.record));
            }
        }
        let cause = "the key's record was created and deleted again while the key was being reserved";
        Err(PgFailure::refused(cause).for_taken_key())
    }

    pub async fn take_over(self, params: Arc<TakeOverParams>) -> PgResult<ReserveResult> {
        let TakeOverParams { request, from } = &*params;
        let mut pauses = RetryPauses::new();
        let result = loop {
            let call = KeyCall::take_over(Arc::clone(&params));
            if let Some(row) = unless_held(self.store.take_over.call(call, self.deadline).await)?.flatten() {
                break fresh(Arc::new(request.clone()), row.read("attempt")?, row.read("recovery_point")?);
            }
            match self.store.find.find(request.id, self.in_doubt, self.deadline).await? {
                // Only another transaction's lock can be in the way.
                Some(found) if may_be_taken(&found.record, *from) => pauses.next().await,
                Some(found) => break self.taken(request, found.record),
                None => break self.reserve(Arc::new(request.clone())).await?,
            }
        };
        Ok(result.taken_over_from(from.into()))
    }

    pub async fn enqueue(self, params: Arc<EnqueueParams>) -> PgResult<EnqueueResult> {
        Ok(match self.keep(params, KeyCall::enqueue).await? {
            Ok(_) => EnqueueResult::Accepted,
            Err(record) => EnqueueResult::Taken(record),
        })
    }

    pub async fn reserve_kept(self, params: Arc<EnqueueParams>) -> PgResult<ReserveResult> {
        let result = match self.keep(Arc::clone(&params), KeyCall::reserve_kept).await? {
            Ok((attempt, recovery_point)) => {
                fresh(Arc::new(params.request.reserve_request.clone()), attempt, recovery_point)
            }
            Err(record) => ReserveResult::Taken(record),
        };
        Ok(match &params.from {
            Some(from) => result.taken_over_from(from.into()),
            None => result,
        })
    }

    /// Reserves or accepts a key with its request. Returns the number of attempts and the recovery point of earlier
    /// ones, or the record of a key that it did not get.
    async fn keep(
        self,
        params: Arc<EnqueueParams>,
        to_call: fn(Arc<EnqueueParams>) -> KeyCall<EnqueueParams>,
    ) -> PgResult<Result<(u32, Option<RecoveryPoint>), Record>> {
        let EnqueueRequest { reserve_request, .. } = &params.request;
        let mut pauses = RetryPauses::new();
        for _ in 0..ROUNDS_MAX {
            let call = to_call(Arc::clone(&params));
            if let Some(row) = unless_held(self.store.enqueue.call(call, self.deadline).await)?.flatten() {
                return Ok(Ok((row.read("attempt")?, row.read("recovery_point")?)));
            }
            let look = self.store.find.find(reserve_request.id, self.in_doubt, self.deadline).await;
            match (look.map_err(PgFailure::for_taken_key)?, params.from) {
                // Our own, from a try whose answer was lost.
                (Some(found), _) if self.in_doubt && found.record.token == reserve_request.token => {
                    return Ok(Ok((found.record.attempt, found.record.recovery_point)));
                }
                // Only another transaction's lock can be in the way.
                (Some(found), Some(from)) if may_be_taken(&found.record, from) => pauses.next().await,
                (Some(found), _) => return Ok(Err(found.record)),
                (None, Some(_)) => {
                    let params = EnqueueParams { request: params.request.clone(), from: None };
                    return Box::pin(self.keep(Arc::new(params), to_call)).await;
                }
                (None, None) => {}
            }
        }
        let cause = "the key's record was created and deleted again while the key was being accepted";
        Err(PgFailure::refused(cause).for_taken_key())
    }

    pub async fn settle(self, settlement: Arc<Settlement>) -> PgResult<SettleResult> {
        let Self { store, deadline, in_doubt, .. } = self;
        let mut pauses = RetryPauses::new();
        let mut held = false;
        loop {
            let call = KeyCall::settle(settlement.clone(), held, in_doubt);
            if let Some(row) = unless_held(store.settle.call(call, deadline).await)?.flatten() {
                return Ok(SettleResult::Done { expires_at: row.read("expires_at")? });
            }
            // Always as if in doubt: an earlier call's commit may be visible and not durable, and "settled" must last.
            let found = store.find_settled.find(settlement.id, true, deadline).await?;
            if settlement.is_lost_from(found.as_ref().map(|found| &found.record)) {
                let call = KeyCall::restore(settlement.clone());
                if let Some(row) = unless_held(store.restore.call(call, deadline).await)?.flatten() {
                    tracing::warn!(record = %settlement.id, "the store has lost this attempt; its outcome is stored anew");
                    return Ok(SettleResult::Done { expires_at: row.read("expires_at")? });
                }
                // Somebody else was faster, or holds the row's lock.
                pauses.next().await;
                continue;
            }
            let Some(FoundRecord { record, expires_at }) = found else { return Ok(SettleResult::Fenced(None)) };
            if in_doubt && settlement.is_outcome_of(&record) {
                return Ok(SettleResult::Done { expires_at });
            }
            let may_settle = settlement.outcome.may_settle(record.state.kind(), record.accepted_at.is_some());
            if record.token != settlement.token || !may_settle {
                return Ok(SettleResult::Fenced(Some(record)));
            }
            // Only another transaction's lock can be in the way.
            held = true;
            pauses.next().await;
        }
    }

    pub async fn find(self, id: Arc<RecordId>) -> PgResult<Option<Record>> {
        Ok(self.store.find.find(*id, false, self.deadline).await?.map(|found| found.record))
    }

    pub async fn extend_deadline(self, params: Arc<ExtendDeadlineParams>) -> PgResult<bool> {
        let mut pauses = RetryPauses::new();
        loop {
            match unless_held(self.store.extend.call(KeyCall::extend(Arc::clone(&params)), self.deadline).await)? {
                Some(extended) => return Ok(extended.is_some()),
                None => pauses.next().await,
            }
        }
    }

    /// The result for a key that has a record: somebody else's, or our own from a try whose answer was lost.
    fn taken(self, request: &ReserveRequest, record: Record) -> ReserveResult {
        if self.in_doubt && record.token == request.token && matches!(record.state, KeyState::InFlight) {
            return fresh(Arc::new(request.clone()), record.attempt, record.recovery_point);
        }
        ReserveResult::Taken(record)
    }
}

/// The answer to a call; `None` where another transaction has locked the row.
fn unless_held<T>(answer: PgResult<Result<T, CorruptRow>>) -> PgResult<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer?)),
        Err(PgFailure::Held(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

//! The store in PostgreSQL (13 or newer, behind PgBouncer in transaction mode too): any number of proxies share it.
//!
//! Every write of a key is a function in the database, see `functions`: of one id, except for `reap`; reservations and
//! settlements have another one for many ids. Calls of one kind may share a transaction, in READ COMMITTED, see `batcher`, and on a
//! cluster see `calls`. No session that a pooler shares holds any state of ours: calls are prepared only where none does, see
//! `client`. The steps of one call (insert, conflict, read) are written here as they happen to that one call.
//!
//! There is no `statement_timeout` for sessions: PgBouncer refuses it at connecting, and setting it later is session
//! state. Our own clock ends a call; `connect::PgConnection` describes what becomes of its statement, and `bounded` has
//! the statements that the server ends, too. Operators can set one for the role (`alter role … set statement_timeout`),
//! above the store's `timeout`.

use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use super::admin::{AuditEntry, DecisionResults, InstanceEntry, KeyCounts, KeyPage};
use super::row::FoundRecord;
use super::{
    ApplyOperatorDecisionParams, Backend, COUNT_TIME_MAX, ClaimProbesParams, CountInstancesBehindParams,
    CountLiveKeysParams, EnqueueParams, ExpectedRecord, ExtendDeadlineParams, FindReservationParams, GiveUpParams,
    LeaseRenewal, ListAuditEntriesParams, ListInFlightParams, ListInstancesParams, ListKeysParams,
    ListSettledKeysParams, MoveLiveKeysParams, OpenError, PrimaryCheck, ReapParams, ReapedRows, Record, RecordId,
    RelocateError, RelocateFuture, RememberRouteIdentitiesParams, RenewResult, ReplaceSaltParams, ReserveRequest,
    ReserveResult, ReservedAttempt, RouteIdentity, SettleResult, StoreFuture, StoreLocation, StoreRouteRetentionParams,
    StoreSettings, SweepParams, SweptKey, TakeOverParams,
};
use crate::config::PostgresUrl;
use crate::domain::attempt::{AttemptLease, Settlement};
use crate::domain::delivery::{EnqueueRequest, EnqueueResult, PickUpRequest, PickUpResult};
use crate::domain::ids::InstanceId;
use crate::domain::probe::{Probe, ProbeFinding, SettledKeyPage};
use crate::domain::recovery::RecoveryPoint;
use crate::domain::response::CorruptRow;
use crate::domain::service_report::{ReportResult, ReservedKey, ServiceReport};
use crate::domain::state::KeyState;
use batcher::Batcher;
use failure::PgFailure;
use lookups::Lookups;
use pools::PgPools;
use requests::{EnqueueCall, ExtendCall, ReserveCall, RestoreCall, SettleCall, TakeOverCall, may_be_taken};
use retry::RetryBudget::{Always, InDoubt};
use retry::{RetryBudget, RetryPauses, retry_until_known};
use service_reports::ReportBatchers;

pub use distribution::Distribution;
pub(super) use schema::{distribution, migrate, newest_step, pending, prepare};
pub(super) use server::PgServer;

mod admin;
mod backend;
mod batcher;
mod bounded;
mod calls;
mod client;
mod connect;
mod deliveries;
mod distribution;
mod durability;
mod failure;
mod functions;
mod horizons;
mod hosts;
mod identity;
mod lookups;
mod pools;
mod primaries;
mod probes;
mod requests;
mod retry;
mod rows;
mod schema;
mod server;
mod service_reports;
mod session;
mod tls;
mod upkeep;

/// The statements of one kind that run at once. Two keep a server busy and leave one free for a request that arrives
/// alone; more would make each batch, and with it the gain, smaller.
const LANES: usize = 2;

/// The number of times that a key may vanish between the conflict and the read. A reaper would have to delete it each time.
const ROUNDS_MAX: usize = 3;

/// The store in PostgreSQL.
pub(super) struct Postgres {
    pub(super) server: PgServer,
    pools: PgPools,
    reserve: Batcher<ReserveCall>,
    take_over: Batcher<TakeOverCall>,
    find: Lookups,
    enqueue: Batcher<EnqueueCall>,
    // The others are on the connections of settlements.
    settle: Batcher<SettleCall>,
    find_settled: Lookups,
    restore: Batcher<RestoreCall>,
    extend: Batcher<ExtendCall>,
    reports: ReportBatchers,
}

/// Makes the store without a connection to its server.
pub(super) async fn open_unprepared(url: &PostgresUrl, settings: &StoreSettings) -> Result<Postgres, OpenError> {
    let server = PgServer::open(url, settings.timeout).await?;
    let pools = PgPools::new(&server, settings.max_connections)?;
    let PgPools { begin, settle, replay, .. } = &pools;
    Ok(Postgres {
        reserve: Batcher::open(begin, LANES),
        take_over: Batcher::open(begin, LANES),
        find: Lookups::open(begin, LANES, replay),
        enqueue: Batcher::open(begin, LANES),
        settle: Batcher::open(settle, LANES),
        find_settled: Lookups::open(settle, 1, settle),
        restore: Batcher::open(settle, 1),
        extend: Batcher::open(settle, 1),
        reports: ReportBatchers::open(settle),
        pools,
        server,
    })
}

/// Defines calls that go to one function of a module, with the connections of a pool.
macro_rules! statements {
    ($($name:ident($Params:ty) -> $Answer:ty: $budget:ident, $($pool:ident).+, $($once:ident)::+;)+) => {
        $(fn $name(&self, params: $Params) -> StoreFuture<'_, $Answer> {
            self.retry($budget, params, |params, _, deadline| $($once)::+(&self.$($pool).+, params, deadline))
        })+
    };
}

impl Backend for Postgres {
    statements! {
        give_up(GiveUpParams) -> bool: InDoubt, pools.upkeep, deliveries::give_up;
        renew_lease(LeaseRenewal) -> RenewResult: Always, pools.lease, upkeep::renew_lease;
        release_lease(InstanceId) -> (): Always, pools.lease, upkeep::release_lease;
        sweep(SweepParams) -> Vec<SweptKey>: InDoubt, pools.sweep, upkeep::sweep;
        list_in_flight(ListInFlightParams) -> Vec<ReservedAttempt>: InDoubt, pools.sweep, upkeep::list_in_flight;
        reap(ReapParams) -> ReapedRows: InDoubt, pools.upkeep, upkeep::reap;
        apply_probe_finding(ProbeFinding) -> bool: InDoubt, pools.upkeep, probes::apply_probe_finding;
        list_settled_keys(ListSettledKeysParams) -> SettledKeyPage:
            InDoubt, pools.admin_reads, probes::list_settled_keys;
        remember_route_identities(RememberRouteIdentitiesParams) -> Vec<RouteIdentity>:
            Always, pools.upkeep, upkeep::remember_route_identities;
        store_route_retention(StoreRouteRetentionParams) -> ():
            Always, pools.upkeep, service_reports::store_route_retention;
        // With the heartbeat, behind nothing else.
        find_salt(Arc<str>) -> Option<Vec<u8>>: InDoubt, pools.lease, upkeep::find_salt;
        // A second try after one that may have been executed stores nothing: the caller then finds the salt of the first.
        replace_salt(ReplaceSaltParams) -> bool: InDoubt, pools.upkeep, upkeep::replace_salt;
        // A report is idempotent.
        find_reservation(FindReservationParams) -> Option<ReservedKey>:
            InDoubt, reports, service_reports::find_reservation;
        record_report(ServiceReport) -> ReportResult: InDoubt, reports, service_reports::record_report;
        apply_deferred_reports(u32) -> Vec<RecordId>: InDoubt, pools.upkeep, service_reports::apply_deferred_reports;
        list_keys(ListKeysParams) -> KeyPage: InDoubt, pools.admin_reads, admin::list_keys;
        list_audit_entries(ListAuditEntriesParams) -> Vec<AuditEntry>:
            InDoubt, pools.admin_reads, admin::list_audit_entries;
        count_keys(Arc<str>) -> KeyCounts: InDoubt, pools.admin_reads, admin::count_keys;
        count_instances_behind(CountInstancesBehindParams) -> u64: InDoubt, pools.upkeep, admin::count_instances_behind;
        list_instances(ListInstancesParams) -> Vec<InstanceEntry>: InDoubt, pools.admin_reads, admin::list_instances;
    }

    fn reserve(&self, request: ReserveRequest) -> StoreFuture<'_, ReserveResult> {
        self.retry(InDoubt, request, |request, in_doubt, deadline| self.reserve_once(request, in_doubt, deadline))
    }

    fn take_over(&self, TakeOverParams { request, from }: TakeOverParams) -> StoreFuture<'_, ReserveResult> {
        self.retry(InDoubt, request, move |request, in_doubt, deadline| async move {
            Ok(self.take_over_once(request, from, in_doubt, deadline).await?.taken_over_from((&from).into()))
        })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettleResult> {
        self.retry(Always, settlement, |settlement, in_doubt, deadline| {
            self.settle_once(settlement, in_doubt, deadline)
        })
    }

    fn find(&self, id: RecordId) -> StoreFuture<'_, Option<Record>> {
        self.retry(InDoubt, id, move |id, _, deadline| async move {
            Ok(self.find.find(*id, false, deadline).await?.map(|found| found.record))
        })
    }

    fn extend_deadline(&self, params: ExtendDeadlineParams) -> StoreFuture<'_, bool> {
        self.retry(Always, params, move |params, _, deadline| async move {
            let mut pauses = RetryPauses::new();
            loop {
                match unless_held(self.extend.call(ExtendCall(Arc::clone(&params)), deadline).await)? {
                    Some(is_in_flight) => return Ok(is_in_flight),
                    None => pauses.next().await,
                }
            }
        })
    }

    fn count_live_keys(&self, params: CountLiveKeysParams) -> StoreFuture<'_, u32> {
        let deadline = Instant::now() + self.server.timeout().min(COUNT_TIME_MAX);
        Box::pin(async move { Ok(lookups::count_live_keys(&self.pools.begin, params, deadline).await?) })
    }

    fn move_live_keys(&self, params: MoveLiveKeysParams) -> StoreFuture<'_, u32> {
        let deadline = Instant::now() + self.server.timeout().min(COUNT_TIME_MAX);
        Box::pin(async move { Ok(lookups::move_live_keys(&self.pools.begin, params, deadline).await?) })
    }

    fn enqueue(&self, EnqueueParams { request, from }: EnqueueParams) -> StoreFuture<'_, EnqueueResult> {
        self.retry(InDoubt, request, move |request, in_doubt, deadline| {
            self.enqueue_once(request, from, in_doubt, deadline)
        })
    }

    // Not tried again: attempts whose answer was lost are released as orphans, and are due again.
    fn pick_up(&self, request: PickUpRequest) -> StoreFuture<'_, PickUpResult> {
        let deadline = self.deadline();
        Box::pin(async move { Ok(deliveries::pick_up(&self.pools.begin, &request, deadline).await?) })
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.retry(InDoubt, (), |_, _, deadline| upkeep::ping(&self.pools.lease, deadline))
    }

    // Not tried again: a probe counted twice would be a probe that nobody sends.
    fn claim_probes(&self, params: ClaimProbesParams) -> StoreFuture<'_, Vec<Probe>> {
        let deadline = self.deadline();
        Box::pin(async move { Ok(probes::claim_probes(&self.pools.upkeep, params, deadline).await?) })
    }

    fn apply_operator_decision(&self, params: ApplyOperatorDecisionParams) -> StoreFuture<'_, DecisionResults> {
        self.retry(InDoubt, params, |params, in_doubt, deadline| {
            admin::apply_operator_decision(&self.pools.upkeep, params, in_doubt, deadline)
        })
    }

    fn check_primaries(&self) -> Pin<Box<dyn Future<Output = PrimaryCheck> + Send + '_>> {
        Box::pin(self.server.check_primaries())
    }

    fn has_changed_primary(&self) -> bool {
        self.server.has_changed_primary()
    }

    fn relocate<'a>(&'a self, location: &'a StoreLocation) -> RelocateFuture<'a> {
        Box::pin(async move {
            match location {
                StoreLocation::Postgres(url) => self.server.relocate(url).await,
                StoreLocation::Memory | StoreLocation::Sqlite(_) => Err(RelocateError::NeedsRestart),
            }
        })
    }
}

impl Postgres {
    fn deadline(&self) -> Instant {
        Instant::now() + self.server.timeout()
    }

    /// Makes a call until its outcome is known, see [`retry_until_known`].
    fn retry<'a, P: Send + Sync + 'a, T: 'a, F: Future<Output = Result<T, PgFailure>> + Send + 'a>(
        &self,
        budget: RetryBudget,
        params: P,
        call_once: impl Fn(Arc<P>, bool, Instant) -> F + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(retry_until_known(self.deadline(), budget, params, call_once))
    }

    /// `in_doubt`: whether an earlier try of this very call may have written the row.
    async fn reserve_once(
        &self,
        reserve_request: Arc<ReserveRequest>,
        in_doubt: bool,
        deadline: Instant,
    ) -> Result<ReserveResult, PgFailure> {
        for _ in 0..ROUNDS_MAX {
            let call = ReserveCall { request: reserve_request.clone(), in_doubt };
            if self.reserve.call(call, deadline).await?? {
                return Ok(fresh(&reserve_request, 1, None));
            }
            let look = self.find.find(reserve_request.id, in_doubt, deadline).await;
            if let Some(found) = look.map_err(PgFailure::for_taken_key)? {
                return Ok(taken(&reserve_request, found.record, in_doubt));
            }
        }
        let cause = "the key's record was created and deleted again while the key was being reserved";
        Err(PgFailure::Refused(Arc::from(Box::from(cause))).for_taken_key())
    }

    async fn take_over_once(
        &self,
        reserve_request: Arc<ReserveRequest>,
        from: ExpectedRecord,
        in_doubt: bool,
        deadline: Instant,
    ) -> Result<ReserveResult, PgFailure> {
        let mut pauses = RetryPauses::new();
        loop {
            let call = TakeOverCall(reserve_request.clone(), from);
            if let Some((attempt, reached)) = unless_held(self.take_over.call(call, deadline).await)?.flatten() {
                return Ok(fresh(&reserve_request, attempt, reached));
            }
            match self.find.find(reserve_request.id, in_doubt, deadline).await? {
                // Only another transaction's lock can be in the way.
                Some(found) if may_be_taken(&found.record, from) => pauses.next().await,
                Some(found) => return Ok(taken(&reserve_request, found.record, in_doubt)),
                None => return self.reserve_once(reserve_request, in_doubt, deadline).await,
            }
        }
    }

    async fn enqueue_once(
        &self,
        order: Arc<EnqueueRequest>,
        from: Option<ExpectedRecord>,
        in_doubt: bool,
        deadline: Instant,
    ) -> Result<EnqueueResult, PgFailure> {
        let mut pauses = RetryPauses::new();
        for _ in 0..ROUNDS_MAX {
            if unless_held(self.enqueue.call(EnqueueCall(order.clone(), from), deadline).await)? == Some(true) {
                return Ok(EnqueueResult::Accepted);
            }
            let look = self.find.find(order.reserve_request.id, in_doubt, deadline).await;
            match (look.map_err(PgFailure::for_taken_key)?, from) {
                // Our own, from a try whose answer was lost.
                (Some(found), _) if in_doubt && found.record.token == order.reserve_request.token => {
                    return Ok(EnqueueResult::Accepted);
                }
                // Only another transaction's lock can be in the way.
                (Some(found), Some(from)) if may_be_taken(&found.record, from) => pauses.next().await,
                (Some(found), _) => return Ok(EnqueueResult::Taken(found.record)),
                (None, Some(_)) => return Box::pin(self.enqueue_once(order, None, in_doubt, deadline)).await,
                (None, None) => {}
            }
        }
        let cause = "the key's record was created and deleted again while the key was being accepted";
        Err(PgFailure::Refused(Arc::from(Box::from(cause))).for_taken_key())
    }

    async fn settle_once(
        &self,
        settlement: Arc<Settlement>,
        in_doubt: bool,
        deadline: Instant,
    ) -> Result<SettleResult, PgFailure> {
        let mut pauses = RetryPauses::new();
        let mut held = false;
        loop {
            let call = SettleCall { settlement: settlement.clone(), held, in_doubt };
            if let Some(expires_at) = unless_held(self.settle.call(call, deadline).await)?.flatten() {
                return Ok(SettleResult::Done { expires_at });
            }
            // Always as if in doubt: an earlier call's commit may be visible and not durable, and "settled" must last.
            let found = self.find_settled.find(settlement.id, true, deadline).await?;
            if settlement.is_lost_from(found.as_ref().map(|found| &found.record)) {
                let call = RestoreCall(settlement.clone());
                if let Some(expires_at) = unless_held(self.restore.call(call, deadline).await)?.flatten() {
                    tracing::warn!(record = %settlement.id, "the store has lost this attempt; its outcome is stored anew");
                    return Ok(SettleResult::Done { expires_at });
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
}

/// The answer to a call; `None` where another transaction has locked the row.
fn unless_held<T>(answer: Result<Result<T, CorruptRow>, PgFailure>) -> Result<Option<T>, PgFailure> {
    match answer {
        Ok(answer) => Ok(Some(answer?)),
        Err(PgFailure::Held(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn fresh(reserve_request: &Arc<ReserveRequest>, attempt: u32, recovery_point: Option<RecoveryPoint>) -> ReserveResult {
    ReserveResult::Fresh(AttemptLease {
        reserve_request: reserve_request.clone(),
        attempt,
        taken_from: None,
        recovery_point,
        delivery: None,
    })
}

/// The result for a key that has a record: somebody else's, or our own from a try whose answer was lost.
fn taken(reserve_request: &Arc<ReserveRequest>, record: Record, in_doubt: bool) -> ReserveResult {
    if in_doubt && record.token == reserve_request.token && matches!(record.state, KeyState::InFlight) {
        return fresh(reserve_request, record.attempt, record.recovery_point);
    }
    ReserveResult::Taken(record)
}

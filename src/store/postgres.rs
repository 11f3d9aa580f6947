//! The store in PostgreSQL (13 or newer, behind PgBouncer in transaction mode too): any number of proxies share it.
//!
//! Every method consists of single statements in READ COMMITTED. Each is committed by itself. No session that a
//! pooler shares holds any state of ours: statements are prepared only where none does, see `client`. Some statements are
//! batched, see `batcher`: a call puts its request into a queue, and a free connection takes all requests that wait there.
//! The steps of one call (insert, conflict, read) are written here as they happen to that one call.
//!
//! There is no `statement_timeout` for sessions: PgBouncer refuses it at connecting, and setting it later is session
//! state. Our own clock ends a call; `connect::PgConnection` describes what becomes of its statement, and `bounded` has
//! the statements that the server ends, too. Operators can set one for the role (`alter role … set statement_timeout`),
//! above the store's `timeout`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::row::{FoundRecord, millis};
use super::{
    AdminStore, COUNT_TIME_MAX, ExpectedRecord, LeaseRenewal, OpenError, PrimaryCheck, ReapScope, ReapedRows, Record,
    RecordId, RelocateError, RelocateFuture, RenewResult, ReserveRequest, ReserveResult, ReservedAttempt,
    RouteIdentity, SaltStore, ServiceReports, SettleResult, Store, StoreFuture, StoreLocation, StoreSettings, SweptKey,
};
use crate::config::PostgresUrl;
use crate::domain::attempt::{AttemptLease, Settlement};
use crate::domain::delivery::{EnqueueRequest, EnqueueResult, PickUpRequest, PickUpResult};
use crate::domain::ids::{InstanceId, Token};
use crate::domain::key_holder::KeyHolder;
use crate::domain::probe::{Probe, ProbeFinding, ProbeSchedule, SettledKeyPage};
use crate::domain::recovery::RecoveryPoint;
use crate::domain::scope::Scope;
use crate::domain::state::{KeyState, StateKind};
use batcher::Batcher;
use connect::PgPool;
use deliveries::EnqueueStatement;
use failure::PgFailure;
use lookups::Lookups;
use pools::PgPools;
use retry::{RetryBudget, RetryPauses, retry_until_known};
use service_reports::ReportBatchers;
use statements::{
    ExtendResult, ExtendStatement, ReserveStatement, RestoreStatement, SettleStatement, TakeOverStatement, may_be_taken,
};

pub(super) use schema::{migrate, newest_step, pending, prepare};
pub(super) use server::PgServer;

/// The text of a writing statement: its name, `sql/durable.sql`, and its own file. The name comes first, because
/// `pg_stat_activity` shows how a statement begins.
macro_rules! durable {
    ($name:literal) => {
        concat!("-- ", $name, "\n", include_str!("sql/durable.sql"), include_str!(concat!("sql/", $name, ".sql")))
    };
}

mod admin;
mod backend;
mod batcher;
mod bounded;
mod client;
mod connect;
mod deliveries;
mod failure;
mod hosts;
mod identity;
mod indexes;
mod look;
mod lookups;
mod pools;
mod primaries;
mod probes;
mod retry;
mod salts;
mod schema;
mod server;
mod service_reports;
mod session;
mod statements;
mod tls;
mod upkeep;

/// The statements of one kind that run at once. Two keep a server busy and leave one free for a request that arrives
/// alone; more would make each batch, and with it the gain, smaller.
const LANES: usize = 2;

/// The number of times that a key may vanish between the conflict and the read. A reaper would have to delete it each time.
const ROUNDS_MAX: usize = 3;

/// The store in PostgreSQL.
pub(super) struct Postgres {
    timeout: Duration,
    pub(super) server: PgServer,
    reserve: Batcher<ReserveStatement>,
    take_over: Batcher<TakeOverStatement>,
    find: Lookups,
    enqueue: Batcher<EnqueueStatement>,
    /// For statements that begin something and are not batched.
    begin: PgPool,
    /// Settlements have connections of their own, which no flood of reservations can take.
    settle: Batcher<SettleStatement>,
    /// The reads of a settlement, on the same connections.
    find_settled: Lookups,
    /// Lost rows that a settlement writes anew, on the same connections.
    restore: Batcher<RestoreStatement>,
    /// Running attempts whose deadline moves, on the same connections.
    extend: Batcher<ExtendStatement>,
    /// Services' reports, on the same connections.
    reports: ReportBatchers,
    lease: PgPool,
    sweep: PgPool,
    upkeep: PgPool,
    admin_reads: PgPool,
}

/// Makes the store without a connection to its server.
pub(super) async fn open_unprepared(url: &PostgresUrl, settings: &StoreSettings) -> Result<Postgres, OpenError> {
    let server = PgServer::open(url, settings.timeout).await?;
    let pools = PgPools::new(&server, settings.max_connections, settings.timeout)?;
    Ok(Postgres {
        timeout: settings.timeout,
        reserve: Batcher::open(&pools.begin, LANES),
        take_over: Batcher::open(&pools.begin, LANES),
        find: Lookups::open(&pools.begin, LANES, &pools.replay),
        enqueue: Batcher::open(&pools.begin, LANES),
        begin: pools.begin,
        settle: Batcher::open(&pools.settle, LANES),
        find_settled: Lookups::open(&pools.settle, 1, &pools.settle),
        restore: Batcher::open(&pools.settle, 1),
        extend: Batcher::open(&pools.settle, 1),
        reports: ReportBatchers::open(&pools.settle),
        lease: pools.lease,
        sweep: pools.sweep,
        upkeep: pools.upkeep,
        admin_reads: pools.admin_reads,
        server,
    })
}

impl Store for Postgres {
    fn reserve(&self, reserve_request: ReserveRequest) -> StoreFuture<'_, ReserveResult> {
        let reserve_request = Arc::new(reserve_request);
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |in_doubt| {
            self.reserve_once(reserve_request.clone(), in_doubt, deadline)
        }))
    }

    fn take_over(&self, reserve_request: ReserveRequest, from: ExpectedRecord) -> StoreFuture<'_, ReserveResult> {
        let reserve_request = Arc::new(reserve_request);
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |in_doubt| {
            let taking_over = self.take_over_once(reserve_request.clone(), from, in_doubt, deadline);
            async move { Ok(taking_over.await?.taken_over_from(from.replaced())) }
        }))
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettleResult> {
        let settlement = Arc::new(settlement);
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::Always, move |in_doubt| {
            self.settle_once(settlement.clone(), in_doubt, deadline)
        }))
    }

    fn find(&self, id: RecordId) -> StoreFuture<'_, Option<Record>> {
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |_| async move {
            Ok(self.find.find(id, false, deadline).await?.map(|found| found.record))
        }))
    }

    fn count_live_keys(&self, holder: KeyHolder, limit: u32) -> StoreFuture<'_, u32> {
        let deadline = Instant::now() + self.timeout.min(COUNT_TIME_MAX);
        Box::pin(async move { Ok(lookups::count_live_keys(&self.begin, holder, limit, deadline).await?) })
    }

    fn move_live_keys(&self, id: RecordId, scope: Scope, holder: KeyHolder) -> StoreFuture<'_, u32> {
        let deadline = Instant::now() + self.timeout.min(COUNT_TIME_MAX);
        Box::pin(async move { Ok(lookups::move_live_keys(&self.begin, id, scope, holder, deadline).await?) })
    }

    fn renew_lease(&self, renewal: LeaseRenewal) -> StoreFuture<'_, RenewResult> {
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::Always, move |_| {
            upkeep::renew_lease(&self.lease, renewal.clone(), deadline)
        }))
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

    fn release_lease(&self, instance: InstanceId) -> StoreFuture<'_, ()> {
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::Always, move |_| {
            upkeep::release_lease(&self.lease, instance, deadline)
        }))
    }

    fn sweep(&self, expiry: Duration, limit: u32, as_of: SystemTime) -> StoreFuture<'_, Vec<SweptKey>> {
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |_| {
            upkeep::sweep(&self.sweep, millis(expiry), limit, as_of, deadline)
        }))
    }

    fn list_in_flight(&self, instance: InstanceId, older_than: Duration) -> StoreFuture<'_, Vec<ReservedAttempt>> {
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |_| {
            upkeep::list_in_flight(&self.sweep, instance, millis(older_than), deadline)
        }))
    }

    fn extend_deadline(&self, id: RecordId, token: Token, time_limit: Duration) -> StoreFuture<'_, bool> {
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::Always, move |_| {
            self.extend_deadline_once(id, token, time_limit, deadline)
        }))
    }

    fn reap(&self, limit: u32, scope: ReapScope) -> StoreFuture<'_, ReapedRows> {
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |_| {
            upkeep::reap(&self.upkeep, limit, scope, deadline)
        }))
    }

    // Not tried again: a probe counted twice would be a probe that nobody sends.
    fn claim_probes(
        &self,
        service: &Arc<str>,
        schedules: Vec<ProbeSchedule>,
        limit: u32,
        as_of: SystemTime,
    ) -> StoreFuture<'_, Vec<Probe>> {
        let (service, deadline) = (Arc::clone(service), self.deadline());
        Box::pin(
            async move { Ok(probes::claim_probes(&self.upkeep, &service, &schedules, limit, as_of, deadline).await?) },
        )
    }

    fn apply_probe_finding(&self, finding: ProbeFinding) -> StoreFuture<'_, bool> {
        let (finding, deadline) = (Arc::new(finding), self.deadline());
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |_| {
            probes::resolve(&self.upkeep, Arc::clone(&finding), deadline)
        }))
    }

    fn list_settled_keys(
        &self,
        service: &Arc<str>,
        routes: Vec<Arc<str>>,
        since: Duration,
        after: Option<RecordId>,
        limit: u32,
    ) -> StoreFuture<'_, SettledKeyPage> {
        let (expected, deadline) = (Arc::new((Arc::clone(service), routes)), self.deadline());
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |_| {
            probes::list_settled_keys(&self.admin_reads, Arc::clone(&expected), millis(since), after, limit, deadline)
        }))
    }

    fn enqueue(&self, order: EnqueueRequest, from: Option<ExpectedRecord>) -> StoreFuture<'_, EnqueueResult> {
        let order = Arc::new(order);
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |in_doubt| {
            self.enqueue_once(order.clone(), from, in_doubt, deadline)
        }))
    }

    // Not tried again: attempts whose answer was lost are released as orphans, and are due again.
    fn pick_up(&self, order: PickUpRequest) -> StoreFuture<'_, PickUpResult> {
        let deadline = self.deadline();
        Box::pin(async move { Ok(deliveries::pick_up(&self.begin, &order, deadline).await?) })
    }

    fn give_up(&self, id: RecordId, token: Token, states: &'static [StateKind], note: String) -> StoreFuture<'_, bool> {
        let (note, deadline) = (Arc::<str>::from(note), self.deadline());
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |_| {
            let note = Arc::clone(&note);
            async move { deliveries::give_up(&self.upkeep, id, token, states, &note, deadline).await }
        }))
    }

    fn failed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |_| upkeep::ping(&self.lease, deadline)))
    }

    fn remember_route_identities(
        &self,
        service: Arc<str>,
        rules: Vec<RouteIdentity>,
    ) -> StoreFuture<'_, Vec<RouteIdentity>> {
        let deadline = self.deadline();
        let identities = Arc::new((service, rules));
        Box::pin(retry_until_known(deadline, RetryBudget::Always, move |_| {
            let identities = identities.clone();
            async move { upkeep::remember_route_identities(&self.upkeep, &identities.0, &identities.1, deadline).await }
        }))
    }

    fn salts(&self) -> &dyn SaltStore {
        self
    }

    fn service_reports(&self) -> &dyn ServiceReports {
        self
    }

    fn admin(&self) -> &dyn AdminStore {
        self
    }
}

impl Postgres {
    fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// `in_doubt`: whether an earlier try of this very call may have written the row.
    async fn reserve_once(
        &self,
        reserve_request: Arc<ReserveRequest>,
        in_doubt: bool,
        deadline: Instant,
    ) -> Result<ReserveResult, PgFailure> {
        for _ in 0..ROUNDS_MAX {
            if self.reserve.call(ReserveStatement(reserve_request.clone()), deadline).await? {
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
            if let Some((attempt, reached)) =
                self.take_over.call(TakeOverStatement(reserve_request.clone(), from), deadline).await??
            {
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
            let accepted = match from {
                Some(from) => deliveries::enqueue_over(&self.begin, &order, from, deadline).await?,
                None => self.enqueue.call(EnqueueStatement(order.clone()), deadline).await?,
            };
            if accepted {
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

    async fn extend_deadline_once(
        &self,
        id: RecordId,
        token: Token,
        time_limit: Duration,
        deadline: Instant,
    ) -> Result<bool, PgFailure> {
        let mut pauses = RetryPauses::new();
        loop {
            match self.extend.call(ExtendStatement { id, token, time_limit }, deadline).await? {
                ExtendResult::Extended => return Ok(true),
                ExtendResult::NotInFlight => return Ok(false),
                ExtendResult::Held => pauses.next().await,
            }
        }
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
            let request = SettleStatement { settlement: settlement.clone(), held };
            if let Some(expires_at) = self.settle.call(request, deadline).await?? {
                return Ok(SettleResult::Done { expires_at });
            }
            // Always as if in doubt: an earlier call's commit may be visible and not durable, and "settled" must last.
            let found = self.find_settled.find(settlement.id, true, deadline).await?;
            if settlement.is_lost_from(found.as_ref().map(|found| &found.record)) {
                if let Some(expires_at) = self.restore.call(RestoreStatement(settlement.clone()), deadline).await?? {
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

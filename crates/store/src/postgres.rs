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

use super::*; // The table of the calls names most of its types.
use crate::row::{FoundRecord, fresh};
use batcher::Batcher;
use connect::PgPool;
use failure::{PgFailure, PgResult};
use lookups::Lookups;
use oncegate_domain::delivery::EnqueueRequest;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::state::KeyState;
use oncegate_settings::PostgresUrl;
use pools::PgPools;
use requests::{EnqueueCall, ExtendCall, ReserveCall, RestoreCall, SettleCall, TakeOverCall, may_be_taken};
use retry::{RetryBudget, RetryPauses, retry_until_known};
use service_reports::{FindReservationStatement, ReportCall};

pub use distribution::Distribution;
pub(super) use schema::{distribution, migrate, newest_step, pending, prepare, remembered_route_identities, warnings};
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
mod events;
mod failure;
mod functions;
mod horizons;
mod hosts;
mod identity;
mod lookups;
mod open_schemas;
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
mod worker_connection;

/// The statements of one kind that run at once. Two keep a server busy and leave one free for a request that arrives
/// alone; more would make each batch, and with it the gain, smaller.
// See docs/decisions/0010-batch-without-a-timer.md.
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
    find_reservation: Batcher<FindReservationStatement>,
    report: Batcher<ReportCall>,
}

/// Makes the store without a connection to its server.
pub(super) async fn open_unprepared(url: &PostgresUrl, settings: &StoreSettings) -> Result<Postgres, OpenError> {
    let server = PgServer::open(url, settings.timeout).await?;
    let pools = PgPools::new(&server, settings.max_connections)?;
    let PgPools { begin, settle, replay, workers, .. } = &pools;
    Ok(Postgres {
        reserve: Batcher::open(begin, LANES).beside(workers),
        take_over: Batcher::open(begin, LANES),
        find: Lookups::open(begin, LANES, replay).beside(workers),
        enqueue: Batcher::open(begin, LANES),
        settle: Batcher::open(settle, LANES).beside(workers),
        find_settled: Lookups::open(settle, 1, settle),
        restore: Batcher::open(settle, 1),
        extend: Batcher::open(settle, 1),
        find_reservation: Batcher::open(settle, 1),
        report: Batcher::open(settle, 1),
        pools,
        server,
    })
}

/// One try of a call. Its methods, here and in the other files, are the store's calls.
#[derive(Clone, Copy)]
struct PgCall<'a> {
    store: &'a Postgres,
    /// The connections of calls that are not batched.
    pool: &'a PgPool,
    deadline: Instant,
    /// Whether an earlier try of this very call may have been executed.
    in_doubt: bool,
}

/// Defines the calls, as [`Postgres`] has them.
macro_rules! define_tries {
    ($($(#[$about:meta])* $name:ident($($params:ident: $Params:ty)?) -> $Answer:ty:
        $kind:ident $(($op:ident, $label:literal))?;)+) => {
        $(fn $name(&self $(, $params: $Params)?) -> StoreFuture<'_, $Answer> {
            tries!(self.$name($($params)?))
        })+
    };
}

/// Makes a call: tries of the method of [`PgCall`] of the same name.
macro_rules! tries {
    ($self:ident.take_over($params:ident)) => {{
        let TakeOverParams { request, from } = $params;
        $self.retry("take_over", request, move |call, request| call.take_over(request, from))
    }};
    ($self:ident.enqueue($params:ident)) => {{
        let EnqueueParams { request, from } = $params;
        $self.retry("enqueue", request, move |call, request| call.enqueue(request, from))
    }};
    ($self:ident.$name:ident($($params:ident)?)) => {
        $self.retry(stringify!($name), { $($params)? }, |call, params| call.$name(params))
    };
}

impl Backend for Postgres {
    calls!(define_tries);

    fn check_primaries(&self) -> BoxFuture<'_, PrimaryCheck> {
        Box::pin(self.server.check_primaries())
    }

    fn has_changed_primary(&self) -> bool {
        self.server.has_changed_primary()
    }

    fn relocate<'a>(&'a self, location: &'a StoreLocation) -> BoxFuture<'a, Result<(), RelocateError>> {
        Box::pin(async move {
            match location {
                StoreLocation::Postgres(url) => self.server.relocate(url).await,
                StoreLocation::Memory | StoreLocation::Sqlite(_) => Err(RelocateError::NeedsRestart),
            }
        })
    }
}

impl Postgres {
    /// The connections of a call that is not batched, and when a call is tried again.
    fn way(&self, name: &str) -> (&PgPool, RetryBudget) {
        use RetryBudget::{Always, InDoubt, Never};
        let PgPools { begin, lease, sweep, upkeep, admin_reads, .. } = &self.pools;
        match name {
            "renew_lease" | "release_lease" => (lease, Always),
            // The salt is read with the heartbeat, behind nothing else.
            "find_salt" | "ping" => (lease, InDoubt),
            // What was claimed in doubt is claimed again once its lease is over.
            "claim_events" => (upkeep, Never),
            "count_events" => (admin_reads, InDoubt),
            "discard_events" | "end_events" | "store_event_routes" | "requeue_events" => (upkeep, Always),
            "sweep" | "list_in_flight" => (sweep, InDoubt),
            "count_keys" | "list_audit_entries" | "list_instances" | "list_keys" | "list_settled_keys" => {
                (admin_reads, InDoubt)
            }
            "count_live_keys" | "move_live_keys" => (begin, Never),
            // Attempts whose answer was lost are released as orphans, and are due again.
            "pick_up" => (begin, Never),
            // A probe counted twice would be a probe that nobody sends.
            "claim_probes" => (upkeep, Never),
            "extend_deadline" | "remember_route_identities" | "settle" | "store_route_retention" => (upkeep, Always),
            // Of `replace_salt`, a second try after one that may have been executed stores nothing: the caller then finds the
            // salt of the first. A report is idempotent.
            "apply_deferred_reports"
            | "apply_operator_decision"
            | "apply_probe_finding"
            | "count_instances_behind"
            | "enqueue"
            | "find"
            | "find_reservation"
            | "find_route_identities"
            | "give_up"
            | "reap"
            | "record_report"
            | "replace_salt"
            | "reserve"
            | "take_over" => (upkeep, InDoubt),
            other => unreachable!("the call `{other}` has no pool and no rule for retries"),
        }
    }

    /// Makes a call until its outcome is known, see [`retry_until_known`].
    fn retry<'a, P: Send + Sync + 'a, T: 'a, F: Future<Output = PgResult<T>> + Send + 'a>(
        &'a self,
        name: &str,
        params: P,
        call_once: impl Fn(PgCall<'a>, Arc<P>) -> F + Send + 'a,
    ) -> StoreFuture<'a, T> {
        let (pool, budget) = self.way(name);
        let deadline = Instant::now() + time_limit(name, self.server.timeout());
        Box::pin(retry_until_known(PgCall { store: self, pool, deadline, in_doubt: false }, budget, params, call_once))
    }
}

impl PgCall<'_> {
    async fn reserve(self, request: Arc<ReserveRequest>) -> PgResult<ReserveResult> {
        for _ in 0..ROUNDS_MAX {
            let call = ReserveCall { request: request.clone(), in_doubt: self.in_doubt };
            if self.store.reserve.call(call, self.deadline).await?? {
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

    async fn take_over(self, request: Arc<ReserveRequest>, from: ExpectedRecord) -> PgResult<ReserveResult> {
        let mut pauses = RetryPauses::new();
        let result = loop {
            let call = TakeOverCall(request.clone(), from);
            let started = unless_held(self.store.take_over.call(call, self.deadline).await)?.flatten();
            if let Some((attempt, reached)) = started {
                break fresh(request, attempt, reached);
            }
            match self.store.find.find(request.id, self.in_doubt, self.deadline).await? {
                // Only another transaction's lock can be in the way.
                Some(found) if may_be_taken(&found.record, from) => pauses.next().await,
                Some(found) => break self.taken(&request, found.record),
                None => break self.reserve(request).await?,
            }
        };
        Ok(result.taken_over_from((&from).into()))
    }

    async fn enqueue(self, order: Arc<EnqueueRequest>, from: Option<ExpectedRecord>) -> PgResult<EnqueueResult> {
        let Self { store, deadline, in_doubt, .. } = self;
        let mut pauses = RetryPauses::new();
        for _ in 0..ROUNDS_MAX {
            if unless_held(store.enqueue.call(EnqueueCall(order.clone(), from), deadline).await)? == Some(true) {
                return Ok(EnqueueResult::Accepted);
            }
            let look = store.find.find(order.reserve_request.id, in_doubt, deadline).await;
            match (look.map_err(PgFailure::for_taken_key)?, from) {
                // Our own, from a try whose answer was lost.
                (Some(found), _) if in_doubt && found.record.token == order.reserve_request.token => {
                    return Ok(EnqueueResult::Accepted);
                }
                // Only another transaction's lock can be in the way.
                (Some(found), Some(from)) if may_be_taken(&found.record, from) => pauses.next().await,
                (Some(found), _) => return Ok(EnqueueResult::Taken(found.record)),
                (None, Some(_)) => return Box::pin(self.enqueue(order, None)).await,
                (None, None) => {}
            }
        }
        let cause = "the key's record was created and deleted again while the key was being accepted";
        Err(PgFailure::refused(cause).for_taken_key())
    }

    async fn settle(self, settlement: Arc<Settlement>) -> PgResult<SettleResult> {
        let Self { store, deadline, in_doubt, .. } = self;
        let mut pauses = RetryPauses::new();
        let mut held = false;
        loop {
            let call = SettleCall { settlement: settlement.clone(), held, in_doubt };
            if let Some(expires_at) = unless_held(store.settle.call(call, deadline).await)?.flatten() {
                return Ok(SettleResult::Done { expires_at });
            }
            // Always as if in doubt: an earlier call's commit may be visible and not durable, and "settled" must last.
            let found = store.find_settled.find(settlement.id, true, deadline).await?;
            if settlement.is_lost_from(found.as_ref().map(|found| &found.record)) {
                let call = RestoreCall(settlement.clone());
                if let Some(expires_at) = unless_held(store.restore.call(call, deadline).await)?.flatten() {
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

    async fn find(self, id: Arc<RecordId>) -> PgResult<Option<Record>> {
        Ok(self.store.find.find(*id, false, self.deadline).await?.map(|found| found.record))
    }

    async fn extend_deadline(self, params: Arc<ExtendDeadlineParams>) -> PgResult<bool> {
        let mut pauses = RetryPauses::new();
        loop {
            match unless_held(self.store.extend.call(ExtendCall(Arc::clone(&params)), self.deadline).await)? {
                Some(is_in_flight) => return Ok(is_in_flight),
                None => pauses.next().await,
            }
        }
    }

    /// The result for a key that has a record: somebody else's, or our own from a try whose answer was lost.
    fn taken(self, request: &Arc<ReserveRequest>, record: Record) -> ReserveResult {
        if self.in_doubt && record.token == request.token && matches!(record.state, KeyState::InFlight) {
            return fresh(request.clone(), record.attempt, record.recovery_point);
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

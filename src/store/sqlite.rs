//! The embedded store: one SQLite file, one process, one thread that writes.
//!
//! Each method is a job for that thread. The thread executes all waiting jobs in one transaction, and answers only
//! after the COMMIT has returned: with the write-ahead log and `synchronous = FULL` that is one fsync for all of them.
//! Reads are jobs too, so that no caller sees a write that a failing COMMIT then rolls back.
//!
//! Time is read once for each transaction.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::admin::{AuditEntry, DecisionResults, InstanceEntry, KeyCounts, KeyPage};
use super::batch::BatchCallError;
use super::row::{body_bytes, verdict_bytes};
use super::{
    ApplyOperatorDecisionParams, Backend, COUNT_TIME_MAX, ClaimProbesParams, CountInstancesBehindParams,
    CountLiveKeysParams, EnqueueParams, ExtendDeadlineParams, FindReservationParams, GiveUpParams, LeaseRenewal,
    ListAuditEntriesParams, ListInFlightParams, ListInstancesParams, ListKeysParams, ListSettledKeysParams,
    MoveLiveKeysParams, OpenError, ReapParams, ReapedRows, Record, RecordId, RememberRouteIdentitiesParams,
    RenewResult, ReplaceSaltParams, ReserveRequest, ReserveResult, ReservedAttempt, RouteIdentity, SettleResult,
    StoreError, StoreFuture, StoreRouteRetentionParams, StoreSettings, SweepParams, SweptKey, TakeOverParams,
};
use crate::domain::attempt::Settlement;
use crate::domain::delivery::{EnqueueResult, PickUpRequest, PickUpResult};
use crate::domain::ids::InstanceId;
use crate::domain::probe::{Probe, ProbeFinding, SettledKeyPage};
use crate::domain::service_report::{ReportResult, ReservedKey, ServiceReport};
use writer::{SqliteFailure, WriterInbox};

pub(super) use file::{migrate, pending};
pub(super) use schema::newest_step;

mod admin;
mod audit;
mod deliveries;
mod file;
mod file_watch;
mod open_error;
mod probes;
mod run;
mod salts;
mod schema;
mod service_reports;
mod statements;
mod writer;

/// The clock, in milliseconds since 1970. A test can open the store with its own.
pub type Clock = fn() -> i64;

/// The embedded store.
pub(super) struct Sqlite {
    timeout: Duration,
    executor: Executor,
    /// Cancelled after an error that ends the store.
    failed: CancellationToken,
    /// The attempts that opening the file made unknown, until the first sweep returns them.
    interrupted: Mutex<Vec<SweptKey>>,
}

/// More than there are statements.
const STATEMENTS_MAX: usize = 64;

/// The executor of the jobs.
enum Executor {
    /// A thread of its own.
    Writer { inbox: WriterInbox, thread: Option<JoinHandle<()>> },
    /// The calling thread, so that a simulation has no other.
    Caller { database: InlineDatabase, clock: Clock },
}

/// The database in memory of an inline store, see [`open_inline`].
#[derive(Clone)]
pub struct InlineDatabase(Arc<Mutex<Connection>>);

impl InlineDatabase {
    /// Uses the connection between two calls of the store. An open savepoint undoes the calls after it when it is rolled back.
    pub fn with_connection<T>(&self, work: impl FnOnce(&Connection) -> T) -> T {
        work(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Opens a database in memory whose calls are executed on the calling thread, when they are first polled, by this clock: for
/// simulations. Several instances may share it, as they share PostgreSQL.
///
/// # Errors
/// [`OpenError`].
pub fn open_inline(timeout: Duration, clock: Clock) -> Result<(Arc<dyn Backend>, InlineDatabase), OpenError> {
    let mut db = file::memory()?.db;
    schema::prepare(&mut db, None, true)?;
    // A simulation executes few statements of each kind, and need not plan each anew for its values.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .map_err(|source| OpenError::Missing(Box::new(source)))?;
    db.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    let database = InlineDatabase(Arc::new(Mutex::new(db)));
    let executor = Executor::Caller { database: database.clone(), clock };
    let (failed, interrupted) = (CancellationToken::new(), Mutex::default());
    Ok((Arc::new(Sqlite { timeout, executor, failed, interrupted }), database))
}

/// Opens the file, or a database in memory where there is no path.
pub(super) async fn open(path: Option<&Path>, settings: &StoreSettings) -> Result<Sqlite, OpenError> {
    open_with(path, settings, system_clock).await
}

async fn open_with(path: Option<&Path>, settings: &StoreSettings, clock: Clock) -> Result<Sqlite, OpenError> {
    let (path, migrate) = (path.map(Path::to_owned), settings.migrate);
    let (database, interrupted) = run_blocking(move || {
        let mut database = match &path {
            Some(path) => file::open(path)?,
            None => file::memory()?,
        };
        schema::prepare(&mut database.db, path.as_deref(), migrate)?;
        let interrupted = statements::mark_interrupted_unknown(&database.db, clock())
            .map_err(|failure| OpenError::Missing(Box::new(StoreError::from(failure))))?;
        Ok((database, interrupted.into_iter().map(log_interrupted).collect()))
    })
    .await?;
    let failed = CancellationToken::new();
    let started = writer::start(database, clock, failed.clone());
    let (inbox, thread) = started.map_err(|source| OpenError::Missing(Box::new(source)))?;
    let executor = Executor::Writer { inbox, thread: Some(thread) };
    Ok(Sqlite { timeout: settings.timeout, executor, failed, interrupted: Mutex::new(interrupted) })
}

/// Runs work that blocks on files outside of the threads that serve requests.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|stopped| Err(OpenError::Missing(Box::new(stopped))))
}

/// Logs it at once: a process that ends soon does not come to its first sweep.
fn log_interrupted(key: SweptKey) -> SweptKey {
    tracing::warn!(record = %key.id, route = key.route, attempt = key.attempt,
        "an attempt was interrupted when this store was last in use; its outcome is unknown");
    SweptKey { is_logged: true, ..key }
}

fn system_clock() -> i64 {
    // Before 1970 there was no SQLite, and after 292 million years there is none.
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX)
}

/// Defines calls that are one job each: a function of the database, the time and the parameters.
macro_rules! jobs {
    ($($name:ident($Params:ty) -> $Answer:ty: $urgency:ident, $($job:ident)::+;)+) => {
        $(fn $name(&self, params: $Params) -> StoreFuture<'_, $Answer> {
            self.call(Urgency::$urgency, 0, move |db, now| $($job)::+(db, now, &params))
        })+
    };
}

impl Backend for Sqlite {
    jobs! {
        extend_deadline(ExtendDeadlineParams) -> bool: First, statements::extend_deadline;
        pick_up(PickUpRequest) -> PickUpResult: Ordinary, deliveries::pick_up;
        give_up(GiveUpParams) -> bool: Ordinary, deliveries::give_up;
        renew_lease(LeaseRenewal) -> RenewResult: First, statements::renew_lease;
        release_lease(InstanceId) -> (): First, statements::release_lease;
        list_in_flight(ListInFlightParams) -> Vec<ReservedAttempt>: Ordinary, statements::list_in_flight;
        reap(ReapParams) -> ReapedRows: Ordinary, statements::reap;
        claim_probes(ClaimProbesParams) -> Vec<Probe>: Ordinary, probes::claim_probes;
        list_settled_keys(ListSettledKeysParams) -> SettledKeyPage: Ordinary, probes::list_settled_keys;
        remember_route_identities(RememberRouteIdentitiesParams) -> Vec<RouteIdentity>:
            Ordinary, statements::remember_route_identities;
        // Each heartbeat waits for it.
        find_salt(Arc<str>) -> Option<Vec<u8>>: First, salts::find_salt;
        replace_salt(ReplaceSaltParams) -> bool: Ordinary, salts::replace_salt;
        find_reservation(FindReservationParams) -> Option<ReservedKey>: Ordinary, service_reports::find_reservation;
        record_report(ServiceReport) -> ReportResult: Ordinary, service_reports::record_report;
        apply_deferred_reports(u32) -> Vec<RecordId>: Ordinary, service_reports::apply_deferred_reports;
        list_keys(ListKeysParams) -> KeyPage: Ordinary, admin::list_keys;
        apply_operator_decision(ApplyOperatorDecisionParams) -> DecisionResults:
            Ordinary, admin::apply_operator_decision;
        list_audit_entries(ListAuditEntriesParams) -> Vec<AuditEntry>: Ordinary, admin::list_audit_entries;
        count_keys(Arc<str>) -> KeyCounts: Ordinary, admin::count_keys;
        count_instances_behind(CountInstancesBehindParams) -> u64: Ordinary, admin::count_instances_behind;
        list_instances(ListInstancesParams) -> Vec<InstanceEntry>: Ordinary, admin::list_instances;
    }

    fn reserve(&self, request: ReserveRequest) -> StoreFuture<'_, ReserveResult> {
        let request = Arc::new(request);
        self.call(Urgency::Ordinary, 0, move |db, now| statements::reserve(db, now, &request))
    }

    fn take_over(&self, TakeOverParams { request, from }: TakeOverParams) -> StoreFuture<'_, ReserveResult> {
        let request = Arc::new(request);
        self.call(Urgency::Ordinary, 0, move |db, now| statements::take_over(db, now, &request, from))
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettleResult> {
        let bytes = body_bytes(&settlement.outcome);
        self.call(Urgency::First, bytes, move |db, now| statements::settle(db, now, &settlement))
    }

    fn find(&self, id: RecordId) -> StoreFuture<'_, Option<Record>> {
        self.call(Urgency::Ordinary, 0, move |db, now| Ok(statements::find(db, now, id)?.map(|found| found.record)))
    }

    fn count_live_keys(&self, params: CountLiveKeysParams) -> StoreFuture<'_, u32> {
        let counting = self.call(Urgency::Ordinary, 0, move |db, _| statements::count_live_keys(db, &params));
        Box::pin(async move { timeout(COUNT_TIME_MAX, counting).await.unwrap_or(Err(StoreError::TimedOut)) })
    }

    fn move_live_keys(&self, params: MoveLiveKeysParams) -> StoreFuture<'_, u32> {
        let moving = self.call(Urgency::Ordinary, 0, move |db, _| statements::move_live_keys(db, &params));
        Box::pin(async move { timeout(COUNT_TIME_MAX, moving).await.unwrap_or(Err(StoreError::TimedOut)) })
    }

    fn enqueue(&self, params: EnqueueParams) -> StoreFuture<'_, EnqueueResult> {
        let bytes = params.request.sealed.bytes.len();
        self.call(Urgency::Ordinary, bytes, move |db, now| deliveries::enqueue(db, now, &params))
    }

    fn sweep(&self, params: SweepParams) -> StoreFuture<'_, Vec<SweptKey>> {
        let swept = self.call(Urgency::Ordinary, 0, move |db, now| statements::sweep(db, now, &params));
        Box::pin(async move {
            let mut swept = swept.await?;
            swept.append(&mut self.interrupted.lock().unwrap_or_else(PoisonError::into_inner));
            Ok(swept)
        })
    }

    // An answer proves that the writer neither hangs nor has failed; the heartbeat tests writing often enough.
    fn ping(&self) -> StoreFuture<'_, ()> {
        self.call(Urgency::Ordinary, 0, |_, _| Ok(()))
    }

    fn apply_probe_finding(&self, finding: ProbeFinding) -> StoreFuture<'_, bool> {
        let bytes = verdict_bytes(&finding.verdict);
        self.call(Urgency::Ordinary, bytes, move |db, now| probes::apply_probe_finding(db, now, &finding))
    }

    // Nobody but the proxy writes to this file.
    fn store_route_retention(&self, _: StoreRouteRetentionParams) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn failed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.failed.cancelled())
    }
}

/// Whether a job goes before ordinary ones, as jobs do that end an attempt or keep a lease.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Urgency {
    First,
    Ordinary,
}

impl Sqlite {
    /// `bytes` are those of a body: what a transaction writes is bounded.
    fn call<T: Send + 'static>(
        &self,
        urgency: Urgency,
        bytes: usize,
        work: impl FnOnce(&Connection, i64) -> Result<T, SqliteFailure> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let deadline = Instant::now() + self.timeout;
        Box::pin(async move {
            let inbox = match &self.executor {
                Executor::Writer { inbox, .. } => inbox,
                Executor::Caller { database, clock } => {
                    // No transaction: the owner of the database may have a savepoint open.
                    let done = database.with_connection(|db| run::in_savepoint(db, |db| work(db, clock())));
                    return done.map_err(StoreError::from);
                }
            };
            inbox.call(urgency, bytes, work, deadline).await.unwrap_or_else(|none| {
                Err(match none {
                    BatchCallError::Closed | BatchCallError::Dropped => {
                        StoreError::Unavailable("the store's writer has stopped".into())
                    }
                    BatchCallError::TimedOut => StoreError::TimedOut,
                })
            })
        })
    }
}

/// Waits for the writer to finish its jobs: only then can somebody else open the file.
impl Drop for Sqlite {
    fn drop(&mut self) {
        let Executor::Writer { inbox, thread } = &mut self.executor else { return };
        inbox.close();
        if let Some(thread) = thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::domain::attempt::Settlement;
    use crate::domain::attempt::tests::reserve_request;
    use crate::store::StoreLocation;

    static NOW: AtomicI64 = AtomicI64::new(1_000_000);

    fn renewal(instance: InstanceId, expiry: Duration) -> LeaseRenewal {
        LeaseRenewal { instance, service: "shop".into(), expiry, purges_seen: None, hold_ttls_until: None }
    }

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn in_memory() -> StoreSettings {
        StoreSettings {
            location: StoreLocation::Memory,
            max_connections: 0,
            timeout: TIMEOUT,
            migrate: true,
            distribute: false,
            encryption: Default::default(),
        }
    }

    #[tokio::test]
    async fn a_lease_that_was_renewed_before_the_clock_was_set_back_does_not_outlive_the_next_ones() {
        static SET_BACK: AtomicI64 = AtomicI64::new(10_000_000);
        let second = Duration::from_millis(1000);
        let store = open_with(None, &in_memory(), || SET_BACK.load(Ordering::SeqCst)).await.unwrap();
        let now = || UNIX_EPOCH + Duration::from_millis(SET_BACK.load(Ordering::SeqCst) as u64);
        let reserve_request = ReserveRequest { time_limit: TIMEOUT, ..reserve_request() };
        store.renew_lease(renewal(reserve_request.instance, second)).await.unwrap();
        store.reserve(reserve_request.clone()).await.unwrap();
        SET_BACK.fetch_sub(3_600_000, Ordering::SeqCst);
        let before = now() + Duration::from_secs(3_600);
        assert_eq!(
            store.sweep(SweepParams { expiry: second, limit: 10, as_of: before }).await.unwrap(),
            [],
            "a caller that has not seen it judges nothing by it"
        );
        store.renew_lease(renewal(reserve_request.instance, second)).await.unwrap();
        assert_eq!(
            store.sweep(SweepParams { expiry: second, limit: 10, as_of: now() }).await.unwrap(),
            [],
            "its instance lives"
        );
        store.renew_lease(renewal(reserve_request.instance, second)).await.unwrap();
        SET_BACK.fetch_sub(1_001, Ordering::SeqCst);
        assert_eq!(
            store.sweep(SweepParams { expiry: second, limit: 10, as_of: now() }).await.unwrap().len(),
            1,
            "it has not renewed its lease since"
        );
    }

    #[tokio::test]
    async fn an_attempt_from_before_the_clock_was_set_back_is_listed_whatever_its_age() {
        static SET_BACK: AtomicI64 = AtomicI64::new(10_000_000);
        let store = open_with(None, &in_memory(), || SET_BACK.load(Ordering::SeqCst)).await.unwrap();
        let reserve_request = reserve_request();
        store.reserve(reserve_request.clone()).await.unwrap();
        let count = async || {
            let params = ListInFlightParams { instance: reserve_request.instance, older_than: Duration::from_secs(1) };
            store.list_in_flight(params).await.unwrap().len()
        };
        assert_eq!(count().await, 0);
        SET_BACK.fetch_sub(1, Ordering::SeqCst);
        assert_eq!(count().await, 1);
    }

    #[tokio::test]
    async fn the_stores_clock_decides_to_the_millisecond() {
        let second = Duration::from_millis(1000);
        let store = open_with(None, &in_memory(), || NOW.load(Ordering::SeqCst)).await.unwrap();
        let later = |ms: i64| NOW.fetch_add(ms, Ordering::SeqCst);
        let later_than_all = SystemTime::now();
        let all = crate::store::ReapScope { as_of: later_than_all, settled_since: UNIX_EPOCH };
        let reserve_request = reserve_request();
        store.renew_lease(renewal(reserve_request.instance, second * 2)).await.unwrap();
        store.reserve(reserve_request.clone()).await.unwrap();
        later(200);
        let record = store.find(reserve_request.id).await.unwrap().unwrap();
        assert_eq!((record.running_for.as_millis(), record.deadline_in_ms), (200, 300));

        // Past its deadline by less than a second; then by a second.
        later(1299);
        assert_eq!(store.sweep(SweepParams { expiry: second, limit: 10, as_of: later_than_all }).await.unwrap(), []);
        later(1);
        assert_eq!(
            store.sweep(SweepParams { expiry: second, limit: 10, as_of: later_than_all }).await.unwrap().len(),
            1
        );

        store.settle(Settlement::for_orphan(reserve_request.id, reserve_request.token, second)).await.unwrap();
        later(999);
        assert!(!store.find(reserve_request.id).await.unwrap().unwrap().past_ttl);
        assert_eq!(store.reap(ReapParams { limit: 10, scope: all }).await.unwrap().deleted, 0);
        later(1);
        assert!(store.find(reserve_request.id).await.unwrap().unwrap().past_ttl);
        assert_eq!(store.reap(ReapParams { limit: 10, scope: all }).await.unwrap().deleted, 1);

        // The lease expires to the millisecond, too.
        store.renew_lease(renewal(reserve_request.instance, second)).await.unwrap();
        let untroubled = ReserveRequest { time_limit: Duration::from_secs(60), ..reserve_request };
        store.reserve(untroubled).await.unwrap();
        later(999);
        assert_eq!(store.sweep(SweepParams { expiry: second, limit: 10, as_of: later_than_all }).await.unwrap(), []);
        later(1);
        assert_eq!(
            store.sweep(SweepParams { expiry: second, limit: 10, as_of: later_than_all }).await.unwrap().len(),
            1
        );
    }
}

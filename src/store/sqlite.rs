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

use super::batch::BatchCallError;
use super::row::{body_bytes, millis, verdict_bytes};
use super::{
    AdminStore, COUNT_TIME_MAX, ExpectedRecord, LeaseRenewal, OpenError, PrimaryCheck, ReapScope, ReapedRows, Record,
    RecordId, RenewResult, ReserveRequest, ReserveResult, ReservedAttempt, RouteIdentity, SaltStore, ServiceReports,
    SettleResult, Store, StoreError, StoreFuture, StoreSettings, SweptKey,
};
use crate::domain::attempt::Settlement;
use crate::domain::delivery::{EnqueueRequest, EnqueueResult, PickUpRequest, PickUpResult};
use crate::domain::ids::{InstanceId, Token};
use crate::domain::key_holder::KeyHolder;
use crate::domain::probe::{Probe, ProbeFinding, ProbeSchedule, SettledKeyPage};
use crate::domain::scope::Scope;
use crate::domain::state::StateKind;
use writer::{SqliteFailure, WriterInbox};

pub(super) use file::{migrate, pending};
pub(super) use schema::newest_step;

mod admin;
mod deliveries;
mod file;
mod file_watch;
mod open_error;
mod probes;
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
pub fn open_inline(timeout: Duration, clock: Clock) -> Result<(Arc<dyn Store>, InlineDatabase), OpenError> {
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

impl Store for Sqlite {
    fn reserve(&self, reserve_request: ReserveRequest) -> StoreFuture<'_, ReserveResult> {
        let reserve_request = Arc::new(reserve_request);
        self.call(Urgency::Ordinary, 0, move |db, now| statements::reserve(db, now, &reserve_request))
    }

    fn take_over(&self, reserve_request: ReserveRequest, from: ExpectedRecord) -> StoreFuture<'_, ReserveResult> {
        let reserve_request = Arc::new(reserve_request);
        self.call(Urgency::Ordinary, 0, move |db, now| statements::take_over(db, now, &reserve_request, from))
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettleResult> {
        let bytes = body_bytes(&settlement.outcome);
        self.call(Urgency::First, bytes, move |db, now| statements::settle(db, now, &settlement))
    }

    fn find(&self, id: RecordId) -> StoreFuture<'_, Option<Record>> {
        self.call(Urgency::Ordinary, 0, move |db, now| Ok(statements::find(db, now, id)?.map(|found| found.record)))
    }

    fn count_live_keys(&self, holder: KeyHolder, limit: u32) -> StoreFuture<'_, u32> {
        let counting = self.call(Urgency::Ordinary, 0, move |db, _| statements::count_live_keys(db, holder, limit));
        Box::pin(async move { timeout(COUNT_TIME_MAX, counting).await.unwrap_or(Err(StoreError::TimedOut)) })
    }

    fn move_live_keys(&self, id: RecordId, scope: Scope, holder: KeyHolder) -> StoreFuture<'_, u32> {
        let moving = self.call(Urgency::Ordinary, 0, move |db, _| statements::move_live_keys(db, id, &scope, holder));
        Box::pin(async move { timeout(COUNT_TIME_MAX, moving).await.unwrap_or(Err(StoreError::TimedOut)) })
    }

    fn renew_lease(&self, renewal: LeaseRenewal) -> StoreFuture<'_, RenewResult> {
        self.call(Urgency::First, 0, move |db, now| statements::renew_lease(db, now, &renewal))
    }

    fn check_primaries(&self) -> Pin<Box<dyn Future<Output = PrimaryCheck> + Send + '_>> {
        Box::pin(std::future::ready(PrimaryCheck::default()))
    }

    fn has_changed_primary(&self) -> bool {
        false
    }

    fn release_lease(&self, instance: InstanceId) -> StoreFuture<'_, ()> {
        self.call(Urgency::First, 0, move |db, _| statements::release_lease(db, instance))
    }

    fn sweep(&self, expiry: Duration, limit: u32, as_of: SystemTime) -> StoreFuture<'_, Vec<SweptKey>> {
        let swept =
            self.call(Urgency::Ordinary, 0, move |db, now| statements::sweep(db, now, millis(expiry), limit, as_of));
        Box::pin(async move {
            let mut swept = swept.await?;
            swept.append(&mut self.interrupted.lock().unwrap_or_else(PoisonError::into_inner));
            Ok(swept)
        })
    }

    fn list_in_flight(&self, instance: InstanceId, older_than: Duration) -> StoreFuture<'_, Vec<ReservedAttempt>> {
        self.call(Urgency::Ordinary, 0, move |db, now| {
            statements::list_in_flight(db, now, instance, millis(older_than))
        })
    }

    fn extend_deadline(&self, id: RecordId, token: Token, time_limit: Duration) -> StoreFuture<'_, bool> {
        self.call(Urgency::First, 0, move |db, now| statements::extend_deadline(db, now, id, token, millis(time_limit)))
    }

    fn reap(&self, limit: u32, scope: ReapScope) -> StoreFuture<'_, ReapedRows> {
        self.call(Urgency::Ordinary, 0, move |db, now| statements::reap(db, now, limit, scope))
    }

    fn claim_probes(
        &self,
        service: &Arc<str>,
        schedules: Vec<ProbeSchedule>,
        limit: u32,
        as_of: SystemTime,
    ) -> StoreFuture<'_, Vec<Probe>> {
        let service = Arc::clone(service);
        self.call(Urgency::Ordinary, 0, move |db, now| {
            probes::claim_probes(db, now, &service, &schedules, limit, as_of)
        })
    }

    fn apply_probe_finding(&self, finding: ProbeFinding) -> StoreFuture<'_, bool> {
        let bytes = verdict_bytes(&finding.verdict);
        self.call(Urgency::Ordinary, bytes, move |db, now| probes::resolve(db, now, &finding))
    }

    fn list_settled_keys(
        &self,
        service: &Arc<str>,
        routes: Vec<Arc<str>>,
        since: Duration,
        after: Option<RecordId>,
        limit: u32,
    ) -> StoreFuture<'_, SettledKeyPage> {
        let service = Arc::clone(service);
        self.call(Urgency::Ordinary, 0, move |db, now| {
            probes::list_settled_keys(db, now, &service, &routes, millis(since), after, limit)
        })
    }

    fn enqueue(&self, order: EnqueueRequest, from: Option<ExpectedRecord>) -> StoreFuture<'_, EnqueueResult> {
        let bytes = order.sealed.bytes.len();
        self.call(Urgency::Ordinary, bytes, move |db, now| deliveries::enqueue(db, now, &order, from))
    }

    fn pick_up(&self, order: PickUpRequest) -> StoreFuture<'_, PickUpResult> {
        self.call(Urgency::Ordinary, 0, move |db, now| deliveries::pick_up(db, now, &order))
    }

    fn give_up(&self, id: RecordId, token: Token, states: &'static [StateKind], note: String) -> StoreFuture<'_, bool> {
        self.call(Urgency::Ordinary, 0, move |db, now| deliveries::give_up(db, now, id, token, states, &note))
    }

    fn failed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.failed.cancelled())
    }

    // An answer proves that the writer neither hangs nor has failed; the heartbeat tests writing often enough.
    fn ping(&self) -> StoreFuture<'_, ()> {
        self.call(Urgency::Ordinary, 0, |_, _| Ok(()))
    }

    fn remember_route_identities(
        &self,
        service: Arc<str>,
        rules: Vec<RouteIdentity>,
    ) -> StoreFuture<'_, Vec<RouteIdentity>> {
        self.call(Urgency::Ordinary, 0, move |db, _| statements::remember_route_identities(db, &service, &rules))
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

/// Whether a job goes before ordinary ones, as jobs do that end an attempt or keep a lease.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Urgency {
    First,
    Ordinary,
}

impl Sqlite {
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
                    let done = database.with_connection(|db| statements::in_savepoint(db, |db| work(db, clock())));
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

    #[tokio::test]
    async fn a_lease_that_was_renewed_before_the_clock_was_set_back_does_not_outlive_the_next_ones() {
        static SET_BACK: AtomicI64 = AtomicI64::new(10_000_000);
        let (timeout, second) = (Duration::from_secs(10), Duration::from_millis(1000));
        let settings = StoreSettings { location: StoreLocation::Memory, max_connections: 0, timeout, migrate: true };
        let store = open_with(None, &settings, || SET_BACK.load(Ordering::SeqCst)).await.unwrap();
        let now = || UNIX_EPOCH + Duration::from_millis(SET_BACK.load(Ordering::SeqCst) as u64);
        let reserve_request = ReserveRequest { time_limit: timeout, ..reserve_request() };
        store.renew_lease(renewal(reserve_request.instance, second)).await.unwrap();
        store.reserve(reserve_request.clone()).await.unwrap();
        SET_BACK.fetch_sub(3_600_000, Ordering::SeqCst);
        let before = now() + Duration::from_secs(3_600);
        assert_eq!(
            store.sweep(second, 10, before).await.unwrap(),
            [],
            "a caller that has not seen it judges nothing by it"
        );
        store.renew_lease(renewal(reserve_request.instance, second)).await.unwrap();
        assert_eq!(store.sweep(second, 10, now()).await.unwrap(), [], "its instance lives");
        store.renew_lease(renewal(reserve_request.instance, second)).await.unwrap();
        SET_BACK.fetch_sub(1_001, Ordering::SeqCst);
        assert_eq!(store.sweep(second, 10, now()).await.unwrap().len(), 1, "it has not renewed its lease since");
    }

    #[tokio::test]
    async fn an_attempt_from_before_the_clock_was_set_back_is_listed_whatever_its_age() {
        static SET_BACK: AtomicI64 = AtomicI64::new(10_000_000);
        let settings = StoreSettings {
            location: StoreLocation::Memory,
            max_connections: 0,
            timeout: Duration::from_secs(10),
            migrate: true,
        };
        let store = open_with(None, &settings, || SET_BACK.load(Ordering::SeqCst)).await.unwrap();
        let reserve_request = reserve_request();
        store.reserve(reserve_request.clone()).await.unwrap();
        let count =
            async || store.list_in_flight(reserve_request.instance, Duration::from_secs(1)).await.unwrap().len();
        assert_eq!(count().await, 0);
        SET_BACK.fetch_sub(1, Ordering::SeqCst);
        assert_eq!(count().await, 1);
    }

    #[tokio::test]
    async fn the_stores_clock_decides_to_the_millisecond() {
        let (timeout, second) = (Duration::from_secs(10), Duration::from_millis(1000));
        let settings = StoreSettings { location: StoreLocation::Memory, max_connections: 0, timeout, migrate: true };
        let store = open_with(None, &settings, || NOW.load(Ordering::SeqCst)).await.unwrap();
        let later = |ms: i64| NOW.fetch_add(ms, Ordering::SeqCst);
        let later_than_all = SystemTime::now();
        let all = ReapScope { as_of: later_than_all, settled_since: UNIX_EPOCH };
        let reserve_request = reserve_request();
        store.renew_lease(renewal(reserve_request.instance, second * 2)).await.unwrap();
        store.reserve(reserve_request.clone()).await.unwrap();
        later(200);
        let record = store.find(reserve_request.id).await.unwrap().unwrap();
        assert_eq!((record.running_for.as_millis(), record.deadline_in_ms), (200, 300));

        // Past its deadline by less than a second; then by a second.
        later(1299);
        assert_eq!(store.sweep(second, 10, later_than_all).await.unwrap(), []);
        later(1);
        assert_eq!(store.sweep(second, 10, later_than_all).await.unwrap().len(), 1);

        store.settle(Settlement::for_orphan(reserve_request.id, reserve_request.token, second)).await.unwrap();
        later(999);
        assert!(!store.find(reserve_request.id).await.unwrap().unwrap().past_ttl);
        assert_eq!(store.reap(10, all).await.unwrap().deleted, 0);
        later(1);
        assert!(store.find(reserve_request.id).await.unwrap().unwrap().past_ttl);
        assert_eq!(store.reap(10, all).await.unwrap().deleted, 1);

        // The lease expires to the millisecond, too.
        store.renew_lease(renewal(reserve_request.instance, second)).await.unwrap();
        let untroubled = ReserveRequest { time_limit: Duration::from_secs(60), ..reserve_request };
        store.reserve(untroubled).await.unwrap();
        later(999);
        assert_eq!(store.sweep(second, 10, later_than_all).await.unwrap(), []);
        later(1);
        assert_eq!(store.sweep(second, 10, later_than_all).await.unwrap().len(), 1);
    }
}

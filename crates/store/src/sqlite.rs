//! The embedded store: one SQLite file, one process, one thread that writes.
//!
//! Each method is a job for that thread. The thread executes all waiting jobs in one transaction, and answers only
//! after the COMMIT has returned: with the write-ahead log and `synchronous = FULL` that is one fsync for all of them.
//! Reads are jobs too, so that no caller sees a write that a failing COMMIT then rolls back, or one that is not on the disk yet.
//! Writes that a killed process did not sync are synced before the next process answers, because opening the store is a commit.
//!
//! Time is read once for each transaction.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tokio_util::sync::CancellationToken;

use super::*; // The table of the calls names most of its types.
use transaction::{SqliteResult, SqliteTransaction};
use writer::WriterQueue;

pub(super) use file::{migrate, pending, remembered_route_identities, warnings};

mod admin;
mod calls;
mod deliveries;
mod events;
mod file;
mod file_watch;
mod schema;
mod service_reports;
mod transaction;
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
    Writer { queue: Arc<WriterQueue>, thread: Option<JoinHandle<()>> },
    /// The calling thread, so that a simulation has no other.
    Caller { database: InlineDatabase, clock: Clock },
}

/// The database in memory of an inline store, see [`open_inline`].
#[derive(Clone)]
pub struct InlineDatabase(Arc<Mutex<Connection>>);

impl InlineDatabase {
    /// Uses the connection between two calls of the store. An open savepoint undoes the calls after it when it is rolled back.
    pub fn with_connection<T>(&self, work: impl FnOnce(&Connection) -> T) -> T {
        work(&self.0.lock())
    }
}

/// Opens a database in memory whose calls are executed on the calling thread, when they are first polled, by this clock: for
/// simulations. Several instances may share it, as they share PostgreSQL.
///
/// # Errors
/// [`OpenError`].
pub fn open_inline(timeout: Duration, clock: Clock) -> Result<(Arc<dyn Backend>, InlineDatabase), OpenError> {
    let db = file::memory()?.db;
    schema::prepare(&db, Path::new(IN_MEMORY), true)?;
    // A simulation executes few statements of each kind, and need not plan each anew for its values.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(schema::unusable)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    let database = InlineDatabase(Arc::new(Mutex::new(db)));
    let executor = Executor::Caller { database: database.clone(), clock };
    let (failed, interrupted) = (CancellationToken::new(), Mutex::default());
    Ok((Arc::new(Sqlite { timeout, executor, failed, interrupted }), database))
}

/// The place of a database without a path, in errors. It is always empty at first.
const IN_MEMORY: &str = "memory";

/// Opens the file, or a database in memory where there is no path.
pub(super) async fn open(path: Option<&Path>, settings: &StoreSettings) -> Result<Sqlite, OpenError> {
    open_with(path, settings, system_clock).await
}

async fn open_with(path: Option<&Path>, settings: &StoreSettings, clock: Clock) -> Result<Sqlite, OpenError> {
    let (file, migrate) = (path.map(Path::to_owned), settings.migrate || path.is_none());
    let (database, interrupted) = run_blocking(move || {
        let database = file.as_deref().map_or_else(file::memory, file::open)?;
        schema::prepare(&database.db, file.as_deref().unwrap_or(Path::new(IN_MEMORY)), migrate)?;
        let interrupted = mark_interrupted_unknown(&database.db, clock());
        Ok((database, interrupted.map_err(|failure| schema::unusable(StoreError::from(failure)))?))
    })
    .await?;
    let failed = CancellationToken::new();
    let (queue, thread) = writer::start(database, clock, failed.clone()).map_err(schema::unusable)?;
    let executor = Executor::Writer { queue, thread: Some(thread) };
    Ok(Sqlite { timeout: settings.timeout, executor, failed, interrupted: Mutex::new(interrupted) })
}

/// Runs work that blocks on files outside of the threads that serve requests.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|stopped| Err(schema::unusable(stopped)))
}

/// Makes interrupted attempts unknown. Logs them at once: a process that ends soon does not come to its first sweep.
fn mark_interrupted_unknown(db: &Connection, now: i64) -> SqliteResult<Vec<SweptKey>> {
    let transaction = db.unchecked_transaction()?;
    let mut interrupted = SqliteTransaction { db, now }.mark_interrupted_unknown()?;
    transaction.commit()?;
    for key in &mut interrupted {
        tracing::warn!(record = %key.id, route = key.route, attempt = key.attempt,
            "an attempt was interrupted when this store was last in use; its outcome is unknown");
        key.is_logged = true;
    }
    Ok(interrupted)
}

fn system_clock() -> i64 {
    row::since_1970_ms(SystemTime::now())
}

/// Defines the calls, as [`Sqlite`] has them.
macro_rules! define_jobs {
    ($($(#[$about:meta])* $name:ident($($params:ident: $Params:ty)?) -> $Answer:ty:
        $kind:ident $(($op:ident, $label:literal))?;)+) => {
        $(fn $name(&self $(, $params: $Params)?) -> StoreFuture<'_, $Answer> {
            job!(self.$name($($params)?))
        })+
    };
}

/// Makes a call: a job that is the method of [`SqliteTransaction`] of the same name.
macro_rules! job {
    // Nobody but the proxy writes to this file.
    ($self:ident.store_route_retention($params:ident)) => {{
        drop($params);
        Box::pin(async { Ok(()) })
    }};
    ($self:ident.sweep($params:ident)) => {{
        let swept = $self.call("sweep", 0, move |transaction| transaction.sweep($params));
        Box::pin(async move {
            let mut swept = swept.await?;
            swept.append(&mut $self.interrupted.lock());
            Ok(swept)
        })
    }};
    ($self:ident.$name:ident($($params:ident)?)) => {{
        let bytes = body_bytes!($name($($params)?));
        $self.call(stringify!($name), bytes, move |transaction| transaction.$name($($params)?))
    }};
}

/// The bytes of a response or request in a call's parameters.
macro_rules! body_bytes {
    (settle($settlement:ident)) => {
        $settlement.outcome.response_bytes()
    };
    (enqueue($params:ident)) => {
        $params.request.sealed.bytes.len()
    };
    (apply_probe_finding($finding:ident)) => {
        row::verdict_bytes(&$finding.verdict)
    };
    ($($other:tt)*) => {
        0
    };
}

impl Backend for Sqlite {
    calls!(define_jobs);

    fn failed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.failed.cancelled())
    }
}

impl Sqlite {
    fn call<T: Send + 'static>(
        &self,
        name: &str,
        bytes: usize,
        work: impl FnOnce(SqliteTransaction<'_>) -> SqliteResult<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let deadline = Instant::now() + time_limit(name, self.timeout);
        // They end an attempt or keep a lease; each heartbeat waits for the salt.
        let is_urgent = matches!(name, "extend_deadline" | "find_salt" | "release_lease" | "renew_lease" | "settle");
        Box::pin(async move {
            match &self.executor {
                Executor::Writer { queue, .. } => writer::call(queue, is_urgent, bytes, work, deadline).await,
                // No transaction: the owner of the database may have a savepoint open.
                Executor::Caller { database, clock } => Ok(database.with_connection(|db| {
                    let transaction = SqliteTransaction { db, now: clock() };
                    transaction.in_savepoint(|| work(transaction))
                })?),
            }
        })
    }
}

/// Waits for the writer to finish its jobs: only then can somebody else open the file.
impl Drop for Sqlite {
    fn drop(&mut self) {
        let Executor::Writer { queue, thread } = &mut self.executor else { return };
        queue.close();
        if let Some(thread) = thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::tests::reserve_request;

    const TIMEOUT: Duration = Duration::from_secs(10);
    const SECOND: Duration = Duration::from_secs(1);

    /// A store in memory with a clock of its own.
    async fn open_at(clock: Clock) -> Sqlite {
        let settings = StoreSettings {
            location: StoreLocation::Memory,
            max_connections: 0,
            timeout: TIMEOUT,
            migrate: true,
            distribute: false,
            events: false,
            encryption: Default::default(),
        };
        open_with(None, &settings, clock).await.unwrap()
    }

    async fn renew(store: &Sqlite, instance: InstanceId, expiry: Duration) {
        let (service, purges_seen, hold_ttls_until) = ("shop".into(), None, None);
        store.renew_lease(LeaseRenewal { instance, service, expiry, purges_seen, hold_ttls_until }).await.unwrap();
    }

    /// The number of keys swept by a caller for which it is this time.
    async fn sweep(store: &Sqlite, as_of: SystemTime) -> usize {
        store.sweep(SweepParams { expiry: SECOND, limit: 10, as_of }).await.unwrap().len()
    }

    #[tokio::test]
    async fn a_lease_that_was_renewed_before_the_clock_was_set_back_does_not_outlive_the_next_ones() {
        static SET_BACK: AtomicI64 = AtomicI64::new(10_000_000);
        let store = open_at(|| SET_BACK.load(Ordering::SeqCst)).await;
        let now = || UNIX_EPOCH + Duration::from_millis(SET_BACK.load(Ordering::SeqCst) as u64);
        let reserve_request = ReserveRequest { time_limit: TIMEOUT, ..reserve_request() };
        let instance = reserve_request.instance;
        renew(&store, instance, SECOND).await;
        store.reserve(reserve_request).await.unwrap();
        SET_BACK.fetch_sub(3_600_000, Ordering::SeqCst);
        let before = now() + Duration::from_secs(3_600);
        assert_eq!(sweep(&store, before).await, 0, "a caller that has not seen it judges nothing by it");
        renew(&store, instance, SECOND).await;
        assert_eq!(sweep(&store, now()).await, 0, "its instance lives");
        renew(&store, instance, SECOND).await;
        SET_BACK.fetch_sub(1_001, Ordering::SeqCst);
        assert_eq!(sweep(&store, now()).await, 1, "it has not renewed its lease since");
    }

    #[tokio::test]
    async fn an_attempt_from_before_the_clock_was_set_back_is_listed_whatever_its_age() {
        static SET_BACK: AtomicI64 = AtomicI64::new(10_000_000);
        let store = open_at(|| SET_BACK.load(Ordering::SeqCst)).await;
        let reserve_request = reserve_request();
        store.reserve(reserve_request.clone()).await.unwrap();
        let count = async || {
            let params = ListInFlightParams { instance: reserve_request.instance, older_than: SECOND };
            store.list_in_flight(params).await.unwrap().len()
        };
        assert_eq!(count().await, 0);
        SET_BACK.fetch_sub(1, Ordering::SeqCst);
        assert_eq!(count().await, 1);
    }

    #[tokio::test]
    async fn the_stores_clock_decides_to_the_millisecond() {
        static NOW: AtomicI64 = AtomicI64::new(1_000_000);
        let store = open_at(|| NOW.load(Ordering::SeqCst)).await;
        let later = |ms: i64| NOW.fetch_add(ms, Ordering::SeqCst);
        let later_than_all = SystemTime::now();
        let all = ReapScope { as_of: later_than_all, settled_since: UNIX_EPOCH };
        let reserve_request = reserve_request();
        let find = async || store.find(reserve_request.id).await.unwrap().unwrap();
        let reap = async || store.reap(ReapParams { limit: 10, scope: all }).await.unwrap().deleted;
        renew(&store, reserve_request.instance, SECOND * 2).await;
        store.reserve(reserve_request.clone()).await.unwrap();
        later(200);
        let record = find().await;
        assert_eq!((record.running_for.as_millis(), record.deadline_in_ms), (200, 300));

        // Past its deadline by less than a second; then by a second.
        later(1299);
        assert_eq!(sweep(&store, later_than_all).await, 0);
        later(1);
        assert_eq!(sweep(&store, later_than_all).await, 1);

        store.settle(Settlement::for_orphan(reserve_request.id, reserve_request.token, SECOND)).await.unwrap();
        later(999);
        assert_eq!((find().await.past_ttl, reap().await), (false, 0));
        later(1);
        assert_eq!((find().await.past_ttl, reap().await), (true, 1));

        // The lease expires to the millisecond, too.
        renew(&store, reserve_request.instance, SECOND).await;
        store.reserve(ReserveRequest { time_limit: Duration::from_secs(60), ..reserve_request }).await.unwrap();
        later(999);
        assert_eq!(sweep(&store, later_than_all).await, 0);
        later(1);
        assert_eq!(sweep(&store, later_than_all).await, 1);
    }
}

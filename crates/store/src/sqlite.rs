//! The embedded store: one SQLite file, one process, one thread that writes.
//!
//! Each method is a job for that thread. The thread executes all waiting jobs in one transaction, and answers only
//! after the COMMIT has returned: with the write-ahead log and `synchronous = FULL` that is one fsync for all of them.
//! Reads are jobs too, so that no caller sees a write that a failing COMMIT then rolls back, or one that is not on the
//! disk yet. Writes that a killed process did not sync are synced before the next process answers, because opening the
//! store is a commit.
//!
//! Time is read once for each transaction.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::call_spec::{CallSpec, Urgency};
use crate::row::since_1970_ms;
use crate::{OpenError, StoreError, StoreSettings, SweptKey};
use writer::WriterQueue;

pub(super) use file::{look, migrate, remembered_route_identities};
pub use inline::{CarriedCall, InlineDatabase, StoreNetwork, open_inline};
pub(super) use schema::{open_error, pending, warnings};
pub(super) use transaction::{SqliteResult, SqliteTransaction};

mod admin;
mod calls;
mod deliveries;
mod events;
mod file;
mod file_watch;
mod inline;
mod schema;
mod service_reports;
mod transaction;
mod writer;

/// The clock, in milliseconds since 1970. A test can open the store with its own.
pub type Clock = fn() -> i64;

/// The embedded store.
pub struct Sqlite {
    timeout: Duration,
    executor: Executor,
    /// Cancelled after an error that ends the store.
    pub(crate) failed: CancellationToken,
    /// The attempts that opening the file made unknown, until the first sweep returns them.
    pub(crate) interrupted: Mutex<Vec<SweptKey>>,
}

enum Executor {
    Writer {
        queue: Arc<WriterQueue>,
        thread: Option<JoinHandle<()>>,
    },
    /// The calling thread, so that a simulation has no other.
    Caller {
        database: InlineDatabase,
        network: Option<Arc<dyn StoreNetwork>>,
    },
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
    since_1970_ms(SystemTime::now())
}

impl Sqlite {
    /// Makes a call: its body is a job for the executor.
    pub(crate) async fn call<P: Send + Sync + 'static, T: Send + 'static>(
        &self,
        spec: CallSpec,
        params: P,
        body: impl FnOnce(SqliteTransaction<'_>, P) -> SqliteResult<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        match &self.executor {
            Executor::Writer { queue, .. } => {
                let deadline = Instant::now() + spec.limit.of(self.timeout);
                let is_urgent = spec.urgency == Urgency::Urgent;
                writer::call(queue, is_urgent, spec.bytes, move |transaction| body(transaction, params), deadline).await
            }
            Executor::Caller { database, network: None } => database.execute(params, body),
            Executor::Caller { database, network: Some(network) } => {
                inline::carry(&**network, database, spec.kind, params, body).await
            }
        }
    }

    /// The simulated network between the caller and the store.
    pub(crate) fn network(&self) -> Option<&dyn StoreNetwork> {
        match &self.executor {
            Executor::Caller { network, .. } => network.as_deref(),
            Executor::Writer { .. } => None,
        }
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
    use crate::encryption::Encryption;
    use crate::tests::reserve_request;
    use crate::{Backend, LeaseRenewal, ListInFlightParams, ReapParams, ReapScope, Store, StoreLocation, SweepParams};
    use oncegate_domain::attempt::{ReserveRequest, Settlement};
    use oncegate_domain::ids::InstanceId;

    const TIMEOUT: Duration = Duration::from_secs(10);
    const SECOND: Duration = Duration::from_secs(1);

    /// A store in memory with a clock of its own.
    async fn open_at(clock: Clock) -> Arc<Store> {
        let settings = StoreSettings {
            location: StoreLocation::Memory,
            max_connections: 0,
            timeout: TIMEOUT,
            migrate: true,
            distribute: false,
            events: false,
            encryption: Default::default(),
        };
        Store::new(Backend::Sqlite(Arc::new(open_with(None, &settings, clock).await.unwrap())), Encryption::default())
    }

    async fn renew(store: &Store, instance: InstanceId, expiry: Duration) {
        let (services, purges_seen, hold_ttls_until) = ("shop".into(), None, None);
        store.renew_lease(LeaseRenewal { instance, services, expiry, purges_seen, hold_ttls_until }).await.unwrap();
    }

    /// The number of keys swept by a caller for which it is this time.
    async fn sweep(store: &Store, as_of: SystemTime) -> usize {
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

//! A store in memory whose calls run on the calling thread, for simulations.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tokio_util::sync::CancellationToken;

use super::transaction::{SqliteResult, SqliteTransaction};
use super::{Clock, Executor, IN_MEMORY, Sqlite, file, schema};
use crate::breaker::CallKind;
use crate::{OpenError, PrimaryCheck, StoreError};

/// More than there are statements.
const STATEMENTS_MAX: usize = 64;

/// The database in memory of an inline store, see [`open_inline`].
#[derive(Clone)]
pub struct InlineDatabase {
    db: Arc<Mutex<Connection>>,
    clock: Clock,
    timeout: Duration,
}

impl InlineDatabase {
    /// Uses the connection between two calls of the store. An open savepoint undoes the calls after it when it is
    /// rolled back.
    pub fn with_connection<T>(&self, work: impl FnOnce(&Connection) -> T) -> T {
        work(&self.db.lock())
    }

    pub(crate) fn open(&self, network: Option<Arc<dyn StoreNetwork>>) -> Sqlite {
        let executor = Executor::Caller { database: self.clone(), network };
        let (failed, interrupted) = (CancellationToken::new(), Mutex::default());
        Sqlite { timeout: self.timeout, executor, failed, interrupted }
    }

    pub(super) fn execute<P, T>(
        &self,
        params: P,
        body: impl FnOnce(SqliteTransaction<'_>, P) -> SqliteResult<T>,
    ) -> Result<T, StoreError> {
        // No transaction: the owner of the database may have a savepoint open.
        Ok(self.with_connection(|db| {
            let transaction = SqliteTransaction { db, now: (self.clock)() };
            transaction.in_savepoint(|| body(transaction, params))
        })?)
    }
}

/// Opens a database in memory whose calls are executed on the calling thread, when they are first polled, by this
/// clock: for simulations. Several instances may share it, as they share PostgreSQL.
///
/// # Errors
/// [`OpenError`].
pub fn open_inline(timeout: Duration, clock: Clock) -> Result<InlineDatabase, OpenError> {
    let db = file::memory()?.db;
    schema::prepare(&db, Path::new(IN_MEMORY), true)?;
    // A simulation executes few statements of each kind, and need not plan each anew for its values.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(schema::unusable)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(InlineDatabase { db: Arc::new(Mutex::new(db)), clock, timeout })
}

/// A simulated network between a process and an inline store.
pub trait StoreNetwork: Send + Sync + 'static {
    /// Carries a call to the store, and its answer back.
    ///
    /// # Errors
    /// The caller has no answer. The call may have been executed, or may be later.
    fn carry(&self, call: Box<dyn CarriedCall>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// See [`Store::check_primaries`](crate::Store::check_primaries).
    fn check_primaries(&self) -> PrimaryCheck {
        PrimaryCheck::default()
    }

    /// See [`Store::has_changed_primary`](crate::Store::has_changed_primary).
    fn has_changed_primary(&self) -> bool {
        false
    }
}

/// A call on its way to an inline store.
pub trait CarriedCall: Send {
    /// The call's way through the breaker, with its label.
    fn kind(&self) -> CallKind;

    /// The parameters of its method of [`Store`](crate::Store).
    fn params(&self) -> &dyn Any;

    /// Executes the call. Returns the error of its answer, as text.
    fn execute(self: Box<Self>) -> Result<(), String>;
}

/// A call with its body, and the place for its answer.
struct InlineCall<P, B, T> {
    kind: CallKind,
    params: P,
    body: B,
    database: InlineDatabase,
    answer: Arc<Mutex<Option<Result<T, StoreError>>>>,
}

impl<P, B, T> CarriedCall for InlineCall<P, B, T>
where
    P: Send + 'static,
    B: FnOnce(SqliteTransaction<'_>, P) -> SqliteResult<T> + Send,
    T: Send,
{
    fn kind(&self) -> CallKind {
        self.kind
    }

    fn params(&self) -> &dyn Any {
        &self.params
    }

    fn execute(self: Box<Self>) -> Result<(), String> {
        let done = self.database.execute(self.params, self.body);
        let shown = done.as_ref().map(drop).map_err(ToString::to_string);
        *self.answer.lock() = Some(done);
        shown
    }
}

/// Makes a call through a network.
pub(super) async fn carry<P: Send + Sync + 'static, T: Send + 'static>(
    network: &dyn StoreNetwork,
    database: &InlineDatabase,
    kind: CallKind,
    params: P,
    body: impl FnOnce(SqliteTransaction<'_>, P) -> SqliteResult<T> + Send + 'static,
) -> Result<T, StoreError> {
    let (database, answer) = (database.clone(), Arc::new(Mutex::new(None)));
    network.carry(Box::new(InlineCall { kind, params, body, database, answer: Arc::clone(&answer) })).await?;
    let answer = answer.lock().take();
    answer.expect("a network that brings an answer has executed the call")
}

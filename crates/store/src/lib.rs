//! The store. Its reservations decide which attempt may run.
//!
//! [`Store`] has one method for each call (`calls`). A call passes the [`breaker`], the [`metrics`] and the
//! [`encryption`], and runs on PostgreSQL or in SQLite (`backend`); one contract suite tests both. A call is one or a
//! few short transactions, each complete by itself, and a write that it acknowledges is durable. Only the store's clock
//! decides. The store knows nothing of HTTP, and no transaction stays open while the upstream works.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use breaker::{Breaker, BreakerPeriod, CallKind, StoreHealth};
use call_spec::CallSpec;
use columns::Columns;
use encryption::Encryption;
use metrics::StoreMetrics;
use oncegate_domain::record::Record;
use oncegate_settings as settings;
use postgres::{PgResult, PgTry};
use row::FromRow;
use sqlite::{SqliteResult, SqliteTransaction};
use statement::Statement;

pub use backend::Backend;
pub use describe::{describe, sqlite_version};
pub use error::{OpenError, RelocateError, StoreError};
pub use events::{EventCounts, EventHandle, EventRoute, KeyEvent, PostponedEvent};
pub use migrate::{Migration, schema};
pub use oncegate_domain::record::ExpectedRecord;
pub use oncegate_settings::StoreLocation;
pub use open::{
    StorePreparation, distribution, migrate, open, open_unprepared, pending, remembered_route_identities, warnings,
};
pub use params::*;
pub use postgres::Distribution;
pub use results::*;
pub use sqlite::{CarriedCall, InlineDatabase, StoreNetwork, open_inline};

pub mod admin;
mod backend;
pub mod breaker;
mod call_spec;
mod calls;
mod columns;
mod deliveries;
mod describe;
pub mod encryption;
pub mod error;
mod events;
pub mod metrics;
mod migrate;
mod open;
mod params;
mod postgres;
mod purge_wait;
mod queue;
pub mod reply;
mod results;
pub mod row;
pub mod salts;
mod sqlite;
pub mod statement;

/// The future of a store's answer. Boxed, so that the store can be chosen at start; the box costs nothing beside a
/// commit.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// The store of a process: a [`Backend`] behind a circuit breaker, with metrics and with encrypted responses.
pub struct Store {
    backend: Backend,
    encryption: RwLock<Arc<Encryption>>,
    breaker: Breaker,
    metrics: StoreMetrics,
    /// The runtime of the pings: a caller's own runtime may end earlier.
    runtime: Handle,
    me: Weak<Self>,
}

impl Store {
    /// Makes the store of a backend. To be called on the runtime that is to ping it.
    pub fn new(backend: Backend, encryption: Encryption) -> Arc<Self> {
        let (encryption, runtime) = (RwLock::new(Arc::new(encryption)), Handle::current());
        Arc::new_cyclic(|me| Self {
            backend,
            encryption,
            breaker: Breaker::default(),
            metrics: StoreMetrics::default(),
            runtime,
            me: me.clone(),
        })
    }

    /// Makes a call without responses.
    fn call<'a, P, T, F>(
        &'a self,
        spec: CallSpec,
        params: P,
        on_postgres: impl Fn(PgTry<'a>, Arc<P>) -> F + Send + 'a,
        on_sqlite: impl FnOnce(SqliteTransaction<'_>, P) -> SqliteResult<T> + Send + 'static,
    ) -> StoreFuture<'a, T>
    where
        P: Send + Sync + 'static,
        T: Send + 'static,
        F: Future<Output = PgResult<T>> + Send + 'a,
    {
        self.judged(spec.kind, self.backend.call(spec, params, on_postgres, on_sqlite))
    }

    /// Makes a call that is one statement of both databases.
    fn rows<T: FromRow + Send + 'static>(
        &self,
        spec: CallSpec,
        statement: &'static Statement,
        columns: Columns<'static>,
    ) -> StoreFuture<'_, Vec<T>> {
        let on_sqlite = move |db: SqliteTransaction<'_>, columns| db.query(statement, &columns, |row| T::read(row));
        self.call(spec, columns, move |pg, columns| pg.rows(statement, columns), on_sqlite)
    }

    /// Makes a call if the breaker admits it, counts it, and tells the breaker its answer: the way of all calls.
    fn judged<'a, T: 'a>(
        &'a self,
        kind: CallKind,
        call: impl Future<Output = Result<T, StoreError>> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let began = self.breaker.admit(kind)?;
            let started = Instant::now();
            let answer = call.await;
            if let Some(op) = kind.op() {
                self.metrics.durations.observe(op, started.elapsed());
                if answer.is_err() {
                    self.metrics.errors.count(op);
                }
            }
            if let Some(period) = self.breaker.judge(kind, began, &answer) {
                self.runtime.spawn(ping_until_answered(self.me.clone(), period));
            }
            answer
        })
    }

    /// Decrypts the response of the record in an answer.
    fn opened<T>(&self, mut answer: T, record: impl FnOnce(&mut T) -> Option<&mut Record>) -> Result<T, StoreError> {
        if let Some(record) = record(&mut answer) {
            self.encryption().open(record)?;
        }
        Ok(answer)
    }

    pub fn health(&self) -> StoreHealth {
        self.breaker.health()
    }

    pub fn metrics(&self) -> &StoreMetrics {
        &self.metrics
    }

    /// Uses other secrets from now on.
    pub fn reload_encryption(&self, encryption: Encryption) {
        *self.encryption.write() = Arc::new(encryption);
    }

    fn encryption(&self) -> Arc<Encryption> {
        Arc::clone(&self.encryption.read())
    }

    /// Looks at all servers of the store, to leave a former primary that still takes writes. Called at each heartbeat.
    pub async fn check_primaries(&self) -> PrimaryCheck {
        let check = self.backend.check_primaries().await;
        self.metrics.primaries.set(i64::try_from(check.primaries).unwrap_or(i64::MAX));
        check
    }

    /// Whether the store has moved to another primary since the last [`Self::check_primaries`]: it may have neither the
    /// lease nor what was reserved under it.
    pub fn has_changed_primary(&self) -> bool {
        self.backend.has_changed_primary()
    }

    /// Uses another location of the same store from now on: other hosts, another user or password, other certificates.
    /// Changes nothing where the location is not usable, or leads to another store.
    pub async fn relocate(&self, location: &StoreLocation) -> Result<(), RelocateError> {
        self.backend.relocate(location).await
    }

    /// Waits until the store has failed for good: only a new process can open it again. For ever, for a store that can
    /// come back.
    pub async fn failed(&self) {
        self.backend.failed().await;
    }
}

/// Sends one ping after the other until the store has answered a call, or is dropped.
async fn ping_until_answered(store: Weak<Store>, period: BreakerPeriod) {
    loop {
        let Some(pause) = store.upgrade().map(|store| store.breaker.next_pause()) else { return };
        sleep(pause).await;
        let Some(store) = store.upgrade() else { return };
        if !store.breaker.is_open_since(period) {
            return;
        }
        // An answer closes the breaker.
        drop(store.ping().await);
    }
}

/// The store's location, limits and encryption.
#[derive(Clone)]
pub struct StoreSettings {
    pub location: StoreLocation,
    /// The most connections to PostgreSQL, [`settings::STORE_CONNECTIONS_MIN`] at least; `postgres::pools` divides
    /// them.
    pub max_connections: usize,
    /// The time limit of one call.
    pub timeout: Duration,
    /// Whether [`open()`] migrates an old schema; otherwise it refuses it.
    pub migrate: bool,
    /// Whether migrating distributes the keys of a new store over the nodes of a cluster.
    pub distribute: bool,
    /// Whether changes of keys write events.
    pub events: bool,
    pub encryption: Encryption,
}

impl From<&settings::LoadedConfig> for StoreSettings {
    fn from(config: &settings::LoadedConfig) -> Self {
        let store = &config.start.store;
        Self {
            location: store.url.clone(),
            max_connections: store.max_connections,
            timeout: store.timeout,
            migrate: store.migrate,
            distribute: store.distribute,
            events: config.start.events,
            encryption: Encryption::new(store, &config.live.secrets),
        }
    }
}

#[cfg(test)]
mod tests;

//! The two stores behind [`Store`](super::Store): PostgreSQL and SQLite.

use std::mem;
use std::sync::Arc;

use super::call_spec::CallSpec;
use super::postgres::{PgResult, PgTry, Postgres};
use super::results::{PrimaryCheck, SweptKey};
use super::sqlite::{InlineDatabase, Sqlite, SqliteResult, SqliteTransaction, StoreNetwork};
use super::{RelocateError, StoreFuture, StoreLocation};

/// An open store. Clones share it.
#[derive(Clone)]
pub enum Backend {
    Postgres(Arc<Postgres>),
    Sqlite(Arc<Sqlite>),
}

impl Backend {
    /// A store in a database in memory, for a simulation: behind a network where there is one.
    pub fn inline(database: &InlineDatabase, network: Option<Arc<dyn StoreNetwork>>) -> Self {
        Self::Sqlite(Arc::new(database.open(network)))
    }

    /// Runs a call's body for the store that this is: until its outcome is known, or its time is over. The future is
    /// boxed, because it is large, and each one around it would have room for it twice and move it.
    pub(super) fn call<'a, P, T, F>(
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
        match self {
            Self::Postgres(store) => Box::pin(store.call(spec, params, on_postgres)),
            Self::Sqlite(store) => Box::pin(store.call(spec, params, on_sqlite)),
        }
    }

    pub(super) async fn check_primaries(&self) -> PrimaryCheck {
        match self {
            Self::Postgres(store) => store.server.check_primaries().await,
            Self::Sqlite(store) => store.network().map(|network| network.check_primaries()).unwrap_or_default(),
        }
    }

    pub(super) fn has_changed_primary(&self) -> bool {
        match self {
            Self::Postgres(store) => store.server.has_changed_primary(),
            Self::Sqlite(store) => store.network().is_some_and(|network| network.has_changed_primary()),
        }
    }

    pub(super) async fn relocate(&self, location: &StoreLocation) -> Result<(), RelocateError> {
        match (self, location) {
            (Self::Postgres(store), StoreLocation::Postgres(url)) => store.server.relocate(url).await,
            _ => Err(RelocateError::NeedsRestart),
        }
    }

    pub(super) async fn failed(&self) {
        match self {
            Self::Postgres(_) => std::future::pending().await,
            Self::Sqlite(store) => store.failed.cancelled().await,
        }
    }

    /// Takes the attempts that opening the embedded store made unknown.
    pub(super) fn take_interrupted(&self) -> Vec<SweptKey> {
        match self {
            Self::Postgres(_) => Vec::new(),
            Self::Sqlite(store) => mem::take(&mut *store.interrupted.lock()),
        }
    }
}

//! Errors between Oncegate and its store.

use std::error::Error;
use std::path::PathBuf;

use oncegate_domain::response::CorruptRow;
use oncegate_telemetry::logs::format_chain;

type BoxedError = Box<dyn Error + Send + Sync>;

/// The error of a failed call to the store. `Display` names the failure, `source` its cause.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The row exists and does not decode; never to be treated as a free key.
    #[error("a stored row is corrupt")]
    Corrupt(#[from] CorruptRow),
    /// Only a new process can open the store again. Never to be treated as a store that is away.
    #[error("the store has failed")]
    Failed(#[source] BoxedError),
    /// Never to be treated as a store that is away.
    #[error("somebody has the key, and its record could not be read")]
    Taken(#[source] BoxedError),
    /// No answer within the store's `timeout`. A write may have happened.
    #[error("the store did not answer in time")]
    TimedOut,
    /// The store cannot be reached, or refused. A write may have happened.
    #[error("the store is unavailable")]
    Unavailable(#[source] BoxedError),
}

/// The error of opening or migrating the store. A variant without a comment is what its text says.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The server cannot be reached, or is starting, stopping or full. It may be there later.
    #[error("the store cannot be reached")]
    Away(#[source] BoxedError),
    #[error("{} is damaged, or is not a store of Oncegate's", path.display())]
    Damaged { path: PathBuf, source: BoxedError },
    #[error("{} is in use by another process; the embedded store serves one at a time", path.display())]
    InUse { path: PathBuf },
    #[error("the migration {name} failed and was rolled back")]
    Migration { name: String, source: BoxedError },
    /// The store refuses this program, or cannot be used by it.
    #[error("the store cannot be used")]
    Missing(#[source] BoxedError),
    /// The schema is newer than this program, or was changed by hand.
    #[error("the store's schema is not one this version knows: {0}")]
    SchemaForeign(String),
    /// Migrating at start is switched off, and these migrations are missing.
    #[error("the store's schema lacks {}; run `oncegate migrate`, or set store.migrate = true", pending.join(", "))]
    SchemaOld { pending: Vec<String> },
}

/// The reason why a running store does not use another location.
#[derive(Debug, thiserror::Error)]
pub enum RelocateError {
    /// Only a restart can change it.
    #[error("it takes effect with a restart")]
    NeedsRestart,
    /// The location leads to another store than the one that is open.
    #[error(
        "it leads to another store, which does not have the keys of this one, and retries would be executed again; \
         restart to change the store"
    )]
    OtherStore,
    /// The location cannot be used: the server refuses, does not answer, or a file cannot be read.
    #[error("it cannot be used")]
    Unusable(#[source] BoxedError),
}

impl RelocateError {
    /// The reason with its causes, for people.
    pub fn describe(&self) -> String {
        format_chain(self)
    }
}

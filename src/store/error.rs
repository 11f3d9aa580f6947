//! Errors between Oncegate and its store.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use crate::domain::response::CorruptRow;
use crate::telemetry::logs::error_causes;

/// The error of a failed call to the store. `Display` names the failure, `source` its cause.
#[derive(Debug)]
pub enum StoreError {
    /// The row exists and does not decode; never to be treated as a free key.
    Corrupt(CorruptRow),
    /// The store has failed for good: only a new process can open it again. Never to be treated as a store that is away.
    Failed(Box<dyn Error + Send + Sync>),
    /// Somebody has the key, and reading the record failed for this reason; never to be treated as a store that is
    /// away.
    Taken(Box<dyn Error + Send + Sync>),
    /// No answer within the store's `timeout`. A write may have happened.
    TimedOut,
    /// The store cannot be reached, or refused. A write may have happened.
    Unavailable(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Corrupt(_) => "a stored row is corrupt",
            Self::Failed(_) => "the store has failed",
            Self::Taken(_) => "somebody has the key, and its record could not be read",
            Self::TimedOut => "the store did not answer in time",
            Self::Unavailable(_) => "the store is unavailable",
        })
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Corrupt(source) => Some(source),
            Self::TimedOut => None,
            Self::Failed(source) | Self::Taken(source) | Self::Unavailable(source) => Some(source.as_ref()),
        }
    }
}

impl From<CorruptRow> for StoreError {
    fn from(corrupt: CorruptRow) -> Self {
        Self::Corrupt(corrupt)
    }
}

/// The error of opening or migrating the store.
#[derive(Debug)]
pub enum OpenError {
    /// The server cannot be reached, or is starting, stopping or full. It may be there later.
    Away(Box<dyn Error + Send + Sync>),
    /// The file is damaged, or not one of Oncegate's.
    Damaged {
        /// The file's path.
        path: PathBuf,
        /// SQLite's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Another process has the embedded store open.
    InUse {
        /// The file's path.
        path: PathBuf,
    },
    /// A migration failed; it was rolled back.
    Migration {
        /// The migration's name.
        name: String,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The store refuses this program, or cannot be used by it.
    Missing(Box<dyn Error + Send + Sync>),
    /// The schema is newer than this program, or was changed by hand.
    SchemaForeign(String),
    /// The schema is older than this program, and migrating at start is switched off.
    SchemaOld {
        /// The names of the migrations that are missing.
        pending: Vec<String>,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { path, .. } => write!(f, "{} is damaged, or is not a store of Oncegate's", path.display()),
            Self::InUse { path } => {
                write!(f, "{} is in use by another process; the embedded store serves one at a time", path.display())
            }
            Self::Migration { name, .. } => write!(f, "the migration {name} failed and was rolled back"),
            Self::Away(_) => f.write_str("the store cannot be reached"),
            Self::Missing(_) => f.write_str("the store cannot be used"),
            Self::SchemaForeign(what) => write!(f, "the store's schema is not one this version knows: {what}"),
            Self::SchemaOld { pending } => write!(
                f,
                "the store's schema lacks {}; run `oncegate migrate`, or set store.migrate = true",
                pending.join(", ")
            ),
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Away(source)
            | Self::Damaged { source, .. }
            | Self::Migration { source, .. }
            | Self::Missing(source) => Some(source.as_ref()),
            Self::InUse { .. } | Self::SchemaForeign(_) | Self::SchemaOld { .. } => None,
        }
    }
}

/// The reason why a running store does not use another location.
#[derive(Debug)]
pub enum RelocateError {
    /// Only a restart can change it.
    NeedsRestart,
    /// The location leads to another store than the one that is open.
    OtherStore,
    /// The location cannot be used: the server refuses, does not answer, or a file cannot be read.
    Unusable(Box<dyn Error + Send + Sync>),
}

impl RelocateError {
    /// The reason with its causes, for people.
    pub fn describe(&self) -> String {
        error_causes(self).map_or(self.to_string(), |causes| format!("{self}: {causes}"))
    }
}

impl fmt::Display for RelocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeedsRestart => "it takes effect with a restart",
            Self::OtherStore => {
                "it leads to another store, which does not have the keys of this one, and retries would be executed again; \
                 restart to change the store"
            }
            Self::Unusable(_) => "it cannot be used",
        })
    }
}

impl Error for RelocateError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NeedsRestart | Self::OtherStore => None,
            Self::Unusable(source) => Some(source.as_ref()),
        }
    }
}

//! What can go wrong between Oncegate and its store.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use crate::domain::response::Corrupt;

/// A call to the store failed. `Display` says what, `source` says why.
#[derive(Debug)]
pub enum StoreError {
    /// The row is there and cannot be understood; never to be taken for a free key.
    Corrupt(Corrupt),
    /// Somebody has the key, and the store could not tell who, for this reason: never to be taken for a store that cannot
    /// tell anything.
    Taken(Box<dyn Error + Send + Sync>),
    /// No answer within the store's `timeout`. A write may have happened.
    TimedOut,
    /// The store is not there, or refused. A write may have happened.
    Unavailable(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Corrupt(_) => "a stored row is corrupt",
            Self::Taken(_) => "somebody has the key, and the store could not tell who",
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
            Self::Taken(source) | Self::Unavailable(source) => Some(source.as_ref()),
        }
    }
}

impl From<Corrupt> for StoreError {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

/// The store cannot be opened at start.
#[derive(Debug)]
pub enum OpenError {
    /// The file is no store of ours, or is damaged.
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What SQLite said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Another process has the embedded store open.
    InUse {
        /// Which file.
        path: PathBuf,
    },
    /// An index could not be built. The step that it belongs to has been taken.
    Index {
        /// Its file's name.
        name: String,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A migration failed; it was rolled back.
    Migration {
        /// Which one.
        name: String,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// It cannot be reached, or refuses us.
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
            Self::Damaged { path, .. } => write!(f, "{} is damaged, or is no store of Oncegate's", path.display()),
            Self::InUse { path } => {
                write!(f, "{} is in use by another process; the embedded store serves one at a time", path.display())
            }
            Self::Index { name, .. } => {
                write!(f, "the index {name} could not be built; the next `oncegate migrate`, or start, tries again")
            }
            Self::Migration { name, .. } => write!(f, "the migration {name} failed and was rolled back"),
            Self::Missing(_) => f.write_str("the store cannot be reached"),
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
            Self::Damaged { source, .. }
            | Self::Index { source, .. }
            | Self::Migration { source, .. }
            | Self::Missing(source) => Some(source.as_ref()),
            Self::InUse { .. } | Self::SchemaForeign(_) | Self::SchemaOld { .. } => None,
        }
    }
}

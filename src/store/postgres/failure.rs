//! What can go wrong with a statement, sorted by what may have happened on the server.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::domain::response::Corrupt;
use crate::store::StoreError;
use crate::store::batch::NoAnswer;

/// Why. Shared, because a batch fails as one.
pub(super) type Cause = Arc<dyn Error + Send + Sync>;

/// A statement failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The server chose this one to end a conflict; nothing was changed, and the same again will mostly do.
    Conflict(Cause),
    /// The row is there and does not decode.
    Corrupt(Corrupt),
    /// The server refused; nothing was changed.
    Refused(Cause),
    /// The server refused because of one of the rows; nothing was changed.
    Row(Cause),
    /// No answer in time. It may have been executed.
    TimedOut,
    /// The connection was lost on the way. It may have been executed.
    Unanswered(Cause),
    /// There was no connection to send it on.
    Unsent(Cause),
}

impl Failure {
    /// Whether it may have been executed.
    pub fn in_doubt(&self) -> bool {
        matches!(self, Self::TimedOut | Self::Unanswered(_))
    }

    /// Whether the same again would fail the same way.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Corrupt(_) | Self::Row(_))
    }
}

impl From<Corrupt> for Failure {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

impl From<NoAnswer> for Failure {
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::Closed => Self::Unsent(Arc::from(Box::from("the store is closed"))),
            NoAnswer::TimedOut => Self::TimedOut,
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Corrupt(corrupt) => Self::Corrupt(corrupt),
            Failure::TimedOut => Self::TimedOut,
            Failure::Conflict(cause)
            | Failure::Refused(cause)
            | Failure::Row(cause)
            | Failure::Unanswered(cause)
            | Failure::Unsent(cause) => Self::Unavailable(Box::new(cause)),
        }
    }
}

/// Sorts what the driver reports.
impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(server) = error.as_db_error() else {
            // Not the server's word: the connection is gone, or what came over it was not understood.
            return Self::Unanswered(Arc::new(error));
        };
        let refusal = Arc::new(Refusal::from(server));
        match server.code().code() {
            "40001" | "40P01" => Self::Conflict(refusal),
            // The server is going. A commit may have been waiting for its standby.
            code if code.starts_with("57P") => Self::Unanswered(refusal),
            // Data, constraints, limits.
            code if ["22", "23", "54"].iter().any(|class| code.starts_with(class)) => Self::Row(refusal),
            _ => Self::Refused(refusal),
        }
    }
}

/// What the server said, without its detail: that quotes the row, and errors are logged.
#[derive(Debug)]
pub(super) struct Refusal {
    code: String,
    message: String,
}

impl From<&tokio_postgres::error::DbError> for Refusal {
    fn from(error: &tokio_postgres::error::DbError) -> Self {
        Self { code: error.code().code().to_owned(), message: error.message().to_owned() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgreSQL says: {} ({})", self.message, self.code)
    }
}

impl Error for Refusal {}

/// The driver's error without the row that the server may have quoted in it.
pub(super) fn without_detail(error: tokio_postgres::Error) -> Box<dyn Error + Send + Sync> {
    match error.as_db_error() {
        Some(server) => Box::new(Refusal::from(server)),
        None => Box::new(error),
    }
}

//! What can go wrong with a statement, sorted by what may have happened on the server.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tokio_postgres::error::Severity;

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
    /// This server takes no writes; nothing was changed. Over another connection there may be one that does.
    Stale(Cause),
    /// Somebody has the key, and looking who failed like this.
    Taken(Arc<Failure>),
    /// No answer in time. It may have been executed.
    TimedOut,
    /// The connection was lost on the way. It may have been executed.
    Unanswered(Cause),
    /// There was no connection to send it on.
    Unsent(Cause),
}

impl Failure {
    /// Whether it may have been executed. Then nobody can say either what its connection is doing.
    pub fn in_doubt(&self) -> bool {
        match self {
            Self::Taken(look) => look.in_doubt(),
            _ => matches!(self, Self::TimedOut | Self::Unanswered(_)),
        }
    }

    /// Whether nothing has happened but that this connection was of no use: the next one may be.
    pub fn wants_another_connection(&self) -> bool {
        match self {
            Self::Taken(look) => look.wants_another_connection(),
            _ => matches!(self, Self::Stale(_) | Self::Unsent(_)),
        }
    }

    /// Whether the same again would fail the same way.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Taken(look) => look.is_final(),
            _ => matches!(self, Self::Corrupt(_) | Self::Row(_)),
        }
    }

    /// The same, of a look at a key that somebody is known to have. A row that does not decode says enough by itself.
    pub fn of_taken(self) -> Self {
        match self {
            Self::Corrupt(_) | Self::Taken(_) => self,
            look => Self::Taken(Arc::new(look)),
        }
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
            NoAnswer::Dropped => Self::Unanswered(Arc::from(Box::from("whoever was to ask has stopped"))),
            NoAnswer::TimedOut => Self::TimedOut,
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Corrupt(corrupt) => Self::Corrupt(corrupt),
            Failure::Taken(look) => Self::Taken(Box::new(Self::from(Failure::clone(&look)))),
            Failure::TimedOut => Self::TimedOut,
            Failure::Conflict(cause)
            | Failure::Refused(cause)
            | Failure::Row(cause)
            | Failure::Stale(cause)
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
        let ends_the_session = match server.parsed_severity() {
            Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
            // PgBouncer may leave out the field that is never translated.
            None => matches!(server.severity(), "FATAL" | "PANIC"),
        };
        let refusal = Arc::new(Refusal::from(server));
        match Sort::of(server.code().code(), ends_the_session) {
            Sort::Conflict => Self::Conflict(refusal),
            Sort::InDoubt => Self::Unanswered(refusal),
            Sort::Refused => Self::Refused(refusal),
            Sort::Row => Self::Row(refusal),
            Sort::Stale => Self::Stale(refusal),
        }
    }
}

/// What a server's refusal says of the statement that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Conflict,
    InDoubt,
    Refused,
    Row,
    Stale,
}

/// By SQLSTATE, or its beginning; the first that fits counts. An ordinary error takes its statement back before it is
/// told, so only what is about the connection, or about the server's end, leaves a doubt.
const SORTS: [(&str, Sort); 20] = [
    // Whoever passes it on has lost the server: PgBouncer says 08P01, whatever had been sent by then.
    ("08", Sort::InDoubt),
    // Data, constraints, limits.
    ("22", Sort::Row),
    ("23", Sort::Row),
    ("54", Sort::Row),
    // Read-only: a standby, or a primary that is to be one no more.
    ("25006", Sort::Stale),
    ("25", Sort::Refused),
    // "Statement completion unknown" means what it says.
    ("40003", Sort::InDoubt),
    // Serialisation, deadlock.
    ("40001", Sort::Conflict),
    ("40P01", Sort::Conflict),
    ("40", Sort::Refused),
    // Rights, and a schema that is not as it was.
    ("42", Sort::Refused),
    // Disk, memory, connections.
    ("53", Sort::Refused),
    // A lock that did not come in time.
    ("55", Sort::Refused),
    // Cancelled, by an operator or the role's statement_timeout. That one is over before the commit begins.
    ("57014", Sort::Refused),
    // The server is going, has crashed or is not there yet. A commit may have been waiting for its standby.
    ("57", Sort::InDoubt),
    // The disk's errors, and the server's own.
    ("58", Sort::Refused),
    ("XX", Sort::Refused),
    // What the service's own triggers raise.
    ("P0", Sort::Refused),
    ("0A", Sort::Refused),
    ("", Sort::Refused),
];

impl Sort {
    /// `ends_the_session`: FATAL or PANIC. Nothing says how far the statement had come; after a PANIC while the log was
    /// being written, a commit may be found there at the next start.
    fn of(code: &str, ends_the_session: bool) -> Self {
        if ends_the_session {
            return Self::InDoubt;
        }
        let sort = SORTS.iter().find(|(beginning, _)| code.starts_with(beginning));
        sort.map_or(Self::Refused, |(_, sort)| *sort)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sqlstate_has_its_sort() {
        for (code, sort) in [
            ("08000", Sort::InDoubt),
            ("08003", Sort::InDoubt),
            ("08006", Sort::InDoubt),
            ("08P01", Sort::InDoubt),
            ("0A000", Sort::Refused),
            ("22001", Sort::Row),
            ("22003", Sort::Row),
            ("22021", Sort::Row),
            ("22P02", Sort::Row),
            ("23502", Sort::Row),
            ("23505", Sort::Row),
            ("23514", Sort::Row),
            ("25006", Sort::Stale),
            ("25P02", Sort::Refused),
            ("26000", Sort::Refused),
            ("40000", Sort::Refused),
            ("40001", Sort::Conflict),
            ("40002", Sort::Refused),
            ("40003", Sort::InDoubt),
            ("40P01", Sort::Conflict),
            ("42501", Sort::Refused),
            ("42P01", Sort::Refused),
            ("53100", Sort::Refused),
            ("53200", Sort::Refused),
            ("53300", Sort::Refused),
            ("54000", Sort::Row),
            ("55006", Sort::Refused),
            ("55P03", Sort::Refused),
            ("57000", Sort::InDoubt),
            ("57014", Sort::Refused),
            ("57P01", Sort::InDoubt),
            ("57P02", Sort::InDoubt),
            ("57P03", Sort::InDoubt),
            ("57P04", Sort::InDoubt),
            ("57P05", Sort::InDoubt),
            ("58030", Sort::Refused),
            ("58P01", Sort::Refused),
            ("P0001", Sort::Refused),
            ("XX000", Sort::Refused),
            ("XX001", Sort::Refused),
        ] {
            assert_eq!(Sort::of(code, false), sort, "{code}");
            assert_eq!(Sort::of(code, true), Sort::InDoubt, "{code}, with the session's end");
        }
    }

    #[test]
    fn each_line_of_the_table_can_be_reached() {
        for (at, (beginning, sort)) in SORTS.iter().enumerate() {
            let first = SORTS.iter().position(|(other, _)| beginning.starts_with(other));
            assert_eq!(first, Some(at), "{beginning} stands behind a line that takes all of it");
            assert_eq!(Sort::of(beginning, false), *sort);
        }
    }

    #[test]
    fn what_may_have_been_executed_is_never_taken_for_refused() {
        let cause: fn() -> Cause = || Arc::from(Box::from("why"));
        for (failure, in_doubt, elsewhere, last) in [
            (Failure::Conflict(cause()), false, false, false),
            (Failure::Corrupt(Corrupt("id")), false, false, true),
            (Failure::Refused(cause()), false, false, false),
            (Failure::Row(cause()), false, false, true),
            (Failure::Stale(cause()), false, true, false),
            (Failure::TimedOut, true, false, false),
            (Failure::Unanswered(cause()), true, false, false),
            (Failure::Unsent(cause()), false, true, false),
            (Failure::from(NoAnswer::Closed), false, true, false),
            // Its statement may be on its way.
            (Failure::from(NoAnswer::Dropped), true, false, false),
            (Failure::Unanswered(cause()).of_taken(), true, false, false),
            (Failure::Unsent(cause()).of_taken(), false, true, false),
            (Failure::Corrupt(Corrupt("id")).of_taken(), false, false, true),
            (Failure::from(NoAnswer::TimedOut), true, false, false),
        ] {
            let said = (failure.in_doubt(), failure.wants_another_connection(), failure.is_final());
            assert_eq!(said, (in_doubt, elsewhere, last), "{failure:?}");
        }
    }
}

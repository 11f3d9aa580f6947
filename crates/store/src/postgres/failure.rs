//! Failures of statements, classified by what may have happened on the server.

use std::error::Error;
use std::sync::Arc;

use tokio_postgres::error::{DbError, Severity};

use crate::{OpenError, StoreError};
use oncegate_domain::response::CorruptRow;

/// The cause of a failure. Shared, because a batch fails as one.
pub(crate) type Cause = Arc<dyn Error + Send + Sync>;

pub(crate) type PgResult<T> = Result<T, PgFailure>;

#[derive(Clone, Debug)]
pub(crate) enum PgFailure {
    /// The server aborted this statement to end a conflict; nothing was changed, and a retry mostly succeeds.
    Conflict(Cause),
    /// The row exists and does not decode.
    Corrupt(CorruptRow),
    /// Another transaction has locked the row; nothing was changed.
    Held(Cause),
    /// The server refused; nothing was changed.
    Refused(Cause),
    /// The server refused because of one of the rows; nothing was changed.
    Row(Cause),
    /// This server takes no writes; nothing was changed. Another connection may lead to one that does.
    Stale(Cause),
    /// Somebody has the key, and reading the record failed like this.
    Taken(Arc<PgFailure>),
    /// No answer in time. The statement may have been executed.
    TimedOut,
    /// The connection was lost. The statement may have been executed.
    Unanswered(Cause),
    /// There was no connection; the statement was not sent.
    Unsent(Cause),
}

impl PgFailure {
    pub fn refused(cause: &str) -> Self {
        Self::Refused(Arc::from(Box::from(cause)))
    }

    pub fn unsent(cause: &str) -> Self {
        Self::Unsent(Arc::from(Box::from(cause)))
    }

    /// The failure of the statement itself.
    fn root(&self) -> &Self {
        if let Self::Taken(look) = self { look } else { self }
    }

    /// Whether the statement may have been executed. Then the state of its connection is unknown, too.
    pub fn in_doubt(&self) -> bool {
        matches!(self.root(), Self::TimedOut | Self::Unanswered(_))
    }

    /// Whether only this connection was unusable and nothing was executed: the next connection may work.
    pub fn wants_another_connection(&self) -> bool {
        matches!(self.root(), Self::Stale(_) | Self::Unsent(_))
    }

    /// Whether a retry would fail the same way.
    pub fn is_final(&self) -> bool {
        matches!(self.root(), Self::Corrupt(_) | Self::Row(_))
    }

    /// The failure after others of the same call were committed: nobody knows which.
    pub fn after_commits(self) -> Self {
        if self.in_doubt() { self } else { Self::Unanswered(Arc::new(StoreError::from(self))) }
    }

    /// The failure of reading a key that somebody is known to have. A row that does not decode says enough by itself.
    pub fn for_taken_key(self) -> Self {
        match self {
            Self::Corrupt(_) | Self::Taken(_) => self,
            look => Self::Taken(Arc::new(look)),
        }
    }
}

impl From<CorruptRow> for PgFailure {
    fn from(corrupt: CorruptRow) -> Self {
        Self::Corrupt(corrupt)
    }
}

impl From<PgFailure> for StoreError {
    fn from(failure: PgFailure) -> Self {
        match failure {
            PgFailure::Corrupt(corrupt) => Self::Corrupt(corrupt),
            PgFailure::Taken(look) => Self::Taken(Box::new(Self::from(PgFailure::clone(&look)))),
            PgFailure::TimedOut => Self::TimedOut,
            PgFailure::Conflict(cause)
            | PgFailure::Held(cause)
            | PgFailure::Refused(cause)
            | PgFailure::Row(cause)
            | PgFailure::Stale(cause)
            | PgFailure::Unanswered(cause)
            | PgFailure::Unsent(cause) => Self::Unavailable(Box::new(cause)),
        }
    }
}

impl From<tokio_postgres::Error> for PgFailure {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(server) = error.as_db_error() else {
            // Not an error of the server: the connection is gone, or its data was not understood.
            return Self::Unanswered(Arc::new(error));
        };
        let class = classify(server.code().code(), server.message(), ends_the_session(server));
        class(Arc::new(ServerError::from(server)))
    }
}

/// Whether an error of the server ends the session, so that nobody knows what became of the statement.
pub(super) fn ends_the_session(error: &DbError) -> bool {
    match error.parsed_severity() {
        Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
        // PgBouncer may leave out the untranslated field.
        None => matches!(error.severity(), "FATAL" | "PANIC"),
    }
}

/// The failure that a server's error means for the statement that it answers.
type FailureClass = fn(Cause) -> PgFailure;

/// The class of each SQLSTATE or prefix; the first that fits counts. An ordinary error rolls its statement back before
/// it is reported, so only errors about the connection, or about the server's end, leave a doubt. All others are
/// refusals: privileges, a schema that has changed, a full disk, internal errors, and what the service's own triggers
/// raise.
// See docs/decisions/0007-answer-from-durable-rows.md.
const SQLSTATE_CLASSES: [(&str, FailureClass); 11] = [
    // A pooler has lost the server: PgBouncer reports 08P01, whatever had been sent by then.
    ("08", PgFailure::Unanswered),
    // Data, constraints, limits.
    ("22", PgFailure::Row),
    ("23", PgFailure::Row),
    ("54", PgFailure::Row),
    // Read-only: a standby, or a former primary.
    ("25006", PgFailure::Stale),
    // "Statement completion unknown".
    ("40003", PgFailure::Unanswered),
    // Serialisation, deadlock.
    ("40001", PgFailure::Conflict),
    ("40P01", PgFailure::Conflict),
    // A lock that did not come in time.
    ("55P03", PgFailure::Held),
    // Cancelled, by an operator or the role's statement_timeout. That timeout ends before the commit begins.
    ("57014", PgFailure::Refused),
    // The server is shutting down, has crashed or is starting. A commit may have been waiting for its standby.
    ("57", PgFailure::Unanswered),
];

/// The beginning of Citus's message where the node of a key did not answer to the commit, which it may have done. It
/// comes as an internal error (XX000), and is not translated.
const NO_ANSWER_TO_COMMIT: &str = "could not commit transaction for shard ";

/// The class of an error. `ends_the_session`: FATAL or PANIC. Then it is unknown how far the statement had come;
/// after a PANIC while the log was being written, a commit may be found in it at the next start.
fn classify(code: &str, message: &str, ends_the_session: bool) -> FailureClass {
    if ends_the_session || message.starts_with(NO_ANSWER_TO_COMMIT) {
        return PgFailure::Unanswered;
    }
    let class = SQLSTATE_CLASSES.iter().find(|(beginning, _)| code.starts_with(beginning));
    class.map_or(PgFailure::Refused, |(_, class)| *class)
}

/// The server's error without its detail: the detail quotes the row, and errors are logged.
#[derive(Debug, thiserror::Error)]
#[error("PostgreSQL: {message} ({code}){}", remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default())]
pub(super) struct ServerError {
    code: String,
    message: String,
    /// The statement that gives the role the right that it lacks.
    remedy: Option<&'static str>,
}

impl From<&DbError> for ServerError {
    fn from(error: &DbError) -> Self {
        let (code, message) = (error.code().code().to_owned(), error.message().to_owned());
        let remedy = (code == INSUFFICIENT_PRIVILEGE).then(|| find_remedy(&message));
        Self { code, message, remedy }
    }
}

const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// The grants that the serving role needs, each by the kind of object that the server's message names.
const REMEDIES: [(&str, &str); 6] = [
    ("for database ", "the role that migrates needs `GRANT CREATE ON DATABASE`"),
    (FOR_SCHEMA, "`GRANT USAGE ON SCHEMA oncegate` to the role"),
    ("for table ", "`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA oncegate` to the role"),
    ("for sequence ", "`GRANT USAGE ON ALL SEQUENCES IN SCHEMA oncegate` to the role"),
    ("for function ", "`GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA oncegate` to the role"),
    ("must be owner ", "run `oncegate migrate` as the role that owns the schema `oncegate`"),
];

const FOR_SCHEMA: &str = "for schema ";

/// The remedy for a missing right. The server's message is in its own language; in another than English it names none
/// of the kinds.
fn find_remedy(message: &str) -> &'static str {
    let found = REMEDIES.iter().find(|(kind, _)| message.contains(kind));
    found.map_or("the role lacks a right: docs/security.md lists the grants", |(_, remedy)| remedy)
}

/// The server's error while it lets a user in, without the user's name, which the server quotes. A URL's credentials
/// are never logged, and its user is one of them.
pub(super) fn without_user(error: &DbError, user: Option<&str>) -> Box<dyn Error + Send + Sync> {
    let mut refusal = ServerError::from(error);
    if let Some(user) = user {
        refusal.message = refusal.message.replace(&format!("\"{user}\""), "\"…\"");
    }
    Box::new(refusal)
}

/// The meaning of the driver's error while the store is opened: a connection that is lost, or a server that takes none
/// at the moment, says nothing about the store.
pub(crate) fn open_error(error: tokio_postgres::Error) -> OpenError {
    let is_away = error.as_db_error().is_none_or(|server| is_passing(server.code().code()));
    let cause = without_detail(error);
    if is_away { OpenError::Away(cause) } else { OpenError::Missing(cause) }
}

/// The same for an error of connecting, which may not be the driver's.
pub(super) fn connect_error(error: Box<dyn Error + Send + Sync>) -> OpenError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&*error);
    while let Some(this) = cause {
        // The driver hands rustls' errors on inside of those of the socket.
        let inner = this.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let is_tls = this.is::<rustls::Error>() || inner.is_some_and(|inner| inner.is::<rustls::Error>());
        if is_tls || this.downcast_ref::<ServerError>().is_some_and(|server| !is_passing(&server.code)) {
            return OpenError::Missing(error);
        }
        cause = this.source();
    }
    OpenError::Away(error)
}

/// Whether the server's error is about its state and not about this program: lost connections, limits, operators' doing
/// (starting and stopping too), system errors.
fn is_passing(sqlstate: &str) -> bool {
    ["08", "53", "57", "58"].iter().any(|class| sqlstate.starts_with(class))
}

/// The driver's error without the row that the server may have quoted in its detail.
pub(super) fn without_detail(error: tokio_postgres::Error) -> Box<dyn Error + Send + Sync> {
    match error.as_db_error() {
        Some(server) => Box::new(ServerError::from(server)),
        None => Box::new(error),
    }
}

/// The same for an error of migrating. The role has read the migrations by then, so what it lacks of the schema is to
/// create in it.
pub(super) fn migration_error(error: tokio_postgres::Error) -> Box<dyn Error + Send + Sync> {
    let Some(server) = error.as_db_error() else { return Box::new(error) };
    let mut refusal = ServerError::from(server);
    if refusal.remedy.is_some() && refusal.message.contains(FOR_SCHEMA) {
        refusal.remedy = Some("the role that migrates needs `GRANT CREATE ON SCHEMA oncegate`");
    }
    Box::new(refusal)
}

#[cfg(test)]
mod tests {
    use std::mem::discriminant;

    use super::*;

    fn cause() -> Cause {
        Arc::from(Box::from("why"))
    }

    #[test]
    fn each_sqlstate_has_its_class() {
        let classes: [(FailureClass, &str); 6] = [
            (PgFailure::Conflict, "40001 40P01"),
            (PgFailure::Held, "55P03"),
            (
                PgFailure::Refused,
                "0A000 25P02 26000 40000 40002 42501 42P01 53100 53200 53300 55006 57014 58030 58P01 P0001 XX000 XX001",
            ),
            (PgFailure::Row, "22001 22003 22021 22P02 23502 23505 23514 54000"),
            (PgFailure::Stale, "25006"),
            (PgFailure::Unanswered, "08000 08003 08006 08P01 40003 57000 57P01 57P02 57P03 57P04 57P05"),
        ];
        let is =
            |found: FailureClass, class: FailureClass| discriminant(&found(cause())) == discriminant(&class(cause()));
        for (class, codes) in classes {
            for code in codes.split(' ') {
                assert!(is(classify(code, "a message", false), class), "{code}");
                assert!(is(classify(code, "a message", true), PgFailure::Unanswered), "{code}, with the session's end");
            }
        }
        let no_answer = "could not commit transaction for shard 102032 on at least one active node";
        assert!(is(classify("XX000", no_answer, false), PgFailure::Unanswered), "a cluster's commit without an answer");
    }

    #[test]
    fn a_statement_that_may_have_been_executed_is_never_taken_for_refused() {
        for (failure, in_doubt, elsewhere, last) in [
            (PgFailure::Conflict(cause()), false, false, false),
            (PgFailure::Corrupt(CorruptRow("id")), false, false, true),
            (PgFailure::Refused(cause()), false, false, false),
            (PgFailure::Row(cause()), false, false, true),
            (PgFailure::Stale(cause()), false, true, false),
            (PgFailure::TimedOut, true, false, false),
            (PgFailure::Unanswered(cause()), true, false, false),
            (PgFailure::Unsent(cause()), false, true, false),
            (PgFailure::Unanswered(cause()).for_taken_key(), true, false, false),
            (PgFailure::Unsent(cause()).for_taken_key(), false, true, false),
            (PgFailure::Corrupt(CorruptRow("id")).for_taken_key(), false, false, true),
        ] {
            let properties = (failure.in_doubt(), failure.wants_another_connection(), failure.is_final());
            assert_eq!(properties, (in_doubt, elsewhere, last), "{failure:?}");
        }
    }
}

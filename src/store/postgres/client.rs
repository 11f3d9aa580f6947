//! A client of one connection, which prepares its statements where it may.
//!
//! A prepared statement spares the server the parsing, which costs as much as a short statement itself. Its name belongs to
//! the server's session, though, and behind a pooler that session may serve somebody else by the time of the next statement.
//! So statements are prepared only on a connection that seems to lead to the server itself, see `backend`. Where that is wrong, a
//! name is unknown or means another statement. No two of ours take the same parameters, so the server refuses the call, and it
//! is repeated unprepared.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_postgres::ClientWrapper;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::backend;
use super::failure::ends_the_session;

/// A statement's parameter with its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The client of a pooled connection.
pub(super) struct PgClient {
    client: ClientWrapper,
    /// Whether statements may be prepared; unknown until the first call.
    prepares: OnceCell<AtomicBool>,
}

impl PgClient {
    /// The client of a new connection, which `driver` drives.
    pub fn new(client: Client, driver: JoinHandle<()>) -> Self {
        Self { client: ClientWrapper::new(client, driver), prepares: OnceCell::new() }
    }

    /// Executes a statement that calls a function, prepared if the connection allows it. Other statements are planned for
    /// their parameters, which a prepared one soon is not.
    pub async fn call(&self, statement: &'static str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        let prepares =
            self.prepares.get_or_init(async || AtomicBool::new(backend::is_direct(&self.client).await)).await;
        if prepares.load(Ordering::Relaxed) {
            match self.call_prepared(statement, parameters).await {
                // Rolled back, so the call may be repeated.
                Err(error) if may_mean_another_session(&error) => prepares.store(false, Ordering::Relaxed),
                rows => return rows,
            }
        }
        self.client.query_typed(statement, parameters).await
    }

    async fn call_prepared(&self, statement: &'static str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
        let prepared = self.client.prepare_typed_cached(statement, &types).await?;
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
        self.client.query(&prepared, &values).await
    }
}

impl Deref for PgClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Whether the server refused a prepared call in a way in which it also does if the name is not known there, or is another
/// statement's: the wrong number of parameters, or values of other types. The session goes on, so nothing was committed.
fn may_mean_another_session(error: &Error) -> bool {
    let Some(refusal) = error.as_db_error() else { return false };
    let code = refusal.code();
    !ends_the_session(refusal)
        && (code.code().starts_with("22")
            || [
                SqlState::DUPLICATE_PSTATEMENT,
                SqlState::FEATURE_NOT_SUPPORTED,
                SqlState::INVALID_SQL_STATEMENT_NAME,
                SqlState::PROTOCOL_VIOLATION,
            ]
            .contains(code))
}

//! A client of one connection, which prepares its statements where it may.
//!
//! A prepared statement spares the server the parsing, which costs as much as a short statement itself. Its name belongs to
//! the server's session, though, and behind a pooler that session may serve somebody else by the time of the next statement.
//! So statements are prepared only on a connection that is seen to lead to the server itself, see `backend`.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_postgres::ClientWrapper;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::backend;

/// A statement's parameter with its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The client of a pooled connection.
pub(super) struct PgClient {
    client: ClientWrapper,
    /// Whether the connection leads to the server itself.
    is_direct: AtomicBool,
}

impl PgClient {
    /// The client of a new connection, which `driver` drives.
    pub async fn new(client: Client, driver: JoinHandle<()>) -> Self {
        let is_direct = AtomicBool::new(backend::is_direct(&client).await);
        Self { client: ClientWrapper::new(client, driver), is_direct }
    }

    /// Executes a statement that calls a function, prepared if the connection allows it. Other statements are planned for
    /// their parameters, which a prepared one soon is not.
    pub async fn call(&self, statement: &'static str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        if self.is_direct.load(Ordering::Relaxed) {
            match self.query_prepared(statement, parameters).await {
                Err(error) if is_about_the_name(&error) => self.is_direct.store(false, Ordering::Relaxed),
                rows => return rows,
            }
        }
        self.client.query_typed(statement, parameters).await
    }

    async fn query_prepared(&self, statement: &'static str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
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

/// Whether the server does not know the statement's name, or knows it for another one. Then nothing was executed.
fn is_about_the_name(error: &Error) -> bool {
    matches!(error.code(), Some(&SqlState::INVALID_SQL_STATEMENT_NAME | &SqlState::DUPLICATE_PSTATEMENT))
}

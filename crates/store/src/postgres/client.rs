//! A client of one connection, which prepares its calls where it may.
//!
//! A prepared statement spares the server the parsing, which costs as much as a short statement itself. Its name
//! belongs to the server's session, though, and behind a pooler that session may serve somebody else by the time of the
//! next statement. So calls are prepared only on a connection that seems to lead to the server itself, see
//! `direct_connection`. Where that is wrong, a name is unknown or means another statement. No two of ours that do
//! different things take the same parameters, so the server refuses the call, and it is repeated unprepared.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_postgres::ClientWrapper;
use futures_util::future::{join_all, join3};
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::direct_connection;
use super::failure::ends_the_session;
use super::functions::Function;
use super::horizons::Horizons;
use super::server::{PgServer, ServerPlace};
use crate::columns::{Columns, Value};
use crate::statement::Statement;

pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

pub(super) fn parameters<'a>(values: impl IntoIterator<Item = &'a Value<'a>>) -> Vec<Parameter<'a>> {
    values.into_iter().map(|value| (value as &(dyn ToSql + Sync), value.postgres_type())).collect()
}

/// Begins a transaction that is durable.
pub(super) const BEGIN_WRITE: &str = "begin; select oncegate.begin_write()";

/// Begins a transaction like this, runs statements in it, and commits. All are sent together, in this order, so that
/// they take one round trip. After an error the server rolls back at the commit. None may be a prepared call: the
/// commit would be sent while the server prepares it.
pub(super) async fn in_transaction<T>(
    client: &Client,
    begin: &str,
    statements: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let (begun, answer, ended) = join3(client.batch_execute(begin), statements, client.batch_execute("commit")).await;
    begun?;
    let answer = answer?;
    ended.map(|()| answer)
}

pub(super) struct PgClient {
    client: ClientWrapper,
    server: PgServer,
    /// The place of the server when the connection was made.
    pub place: ServerPlace,
    prepares: AtomicBool,
}

impl PgClient {
    pub async fn new(server: PgServer, client: Client, driver: JoinHandle<()>, place: ServerPlace) -> Self {
        let prepares = AtomicBool::new(direct_connection::is_direct(&client).await);
        Self { client: ClientWrapper::new(client, driver), server, place, prepares }
    }

    pub fn horizons(&self) -> &Horizons {
        self.server.horizons()
    }

    pub fn is_distributed(&self) -> bool {
        self.server.is_distributed()
    }

    pub async fn call(&self, function: &Function, columns: &Columns<'_>) -> Result<Vec<Row>, Error> {
        self.call_with(function, function.call(columns), &parameters(columns.iter().map(|(_, value)| value))).await
    }

    /// Calls a function for many rows at once, with an array for each column. All rows have the same columns.
    pub async fn call_with_arrays(&self, function: &Function, rows: &[Columns<'_>]) -> Result<Vec<Row>, Error> {
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        let arrays: Vec<Vec<&Value<'_>>> =
            (0..first.len()).map(|place| rows.iter().map(|row| &row[place].1).collect()).collect();
        let parameters: Vec<Parameter<'_>> = arrays
            .iter()
            .zip(first)
            .map(|(array, (_, value))| (array as &(dyn ToSql + Sync), value.postgres_array_type()))
            .collect();
        self.call_with(function, function.call(first), &parameters).await
    }

    /// Calls a function for each of many rows, in one transaction: for all of them, or for none.
    pub async fn call_in_transaction(&self, function: &Function, rows: &[Columns<'_>]) -> Result<Vec<Vec<Row>>, Error> {
        debug_assert!(!function.is_prepared, "the commit would be sent while the server prepares the call");
        let calls = async { join_all(rows.iter().map(|row| self.call(function, row))).await.into_iter().collect() };
        in_transaction(self, "begin", calls).await
    }

    pub async fn run(&self, statement: &Statement, columns: &Columns<'_>) -> Result<Vec<Row>, Error> {
        self.query_typed(statement.for_postgres(), &parameters(statement.parameters(columns))).await
    }

    /// Runs a statement that writes and is no function, in a transaction that is durable.
    pub async fn write(&self, statement: &Statement, columns: &Columns<'_>) -> Result<Vec<Row>, Error> {
        in_transaction(self, BEGIN_WRITE, self.run(statement, columns)).await
    }

    /// Calls a function, by a prepared statement if function and connection allow that. Other statements are planned
    /// for their parameters, which a prepared one soon is not.
    async fn call_with(
        &self,
        function: &Function,
        call: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        if function.is_prepared && self.prepares.load(Ordering::Relaxed) {
            match self.call_prepared(call, parameters).await {
                // Rolled back, so the call may be repeated.
                Err(error) if may_mean_another_session(&error) => self.prepares.store(false, Ordering::Relaxed),
                rows => return rows,
            }
        }
        self.query_typed(call, parameters).await
    }

    async fn call_prepared(&self, call: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
        let prepared = self.client.prepare_typed_cached(call, &types).await?;
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

/// Whether the server refused a prepared call in a way in which it also does if the name is not known there, or is
/// another statement's: the wrong number of parameters, or values of other types. The session goes on, so nothing was
/// committed.
// See docs/decisions/0012-keep-no-session-state.md.
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

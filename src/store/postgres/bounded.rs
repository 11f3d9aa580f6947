//! Statements that the server itself ends when their caller gives up.
//!
//! A statement that is given up keeps its connection until the server is done with it. A page over a cold table, or one that
//! waits for a table's lock, would keep the only connection of its kind for long after its reader has gone. PgBouncer refuses
//! a `statement_timeout` at connecting, and sessions are shared; so the limit is local to the statement's transaction.

use futures_util::future::join3;
use tokio::time::Instant;
use tokio_postgres::{Client, Error, Row};

use super::client::{Parameter, parameters};
use super::connect::{PgConnection, PgPool};
use super::failure::PgFailure;
use super::functions::Function;
use crate::store::columns::Columns;
use crate::store::statement::Statement;

/// Runs a statement on one of the pool's connections; the server ends it at the deadline.
pub(super) async fn run(
    pool: &PgPool,
    deadline: Instant,
    statement: &Statement,
    columns: Columns<'_>,
) -> Result<Vec<Row>, PgFailure> {
    let values = statement.parameters(&columns);
    query(pool, deadline, statement.for_postgres(), &parameters(values)).await
}

/// Calls a function on one of the pool's connections; the server ends it at the deadline.
pub(super) async fn call(
    pool: &PgPool,
    deadline: Instant,
    function: &Function,
    columns: Columns<'_>,
) -> Result<Vec<Row>, PgFailure> {
    let values = columns.iter().map(|(_, value)| value);
    query(pool, deadline, function.call(&columns), &parameters(values)).await
}

async fn query(
    pool: &PgPool,
    deadline: Instant,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, PgFailure> {
    let held = PgConnection::get(pool, deadline).await?;
    held.finish(deadline, async |client| query_on(client, deadline, sql, parameters).await).await
}

/// Runs one statement in a transaction of its own; the server ends it at the deadline.
async fn query_on(
    client: &Client,
    deadline: Instant,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, Error> {
    let left = deadline.saturating_duration_since(Instant::now());
    // Zero would be no limit.
    let limit_ms = left.as_millis().clamp(1, i32::MAX as u128);
    let begin = format!("begin; set local statement_timeout = {limit_ms}");
    // Sent together, in this order, so that they take one round trip. After an error the server rolls back at the commit.
    let transaction =
        join3(client.batch_execute(&begin), client.query_typed(sql, parameters), client.batch_execute("commit"));
    let (begun, rows, committed) = transaction.await;
    begun?;
    let rows = rows?;
    committed?;
    Ok(rows)
}

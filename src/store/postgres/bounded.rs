//! Statements that the server itself ends when their caller gives up.
//!
//! A statement that is given up keeps its connection until the server is done with it. A page over a cold table, or one that
//! waits for a table's lock, would keep the only connection of its kind for long after its reader has gone. So the limit of these is
//! the server's too, local to the statement's transaction.

use tokio::time::Instant;
use tokio_postgres::{Error, Row};

use super::client::{PgClient, in_transaction};
use super::connect::PgPool;
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
    query(pool, deadline, async |client| client.run(statement, &columns).await).await
}

/// Calls a function on one of the pool's connections; the server ends it at the deadline.
pub(super) async fn call(
    pool: &PgPool,
    deadline: Instant,
    function: &Function,
    columns: Columns<'_>,
) -> Result<Vec<Row>, PgFailure> {
    query(pool, deadline, async |client| client.call(function, &columns).await).await
}

async fn query(
    pool: &PgPool,
    deadline: Instant,
    statement: impl AsyncFnOnce(&PgClient) -> Result<Vec<Row>, Error>,
) -> Result<Vec<Row>, PgFailure> {
    let bounded = async |client: &PgClient| {
        let left = deadline.saturating_duration_since(Instant::now());
        // Zero would be no limit.
        let limit_ms = left.as_millis().clamp(1, i32::MAX as u128);
        let begin = format!("begin; set local statement_timeout = {limit_ms}");
        in_transaction(client, &begin, statement(client)).await
    };
    pool.run(deadline, bounded).await
}

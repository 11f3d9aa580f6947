//! Statements that the server itself ends when their caller gives up.
//!
//! A statement that is given up keeps its connection until the server is done with it. A page over a cold table, or one that
//! waits for a table's lock, would keep the only connection of its kind for long after its reader has gone. So the limit of these is
//! the server's too, local to the statement's transaction.

use tokio::time::Instant;
use tokio_postgres::{Error, Row};

use super::PgCall;
use super::client::{PgClient, in_transaction};
use super::failure::PgResult;
use crate::columns::Columns;
use crate::statement::Statement;

impl PgCall<'_> {
    /// Runs a statement; the server ends it at the deadline.
    pub async fn run_bounded(self, statement: &Statement, columns: Columns<'_>) -> PgResult<Vec<Row>> {
        self.bounded(async |client| client.run(statement, &columns).await).await
    }

    /// Sends what is no prepared call, see [`in_transaction`]; the server ends it at the deadline.
    pub async fn bounded(
        self,
        statement: impl AsyncFnOnce(&PgClient) -> Result<Vec<Row>, Error>,
    ) -> PgResult<Vec<Row>> {
        let bounded = async |client: &PgClient| {
            let left = self.deadline.saturating_duration_since(Instant::now());
            // Zero would be no limit.
            let limit_ms = left.as_millis().clamp(1, i32::MAX as u128);
            let begin = format!("begin; set local statement_timeout = {limit_ms}");
            in_transaction(client, &begin, statement(client)).await
        };
        self.on_connection(bounded).await
    }
}

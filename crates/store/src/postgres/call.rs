//! One try of a call: how it sends its statements.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, Row};

use super::Postgres;
use super::client::{BEGIN_WRITE, PgClient, in_transaction};
use super::connect::{PgConnection, PgPool};
use super::failure::{PgFailure, PgResult};
use super::functions::Function;
use super::rows::changed;
use crate::call_spec::{CallSpec, TimeLimit};
use crate::columns::Columns;
use crate::row::FromRow;
use crate::statement::Statement;

/// The most rows that one transaction of upkeep locks: few enough that requests for the same keys do not wait
/// noticeably.
const ROWS_MAX: usize = 128;

/// One try of a call. Its methods, in `postgres` and the files below it, are the bodies of the store's calls.
#[derive(Clone, Copy)]
pub(crate) struct PgTry<'a> {
    pub(super) store: &'a Postgres,
    pub(super) spec: CallSpec,
    pub(super) deadline: Instant,
    /// Whether an earlier try of this very call may have been executed.
    pub(super) in_doubt: bool,
}

impl<'a> PgTry<'a> {
    /// The connections of a call that goes through no lane.
    fn pool(self) -> &'a PgPool {
        self.store.pools.of(self.spec.pool)
    }

    /// Sends statements on a connection of their own, see [`PgConnection::finish`].
    pub(super) async fn on_connection<T>(
        self,
        statements: impl AsyncFnOnce(&PgClient) -> Result<T, Error>,
    ) -> PgResult<T> {
        PgConnection::get(self.pool(), self.deadline).await?.finish(self.deadline, statements).await
    }

    /// Calls a function once. Returns its row where it has changed something.
    pub(super) async fn call(self, function: &Function, columns: Columns<'_>) -> PgResult<Option<Row>> {
        Ok(changed(self.on_connection(async |client| client.call(function, &columns).await).await?)?)
    }

    /// Runs a statement. The server ends it at the deadline where the call's [`TimeLimit`] says so.
    pub(super) async fn run(self, statement: &Statement, columns: Columns<'_>) -> PgResult<Vec<Row>> {
        let run = async |client: &PgClient| client.run(statement, &columns).await;
        match self.spec.limit {
            TimeLimit::Full => self.on_connection(run).await,
            TimeLimit::Bounded | TimeLimit::Short => self.bounded(run).await,
        }
    }

    pub async fn rows<T: FromRow>(self, statement: &Statement, columns: Arc<Columns<'static>>) -> PgResult<Vec<T>> {
        let rows = self.run(statement, Columns::clone(&columns)).await?;
        rows.iter().map(|row| Ok(T::read(row)?)).collect()
    }

    /// Sends what is no prepared call, see [`in_transaction`]; the server ends it at the deadline. A statement that is
    /// given up keeps its connection until the server is done with it. A page over a cold table, or one that waits for
    /// a table's lock, would keep the only connection of its kind for long after its reader has gone. So the limit is
    /// the server's too, local to the statement's transaction.
    pub(super) async fn bounded(
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

    /// Runs a statement that writes and is no function, see [`PgClient::write`].
    pub(super) async fn write(self, statement: &Statement, columns: Columns<'_>) -> PgResult<Vec<Row>> {
        self.on_connection(async |client| client.write(statement, &columns).await).await
    }

    /// [`Self::write`] for what may wait for the next pass: the server ends it after a second, so that a table that is
    /// locked does not keep the only connection of its kind.
    pub(super) async fn write_briefly(self, statement: &Statement, columns: Columns<'_>) -> PgResult<Vec<Row>> {
        let begin = format!("{BEGIN_WRITE}; set local statement_timeout = '1s'");
        let write = async |client: &PgClient| in_transaction(client, &begin, client.run(statement, &columns)).await;
        self.on_connection(write).await
    }

    /// Calls a function for each of many items. Returns those for which it has changed something, with their rows; a
    /// row that another transaction has locked is left to it.
    ///
    /// # Errors
    /// [`PgFailure`]; it is in doubt once some calls may have been committed.
    pub(super) async fn call_each<'i, T>(
        self,
        function: &Function,
        items: &'i [T],
        columns: impl Fn(&'i T) -> Columns<'i>,
    ) -> PgResult<Vec<(&'i T, Row)>> {
        let rows: Vec<Columns<'_>> = items.iter().map(columns).collect();
        let mut answers = Vec::new();
        for part in rows.chunks(ROWS_MAX) {
            let answered = self.call_part(function, part).await;
            let in_doubt = |failure: PgFailure| if answers.is_empty() { failure } else { failure.after_commits() };
            answers.extend(answered.map_err(in_doubt)?);
        }
        Ok(items.iter().zip(answers).filter_map(|(item, row)| Some((item, row?))).collect())
    }

    async fn call_part(self, function: &Function, part: &[Columns<'_>]) -> PgResult<Vec<Option<Row>>> {
        // One commit for all; but several nodes would have to agree on it.
        if part.len() > 1 && !self.pool().is_distributed() {
            match self.on_connection(async |client| client.call_in_transaction(function, part).await).await {
                Ok(rows) => return Ok(rows.into_iter().map(changed).collect::<Result<_, _>>()?),
                // One of the rows: the others go without it.
                Err(PgFailure::Held(_) | PgFailure::Row(_) | PgFailure::Conflict(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        let alone = async |client: &PgClient| {
            let calls = part.iter().map(|columns| client.call(function, columns));
            let rows = join_all(calls).await.into_iter().map(|rows| match rows {
                Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(Vec::new()),
                rows => rows,
            });
            rows.collect::<Result<Vec<_>, _>>()
        };
        let rows = self.on_connection(alone).await;
        let rows = rows.map_err(|failure| if part.len() > 1 { failure.after_commits() } else { failure })?;
        Ok(rows.into_iter().map(changed).collect::<Result<_, _>>()?)
    }
}

//! Calls of functions: in batches for requests, and one after the other for upkeep.

use std::collections::HashMap;

use futures_util::future::join_all;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, Row};

use super::PgCall;
use super::lane::{BatchStatement, OVERHEAD_BYTES};
use super::client::PgClient;
use super::connect::PgConnection;
use super::failure::{PgFailure, PgResult};
use super::functions::Function;
use super::rows::done;
use crate::columns::Columns;
use crate::statement::Statement;
use oncegate_domain::ids::RecordId;
use oncegate_domain::response::CorruptRow;

/// The most rows that one transaction of upkeep locks: few enough that requests for the same keys do not wait noticeably.
const ROWS_MAX: usize = 128;

/// The most records in one loop on a cluster. All of them wait for one another, and as many keys stay locked until a node that died
/// during their commit is back.
const CLUSTER_ROWS_MAX: usize = 32;

/// An answer to a call.
pub(super) trait CallAnswer: Send + Sized + 'static {
    /// Reads the answer; `None` where the function has changed nothing.
    fn read(row: Option<&Row>) -> Result<Self, CorruptRow>;
}

/// Whether the function has changed something.
impl CallAnswer for bool {
    fn read(row: Option<&Row>) -> Result<Self, CorruptRow> {
        Ok(row.is_some())
    }
}

/// A write of a request's, which can go to the database together with others of its kind.
pub(super) trait BatchedCall: Send + Sync + Sized + 'static {
    type Answer: CallAnswer;

    /// The function for one record.
    const FUNCTION: &'static Function;

    /// The function for many records, which takes arrays of the same columns and answers with the ids of those that it has
    /// changed; and the same for a cluster, which has a loop, as a cluster takes only statements of one record each. Without
    /// them, several calls share a transaction, and on a cluster each is sent by itself.
    const FUNCTIONS_OF_MANY: Option<[&'static Function; 2]> = None;

    /// See [`BatchStatement::goes_alone`].
    fn goes_alone(&self, _is_distributed: bool) -> bool {
        false
    }

    fn id(&self) -> RecordId;

    fn columns(&self) -> Columns<'_>;

    /// The bytes that clients and services have sent of it.
    fn sent_bytes(&self) -> usize {
        0
    }
}

impl<C: BatchedCall> BatchStatement for C {
    type Answer = Result<C::Answer, CorruptRow>;

    // Answers have ids and no more, so of two calls for one record both would look done.
    const DISTINCT: bool = true;
    const CLUSTER_JOBS_MAX: usize = if C::FUNCTIONS_OF_MANY.is_some() { CLUSTER_ROWS_MAX } else { 1 };

    fn id(&self) -> RecordId {
        BatchedCall::id(self)
    }

    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + self.sent_bytes()
    }

    fn goes_alone(&self, is_distributed: bool) -> bool {
        BatchedCall::goes_alone(self, is_distributed)
    }

    async fn run(client: &PgClient, calls: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let columns: Vec<Columns<'_>> = calls.iter().map(|call| call.columns()).collect();
        let answer = |rows: &[Row]| done(rows).and_then(C::Answer::read);
        if let [alone] = &columns[..] {
            return Ok(vec![answer(&client.call(C::FUNCTION, alone).await?)]);
        }
        let Some([function, on_cluster]) = C::FUNCTIONS_OF_MANY else {
            let answers = client.call_in_transaction(C::FUNCTION, &columns).await?;
            return Ok(answers.iter().map(|rows| answer(rows)).collect());
        };
        let function = if client.is_distributed() { on_cluster } else { function };
        let rows = client.call_with_arrays(function, &columns).await?;
        let mut changed = HashMap::new();
        for row in &rows {
            changed.insert(row.try_get::<_, &[u8]>("id")?, row);
        }
        let answer = |call: &&Self| C::Answer::read(changed.get(call.id().as_bytes().as_slice()).copied());
        Ok(calls.iter().map(answer).collect())
    }
}

impl PgCall<'_> {
    /// Sends statements on a connection of their own, see [`PgConnection::finish`].
    pub async fn on_connection<T>(self, statements: impl AsyncFnOnce(&PgClient) -> Result<T, Error>) -> PgResult<T> {
        PgConnection::get(self.pool, self.deadline).await?.finish(self.deadline, statements).await
    }

    /// Calls a function once. Returns its row where it has changed something.
    pub async fn call(self, function: &Function, columns: Columns<'_>) -> PgResult<Option<Row>> {
        Ok(changed(self.on_connection(async |client| client.call(function, &columns).await).await?)?)
    }

    /// Runs a statement.
    pub async fn run(self, statement: &Statement, columns: Columns<'_>) -> PgResult<Vec<Row>> {
        self.on_connection(async |client| client.run(statement, &columns).await).await
    }

    /// Runs a statement that writes and is no function, see [`PgClient::write`].
    pub async fn write(self, statement: &Statement, columns: Columns<'_>) -> PgResult<Vec<Row>> {
        self.on_connection(async |client| client.write(statement, &columns).await).await
    }

    /// Calls a function for each of many items. Returns those for which it has changed something, with their rows; a row that
    /// another transaction has locked is left to it.
    ///
    /// # Errors
    /// [`PgFailure`]; it is in doubt once some calls may have been committed.
    pub async fn call_each<'i, T>(
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
        if part.len() > 1 && !self.pool.is_distributed() {
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

/// The row of a call that has changed something.
pub(super) fn changed(mut rows: Vec<Row>) -> Result<Option<Row>, CorruptRow> {
    Ok(done(&rows)?.is_some().then(|| rows.swap_remove(0)))
}

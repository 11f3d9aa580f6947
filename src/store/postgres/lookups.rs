//! Reading records in batches of bounded bytes.
//!
//! A batch of 256 responses of 1 MiB would be one result of 256 MiB, and its connection and the store's thread would be
//! away from reservations until it has arrived. So the first statement leaves out large responses and returns their sizes.
//! They are read by a second statement, in batches by those sizes, on another connection.

use std::collections::HashMap;

use futures_util::future::join3;
use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};

use super::batcher::{BatchStatement, Batcher, OVERHEAD_BYTES};
use super::client::{Parameter, PgClient};
use super::connect::PgPool;
use super::failure::PgFailure;
use super::rows::one;
use super::{bounded, calls, functions};
use crate::domain::ids::RecordId;
use crate::domain::response::CorruptRow;
use crate::store::batch::{BYTES_MAX, JOBS_MAX};
use crate::store::columns::columns;
use crate::store::row::{FoundRecord, RowReader};
use crate::store::statement::statements;
use crate::store::{CountLiveKeysParams, MoveLiveKeysParams};

const FIND: &str = include_str!("sql/find.sql");
pub(super) const MOMENT: &str = include_str!("sql/moment.sql");
const AWAIT_DURABILITY: &str = include_str!("sql/await_durability.sql");
const AWAIT_DURABILITY_OF: &str = include_str!("sql/await_durability_of.sql");

statements! { "sql/":
    HOLDER = "holder";
    HOLDER_KEYS = "holder_keys";
}

/// The largest response, with its fields, that the first statement returns: then a full batch has at most [`BYTES_MAX`].
const SMALL_RESPONSE_MAX: usize = BYTES_MAX / JOBS_MAX;

/// The look-ups for one kind of caller.
pub(super) struct Lookups {
    small: Batcher<FindStatement>,
    large: Batcher<FindLargeStatement>,
}

impl Lookups {
    /// Starts the lanes: so many for records without large responses, and one for large responses.
    pub fn open(small: &PgPool, lanes: usize, large: &PgPool) -> Self {
        Self { small: Batcher::open(small, lanes), large: Batcher::open(large, 1) }
    }

    /// Reads a record. `in_doubt`: whether an earlier try of the same call may have written it. Then it is returned only
    /// once it is as durable as if that try had been answered.
    pub async fn find(
        &self,
        id: RecordId,
        in_doubt: bool,
        deadline: Instant,
    ) -> Result<Option<FoundRecord>, PgFailure> {
        match self.small.call(FindStatement { id, in_doubt }, deadline).await?? {
            None => Ok(None),
            Some(LookupRow::Whole(found)) => Ok(Some(*found)),
            Some(LookupRow::LeftOut { bytes }) => {
                Ok(self.large.call(FindLargeStatement { id, bytes, in_doubt }, deadline).await??)
            }
        }
    }
}

/// A row as the first statement returns it.
#[derive(Clone)]
enum LookupRow {
    Whole(Box<FoundRecord>),
    /// The response has so many bytes, and was left out.
    LeftOut {
        bytes: usize,
    },
}

/// Reads a record, unless its response is large.
struct FindStatement {
    id: RecordId,
    in_doubt: bool,
}

impl BatchStatement for FindStatement {
    type Answer = Result<Option<LookupRow>, CorruptRow>;

    fn id(&self) -> RecordId {
        self.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let ids: Vec<RecordId> = requests.iter().map(|q| q.id).collect();
        let found = read_rows(client, &ids, SMALL_RESPONSE_MAX, requests.iter().any(|q| q.in_doubt)).await?;
        Ok(ids.iter().map(|id| found.get(&id.as_bytes()[..]).cloned().transpose()).collect())
    }
}

/// Reads a record of which [`FindStatement`] has left out the response.
struct FindLargeStatement {
    id: RecordId,
    /// The size of the response. A key that was deleted and completed again since may have a larger one.
    bytes: usize,
    in_doubt: bool,
}

impl BatchStatement for FindLargeStatement {
    type Answer = Result<Option<FoundRecord>, CorruptRow>;

    fn id(&self) -> RecordId {
        self.id
    }

    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + self.bytes
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let ids: Vec<RecordId> = requests.iter().map(|q| q.id).collect();
        let found = read_rows(client, &ids, usize::MAX, requests.iter().any(|q| q.in_doubt)).await?;
        let whole = |row: LookupRow| match row {
            LookupRow::Whole(found) => Ok(*found),
            LookupRow::LeftOut { .. } => Err(CorruptRow("a response of impossible size")),
        };
        let answer = |id: &RecordId| found.get(&id.as_bytes()[..]).cloned().map(|row| row.and_then(whole)).transpose();
        Ok(ids.iter().map(answer).collect())
    }
}

/// Reads the rows of these ids, which are sorted; leaves out responses of more than `bytes_max`.
async fn read_rows(
    client: &PgClient,
    ids: &[RecordId],
    bytes_max: usize,
    in_doubt: bool,
) -> Result<HashMap<Vec<u8>, Result<LookupRow, CorruptRow>>, Error> {
    let mut distinct: Vec<&[u8]> = ids.iter().map(|id| id.as_bytes().as_slice()).collect();
    distinct.dedup();
    let limit = i64::try_from(bytes_max).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 2] =
        [(/* id */ &distinct, Type::BYTEA_ARRAY), (/* bytes_max */ &limit, Type::INT8)];
    let (moment, rows) = at_moment(client, FIND, &parameters).await?;
    let mut found = HashMap::new();
    for row in &rows {
        found.insert(row.try_get::<_, Vec<u8>>("id")?, decode(row, moment, bytes_max));
    }
    if in_doubt {
        await_durability(client, &distinct).await?;
    }
    Ok(found)
}

/// Runs a statement that reads, with the store's time, on a server that takes writes.
pub(super) async fn at_moment(
    client: &Client,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<(i64, Vec<Row>), Error> {
    // Sent together, so that they take one round trip. A statement of its own, because a cluster cannot send the clock and the lock
    // to the node that has the rows.
    let (moment, rows) =
        futures_util::future::join(client.query_typed_one(MOMENT, &[]), client.query_typed(sql, parameters)).await;
    Ok((moment?.try_get("now")?, rows?))
}

/// Waits until what is visible of these keys is as durable as a commit of our own.
pub(super) async fn await_durability(client: &PgClient, ids: &[&[u8]]) -> Result<(), Error> {
    if !client.is_distributed() {
        return write(client, AWAIT_DURABILITY, &[]).await.map(drop);
    }
    for id in ids {
        client.query_typed(AWAIT_DURABILITY_OF, &[(/* id */ id, Type::BYTEA)]).await?;
    }
    Ok(())
}

/// Runs a statement that writes and is no function, in a transaction that is durable.
pub(super) async fn write(client: &Client, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
    // Sent together, in this order. After an error the server rolls back at the commit.
    let begin = client.batch_execute("begin; select oncegate.begin_write()");
    let (begun, rows, ended) = join3(begin, client.query_typed(sql, parameters), client.batch_execute("commit")).await;
    begun?;
    let rows = rows?;
    ended?;
    Ok(rows)
}

fn decode(row: &Row, now: i64, bytes_max: usize) -> Result<LookupRow, CorruptRow> {
    let bytes = usize::try_from(row.read::<u64>("bytes")?).unwrap_or(usize::MAX);
    if bytes > bytes_max {
        return Ok(LookupRow::LeftOut { bytes });
    }
    Ok(LookupRow::Whole(Box::new(FoundRecord::read(row, now)?)))
}

/// Counts a holder's live keys, up to a limit.
pub(super) async fn count_live_keys(
    pool: &PgPool,
    params: CountLiveKeysParams,
    deadline: Instant,
) -> Result<u32, PgFailure> {
    let columns = columns! { holder: &params.holder, limit: i64::from(params.limit) };
    let counted: i64 =
        one(&bounded::call(pool, deadline, &functions::COUNT_LIVE_KEYS, columns).await?)?.read("count")?;
    Ok(u32::try_from(counted).unwrap_or(params.limit))
}

/// Lets a key, and its caller's other keys with the same holder, count for another holder.
pub(super) async fn move_live_keys(
    pool: &PgPool,
    params: MoveLiveKeysParams,
    deadline: Instant,
) -> Result<u32, PgFailure> {
    let rows = bounded::run(pool, deadline, &HOLDER, columns! { id: &params.id }).await?;
    let Some(seen) = rows.first().map(|row| row.read::<Option<Vec<u8>>>("holder")).transpose()?.flatten() else {
        return Ok(0);
    };
    if seen == params.holder.as_bytes() {
        return Ok(0);
    }
    let columns = columns! { holder: &seen[..], scope: &params.scope };
    let rows = bounded::run(pool, deadline, &HOLDER_KEYS, columns).await?;
    let ids = rows.iter().map(calls::id).collect::<Result<Vec<_>, _>>()?;
    let moves: Vec<_> =
        ids.iter().map(|id| columns! { id: id, seen_holder: &seen[..], holder: &params.holder }).collect();
    let moved = calls::call_each(pool, deadline, &functions::SET_HOLDER, &moves).await?;
    Ok(u32::try_from(moved.iter().flatten().count()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::batcher;
    use super::*;
    use crate::store::batch::BatchQueue;

    #[tokio::test]
    async fn a_batch_of_look_ups_has_bounded_bytes() {
        const RESPONSE: usize = 1024 * 1024;
        const { assert!(SMALL_RESPONSE_MAX * JOBS_MAX <= BYTES_MAX) };
        let queue = BatchQueue::new();
        let id = RecordId::from_stored(&[0; 32]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let call = || batcher::call(&queue, FindLargeStatement { id, bytes: RESPONSE, in_doubt: false }, deadline);
        let calls = futures_util::future::join_all((0..JOBS_MAX).map(|_| call()));
        let sizes = async {
            let mut sizes = Vec::new();
            while sizes.iter().sum::<usize>() < JOBS_MAX {
                let mut batch = queue.batch(|| JOBS_MAX).await.unwrap();
                sizes.push(batch.jobs.len());
                std::mem::take(&mut batch.jobs).into_iter().for_each(|job| job.reply.send(Ok(Ok(None))));
            }
            sizes
        };
        let (_, sizes) = tokio::join!(calls, sizes);
        assert!(sizes.iter().all(|jobs| jobs * RESPONSE <= BYTES_MAX), "{sizes:?}");
    }
}

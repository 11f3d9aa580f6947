//! Reading records in batches of bounded bytes.
//!
//! A batch of 256 responses of 1 MiB would be one result of 256 MiB, and its connection and the store's thread would be
//! away from reservations until it has arrived. So the first statement leaves out large responses and returns their sizes.
//! They are read by a second statement, in batches by those sizes, on another connection.

use std::collections::HashMap;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};

use super::batcher::{BatchStatement, Batcher};
use super::bounded;
use super::client::{Parameter, PgClient};
use super::connect::PgPool;
use super::failure::PgFailure;
use super::statements::{OVERHEAD_BYTES, column};
use crate::domain::ids::RecordId;
use crate::domain::response::CorruptRow;
use crate::store::batch::{BYTES_MAX, ByteSize, JOBS_MAX};
use crate::store::row::{self, FoundRecord};
use crate::store::{CountLiveKeysParams, MoveLiveKeysParams};

pub(super) const AWAIT_DURABILITY: &str = durable!("await_durability");
const COUNT_LIVE_KEYS: &str = include_str!("sql/count_live_keys.sql");
const MOVE_LIVE_KEYS: &str = include_str!("sql/move_live_keys.sql");
const FIND: &str = include_str!("sql/find.sql");

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

impl ByteSize for FindStatement {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES
    }
}

impl BatchStatement for FindStatement {
    type Answer = Result<Option<LookupRow>, CorruptRow>;

    const DISTINCT: bool = false;

    fn id(&self) -> RecordId {
        self.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let ids = column(requests, |q| q.id);
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

impl ByteSize for FindLargeStatement {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + self.bytes
    }
}

impl BatchStatement for FindLargeStatement {
    type Answer = Result<Option<FoundRecord>, CorruptRow>;

    const DISTINCT: bool = false;

    fn id(&self) -> RecordId {
        self.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let ids = column(requests, |q| q.id);
        let found = read_rows(client, &ids, usize::MAX, requests.iter().any(|q| q.in_doubt)).await?;
        let whole = |row: LookupRow| match row {
            LookupRow::Whole(found) => Ok(*found),
            LookupRow::LeftOut { .. } => Err(CorruptRow("a response of impossible size")),
        };
        let answer = |id: &RecordId| found.get(&id.as_bytes()[..]).cloned().map(|row| row.and_then(whole)).transpose();
        Ok(ids.iter().map(answer).collect())
    }
}

/// Counts a holder's live keys, up to `limit`.
pub(super) async fn count_live_keys(
    pool: &PgPool,
    CountLiveKeysParams { holder, limit }: CountLiveKeysParams,
    deadline: Instant,
) -> Result<u32, PgFailure> {
    let holder = holder.as_bytes().as_slice();
    let parameters: [Parameter<'_>; 2] =
        [(/* holder */ &holder, Type::BYTEA), (/* limit */ &i64::from(limit), Type::INT8)];
    let rows = bounded::query(pool, deadline, COUNT_LIVE_KEYS, &parameters).await?;
    let counted: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(u32::try_from(counted).unwrap_or(limit))
}

/// Lets a key, and its caller's other keys with the same holder, count for another holder.
pub(super) async fn move_live_keys(
    pool: &PgPool,
    MoveLiveKeysParams { id, scope, holder }: MoveLiveKeysParams,
    deadline: Instant,
) -> Result<u32, PgFailure> {
    let (id, scope, holder) = (id.as_bytes().as_slice(), scope.as_bytes().as_slice(), holder.as_bytes().as_slice());
    let parameters: [Parameter<'_>; 3] =
        [(/* id */ &id, Type::BYTEA), (/* scope */ &scope, Type::BYTEA), (/* holder */ &holder, Type::BYTEA)];
    let rows = bounded::query(pool, deadline, MOVE_LIVE_KEYS, &parameters).await?;
    let moved: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(u32::try_from(moved).unwrap_or(u32::MAX))
}

/// Reads the rows of these ids, which are sorted; leaves out responses of more than `bytes_max`.
async fn read_rows(
    client: &Client,
    ids: &[RecordId],
    bytes_max: usize,
    in_doubt: bool,
) -> Result<HashMap<Vec<u8>, Result<LookupRow, CorruptRow>>, Error> {
    let mut distinct: Vec<&[u8]> = ids.iter().map(|id| id.as_bytes().as_slice()).collect();
    distinct.dedup();
    let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
    let mut found = HashMap::new();
    for row in client
        .query_typed(FIND, &[(/* id */ &distinct, Type::BYTEA_ARRAY), (/* bytes_max */ &bytes_max, Type::INT8)])
        .await?
    {
        found.insert(row.try_get::<_, Vec<u8>>("id")?, decode(&row));
    }
    if in_doubt {
        client.query_typed(AWAIT_DURABILITY, &[]).await?;
    }
    Ok(found)
}

fn decode(row: &Row) -> Result<LookupRow, CorruptRow> {
    let unreadable = |_| CorruptRow("a column's type");
    if let Some(bytes) = row.try_get::<_, Option<i64>>("left_out_bytes").map_err(unreadable)? {
        return Ok(LookupRow::LeftOut { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) });
    }
    Ok(LookupRow::Whole(Box::new(read(row).map_err(unreadable)?.decode()?)))
}

fn read(row: &Row) -> Result<row::RawRecord<'_>, Error> {
    Ok(row::RawRecord {
        id: row.try_get("id")?,
        attempt: row.try_get::<_, i32>("attempt")?.into(),
        token: row.try_get("token")?,
        recipe: row.try_get("recipe")?,
        fingerprint: row.try_get("fingerprint")?,
        state: row.try_get("state")?,
        running_ms: row.try_get("running_ms")?,
        deadline_in_ms: row.try_get("deadline_in_ms")?,
        past_ttl: row.try_get("past_ttl")?,
        late: row.try_get("late")?,
        now_ms: row.try_get("now_ms")?,
        settled_ms: row.try_get("settled_ms")?,
        recovery_point: row.try_get("recovery_point")?,
        expires_at_ms: row.try_get("expires_at_ms")?,
        accepted_at_ms: row.try_get("accepted_at_ms")?,
        status: row.try_get::<_, Option<i16>>("status")?.map(i64::from),
        fields: row.try_get("fields")?,
        body: row.try_get::<_, Option<&[u8]>>("body")?.map(Bytes::copy_from_slice),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::batch::{self, BatchQueue, PendingCall};

    #[tokio::test]
    async fn a_batch_of_look_ups_has_bounded_bytes() {
        const RESPONSE: usize = 1024 * 1024;
        const { assert!(SMALL_RESPONSE_MAX * JOBS_MAX <= BYTES_MAX) };
        let queue = BatchQueue::<PendingCall<FindLargeStatement, ()>>::new();
        let id = RecordId::from_stored(&[0; 32]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let call = || batch::call(&queue, FindLargeStatement { id, bytes: RESPONSE, in_doubt: false }, deadline);
        let calls = futures_util::future::join_all((0..JOBS_MAX).map(|_| call()));
        let sizes = async {
            let mut sizes = Vec::new();
            while sizes.iter().sum::<usize>() < JOBS_MAX {
                let mut batch = queue.batch().await.unwrap();
                sizes.push(batch.jobs.len());
                std::mem::take(&mut batch.jobs).into_iter().for_each(|job| job.answer(()));
            }
            sizes
        };
        let (_, sizes) = tokio::join!(calls, sizes);
        assert!(sizes.iter().all(|jobs| jobs * RESPONSE <= BYTES_MAX), "{sizes:?}");
    }
}

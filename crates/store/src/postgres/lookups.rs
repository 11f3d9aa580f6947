//! Reading records in batches of bounded bytes.
//!
//! A batch of 256 responses of 1 MiB would be one result of 256 MiB, and its connection and the store's thread would be
//! away from reservations until it has arrived. So the first statement leaves out large responses and returns their
//! sizes. They are read by a second statement, in batches by those sizes, on another connection.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join;
use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};

use super::client::{Parameter, PgClient};
use super::connect::PgPool;
use super::durability::Durability;
use super::failure::{PgFailure, PgResult};
use super::horizons::RowWriter;
use super::lane::{LaneCall, Lanes, ONE_ON_CLUSTER, OVERHEAD_BYTES};
use super::rows::one;
use super::worker_connection::WorkerConnections;
use super::{PgTry, functions};
use crate::columns::columns;
use crate::queue::{BYTES_MAX, JOBS_MAX};
use crate::row::{FoundRecord, RowReader};
use crate::statement::statements;
use crate::{CountLiveKeysParams, MoveLiveKeysParams};
use oncegate_domain::ids::RecordId;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::state::KeyState;

const FIND: &str = include_str!("sql/find.sql");
pub(super) const MOMENT: &str = include_str!("sql/moment.sql");

statements! { "sql/":
    HOLDER = "holder";
    HOLDER_KEYS = "holder_keys";
}

/// The largest response, with its fields, that the first statement returns: then a full batch has at most
/// [`BYTES_MAX`].
const SMALL_RESPONSE_MAX: usize = BYTES_MAX / JOBS_MAX;

pub(super) struct Lookups {
    small: Lanes<FindCall>,
    large: Lanes<FindCall>,
    durability: Durability,
}

impl Lookups {
    /// Starts the lanes: so many for records without large responses, one for large responses, and one that waits until
    /// records are durable.
    pub fn open(small: &PgPool, lanes: usize, large: &PgPool) -> Self {
        Self {
            small: Lanes::open(small, lanes, ONE_ON_CLUSTER),
            large: Lanes::open(large, 1, ONE_ON_CLUSTER),
            durability: Durability::open(small),
        }
    }

    pub fn beside(self, workers: &WorkerConnections) -> Self {
        Self { small: self.small.beside(workers), ..self }
    }

    /// Reads a record, and returns it once it is as durable as a commit of our own. Only the record of a running
    /// attempt needs no wait: its duplicate is told to come again, and nothing rests on that. `in_doubt`: whether an
    /// earlier try of the same call may have written it; then it may be this call's own attempt, and the wait is
    /// needed.
    pub async fn find(&self, id: RecordId, in_doubt: bool, deadline: Instant) -> PgResult<Option<FoundRecord>> {
        loop {
            let mut row = self.small.call(FindCall { id, left_out: None }, deadline).await??;
            if let Some(LookupRow::LeftOut(bytes)) = row {
                let large = self.large.call(FindCall { id, left_out: Some(bytes) }, deadline).await;
                row = large.map_err(PgFailure::for_taken_key)??;
            }
            let (found, writer) = match row {
                None => return Ok(None),
                Some(LookupRow::Whole(found, writer)) => (*found, writer),
                Some(LookupRow::LeftOut(_)) => return Err(CorruptRow("a response of impossible size").into()),
            };
            let record = &found.record;
            let is_told_to_come_again = record.accepted_at.is_none() && matches!(record.state, KeyState::InFlight);
            // Whatever comes of the wait, somebody has the key: nobody may take it for one that the store does not
            // know.
            if (is_told_to_come_again && !in_doubt)
                || self.durability.proves(id, writer, deadline).await.map_err(PgFailure::for_taken_key)?
            {
                return Ok(Some(found));
            }
        }
    }
}

enum LookupRow {
    Whole(Box<FoundRecord>, Option<RowWriter>),
    /// The response has so many bytes, and was left out.
    LeftOut(usize),
}

struct FindCall {
    id: RecordId,
    /// The size of the response where the first statement has left it out. A key that was deleted and completed again
    /// since may have a larger one.
    left_out: Option<usize>,
}

impl LaneCall for FindCall {
    type Answer = Result<Option<LookupRow>, CorruptRow>;

    fn id(&self) -> RecordId {
        self.id
    }

    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + self.left_out.unwrap_or(0)
    }

    async fn run(client: &PgClient, calls: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let is_first = calls.iter().all(|call| call.left_out.is_none());
        let bytes_max = if is_first { SMALL_RESPONSE_MAX } else { usize::MAX };
        let limit = i64::try_from(bytes_max).unwrap_or(i64::MAX);
        let mut ids: Vec<RecordId> = calls.iter().map(|call| call.id).collect();
        ids.dedup();
        let (now, rows) = find_rows(client, FIND, &ids, &[(/* bytes_max */ &limit, Type::INT8)]).await?;
        let decode = |row: &Row| match usize::try_from(row.read::<u64>("bytes")?).unwrap_or(usize::MAX) {
            bytes if bytes > bytes_max => Ok(LookupRow::LeftOut(bytes)),
            _ => Ok(LookupRow::Whole(Box::new(FoundRecord::read(row, now)?), RowWriter::read(row)?)),
        };
        Ok(calls.iter().map(|call| rows.get(&call.id.as_bytes()[..]).map(decode).transpose()).collect())
    }
}

/// Reads the rows of these ids, and the store's time.
pub(super) async fn find_rows(
    client: &Client,
    sql: &str,
    ids: &[RecordId],
    more: &[Parameter<'_>],
) -> Result<(i64, HashMap<Vec<u8>, Row>), Error> {
    let ids: Vec<&[u8]> = ids.iter().map(|id| id.as_bytes().as_slice()).collect();
    let mut parameters: Vec<Parameter<'_>> = vec![(/* id */ &ids, Type::BYTEA_ARRAY)];
    parameters.extend_from_slice(more);
    let (now, rows) = at_moment(client, sql, &parameters).await?;
    let rows = rows.into_iter().map(|row| Ok((row.try_get("id")?, row))).collect::<Result<_, Error>>()?;
    Ok((now, rows))
}

/// Runs a statement that reads, with the store's time, on a server that takes writes.
pub(super) async fn at_moment(
    client: &Client,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<(i64, Vec<Row>), Error> {
    // Sent together, so that they take one round trip. A statement of its own, because a cluster cannot send the clock
    // and the lock to the node that has the rows.
    let (moment, rows) = join(client.query_typed_one(MOMENT, &[]), client.query_typed(sql, parameters)).await;
    Ok((moment?.try_get("now")?, rows?))
}

impl PgTry<'_> {
    pub async fn count_live_keys(self, params: Arc<CountLiveKeysParams>) -> PgResult<u32> {
        let columns = columns! { holder: &params.holder, limit: i64::from(params.limit) };
        debug_assert!(!functions::COUNT_LIVE_KEYS.is_prepared, "it is called in a transaction");
        let rows = self.bounded(async |client| client.call(&functions::COUNT_LIVE_KEYS, &columns).await).await?;
        Ok(u32::try_from(one(&rows)?.read::<i64>("count")?).unwrap_or(params.limit))
    }

    pub async fn move_live_keys(self, params: Arc<MoveLiveKeysParams>) -> PgResult<u32> {
        let rows = self.run(&HOLDER, columns! { id: &params.id }).await?;
        let Some(seen) = rows.first().map(|row| row.read::<Option<Vec<u8>>>("holder")).transpose()?.flatten() else {
            return Ok(0);
        };
        if seen == params.holder.as_bytes() {
            return Ok(0);
        }
        let columns = columns! { holder: &seen[..], scope: &params.scope };
        let rows = self.run(&HOLDER_KEYS, columns).await?;
        let ids = rows.iter().map(|row| row.read("id")).collect::<Result<Vec<RecordId>, _>>()?;
        let moved = self.call_each(&functions::SET_HOLDER, &ids, |id| {
            columns! { id: id, seen_holder: &seen[..], holder: &params.holder }
        });
        Ok(u32::try_from(moved.await?.len()).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::lane;
    use super::*;
    use crate::queue::JobQueue;

    #[tokio::test]
    async fn a_batch_of_look_ups_has_bounded_bytes() {
        const RESPONSE: usize = 1024 * 1024;
        const { assert!(SMALL_RESPONSE_MAX * JOBS_MAX <= BYTES_MAX) };
        let queue = JobQueue::new();
        let id = RecordId::from_stored(&[0; 32]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let call = || lane::enqueue(&queue, FindCall { id, left_out: Some(RESPONSE) }, deadline);
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

//! Whether a row that anybody wrote is as durable as a commit of our own. A server that waits for standbys shows
//! commits that they do not have yet: those whose wait was cancelled or whose session was killed, and what was on its
//! disk when it crashed.
//!
//! **The rule: an answer that rests on a row waits for a commit of our own that began after the row was read.** The
//! proof:
//!
//! 1. The row is visible, so its commit stands in the log. A commit that begins later stands behind it.
//! 2. A standby confirms the log up to a place. Once it has confirmed our commit, it has the row.
//! 3. Such a commit proves more. All transactions below the oldest that still ran when it began (the horizon) had
//!    ended, so their commits stand before it too. A row whose writer is below a horizon needs no other commit.
//! 4. Ids are compared, and no times: a service's transaction that writes early and commits late runs until then. So
//!    does a prepared one.
//! 5. A horizon holds for one server since its start, under one list of standbys: a new primary, and a former one that
//!    returns, has another start. The same holds for the commit of the rule: one on another server proves nothing, and
//!    the row is read again. A server that restarts itself after a crash keeps the log below a durable commit, and its
//!    ids.

use futures_util::future::try_join;
use tokio::time::Instant;
use tokio_postgres::{Error, Row};

use super::client::{BEGIN_WRITE, PgClient, in_transaction};
use super::connect::PgPool;
use super::failure::PgResult;
use super::horizons::{Horizons, Proof, RowWriter};
use super::lane::{LaneCall, Lanes, ONE_ON_CLUSTER};
use super::server::PgServer;
use crate::columns::{Columns, columns};
use crate::statement::statements;
use oncegate_domain::ids::RecordId;
use oncegate_domain::response::CorruptRow;

statements! { "sql/":
    AWAIT_DURABILITY = "await_durability";
    AWAIT_DURABILITY_OF = "await_durability_of";
}

/// The waits of one kind of caller for durable commits. All that wait at the same moment share one.
pub(super) struct Durability {
    commits: Lanes<DurableCommit>,
    server: PgServer,
}

impl Durability {
    pub fn open(pool: &PgPool) -> Self {
        Self { commits: Lanes::open(pool, 1, ONE_ON_CLUSTER), server: pool.server().clone() }
    }

    /// Waits until a key's row is as durable as a commit of our own. `writer`: of the row as it was read before.
    /// Returns whether it is: not where the commit went to another server than the read, or to one whose list of
    /// standbys has changed since.
    // See docs/decisions/0007-answer-from-durable-rows.md.
    pub async fn proves(&self, id: RecordId, writer: Option<RowWriter>, deadline: Instant) -> PgResult<bool> {
        let Some(writer) = writer.filter(|writer| !self.server.horizons().include(writer)) else { return Ok(true) };
        let proof = self.commits.call(DurableCommit(id), deadline).await??;
        Ok(accept(self.server.horizons(), proof, &writer))
    }
}

/// Keeps a proof. Returns whether it is one for this row.
fn accept(horizons: &Horizons, proof: Option<Proof>, writer: &RowWriter) -> bool {
    let Some(proof) = proof else { return false };
    let is_proven = proof.is_of_server_of(writer);
    horizons.add(proof);
    is_proven
}

/// The same for a row that was read on this connection, with a commit on it.
pub(super) async fn wait_on(client: &PgClient, writer: Option<RowWriter>) -> Result<bool, Error> {
    let Some(writer) = writer.filter(|writer| !client.horizons().include(writer)) else { return Ok(true) };
    let rows = await_durability(client, &[]).await?;
    Ok(accept(client.horizons(), rows.first().and_then(|row| Proof::read(row).ok().flatten()), &writer))
}

/// A commit that proves that what is visible of a key is durable.
struct DurableCommit(RecordId);

impl LaneCall for DurableCommit {
    type Answer = Result<Option<Proof>, CorruptRow>;

    fn id(&self) -> RecordId {
        self.0
    }

    async fn run(client: &PgClient, calls: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let ids: Vec<RecordId> = calls.iter().map(|call| call.0).collect();
        let rows = await_durability(client, &ids).await?;
        let proof = rows.first().map_or(Ok(None), Proof::read);
        Ok(vec![proof; calls.len()])
    }
}

/// Waits until what is visible is as durable as a commit of our own: of these keys, where they are distributed over a
/// cluster. Returns the proof in a row, where the server waits for a standby.
async fn await_durability(client: &PgClient, ids: &[RecordId]) -> Result<Vec<Row>, Error> {
    if !client.is_distributed() || ids.is_empty() {
        return client.write(&AWAIT_DURABILITY, &Columns::new()).await;
    }
    let mut rows = Vec::new();
    for id in ids {
        rows.extend(client.run(&AWAIT_DURABILITY_OF, &columns! { id: id }).await?);
    }
    Ok(rows)
}

/// Reads keys, and returns what was read once it is as durable as a commit of our own.
pub(super) async fn read_durably<T>(
    client: &PgClient,
    ids: &[RecordId],
    reads: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    if client.is_distributed() {
        let read = reads.await?;
        await_durability(client, ids).await?;
        // The audit log is on the coordinator.
        await_durability(client, &[]).await?;
        return Ok(read);
    }
    // In one transaction, which no pooler leads to two servers.
    let reads = async { Ok(try_join(reads, client.run(&AWAIT_DURABILITY, &Columns::new())).await?.0) };
    in_transaction(client, BEGIN_WRITE, reads).await
}

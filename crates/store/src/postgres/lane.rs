//! Lanes: batching of calls. A lane takes all calls of one kind that wait, sends them in one transaction, and answers
//! each caller. A call beside which no other waits needs no lane: its worker sends it on a connection of its own.

use std::mem;
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::client::PgClient;
use super::connect::{PgConnection, PgPool};
use super::failure::PgFailure;
use super::worker_connection::WorkerConnections;
use crate::queue::{JOBS_MAX, Job, JobQueue};
use crate::reply::{self, ReplySender, current_worker};
use oncegate_domain::ids::RecordId;

/// The number of times that a batch is sent again after a conflict. In READ COMMITTED, with rows locked in one order,
/// none is expected.
const CONFLICTS_MAX: usize = 3;

/// The size of a row beyond the data that clients send.
pub(super) const OVERHEAD_BYTES: usize = 256;

/// The most calls in a batch on a cluster, unless a function takes them all: several nodes have to agree on it, and one
/// that is away fails it.
pub(super) const ONE_ON_CLUSTER: usize = 1;

/// A call that is sent to the database together with others of its kind.
pub(super) trait LaneCall: Send + Sync + Sized + 'static {
    type Answer: Send + 'static;

    /// Whether a batch can answer only one call for each record.
    const DISTINCT: bool = false;

    /// The call's record. Batches are sorted by it, so that two of them never deadlock.
    fn id(&self) -> RecordId;

    fn bytes(&self) -> usize {
        OVERHEAD_BYTES
    }

    /// Whether it is sent by itself: because another transaction had locked the row before, or because a node of a
    /// cluster may have failed the batch that it was in.
    fn goes_alone(&self, _is_distributed: bool) -> bool {
        false
    }

    /// Executes all calls, which come in the order of their records, in one transaction. Returns the answers in that
    /// order.
    fn run(
        client: &PgClient,
        calls: &[&Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, tokio_postgres::Error>> + Send;
}

pub(super) struct PendingCall<S: LaneCall> {
    pub call: S,
    pub deadline: Instant,
    pub reply: ReplySender<Result<S::Answer, PgFailure>>,
}

impl<S: LaneCall> Job for PendingCall<S> {
    fn abandoned(&self) -> bool {
        // Past its deadline the caller may still be there, but it will not read an answer any more.
        self.reply.is_closed() || Instant::now() >= self.deadline
    }
}

/// The queue for calls of one kind, with its lanes, which end when it is dropped.
pub(super) struct Lanes<S: LaneCall> {
    state: Arc<LanesState<S>>,
    /// None for calls that always go through a lane.
    workers: WorkerConnections,
}

struct LanesState<S: LaneCall> {
    queue: JobQueue<PendingCall<S>>,
    pool: PgPool,
    cluster_jobs_max: usize,
}

impl<S: LaneCall> Lanes<S> {
    /// Starts this many lanes on the pool's connections; on a cluster, one for each connection.
    pub fn open(pool: &PgPool, lanes: usize, cluster_jobs_max: usize) -> Self {
        let state = Arc::new(LanesState { queue: JobQueue::new(), pool: pool.clone(), cluster_jobs_max });
        for _ in 0..lanes {
            tokio::spawn(lane(Arc::clone(&state)));
        }
        let (waiting, distributed) = (Arc::downgrade(&state), pool.server().distributed());
        tokio::spawn(async move {
            // Weak, because it may never happen.
            if distributed.await
                && let Some(state) = waiting.upgrade()
            {
                for _ in lanes..state.pool.max_size() {
                    tokio::spawn(lane(Arc::clone(&state)));
                }
            }
        });
        Self { state, workers: Arc::default() }
    }

    /// Lets a call that is alone go out on its worker's own connection: a lane is on another thread, and each way there
    /// and back wakes a thread that sleeps.
    // See docs/decisions/0010-batch-without-a-timer.md.
    pub fn beside(mut self, workers: &WorkerConnections) -> Self {
        self.workers = Arc::clone(workers);
        self
    }

    /// Executes a call together with others that wait now.
    pub async fn call(&self, call: S, deadline: Instant) -> Result<S::Answer, PgFailure> {
        let queue = &self.state.queue;
        if let Some(own) = current_worker().and_then(|worker| self.workers.get(worker))
            && let Some(_alone) = queue.try_alone()
            && let Some(held) = own.take(deadline).await
        {
            match held.finish(deadline, async |client| S::run(client, &[&call]).await).await {
                // A lane tries it again.
                Err(PgFailure::Conflict(_)) => {}
                answers => return answers.map(|mut answers| answers.swap_remove(0)),
            }
        }
        enqueue(queue, call, deadline).await
    }
}

/// Queues a call and waits for its answer. Without one it may be executed all the same, unless the queue is closed.
pub(super) async fn enqueue<S: LaneCall>(
    queue: &JobQueue<PendingCall<S>>,
    call: S,
    deadline: Instant,
) -> Result<S::Answer, PgFailure> {
    let (reply, answer) = reply::channel();
    let bytes = call.bytes();
    if !queue.push(PendingCall { call, deadline, reply }, bytes, false) {
        return Err(PgFailure::unsent("the store is closed"));
    }
    // Dropped after a lane took it, as by a panic.
    let dropped =
        |_| PgFailure::Unanswered(Arc::from(Box::from("the worker that was to send the statement has stopped")));
    timeout_at(deadline, answer).await.map_err(|_| PgFailure::TimedOut)?.map_err(dropped)?
}

impl<S: LaneCall> Drop for Lanes<S> {
    fn drop(&mut self) {
        self.state.queue.close();
    }
}

async fn lane<S: LaneCall>(state: Arc<LanesState<S>>) {
    let LanesState { queue, pool, cluster_jobs_max } = &*state;
    let jobs_max = || if pool.is_distributed() { *cluster_jobs_max } else { JOBS_MAX };
    while let Some(mut batch) = queue.batch(jobs_max).await {
        let mut jobs = mem::take(&mut batch.jobs);
        // The order in which rows are locked.
        jobs.sort_by_key(|job| job.call.id());
        while !jobs.is_empty() {
            let mut last = None;
            let mut is_first = |id| last.replace(id) != Some(id);
            let (round, rest) = jobs.into_iter().partition(|job| !S::DISTINCT || is_first(job.call.id()));
            serve(pool, round).await;
            jobs = rest;
        }
    }
}

/// Sends a batch and answers its callers. A batch that fails because of one row is halved until that row fails alone.
async fn serve<S: LaneCall>(pool: &PgPool, batch: Vec<PendingCall<S>>) {
    let (alone, batch): (Vec<_>, Vec<_>) =
        batch.into_iter().partition(|job| job.call.goes_alone(pool.is_distributed()));
    let mut parts: Vec<Vec<_>> = alone.into_iter().map(|job| vec![job]).collect();
    // The last part is sent first.
    parts.push(batch);
    let mut conflicts = 0;
    while let Some(mut part) = parts.pop() {
        match send(pool, &mut part).await {
            Ok(answers) => part.into_iter().zip(answers).for_each(|(job, answer)| job.reply.send(Ok(answer))),
            Err(PgFailure::Held(_) | PgFailure::Row(_)) if part.len() > 1 => {
                parts.push(part.split_off(part.len() / 2));
                parts.push(part);
            }
            Err(PgFailure::Conflict(_)) if conflicts < CONFLICTS_MAX => {
                conflicts += 1;
                parts.push(part);
            }
            Err(failure) => part.into_iter().for_each(|job| job.reply.send(Err(failure.clone()))),
        }
    }
}

/// Sends the jobs of a batch that still have a caller, once there is a connection: a caller that gave up meanwhile has
/// been told that nothing was executed, or calls again.
async fn send<S: LaneCall>(pool: &PgPool, batch: &mut Vec<PendingCall<S>>) -> Result<Vec<S::Answer>, PgFailure> {
    let held = PgConnection::get(pool, last(batch)).await?;
    batch.retain(|job| !job.abandoned());
    let calls: Vec<&S> = batch.iter().map(|job| &job.call).collect();
    held.finish(last(batch), async |client| S::run(client, &calls).await).await
}

/// The latest deadline of the batch; callers with an earlier one leave by themselves.
fn last<S: LaneCall>(batch: &[PendingCall<S>]) -> Instant {
    batch.iter().map(|job| job.deadline).max().unwrap_or_else(Instant::now)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Question;

    impl LaneCall for Question {
        type Answer = ();

        fn id(&self) -> RecordId {
            RecordId::from_stored(&[0; 32]).unwrap()
        }

        async fn run(_: &PgClient, _: &[&Self]) -> Result<Vec<()>, tokio_postgres::Error> {
            unreachable!("the lane has stopped")
        }
    }

    #[tokio::test]
    async fn a_dropped_call_may_have_been_executed_and_a_refused_one_was_not() {
        let queue = Arc::new(JobQueue::new());
        let deadline = Instant::now() + Duration::from_secs(20);
        let lane = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move {
                let _taken = queue.batch(|| JOBS_MAX).await;
                panic!("on purpose");
            }
        });
        assert!(matches!(enqueue(&queue, Question, deadline).await, Err(PgFailure::Unanswered(_))));
        assert!(lane.await.unwrap_err().is_panic());
        assert!(matches!(enqueue(&queue, Question, Instant::now()).await, Err(PgFailure::TimedOut)));
        queue.close();
        assert!(matches!(enqueue(&queue, Question, deadline).await, Err(PgFailure::Unsent(_))));
    }
}

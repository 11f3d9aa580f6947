//! Lanes: each takes whatever waits for one kind of statement, sends it as one, and answers each who asked.

use std::mem;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_postgres::Client;

use super::connect::{Held, Pool};
use super::failure::Failure;
use crate::domain::record::RecordId;
use crate::store::batch::{self, Queue, Waiting, Weighed};

/// How often a batch that lost a conflict is sent again. In READ COMMITTED, with rows in one order, there should be none.
const CONFLICTS_MAX: usize = 3;

/// A question that is asked of the database together with others of its kind.
pub(super) trait Statement: Weighed + Send + Sync + Sized + 'static {
    /// What one question gets.
    type Answer: Send + 'static;

    /// Whether one statement can answer only one question for each record.
    const DISTINCT: bool;

    /// The record in question. Batches are sorted by it, so that two of them never wait for each other.
    fn id(&self) -> RecordId;

    /// Asks all of them by one statement. The answers come in the questions' order.
    fn run(
        client: &Client,
        questions: &[&Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, tokio_postgres::Error>> + Send;
}

type Job<S> = batch::Job<S, Result<<S as Statement>::Answer, Failure>>;

/// Where questions of one kind are handed in. Its lanes end with it.
pub(super) struct Desk<S: Statement> {
    queue: Arc<Queue<Job<S>>>,
}

impl<S: Statement> Desk<S> {
    /// With this many lanes, over the pool's connections.
    pub fn open(pool: &Pool, lanes: usize) -> Self {
        let queue = Arc::new(Queue::new());
        for _ in 0..lanes {
            tokio::spawn(lane(queue.clone(), pool.clone()));
        }
        Self { queue }
    }

    /// Asks, together with whoever asks now.
    pub async fn ask(&self, question: S, deadline: Instant) -> Result<S::Answer, Failure> {
        batch::ask(&self.queue, question, deadline).await?
    }
}

impl<S: Statement> Drop for Desk<S> {
    fn drop(&mut self) {
        self.queue.close();
    }
}

async fn lane<S: Statement>(queue: Arc<Queue<Job<S>>>, pool: Pool) {
    while let Some(mut batch) = queue.batch().await {
        for round in rounds(mem::take(&mut batch.jobs)) {
            serve(&pool, round).await;
        }
    }
}

/// The batch in the order in which rows are locked, in as many rounds as the most wanted record needs.
fn rounds<S: Statement>(mut batch: Vec<Job<S>>) -> Vec<Vec<Job<S>>> {
    batch.sort_by_key(|job| job.question.id());
    if !S::DISTINCT {
        return vec![batch];
    }
    let mut rounds: Vec<Vec<Job<S>>> = Vec::new();
    let mut last = None;
    let mut round = 0;
    for job in batch {
        let id = job.question.id();
        round = if last == Some(id) { round + 1 } else { 0 };
        last = Some(id);
        if round == rounds.len() {
            rounds.push(Vec::new());
        }
        rounds[round].push(job);
    }
    rounds
}

/// Sends a batch and answers it. One that fails for a row is halved until that row fails alone.
async fn serve<S: Statement>(pool: &Pool, batch: Vec<Job<S>>) {
    let mut parts = vec![batch];
    let mut conflicts = 0;
    while let Some(mut part) = parts.pop() {
        match send(pool, &mut part).await {
            Ok(answers) => part.into_iter().zip(answers).for_each(|(job, answer)| job.answer(Ok(answer))),
            Err(Failure::Row(_)) if part.len() > 1 => {
                parts.push(part.split_off(part.len() / 2));
                parts.push(part);
            }
            Err(Failure::Conflict(_)) if conflicts < CONFLICTS_MAX => {
                conflicts += 1;
                parts.push(part);
            }
            Err(failure) => part.into_iter().for_each(|job| job.answer(Err(failure.clone()))),
        }
    }
}

/// Sends what is still wanted of a batch, once there is a connection to send it on: whoever gave up meanwhile has been
/// told that nothing came of it, or asks again.
async fn send<S: Statement>(pool: &Pool, batch: &mut Vec<Job<S>>) -> Result<Vec<S::Answer>, Failure> {
    let held = Held::get(pool, last(batch)).await?;
    batch.retain(|job| !job.abandoned());
    let questions: Vec<&S> = batch.iter().map(|job| &job.question).collect();
    held.finish(last(batch), async |client| S::run(client, &questions).await).await
}

/// Whoever asked last waits longest; the others leave by themselves.
fn last<S: Statement>(batch: &[Job<S>]) -> Instant {
    batch.iter().map(|job| job.deadline).max().unwrap_or_else(Instant::now)
}

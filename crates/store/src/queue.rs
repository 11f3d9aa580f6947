//! Group commit: jobs that wait are committed together.
//!
//! A free worker takes all waiting jobs, commits them as one batch, and then answers each. There is no timer that
//! delays a batch: a job that arrives alone is committed alone, and the next batch forms while the last one is being
//! committed. Several workers keep to batches of about one size: a worker that is free while another's batch is being
//! committed waits until half as many jobs wait, or until that commit has ended. Otherwise the first job after a large
//! batch would go alone, again and again, and each commit costs as much as several rows. The stores decide what a batch
//! is: one statement or one transaction.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use tokio::time::timeout;

/// The most jobs in a batch: enough to make a commit's share small, few enough to be answered soon.
pub const JOBS_MAX: usize = 256;

/// The most bytes in a batch, unless a single job is larger: PostgreSQL takes no message over 1 GiB, and no job should
/// wait behind a hundred large responses.
pub const BYTES_MAX: usize = 8 * 1024 * 1024;

/// The bytes of ordinary jobs that have room in a batch of large urgent ones. Without it, reservations and inquiries,
/// which are light, would wait until the last of many large responses is stored.
const LIGHT_BYTES_MAX: usize = 1024 * 1024;

/// The longest that a job waits for another batch's commit. It is some commits long; a commit that takes longer may
/// never end, and another worker's connection may be sound.
// See docs/decisions/0010-batch-without-a-timer.md.
const HELD_BACK_MAX: Duration = Duration::from_millis(20);

/// The number of jobs in a row that have been alone when the next one may go by itself. Of 16 busy connections, jobs
/// are alone now and then, and each that goes by itself makes the batches smaller: without this, 16 connections did 6 %
/// less.
// See docs/decisions/0010-batch-without-a-timer.md.
const ALONE_BEFORE: u32 = 8;

/// A job that can wait in a [`JobQueue`].
pub trait Job: Send + 'static {
    /// Whether nobody waits for the answer any more. Such a job is dropped, not executed: a reservation for a caller
    /// that is gone would stay in flight until it is swept.
    fn abandoned(&self) -> bool;
}

/// A queue of waiting jobs. Several workers may take from it, tasks or threads.
pub struct JobQueue<J> {
    state: Mutex<JobQueueState<J>>,
    arrived: Notify,
    arrived_for_threads: Condvar,
}

struct JobQueueState<J> {
    /// Jobs with their approximate sizes in bytes.
    urgent: VecDeque<(J, usize)>,
    ordinary: VecDeque<(J, usize)>,
    /// The number of jobs in batches that are being committed.
    away: usize,
    /// The number of jobs in a row that were alone.
    alone: u32,
    /// The number of waiting threads. Waking is a system call even where no thread waits.
    threads: usize,
    closed: bool,
}

/// A batch of jobs. It counts as being committed until it is dropped.
pub struct JobBatch<'a, J: Job> {
    /// The jobs, at least one; none where its caller has the only one.
    pub jobs: Vec<J>,
    size: usize,
    queue: &'a JobQueue<J>,
}

impl<J: Job> Drop for JobBatch<'_, J> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.away -= self.size;
        // The worker itself looks for more; but it may be ending.
        if state.is_worth_it() {
            self.queue.arrived.notify_one();
        }
    }
}

impl<J: Job> JobQueue<J> {
    pub fn new() -> Self {
        let state = JobQueueState {
            urgent: VecDeque::new(),
            ordinary: VecDeque::new(),
            away: 0,
            alone: 0,
            threads: 0,
            closed: false,
        };
        Self { state: Mutex::new(state), arrived: Notify::new(), arrived_for_threads: Condvar::new() }
    }

    /// Adds a job of about so many bytes. An urgent one goes before ordinary ones, as jobs do that end an attempt.
    /// Returns whether it was added; after [`Self::close`] none is.
    pub fn push(&self, job: J, bytes: usize, is_urgent: bool) -> bool {
        let (is_to_be_told, threads) = {
            let mut state = self.state.lock();
            if state.closed {
                return false;
            }
            if is_urgent { &mut state.urgent } else { &mut state.ordinary }.push_back((job, bytes));
            // The first job too: a worker has to limit its wait.
            (state.is_worth_it() || state.waiting() == 1, state.threads)
        };
        if is_to_be_told {
            self.arrived.notify_one();
        }
        if threads > 0 {
            self.arrived_for_threads.notify_one();
        }
        true
    }

    /// Waits for a batch of all waiting jobs, up to the limit of bytes and `jobs_max`, which is asked once there is
    /// one; `None` once the queue is closed and empty.
    pub async fn batch(&self, jobs_max: impl Fn() -> usize) -> Option<JobBatch<'_, J>> {
        let mut late = false;
        loop {
            // Created before the queue is read, so that a job that arrives afterwards is not missed.
            let arrived = self.arrived.notified();
            let is_held_back = {
                let jobs_max = jobs_max();
                let mut state = self.state.lock();
                if late || state.closed || jobs_max == 1 || state.is_worth_it() {
                    let jobs = state.take(jobs_max);
                    let size = jobs.len();
                    state.away += size;
                    if size > 0 || state.closed {
                        return (size > 0).then(|| JobBatch { jobs, size, queue: self });
                    }
                }
                state.waiting() > 0
            };
            if is_held_back {
                late = timeout(HELD_BACK_MAX, arrived).await.is_err();
            } else {
                arrived.await;
                late = false;
            }
        }
    }

    /// Takes the place of a batch of one, for a job that its caller does itself. To be called once for each job; `None`
    /// where others wait or are being committed, or did so a few jobs ago: it better goes with them.
    pub fn try_alone(&self) -> Option<JobBatch<'_, J>> {
        let mut state = self.state.lock();
        let is_alone = state.away == 0 && state.waiting() == 0;
        state.alone = if is_alone { state.alone.saturating_add(1) } else { 0 };
        if state.closed || state.alone <= ALONE_BEFORE {
            return None;
        }
        state.away = 1;
        Some(JobBatch { jobs: Vec::new(), size: 1, queue: self })
    }

    /// [`Self::batch`] for a thread.
    pub fn blocking_batch(&self) -> Option<Vec<J>> {
        let mut state = self.state.lock();
        loop {
            let jobs = state.take(JOBS_MAX);
            if !jobs.is_empty() || state.closed {
                return (!jobs.is_empty()).then_some(jobs);
            }
            state.threads += 1;
            self.arrived_for_threads.wait(&mut state);
            state.threads -= 1;
        }
    }

    /// Closes the queue to new jobs. Waiting jobs are still served.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_waiters();
        self.arrived_for_threads.notify_all();
    }

    /// Closes the queue and drops the waiting jobs, as no worker is left to serve them.
    pub fn abandon(&self) {
        self.close();
        let mut state = self.state.lock();
        state.urgent.clear();
        state.ordinary.clear();
    }
}

impl<J: Job> JobQueueState<J> {
    /// Whether the waiting jobs are worth a commit of their own now.
    fn is_worth_it(&self) -> bool {
        self.waiting() > 0 && self.waiting() * 2 >= self.away
    }

    fn waiting(&self) -> usize {
        self.urgent.len() + self.ordinary.len()
    }

    /// Takes a batch, empty where nothing waits.
    fn take(&mut self, jobs_max: usize) -> Vec<J> {
        let mut batch = Vec::new();
        let bytes = fill(&mut batch, jobs_max, &mut self.urgent, BYTES_MAX);
        fill(&mut batch, jobs_max, &mut self.ordinary, BYTES_MAX.saturating_sub(bytes).max(LIGHT_BYTES_MAX));
        batch
    }
}

/// Moves jobs into a batch, up to so many bytes, and returns their bytes. An empty batch takes any first job. Jobs that
/// nobody waits for are dropped.
fn fill<J: Job>(batch: &mut Vec<J>, jobs_max: usize, from: &mut VecDeque<(J, usize)>, bytes_max: usize) -> usize {
    let mut bytes = 0;
    while batch.len() < jobs_max {
        let has_room = batch.is_empty();
        let fits = |(job, weight): &mut (J, usize)| has_room || bytes + *weight <= bytes_max || job.abandoned();
        let Some((job, weight)) = from.pop_front_if(fits) else { break };
        if !job.abandoned() {
            bytes += weight;
            batch.push(job);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;

    struct Weight(usize, bool);

    impl Job for Weight {
        fn abandoned(&self) -> bool {
            self.0 == 0
        }
    }

    fn push(queue: &JobQueue<Weight>, Weight(bytes, is_urgent): Weight) {
        assert!(queue.push(Weight(bytes, is_urgent), bytes, is_urgent));
    }

    fn batches(jobs: impl IntoIterator<Item = Weight>) -> Vec<Vec<usize>> {
        let queue = JobQueue::new();
        jobs.into_iter().for_each(|job| push(&queue, job));
        queue.close();
        let weights = |batch: Vec<Weight>| batch.iter().map(|job| job.0).collect();
        std::iter::from_fn(|| queue.blocking_batch()).map(weights).collect()
    }

    #[test]
    fn waiting_jobs_are_batched_up_to_the_limits_and_abandoned_ones_are_dropped() {
        let sizes = |weights: &[usize]| {
            let batches = batches(weights.iter().map(|bytes| Weight(*bytes, false)));
            batches.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert!(sizes(&[]).is_empty());
        assert_eq!(sizes(&[1]), [1]);
        assert_eq!(sizes(&[1; JOBS_MAX + 1]), [JOBS_MAX, 1]);
        assert_eq!(sizes(&[BYTES_MAX * 2, 1, BYTES_MAX, BYTES_MAX / 2, BYTES_MAX / 2, 1]), [1, 1, 1, 2, 1]);
        assert_eq!(sizes(&[0, 1, 0, 0, 1]), [2]);
        assert!(sizes(&[0]).is_empty());
    }

    #[test]
    fn urgent_jobs_go_first_and_the_others_in_their_order() {
        let few = [(1, false), (2, false), (3, true), (4, true)].map(|(bytes, urgent)| Weight(bytes, urgent));
        assert_eq!(batches(few), [[3, 4, 1, 2]]);
        let urgent = [BYTES_MAX, BYTES_MAX].map(|bytes| Weight(bytes, true));
        let light = [1, 2, LIGHT_BYTES_MAX].map(|bytes| Weight(bytes, false));
        assert_eq!(
            batches(urgent.into_iter().chain(light)),
            [vec![BYTES_MAX, 1, 2], vec![BYTES_MAX, LIGHT_BYTES_MAX]],
            "light jobs go with urgent ones that fill several batches"
        );
    }

    #[tokio::test]
    async fn a_waiting_worker_is_woken_and_ends_when_the_queue_closes() {
        let queue = Arc::new(JobQueue::new());
        let workers = [(); 2].map(|()| {
            let queue = queue.clone();
            tokio::spawn(async move {
                let mut served = 0;
                while let Some(batch) = queue.batch(|| JOBS_MAX).await {
                    served += batch.jobs.len();
                }
                served
            })
        });
        for _ in 0..10 {
            push(&queue, Weight(1, false));
            tokio::task::yield_now().await;
        }
        queue.close();
        let mut served = 0;
        for worker in workers {
            served += worker.await.unwrap();
        }
        assert_eq!(served, 10);
    }

    /// The size of the next batch and the wait for it, while ten jobs are away, some wait, and one comes after a pause.
    async fn next_batch(waiting: usize, pause: Duration) -> (usize, Duration) {
        let queue = JobQueue::new();
        let push = |count| (0..count).for_each(|_| push(&queue, Weight(1, false)));
        push(10);
        let away = queue.batch(|| JOBS_MAX).await.unwrap();
        assert_eq!(away.jobs.len(), 10);
        push(waiting);
        let begun = Instant::now();
        let (batch, ()) = tokio::join!(queue.batch(|| JOBS_MAX), async {
            tokio::time::sleep(pause).await;
            push(1);
        });
        (batch.unwrap().jobs.len(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_worker_starts_once_half_as_many_jobs_wait_and_lets_none_wait_long() {
        assert_eq!(next_batch(4, HELD_BACK_MAX / 2).await, (5, HELD_BACK_MAX / 2));
        assert_eq!(next_batch(0, HELD_BACK_MAX).await, (1, 2 * HELD_BACK_MAX));
    }

    #[tokio::test]
    async fn a_job_goes_alone_after_others_that_were_alone_and_others_see_that_it_is_away() {
        let queue = JobQueue::new();
        let next_alone = || (1..).find_map(|tries| queue.try_alone().map(|alone| (tries, alone))).unwrap();
        let (tries, alone) = next_alone();
        assert_eq!(tries, ALONE_BEFORE + 1);
        drop(alone);
        let alone = queue.try_alone().unwrap();
        assert!(queue.try_alone().is_none(), "one is away");
        push(&queue, Weight(1, false));
        assert_eq!(queue.batch(|| JOBS_MAX).await.unwrap().jobs.len(), 1);
        drop(alone);
        assert_eq!(next_alone().0, ALONE_BEFORE + 1);
        push(&queue, Weight(1, false));
        assert!(queue.try_alone().is_none(), "one waits");
        drop(queue.batch(|| JOBS_MAX).await);
        queue.close();
        assert!((0..=ALONE_BEFORE).all(|_| queue.try_alone().is_none()));
    }

    #[tokio::test]
    async fn waiting_jobs_go_as_soon_as_the_other_batch_has_ended() {
        let queue = JobQueue::new();
        (0..10).for_each(|_| push(&queue, Weight(1, false)));
        let away = queue.batch(|| JOBS_MAX).await.unwrap();
        push(&queue, Weight(1, false));
        let (batch, ()) = tokio::join!(queue.batch(|| JOBS_MAX), async { drop(away) });
        assert_eq!(batch.unwrap().jobs.len(), 1);
    }
}

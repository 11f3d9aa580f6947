//! Group commit: what waits goes together.
//!
//! A worker takes whatever is waiting as soon as it is free, commits it as one, and then answers each. No timers and no
//! lingering: a request that comes alone goes alone, and the batch forms by itself while the last one is on its way.
//! Several workers keep to batches of about one size: one that is free while another is on its way waits until it could
//! take half as much, or until that one is back. Else the first to come after a large batch would go alone, again and
//! again, and each commit costs as much as several rows. What a batch is made of, one statement or one transaction, is
//! the stores' business.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::back::{self, Back};

/// How many go together: enough to make a commit's cost small beside the rest, few enough to be answered soon.
pub const OPS_MAX: usize = 256;

/// How many bytes go together, but for a single one that is larger: PostgreSQL takes no message over 1 GiB, and nobody
/// wants to wait behind a hundred large responses.
pub const BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long something waits at most for what is away. Some commits long; one that takes longer may never come back, and
/// another worker's connection may be sound.
const HELD_BACK_MAX: Duration = Duration::from_millis(20);

/// Something that can wait in a [`Queue`].
pub trait Waiting: Send + 'static {
    /// Nobody waits for the answer any more. It is dropped rather than done: a reservation that was made for somebody
    /// who has gone would stand until it is found.
    fn abandoned(&self) -> bool;

    /// About what it weighs, in bytes.
    fn bytes(&self) -> usize;

    /// Whether it goes before the rest: what ends an attempt does.
    fn urgent(&self) -> bool {
        false
    }
}

/// What waits for its turn. Several workers may take from it, tasks or threads.
pub struct Queue<J> {
    state: Mutex<State<J>>,
    /// Wakes a task.
    arrived: Notify,
    /// Wakes a thread.
    arrived_for_threads: Condvar,
}

struct State<J> {
    urgent: VecDeque<J>,
    ordinary: VecDeque<J>,
    /// How many were taken together and are on their way.
    away: usize,
    /// Threads that wait. Waking one is a call of the system, whether there is one or not.
    threads: usize,
    closed: bool,
}

/// What was taken together. As long as it is kept, it is on its way.
pub struct Batch<'a, J: Waiting> {
    /// At least one.
    pub jobs: Vec<J>,
    size: usize,
    queue: &'a Queue<J>,
}

impl<J: Waiting> Drop for Batch<'_, J> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.away -= self.size;
        // Whoever took it looks by itself; but it may be ending.
        if state.is_worth_it() {
            self.queue.arrived.notify_one();
        }
    }
}

impl<J: Waiting> Queue<J> {
    /// An empty one.
    pub fn new() -> Self {
        let state = State { urgent: VecDeque::new(), ordinary: VecDeque::new(), away: 0, threads: 0, closed: false };
        Self { state: Mutex::new(state), arrived: Notify::new(), arrived_for_threads: Condvar::new() }
    }

    /// Lets it wait, and says so; after [`Self::close`] it is not taken in.
    pub fn push(&self, job: J) -> bool {
        let (is_to_be_told, threads) = {
            let mut state = self.lock();
            if state.closed {
                return false;
            }
            if job.urgent() { &mut state.urgent } else { &mut state.ordinary }.push_back(job);
            // The first one too: somebody has to see to it that it does not wait for ever.
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

    /// Everything that waits, up to the limits, and at least one; `None` once the queue is closed and empty.
    pub async fn batch(&self) -> Option<Batch<'_, J>> {
        let mut late = false;
        loop {
            // Made before the look, so that what arrives after the look is not missed.
            let arrived = self.arrived.notified();
            let is_held_back = {
                let mut state = self.lock();
                let taken = if late || state.closed || state.is_worth_it() { state.take() } else { None };
                match taken {
                    Some(Some(jobs)) => {
                        let size = jobs.len();
                        state.away += size;
                        return Some(Batch { jobs, size, queue: self });
                    }
                    Some(None) => return None,
                    None => state.waiting() > 0,
                }
            };
            if is_held_back {
                late = timeout(HELD_BACK_MAX, arrived).await.is_err();
            } else {
                arrived.await;
                late = false;
            }
        }
    }

    /// The same, for a thread.
    pub fn blocking_batch(&self) -> Option<Vec<J>> {
        let mut state = self.lock();
        loop {
            if let Some(batch) = state.take() {
                return batch;
            }
            state.threads += 1;
            state = self.arrived_for_threads.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.threads -= 1;
        }
    }

    /// Nothing is taken in any more. What waits already is still served.
    pub fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_waiters();
        self.arrived_for_threads.notify_all();
    }

    /// Closes it and drops what waits: there is nobody left to serve it.
    pub fn abandon(&self) {
        self.close();
        let mut state = self.lock();
        state.urgent.clear();
        state.ordinary.clear();
    }

    /// A panic between two pushes leaves nothing half done: a poisoned lock is as good as any.
    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J: Waiting> State<J> {
    /// Whether what waits is worth a commit of its own now.
    fn is_worth_it(&self) -> bool {
        self.waiting() > 0 && self.waiting() * 2 >= self.away
    }

    fn waiting(&self) -> usize {
        self.urgent.len() + self.ordinary.len()
    }

    /// A batch, or the queue's end, or `None` where there is nothing yet.
    fn take(&mut self) -> Option<Option<Vec<J>>> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < OPS_MAX {
            let from = if self.urgent.is_empty() { &mut self.ordinary } else { &mut self.urgent };
            let Some(next) = from.front() else { break };
            let weight = next.bytes();
            if !next.abandoned() && !batch.is_empty() && bytes + weight > BYTES_MAX {
                break;
            }
            if let Some(job) = from.pop_front()
                && !job.abandoned()
            {
                bytes += weight;
                batch.push(job);
            }
        }
        match batch.is_empty() {
            false => Some(Some(batch)),
            true if self.closed => Some(None),
            true => None,
        }
    }
}

/// Something that weighs.
pub trait Weighed {
    /// About how much, in bytes.
    fn bytes(&self) -> usize;
}

/// A question with the way back to who asks it.
pub struct Job<Q, A> {
    /// What is asked.
    pub question: Q,
    /// Until when the answer is waited for.
    pub deadline: Instant,
    back: Back<A>,
}

impl<Q, A: Send + 'static> Job<Q, A> {
    /// Answers. Whoever has gone meanwhile is none of ours.
    pub fn answer(self, answer: A) {
        self.back.send(answer);
    }
}

impl<Q: Weighed + Send + 'static, A: Send + 'static> Waiting for Job<Q, A> {
    fn abandoned(&self) -> bool {
        // Past its deadline it may not have left yet, but it will not look at an answer any more.
        self.back.is_closed() || Instant::now() >= self.deadline
    }

    fn bytes(&self) -> usize {
        self.question.bytes()
    }
}

/// Why a question got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It was not taken in: there is nobody to answer it.
    Closed,
    /// It was taken in and dropped, as by a panic of whoever had it: it may be on its way.
    Dropped,
    /// Not by the deadline.
    TimedOut,
}

/// Puts a question into the queue and waits for its answer.
///
/// # Errors
/// [`NoAnswer`]; but for [`NoAnswer::Closed`] what was asked may happen all the same.
pub async fn ask<Q, A>(queue: &Queue<Job<Q, A>>, question: Q, deadline: Instant) -> Result<A, NoAnswer>
where
    Job<Q, A>: Waiting,
{
    let (back, answer) = back::way();
    if !queue.push(Job { question, deadline, back }) {
        return Err(NoAnswer::Closed);
    }
    timeout_at(deadline, answer).await.map_err(|_| NoAnswer::TimedOut)?.map_err(|_| NoAnswer::Dropped)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Weight(usize, bool);

    impl Waiting for Weight {
        fn abandoned(&self) -> bool {
            self.0 == 0
        }

        fn bytes(&self) -> usize {
            self.0
        }

        fn urgent(&self) -> bool {
            self.1
        }
    }

    fn batches(jobs: impl IntoIterator<Item = Weight>) -> Vec<usize> {
        let queue = Queue::new();
        jobs.into_iter().for_each(|job| assert!(queue.push(job)));
        queue.close();
        std::iter::from_fn(|| queue.blocking_batch()).map(|batch| batch.len()).collect()
    }

    #[test]
    fn everything_that_waits_goes_together_up_to_the_limits() {
        let light = |count| (0..count).map(|_| Weight(1, false));
        assert_eq!(batches(light(0)), [] as [usize; 0]);
        assert_eq!(batches(light(1)), [1]);
        assert_eq!(batches(light(OPS_MAX + 1)), [OPS_MAX, 1]);
        let heavy = [BYTES_MAX * 2, 1, BYTES_MAX, BYTES_MAX / 2, BYTES_MAX / 2, 1];
        assert_eq!(batches(heavy.map(|bytes| Weight(bytes, false))), [1, 1, 1, 2, 1]);
    }

    #[test]
    fn what_nobody_waits_for_is_dropped_whatever_it_weighs() {
        assert_eq!(batches([0, 1, 0, 0, 1].map(|bytes| Weight(bytes, false))), [2]);
        assert_eq!(batches([Weight(0, false)]), [] as [usize; 0]);
    }

    #[test]
    fn what_is_urgent_goes_first_and_all_else_in_its_order() {
        let queue = Queue::new();
        for (bytes, urgent) in [(1, false), (2, false), (3, true), (4, true)] {
            assert!(queue.push(Weight(bytes, urgent)));
        }
        let batch = queue.blocking_batch().unwrap();
        assert_eq!(batch.iter().map(|job| job.0).collect::<Vec<_>>(), [3, 4, 1, 2]);
    }

    impl Weighed for () {
        fn bytes(&self) -> usize {
            0
        }
    }

    #[tokio::test]
    async fn what_was_taken_and_dropped_may_have_been_asked_and_what_was_not_taken_was_not() {
        let queue: Arc<Queue<Job<(), ()>>> = Arc::new(Queue::new());
        let deadline = Instant::now() + Duration::from_secs(20);
        let lane = tokio::spawn({
            let queue = queue.clone();
            async move {
                let _taken = queue.batch().await;
                panic!("on purpose");
            }
        });
        assert_eq!(ask(&queue, (), deadline).await, Err(NoAnswer::Dropped));
        assert!(lane.await.unwrap_err().is_panic());
        queue.close();
        assert_eq!(ask(&queue, (), deadline).await, Err(NoAnswer::Closed));
    }

    #[tokio::test]
    async fn a_worker_that_waits_is_woken_and_at_the_end_let_go() {
        let queue = Arc::new(Queue::new());
        let workers = [(); 2].map(|()| {
            let queue = queue.clone();
            tokio::spawn(async move {
                let mut served = 0;
                while let Some(batch) = queue.batch().await {
                    served += batch.jobs.len();
                }
                served
            })
        });
        for _ in 0..10 {
            assert!(queue.push(Weight(1, false)));
            tokio::task::yield_now().await;
        }
        queue.close();
        let mut served = 0;
        for worker in workers {
            served += worker.await.unwrap();
        }
        assert_eq!(served, 10);
    }

    /// Two workers, of which one is away with ten.
    async fn with_ten_away() -> Queue<Weight> {
        let queue = Queue::new();
        (0..10).for_each(|_| assert!(queue.push(Weight(1, false))));
        let mut away = queue.batch().await.unwrap();
        assert_eq!(away.jobs.len(), 10);
        away.jobs.clear();
        // It does not come back.
        std::mem::forget(away);
        queue
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_worker_sets_off_with_half_of_what_is_away() {
        let queue = with_ten_away().await;
        (0..4).for_each(|_| assert!(queue.push(Weight(1, false))));
        let begun = Instant::now();
        let (batch, ()) = tokio::join!(queue.batch(), async {
            tokio::time::sleep(HELD_BACK_MAX / 2).await;
            queue.push(Weight(1, false));
        });
        assert_eq!((batch.unwrap().jobs.len(), begun.elapsed()), (5, HELD_BACK_MAX / 2));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_long_for_what_is_away() {
        let queue = with_ten_away().await;
        let begun = Instant::now();
        let (batch, ()) = tokio::join!(queue.batch(), async {
            tokio::time::sleep(HELD_BACK_MAX).await;
            queue.push(Weight(1, false));
        });
        assert_eq!((batch.unwrap().jobs.len(), begun.elapsed()), (1, 2 * HELD_BACK_MAX));
    }

    #[tokio::test]
    async fn what_waits_goes_as_soon_as_the_others_are_back() {
        let queue = Queue::new();
        (0..10).for_each(|_| assert!(queue.push(Weight(1, false))));
        let away = queue.batch().await.unwrap();
        queue.push(Weight(1, false));
        let (batch, ()) = tokio::join!(queue.batch(), async { drop(away) });
        assert_eq!(batch.unwrap().jobs.len(), 1);
    }
}

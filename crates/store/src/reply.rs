//! Replies of the store to the threads that called it.
//!
//! Each thread that serves requests sleeps in its own runtime, and waking it from outside is a system call. So all
//! replies for one thread go through one queue: however many arrive while the thread wakes up, it is woken once.

use std::cell::{Cell, OnceCell};

use tokio::sync::{mpsc, oneshot};

/// The replies delivered in one go before other tasks have their turn.
const AT_ONCE: usize = 64;

type ReplyEnvelope = Box<dyn FnOnce() + Send>;

thread_local! {
    static REPLY_QUEUE: OnceCell<mpsc::UnboundedSender<ReplyEnvelope>> = const { OnceCell::new() };
    static WORKER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The sending end of one reply.
pub struct ReplySender<A> {
    sender: oneshot::Sender<A>,
    /// The queue of the calling thread; it holds no more replies than the thread has open calls.
    queue: Option<mpsc::UnboundedSender<ReplyEnvelope>>,
}

/// Makes all replies for this thread go through one queue from now on, and lets calls of a request that is alone go out
/// on this thread. To be called once on each thread that serves requests, within its runtime; without it, each reply
/// wakes its receiver by itself. The workers' numbers begin at 0.
pub fn open_reply_queue(worker: usize) {
    WORKER.set(Some(worker));
    let (queue, mut deliveries) = mpsc::unbounded_channel::<ReplyEnvelope>();
    if REPLY_QUEUE.with(|own| own.set(queue)).is_err() {
        return;
    }
    tokio::spawn(async move {
        let mut some = Vec::with_capacity(AT_ONCE);
        while deliveries.recv_many(&mut some, AT_ONCE).await > 0 {
            some.drain(..).for_each(|deliver| deliver());
        }
    });
}

/// The number of this thread among those that serve requests.
pub(crate) fn current_worker() -> Option<usize> {
    WORKER.get()
}

pub fn channel<A>() -> (ReplySender<A>, oneshot::Receiver<A>) {
    let (sender, answer) = oneshot::channel();
    let queue = REPLY_QUEUE.with(|own| own.get().cloned());
    (ReplySender { sender, queue }, answer)
}

impl<A: Send + 'static> ReplySender<A> {
    /// Whether nobody waits for the reply any more.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends the reply; it is dropped where the receiver is gone.
    pub fn send(self, answer: A) {
        let Self { sender, queue } = self;
        let deliver = move || drop(sender.send(answer));
        match queue {
            None => deliver(),
            Some(queue) => {
                // The thread's runtime may have ended while a caller from there still waits on another one.
                if let Err(mpsc::error::SendError(deliver)) = queue.send(Box::new(deliver)) {
                    deliver();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_arrives_with_a_queue_without_one_and_after_its_end() {
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (sender, answer) = channel();
        std::thread::spawn(move || sender.send(1)).join().unwrap();
        assert_eq!(runtime().block_on(answer).unwrap(), 1);

        let runtime_with_queue = runtime();
        let (sender, answer) = runtime_with_queue.block_on(async {
            open_reply_queue(0);
            channel()
        });
        assert!(sender.queue.is_some(), "replies go through the queue");
        let sender = std::thread::spawn(move || sender.send(2));
        assert_eq!(runtime_with_queue.block_on(answer).unwrap(), 2);
        sender.join().unwrap();

        let (sender, answer) = channel();
        drop(runtime_with_queue);
        sender.send(3);
        assert_eq!(runtime().block_on(answer).unwrap(), 3);
    }

    #[test]
    fn a_sender_knows_that_its_receiver_is_gone() {
        let (sender, answer) = channel::<()>();
        assert!(!sender.is_closed());
        drop(answer);
        assert!(sender.is_closed());
    }
}

//! The way back to who asked.
//!
//! Each thread that serves requests sleeps in its own runtime, and waking it from outside is a call of the system. So the
//! answers for one thread go through one door: however many come while it wakes up, it is woken once.

use std::cell::OnceCell;

use tokio::sync::{mpsc, oneshot};

/// How many answers are handed out before other tasks have their turn.
const AT_ONCE: usize = 64;

type Delivery = Box<dyn FnOnce() + Send>;

thread_local! {
    static DOOR: OnceCell<mpsc::UnboundedSender<Delivery>> = const { OnceCell::new() };
}

/// Where an answer is waited for.
pub type Answer<A> = oneshot::Receiver<A>;

/// Where it is sent from.
pub struct Back<A> {
    sender: oneshot::Sender<A>,
    /// Of the thread that asked; no more can wait there than were asked.
    door: Option<mpsc::UnboundedSender<Delivery>>,
}

/// From now on answers for this thread go through one door. To be called once on each thread that has a runtime of its
/// own, within that runtime; where it is not called, each answer wakes whoever waits for it.
pub fn open_door() {
    let (door, mut deliveries) = mpsc::unbounded_channel::<Delivery>();
    if DOOR.with(|own| own.set(door)).is_err() {
        return;
    }
    tokio::spawn(async move {
        let mut some = Vec::with_capacity(AT_ONCE);
        while deliveries.recv_many(&mut some, AT_ONCE).await > 0 {
            some.drain(..).for_each(|deliver| deliver());
        }
    });
}

/// A way back to this thread, for one answer.
pub fn way<A>() -> (Back<A>, Answer<A>) {
    let (sender, answer) = oneshot::channel();
    let door = DOOR.with(|own| own.get().cloned());
    (Back { sender, door }, answer)
}

impl<A> Back<A> {
    /// Whether nobody waits any more.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl<A: Send + 'static> Back<A> {
    /// Sends the answer. Whoever has gone meanwhile is none of ours.
    pub fn send(self, answer: A) {
        let Self { sender, door } = self;
        let deliver = move || drop(sender.send(answer));
        match door {
            None => deliver(),
            Some(door) => {
                // The thread's runtime may have ended, and not everybody who asked from there have ended with it.
                if let Err(mpsc::error::SendError(deliver)) = door.send(Box::new(deliver)) {
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
    fn an_answer_arrives_with_a_door_and_without_and_after_the_door_has_gone() {
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (back, answer) = way();
        std::thread::spawn(move || back.send(1)).join().unwrap();
        assert_eq!(runtime().block_on(answer).unwrap(), 1);

        let through = runtime();
        let (back, answer) = through.block_on(async {
            open_door();
            way()
        });
        let sender = std::thread::spawn(move || back.send(2));
        assert_eq!(through.block_on(answer).unwrap(), 2);
        sender.join().unwrap();

        let (back, answer) = way();
        drop(through);
        back.send(3);
        assert_eq!(runtime().block_on(answer).unwrap(), 3);
    }

    #[test]
    fn whoever_stopped_waiting_is_known_of() {
        let (back, answer) = way::<()>();
        assert!(!back.is_closed());
        drop(answer);
        assert!(back.is_closed());
    }
}

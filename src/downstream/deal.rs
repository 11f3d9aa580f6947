//! Connections are dealt out evenly among the workers.
//!
//! All workers accept from one socket, and the system wakes whichever it likes: often the same one, again and again. A
//! connection lives long and is served where it was accepted, so one core could end up with all of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// A connection on its way to another worker.
pub type Dealt = (std::net::TcpStream, SocketAddr);

/// Who has how many connections, and how to hand one over.
pub struct Deal {
    hands: Vec<(Arc<AtomicUsize>, mpsc::UnboundedSender<Dealt>)>,
}

/// One worker's part of it.
pub struct Hand {
    deal: Arc<Deal>,
    number: usize,
    /// What others have accepted for this worker. No more can wait here than the system lets this process have open.
    pub dealt: mpsc::UnboundedReceiver<Dealt>,
}

/// A connection counts as long as this is kept.
pub struct Counted(Arc<AtomicUsize>);

impl Deal {
    /// A part for each of so many workers.
    pub fn among(workers: usize) -> Vec<Hand> {
        let (hands, inboxes): (Vec<_>, Vec<_>) = (0..workers)
            .map(|_| {
                let (send, dealt) = mpsc::unbounded_channel();
                ((Arc::default(), send), dealt)
            })
            .unzip();
        let deal = Arc::new(Self { hands });
        let hand = |(number, dealt)| Hand { deal: Arc::clone(&deal), number, dealt };
        inboxes.into_iter().enumerate().map(hand).collect()
    }
}

impl Hand {
    /// Hands an accepted connection to whoever has fewest, and gives it back where that is this worker.
    pub fn deal(&self, stream: TcpStream, peer: SocketAddr) -> Option<TcpStream> {
        let open = |number: usize| self.deal.hands[number].0.load(Ordering::Relaxed);
        let fewest = (0..self.deal.hands.len()).min_by_key(|number| (open(*number), *number != self.number))?;
        if fewest == self.number {
            return Some(stream);
        }
        // Counted from here on, or a burst would all go to one.
        let (count, inbox) = &self.deal.hands[fewest];
        count.fetch_add(1, Ordering::Relaxed);
        let Ok(stream) = stream.into_std() else {
            count.fetch_sub(1, Ordering::Relaxed);
            return None;
        };
        match inbox.send((stream, peer)) {
            Ok(()) => None,
            // That worker is closing, and so is this one.
            Err(mpsc::error::SendError((stream, _))) => {
                count.fetch_sub(1, Ordering::Relaxed);
                TcpStream::from_std(stream).ok()
            }
        }
    }

    /// A connection of this worker's own, counted from now on.
    pub fn counted(&self) -> Counted {
        self.deal.hands[self.number].0.fetch_add(1, Ordering::Relaxed);
        self.taken()
    }

    /// A connection that was dealt to this worker, and counted by who dealt it.
    pub fn taken(&self) -> Counted {
        Counted(Arc::clone(&self.deal.hands[self.number].0))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn whoever_accepts_connections_each_worker_gets_as_many() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut hands = Deal::among(3);
        let (mut clients, mut kept) = (Vec::new(), Vec::new());
        for _ in 0..30 {
            clients.push(TcpStream::connect(address).await.unwrap());
            let (stream, peer) = listener.accept().await.unwrap();
            // Always the same one accepts.
            if hands[0].deal(stream, peer).is_some() {
                kept.push(hands[0].counted());
            }
        }
        let dealt = |hand: &mut Hand| std::iter::from_fn(|| hand.dealt.try_recv().ok()).count();
        assert_eq!((kept.len(), dealt(&mut hands[1]), dealt(&mut hands[2])), (10, 10, 10));

        // Who is left by its clients gets the next ones.
        kept.truncate(8);
        for _ in 0..2 {
            clients.push(TcpStream::connect(address).await.unwrap());
            let (stream, peer) = listener.accept().await.unwrap();
            assert!(hands[1].deal(stream, peer).is_none());
        }
        assert_eq!(dealt(&mut hands[0]), 2);
    }
}

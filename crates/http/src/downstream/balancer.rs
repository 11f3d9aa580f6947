//! Distributes accepted connections evenly among the workers.
//!
//! All workers accept from one socket, and the kernel chooses which one it wakes: often the same one, again and again.
//! A connection lives long and stays on one worker, so without this one core could end up with all of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::connection_limits::ConnectionPermit;

/// An accepted connection, with its peer's address and its permit, on its way to another worker.
pub type AssignedConnection = (std::net::TcpStream, SocketAddr, ConnectionPermit);

/// The number of open connections of each worker, and the channel to it.
pub struct ConnectionBalancer {
    workers: Vec<(Arc<AtomicUsize>, mpsc::UnboundedSender<AssignedConnection>)>,
}

/// One worker's end: assigns the connections that it accepts, and receives those that others have assigned to it.
pub struct WorkerInbox {
    balancer: Arc<ConnectionBalancer>,
    worker: usize,
    /// Connections that others have accepted for this worker. The limit on open file descriptors bounds them.
    pub assigned: mpsc::UnboundedReceiver<AssignedConnection>,
}

/// Counts one open connection of a worker until it is dropped.
pub struct ConnectionCount(Arc<AtomicUsize>);

impl ConnectionBalancer {
    pub fn create_inboxes(count: usize) -> Vec<WorkerInbox> {
        let (workers, receivers): (Vec<_>, Vec<_>) = (0..count)
            .map(|_| {
                let (sender, assigned) = mpsc::unbounded_channel();
                ((Arc::default(), sender), assigned)
            })
            .unzip();
        let balancer = Arc::new(Self { workers });
        let inbox = |(worker, assigned)| WorkerInbox { balancer: Arc::clone(&balancer), worker, assigned };
        receivers.into_iter().enumerate().map(inbox).collect()
    }
}

impl WorkerInbox {
    /// Assigns an accepted connection to the worker with the fewest open ones. Returns it if that is this worker.
    pub fn assign(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        permit: ConnectionPermit,
    ) -> Option<(TcpStream, ConnectionPermit)> {
        let workers = &self.balancer.workers;
        let open = |worker: usize| workers[worker].0.load(Ordering::Relaxed);
        let fewest = (0..workers.len()).min_by_key(|worker| (open(*worker), *worker != self.worker))?;
        if fewest == self.worker {
            return Some((stream, permit));
        }
        // Counted before it is sent, or a whole burst would go to one worker.
        let (count, inbox) = &workers[fewest];
        count.fetch_add(1, Ordering::Relaxed);
        let Ok(stream) = stream.into_std() else {
            count.fetch_sub(1, Ordering::Relaxed);
            return None;
        };
        match inbox.send((stream, peer, permit)) {
            Ok(()) => None,
            // That worker is closing, and so is this one: serve it here.
            Err(mpsc::error::SendError((stream, _, permit))) => {
                count.fetch_sub(1, Ordering::Relaxed);
                TcpStream::from_std(stream).ok().map(|stream| (stream, permit))
            }
        }
    }

    /// Counts a connection that this worker has accepted for itself.
    pub fn count_one(&self) -> ConnectionCount {
        self.balancer.workers[self.worker].0.fetch_add(1, Ordering::Relaxed);
        self.adopt_count()
    }

    /// Takes over the count of a connection that another worker has assigned to this one; [`assign`](Self::assign) has
    /// counted it already.
    pub fn adopt_count(&self) -> ConnectionCount {
        ConnectionCount(Arc::clone(&self.balancer.workers[self.worker].0))
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::downstream::connection_limits::ConnectionLimits;

    #[tokio::test]
    async fn each_worker_gets_the_same_number_of_connections_whichever_accepts_them() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut inboxes = ConnectionBalancer::create_inboxes(3);
        let limits = ConnectionLimits::new(usize::MAX, 0, Default::default());
        let permit = || limits.admit([127, 0, 0, 1].into()).unwrap();
        let (mut clients, mut kept) = (Vec::new(), Vec::new());
        for _ in 0..30 {
            clients.push(TcpStream::connect(address).await.unwrap());
            let (stream, peer) = listener.accept().await.unwrap();
            // The same worker always accepts.
            if inboxes[0].assign(stream, peer, permit()).is_some() {
                kept.push(inboxes[0].count_one());
            }
        }
        let assigned = |inbox: &mut WorkerInbox| std::iter::from_fn(|| inbox.assigned.try_recv().ok()).count();
        assert_eq!((kept.len(), assigned(&mut inboxes[1]), assigned(&mut inboxes[2])), (10, 10, 10));

        // A worker whose clients have left gets the next connections.
        kept.truncate(8);
        for _ in 0..2 {
            clients.push(TcpStream::connect(address).await.unwrap());
            let (stream, peer) = listener.accept().await.unwrap();
            assert!(inboxes[1].assign(stream, peer, permit()).is_none());
        }
        assert_eq!(assigned(&mut inboxes[0]), 2);
    }
}

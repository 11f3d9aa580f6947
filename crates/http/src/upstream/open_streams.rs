//! The streams of a connection over HTTP/2 that have not ended.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use tokio::sync::Notify;

/// The streams of a connection that have not ended.
pub(super) struct OpenStreams {
    count: AtomicUsize,
    /// The number of streams that the service takes at once.
    max: AtomicUsize,
    /// Whether the connection is lost: hyper still reads on it, and would write new requests to nobody.
    is_lost: AtomicBool,
    /// A stream has ended, the service takes another number, or the connection is lost.
    changed: Notify,
}

/// A stream of a connection, until it is dropped.
pub(super) struct StreamSlot(Arc<OpenStreams>);

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_waiters();
    }
}

impl OpenStreams {
    /// No stream yet, and at most `max` at once.
    pub(super) fn new(max: usize) -> Arc<Self> {
        let is_lost = AtomicBool::new(false);
        Arc::new(Self { count: 0.into(), max: max.into(), is_lost, changed: Notify::new() })
    }

    pub(super) fn set_max(&self, max: usize) {
        if self.max.swap(max, Ordering::AcqRel) != max {
            self.changed.notify_waiters();
        }
    }

    pub(super) fn lose(&self) {
        if !self.is_lost.swap(true, Ordering::AcqRel) {
            self.changed.notify_waiters();
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Waits until the service takes one more stream. A request beyond that number would be queued in h2, which sends
    /// it as soon as another stream ends: at any time, also long after its caller has given up and the key's next
    /// attempt has begun. `None` if the connection is lost.
    pub(super) async fn reserve(self: &Arc<Self>) -> Option<StreamSlot> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Before the look: what changes before the registration wakes nobody.
            changed.as_mut().enable();
            if let Poll::Ready(reserved) = self.try_reserve() {
                return reserved;
            }
            changed.await;
        }
    }

    fn try_reserve(self: &Arc<Self>) -> Poll<Option<StreamSlot>> {
        if self.is_lost() {
            return Poll::Ready(None);
        }
        let reserve = |open: usize| (open < self.max.load(Ordering::Acquire)).then_some(open + 1);
        match self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, reserve) {
            Ok(_) => Poll::Ready(Some(StreamSlot(Arc::clone(self)))),
            Err(_) => Poll::Pending,
        }
    }
}

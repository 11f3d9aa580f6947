//! How often keys were purged, as far as this instance knows.
//!
//! What an operator has purged or released must not be told again from anybody's memory. Each heartbeat reads the count of
//! purges; an instance that finds it grown drops what it remembers (`cache`), and says so with its next heartbeat, which then
//! comes at once.

use std::sync::atomic::{AtomicU64, Ordering};

use super::tenure::Moment;

/// The count of purges that this process has read, and when it was read.
#[derive(Debug, Default)]
pub struct Purges {
    seen: AtomicU64,
    read_at: AtomicU64,
}

impl Purges {
    /// Up to which count what was purged is forgotten here.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    /// When it was last read: what was purged before that is forgotten here.
    pub fn read_at(&self) -> Moment {
        Moment::of_millis(self.read_at.load(Ordering::Acquire))
    }

    /// A heartbeat that was begun at `begun` has read the count. Tells whether it has grown, so that the store should
    /// be told at once that it was seen.
    pub fn read(&self, count: u64, begun: Moment) -> bool {
        let before = self.seen.swap(count, Ordering::AcqRel);
        self.read_at.store(begun.millis(), Ordering::Release);
        before != count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_is_told_once() {
        let (purges, later) = (Purges::default(), Moment::now());
        assert!(purges.read(3, later));
        assert!(!purges.read(3, later));
        assert!(purges.read(5, later));
        assert!(!purges.read(5, later));
        assert_eq!((purges.seen(), purges.read_at().millis()), (5, later.millis()));
    }
}

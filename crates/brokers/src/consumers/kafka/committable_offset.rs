//! Which offset of a partition may be committed: that of the first record that is not settled. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::time::Instant;

use super::record::LaneId;

/// The records between the first one that is not settled and the last one that is read, of one partition. After a
/// crash, those are read again: a hundred thousand replays take seconds.
pub(super) const WINDOW_MAX: i64 = 100_000;

/// The offsets of a partition, and its records that are not settled.
pub(super) struct PartitionProgress {
    /// The offset behind the last record that was read.
    next: Option<i64>,
    pub(super) committed: Option<i64>,
    pub(super) unsettled: BTreeMap<i64, UnsettledRecord>,
    pub(super) settled_up_to: Arc<AtomicI64>,
}

pub(super) struct UnsettledRecord {
    pub(super) read_at: Instant,
    pub(super) lane: LaneId,
    pub(super) bytes: usize,
}

impl Default for PartitionProgress {
    fn default() -> Self {
        let settled_up_to = Arc::new(AtomicI64::new(-1));
        Self { next: None, committed: None, unsettled: BTreeMap::new(), settled_up_to }
    }
}

impl PartitionProgress {
    pub(super) fn add(&mut self, offset: i64, record: UnsettledRecord) {
        self.next = Some(offset + 1);
        self.unsettled.insert(offset, record);
    }

    pub(super) fn settle(&mut self, offset: i64) -> Option<UnsettledRecord> {
        let record = self.unsettled.remove(&offset)?;
        self.settled_up_to.fetch_max(offset, Ordering::Relaxed);
        Some(record)
    }

    /// The offset up to which everything is settled; `None` before the first record. The first record that is read is
    /// committed as the place to begin at, before it is settled: a group without a committed offset may begin at the
    /// end of the topic.
    pub(super) fn settled_before(&self) -> Option<i64> {
        self.unsettled.keys().next().copied().or(self.next)
    }

    /// The offset that may be committed and is not.
    pub(super) fn committable(&self) -> Option<i64> {
        self.settled_before().filter(|offset| self.committed != Some(*offset))
    }

    /// Whether nothing more should be read before the first record is settled.
    pub(super) fn is_window_full(&self) -> bool {
        self.next.zip(self.settled_before()).is_some_and(|(next, first)| next - first >= WINDOW_MAX)
    }
}

//! The last requests that came with the key of another one, for the page of their key.
//!
//! An instance remembers those that it has refused itself, in bounded memory, until it ends.

use std::collections::VecDeque;
use std::time::SystemTime;

use parking_lot::Mutex;

use oncegate_domain::differing_parts::DifferingParts;
use oncegate_domain::ids::RecordId;

/// The mismatches that are kept. With 16 places each, of 120 characters, they are at most 600 KB.
const MISMATCHES_MAX: usize = 256;

/// The last mismatches, the newest first; one for each key.
#[derive(Debug, Default)]
pub struct KeyMismatches(Mutex<VecDeque<KeyMismatch>>);

/// A request that was refused because its key belongs to another one.
#[derive(Clone, Debug)]
pub struct KeyMismatch {
    record: RecordId,
    /// When it came.
    pub at: SystemTime,
    /// The parts in which they differ.
    pub differing: DifferingParts,
}

impl KeyMismatches {
    /// Keeps a mismatch, in place of the last one of its key.
    pub fn keep(&self, record: RecordId, differing: &DifferingParts) {
        let mismatch = KeyMismatch { record, at: SystemTime::now(), differing: differing.clone() };
        let mut kept = self.0.lock();
        kept.retain(|known| known.record != record);
        kept.truncate(MISMATCHES_MAX - 1);
        kept.push_front(mismatch);
    }

    /// The last mismatch of a key.
    pub fn find(&self, record: &RecordId) -> Option<KeyMismatch> {
        self.0.lock().iter().find(|known| known.record == *record).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u16) -> RecordId {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&number.to_le_bytes());
        RecordId::from_stored(&bytes).unwrap()
    }

    #[test]
    fn the_last_mismatch_of_each_of_the_last_keys_is_kept() {
        let kept = KeyMismatches::default();
        kept.keep(record(0), &DifferingParts::default());
        kept.keep(record(0), &DifferingParts::ANOTHER_OPERATION);
        assert!(kept.find(&record(0)).is_some_and(|mismatch| mismatch.differing.is_another_operation()));
        for number in 1..=256 {
            kept.keep(record(number), &DifferingParts::default());
        }
        assert!(kept.find(&record(0)).is_none() && kept.find(&record(1)).is_some());
        assert_eq!(kept.0.lock().len(), MISMATCHES_MAX);
    }
}

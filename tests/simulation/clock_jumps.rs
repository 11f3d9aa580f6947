//! Whether a process lives to see a jump of the store's clock that ends TTLs. One that nobody sees cannot be told from a long
//! stop of all processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// The processes that have renewed their leases, and the jumps.
#[derive(Debug, Default)]
pub struct ClockJumps(Mutex<SeenJumps>);

#[derive(Debug, Default)]
struct SeenJumps {
    renewed: BTreeSet<usize>,
    /// For each jump the renewals since then, of the processes that had renewed before.
    renewals: Vec<BTreeMap<usize, u32>>,
}

/// With the first renewal after a jump a process sees the jump, with the second it tells the store.
const RENEWALS_MIN: u32 = 2;

impl ClockJumps {
    /// Notes a jump.
    pub fn add(&self) {
        let mut seen = self.0.lock().unwrap();
        let witnesses = seen.renewed.iter().map(|process| (*process, 0)).collect();
        seen.renewals.push(witnesses);
    }

    /// Notes that the process has the answer to a renewal.
    pub fn note_renewal(&self, process: usize) {
        let mut seen = self.0.lock().unwrap();
        seen.renewed.insert(process);
        seen.renewals.iter_mut().filter_map(|jump| jump.get_mut(&process)).for_each(|count| *count += 1);
    }

    /// Whether no process has seen one of the jumps and told the store.
    pub fn is_any_unseen(&self) -> bool {
        let seen = self.0.lock().unwrap();
        seen.renewals.iter().any(|jump| jump.values().all(|count| *count < RENEWALS_MIN))
    }
}

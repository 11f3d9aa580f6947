//! Whether a process lives to see a jump of the store's clock that ends TTLs, and to tell the store. One that nobody sees cannot
//! be told from a long stop of all processes.

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

    /// Begins the lag of the replica: a failover keeps what the store has been told so far.
    pub fn begin_lag(&self) {
        self.0.lock().unwrap().renewals.retain(|jump| !is_told(jump));
    }

    /// Notes a failover: a process that has seen a jump has to tell the store again.
    pub fn fail_over(&self) {
        let mut seen = self.0.lock().unwrap();
        seen.renewals
            .iter_mut()
            .flat_map(BTreeMap::values_mut)
            .for_each(|count| *count = (*count).min(RENEWALS_MIN - 1));
    }

    /// Whether no process has seen one of the jumps and told the store.
    pub fn is_any_unseen(&self) -> bool {
        let seen = self.0.lock().unwrap();
        !seen.renewals.iter().all(is_told)
    }
}

fn is_told(renewals: &BTreeMap<usize, u32>) -> bool {
    renewals.values().any(|count| *count >= RENEWALS_MIN)
}

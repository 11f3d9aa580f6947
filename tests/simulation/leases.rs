//! The leases that the store has given, by the true time: no process may send a request after the end of its own.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::hosts::{Millis, now};

/// The end of each process's lease, and the requests that were sent after it.
#[derive(Debug, Default)]
pub struct Leases {
    ends: Mutex<BTreeMap<usize, Millis>>,
    late: Mutex<Vec<String>>,
}

impl Leases {
    /// Notes that the store has renewed a lease until then.
    pub fn renew(&self, process: usize, until: Millis) {
        self.ends.lock().unwrap().insert(process, until);
    }

    /// Notes that the first bytes of a request have left a process.
    pub fn check_sent(&self, process: usize) {
        let end = self.ends.lock().unwrap().get(&process).copied().unwrap_or(0);
        if now() > end {
            self.late.lock().unwrap().push(format!("process {process} sent at {} under a lease until {end}", now()));
        }
    }

    pub fn breaches(&self) -> Vec<String> {
        self.late.lock().unwrap().clone()
    }
}

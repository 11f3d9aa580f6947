//! A value that threads count in without waiting for one another.

use std::array::from_fn;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// The number of copies. Threads with different ones do not wait for one another: eight is more than most machines have
/// workers, and few enough to add up.
const COPIES: usize = 8;

/// A value of which each thread has a copy of its own, as long as there are enough.
#[derive(Debug)]
pub struct PerThread<T>([Mutex<T>; COPIES]);

impl<T: Default> Default for PerThread<T> {
    fn default() -> Self {
        Self(from_fn(|_| Mutex::default()))
    }
}

impl<T> PerThread<T> {
    /// Returns this thread's copy.
    pub fn own(&self) -> MutexGuard<'_, T> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static OWN: usize = THREADS.fetch_add(1, Ordering::Relaxed) % COPIES;
        }
        OWN.with(|own| self.0[*own].lock())
    }

    /// Returns all copies, one after the other.
    pub fn each(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.0.iter().map(Mutex::lock)
    }
}

//! The machine's boot clock and random numbers.
//!
//! A build with debug assertions can replace both for one thread, so that `tests/simulation` repeats a run from its
//! seed. A release build has no such code: nobody can make its tokens predictable.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod jitter;

use rustix::time::{ClockId, clock_gettime};

/// The replacements of one thread.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug)]
pub struct SimulatedMachine {
    /// Returns the milliseconds since the machine started.
    pub boot_millis: fn() -> u64,
    /// Fills a buffer with random bytes.
    pub fill_random: fn(&mut [u8]),
}

#[cfg(debug_assertions)]
thread_local! {
    static SIMULATED: std::cell::Cell<Option<SimulatedMachine>> = const { std::cell::Cell::new(None) };
}

#[cfg(debug_assertions)]
impl SimulatedMachine {
    /// Uses this machine on the calling thread from now on.
    pub fn install(self) {
        SIMULATED.set(Some(self));
    }
}

/// Milliseconds since the machine started, with the time for which it was suspended.
pub fn boot_millis() -> u64 {
    #[cfg(debug_assertions)]
    if let Some(simulated) = SIMULATED.get() {
        return (simulated.boot_millis)();
    }
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

/// Fills a buffer with random bytes from the operating system.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    #[cfg(debug_assertions)]
    if let Some(simulated) = SIMULATED.get() {
        (simulated.fill_random)(bytes);
        return Ok(());
    }
    getrandom::fill(bytes)
}

/// Returns a random number from the operating system.
pub fn random_u32() -> Result<u32, getrandom::Error> {
    let mut bytes = [0; 4];
    fill_random(&mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

//! A clock that counts the time for which the machine or the process was suspended.

use std::time::Duration;

use oncegate_machine::boot_millis;

/// A point in time on CLOCK_BOOTTIME, in whole milliseconds.
///
/// A monotonic clock stands still while the machine sleeps, so a lease measured by it could outlast its row.
#[derive(Clone, Copy, Debug)]
pub struct BootInstant(u64);

impl BootInstant {
    /// Reads the clock.
    pub fn now() -> Self {
        Self(boot_millis())
    }

    /// The point in time that is this far back; the machine's start if that is nearer.
    pub fn ago(duration: Duration) -> Self {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self(boot_millis().saturating_sub(millis))
    }

    /// Milliseconds since the machine started.
    pub fn millis(self) -> u64 {
        self.0
    }

    /// The point in time that many milliseconds after the machine started.
    pub fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// The time from `earlier` to this point; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// The time from this point to now.
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }
}

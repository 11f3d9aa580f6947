//! This instance's right to start attempts: its lease, as far as the instance itself can know it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::domain::attempt::InstanceId;

/// The lease of this process, seen from within.
///
/// The store's clock decides when the lease ends. From here one can only be careful: the lease was certainly still good
/// `expiry` after the *start* of the last renewal that succeeded. The clock used counts the time that the machine or
/// the process was suspended; a plain monotonic one would stand still with us.
#[derive(Debug)]
pub struct Tenure {
    id: InstanceId,
    expiry: Duration,
    heartbeat: Duration,
    /// Milliseconds of boot time; 0 before the first renewal.
    good_until: AtomicU64,
    /// Since when renewals have come without a gap.
    unbroken_since: AtomicU64,
    /// By how many milliseconds the store's time is ahead of boot time.
    ahead: AtomicU64,
    /// Whether the last renewal has failed.
    missed: AtomicBool,
}

/// A moment of boot time, which counts the time that the machine or the process was suspended.
#[derive(Clone, Copy, Debug)]
pub struct Moment(u64);

impl Moment {
    /// Now.
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        Self(now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000)
    }
}

impl Moment {
    /// Milliseconds since the machine was started.
    pub fn millis(self) -> u64 {
        self.0
    }

    /// The moment of [`Self::millis`].
    pub fn of_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// How long before this one that was; zero where it was later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// How long ago that was.
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }
}

impl Tenure {
    /// No right yet: the first renewal gives it.
    pub fn new(id: InstanceId, heartbeat: Duration, expiry: Duration) -> Self {
        Self {
            id,
            expiry,
            heartbeat,
            good_until: AtomicU64::new(0),
            unbroken_since: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            missed: AtomicBool::new(true),
        }
    }

    /// Under what name this process stands in the store.
    pub fn id(&self) -> InstanceId {
        self.id
    }

    /// How long a lease lasts from its renewal.
    pub fn expiry(&self) -> Duration {
        self.expiry
    }

    /// A renewal that was begun at `begun` has succeeded; the store's time was `now`.
    pub fn renewed(&self, begun: Moment, now: SystemTime) {
        self.missed.store(false, Ordering::Release);
        let now = millis(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        self.ahead.store(now.saturating_sub(begun.0), Ordering::Release);
        let until = begun.0 + millis(self.expiry) - self.margin();
        if begun.0 > self.good_until.fetch_max(until, Ordering::AcqRel) {
            self.unbroken_since.store(Moment::now().0, Ordering::Release);
        }
    }

    /// A renewal has failed.
    pub fn missed(&self) {
        self.missed.store(true, Ordering::Release);
    }

    /// Whether this instance knows what the store knew a heartbeat ago, and a second one at most for the way: its memory
    /// of what is completed may answer.
    pub fn is_in_touch(&self) -> bool {
        let renewed = (self.good_until.load(Ordering::Acquire) + self.margin()).saturating_sub(millis(self.expiry));
        !self.missed.load(Ordering::Acquire)
            && self.may_start()
            && Moment::now().0 < renewed + 2 * millis(self.heartbeat)
    }

    /// Whether an attempt may be started, or its first byte be written, now.
    pub fn may_start(&self) -> bool {
        Moment::now().0 < self.good_until.load(Ordering::Acquire)
    }

    /// Whether this instance may judge others by their leases. After a time in which it could not renew, the others
    /// could not either, and get one `expiry` to come back.
    pub fn may_sweep(&self) -> bool {
        self.may_start() && Moment::now().0 >= self.unbroken_since.load(Ordering::Acquire) + millis(self.expiry)
    }

    /// Whether the lease has held all the time since then, as far as this instance knows.
    pub fn has_held_since(&self, moment: Moment) -> bool {
        self.may_start() && self.unbroken_since.load(Ordering::Acquire) <= moment.0
    }

    /// The store's time, as far as the last renewal tells.
    pub fn store_now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(Moment::now().0 + self.ahead.load(Ordering::Acquire))
    }

    /// A tenth of the lease: more than a look at the clock and a write to a socket take, and than two clocks drift
    /// apart in one lease.
    fn margin(&self) -> u64 {
        millis(self.expiry) / 10
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenure() -> Tenure {
        Tenure::new(InstanceId::from_random(2), Duration::from_secs(2), Duration::from_secs(10))
    }

    #[test]
    fn nothing_may_start_before_the_first_renewal_or_after_the_lease() {
        let tenure = tenure();
        assert!(!tenure.may_start());
        tenure.renewed(Moment(Moment::now().0 - 9_500), SystemTime::now());
        assert!(!tenure.may_start(), "the last tenth of a lease is not used");
        tenure.renewed(Moment::now(), SystemTime::now());
        assert!(tenure.may_start());
    }

    #[test]
    fn memory_answers_only_while_the_heartbeat_beats() {
        let tenure = tenure();
        assert!(!tenure.is_in_touch(), "before the first");
        tenure.renewed(Moment(Moment::now().0 - 4_001), SystemTime::now());
        assert!(!tenure.is_in_touch(), "two heartbeats ago");
        tenure.renewed(Moment(Moment::now().0 - 3_000), SystemTime::now());
        assert!(tenure.is_in_touch());
        tenure.missed();
        assert!(!tenure.is_in_touch(), "after one that failed");
        tenure.renewed(Moment::now(), SystemTime::now());
        assert!(tenure.is_in_touch());
    }

    #[test]
    fn nobody_is_swept_until_renewals_have_come_for_a_whole_lease() {
        let tenure = tenure();
        tenure.renewed(Moment::now(), SystemTime::now());
        assert!(!tenure.may_sweep());
        tenure.unbroken_since.store(Moment::now().0 - 10_001, Ordering::Release);
        assert!(tenure.may_sweep());
        tenure.good_until.store(Moment::now().0 - 1, Ordering::Release);
        tenure.renewed(Moment::now(), SystemTime::now());
        assert!(!tenure.may_sweep(), "a gap begins the wait anew");
    }
}

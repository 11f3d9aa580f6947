//! This instance's right to start attempts, as far as the instance can know it without asking the store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::boot_time::BootInstant;
use oncegate_domain::ids::InstanceId;

/// The lease of this process, as the process sees it.
///
/// The store's clock decides when the lease ends. The process therefore counts `expiry` from the *start* of its last
/// successful renewal: until then the lease is certainly valid. It measures with [`BootInstant`], which also counts the
/// time for which the machine or the process was suspended.
#[derive(Debug)]
pub struct InstanceLease {
    id: InstanceId,
    expiry: Duration,
    heartbeat: Duration,
    /// Milliseconds of boot time; 0 before the first renewal.
    valid_until: AtomicU64,
    /// Milliseconds of boot time since which no renewal was missed for longer than a lease.
    unbroken_since: AtomicU64,
    /// Whether the last renewal has failed.
    missed: AtomicBool,
}

impl InstanceLease {
    /// A lease that allows nothing before its first renewal.
    pub fn new(id: InstanceId, heartbeat: Duration, expiry: Duration) -> Self {
        Self {
            id,
            expiry,
            heartbeat,
            valid_until: AtomicU64::new(0),
            unbroken_since: AtomicU64::new(0),
            missed: AtomicBool::new(true),
        }
    }

    /// The instance's id in the store.
    pub fn id(&self) -> InstanceId {
        self.id
    }

    /// The duration of a lease from its renewal.
    pub fn expiry(&self) -> Duration {
        self.expiry
    }

    /// Records a successful renewal that was started at `started_at`.
    pub fn record_renewal(&self, started_at: BootInstant) {
        self.missed.store(false, Ordering::Release);
        let until = started_at.millis() + millis(self.expiry) - self.margin();
        // Now, and not when it was started: the store may have been slow, and the lease have ended there before it was
        // renewed.
        let now = BootInstant::now().millis();
        let is_after_gap = |valid_until: u64| now > valid_until;
        let note_gap = || self.unbroken_since.store(now, Ordering::Release);
        // The gap first: nobody may see the lease valid again without the gap before it. And once more, because it may
        // have been suspended between the two.
        if is_after_gap(self.valid_until.load(Ordering::Acquire)) {
            note_gap();
        }
        if is_after_gap(self.valid_until.fetch_max(until, Ordering::AcqRel)) {
            note_gap();
        }
    }

    /// Allows nothing before the next renewal, and counts the time until then as a gap: the store may have lost the
    /// lease.
    pub fn suspend(&self) {
        self.valid_until.store(0, Ordering::Release);
    }

    /// Records a failed renewal.
    pub fn record_missed_renewal(&self) {
        self.missed.store(true, Ordering::Release);
    }

    /// Whether the last renewal succeeded and was started less than two heartbeats ago: only then may the cache answer,
    /// because only then has this instance heard of every purge.
    pub fn is_current(&self) -> bool {
        let renewed = (self.valid_until.load(Ordering::Acquire) + self.margin()).saturating_sub(millis(self.expiry));
        !self.missed.load(Ordering::Acquire)
            && self.may_start()
            && BootInstant::now().millis() < renewed + 2 * millis(self.heartbeat)
    }

    /// Whether an attempt may start, or its first byte be written, now.
    pub fn may_start(&self) -> bool {
        BootInstant::now().millis() < self.valid_until.load(Ordering::Acquire)
    }

    /// Whether this instance may sweep the keys of lapsed leases. After a time in which it could not renew, other
    /// instances could not either: they get one `expiry` to renew.
    pub fn may_sweep(&self) -> bool {
        self.may_start()
            && BootInstant::now().millis() >= self.unbroken_since.load(Ordering::Acquire) + millis(self.expiry)
    }

    /// Whether the lease was valid without a gap since `time`, as far as this instance knows.
    pub fn has_held_since(&self, time: BootInstant) -> bool {
        self.may_start() && self.unbroken_since.load(Ordering::Acquire) <= time.millis()
    }

    /// A tenth of the lease in milliseconds. It covers the time between a look at the clock and the write to a socket,
    /// and the drift of two clocks in one lease.
    fn margin(&self) -> u64 {
        millis(margin(self.expiry))
    }
}

/// The part of a lease that its instance does not use: a tenth. A store's clock that jumps by no more than this ends no
/// lease before the instance does.
pub fn margin(expiry: Duration) -> Duration {
    expiry / 10
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> InstanceLease {
        InstanceLease::new(InstanceId::from_random(2), Duration::from_secs(2), Duration::from_secs(10))
    }

    #[test]
    fn nothing_may_start_before_the_first_renewal_or_after_the_lease() {
        let lease = lease();
        assert!(!lease.may_start());
        lease.record_renewal(BootInstant::from_millis(BootInstant::now().millis() - 9_500));
        assert!(!lease.may_start(), "the last tenth of a lease is not used");
        lease.record_renewal(BootInstant::now());
        assert!(lease.may_start());
    }

    #[test]
    fn the_lease_is_current_only_while_renewals_succeed() {
        let lease = lease();
        assert!(!lease.is_current(), "before the first renewal");
        lease.record_renewal(BootInstant::from_millis(BootInstant::now().millis() - 4_001));
        assert!(!lease.is_current(), "two heartbeats ago");
        lease.record_renewal(BootInstant::from_millis(BootInstant::now().millis() - 3_000));
        assert!(lease.is_current());
        lease.record_missed_renewal();
        assert!(!lease.is_current(), "after a missed renewal");
        lease.record_renewal(BootInstant::now());
        assert!(lease.is_current());
    }

    #[test]
    fn after_a_suspension_only_a_renewal_allows_an_attempt_and_none_that_was_reserved_before() {
        let lease = lease();
        let before = BootInstant::from_millis(BootInstant::now().millis() - 1);
        lease.record_renewal(BootInstant::from_millis(BootInstant::now().millis() - 10));
        lease.unbroken_since.store(0, Ordering::Release);
        assert!(lease.has_held_since(before));
        lease.suspend();
        assert!(!lease.may_start() && !lease.is_current() && !lease.may_sweep());
        lease.record_renewal(BootInstant::now());
        assert!(lease.may_start() && !lease.has_held_since(before));
    }

    #[test]
    fn a_renewal_that_ends_after_the_lease_has_a_gap_before_it() {
        let lease = lease();
        let before = BootInstant::from_millis(BootInstant::now().millis() - 20);
        lease.valid_until.store(BootInstant::now().millis() - 5, Ordering::Release);
        lease.record_renewal(BootInstant::from_millis(BootInstant::now().millis() - 10));
        assert!(lease.may_start() && !lease.has_held_since(before));
    }

    #[test]
    fn an_instance_sweeps_only_after_a_whole_lease_without_a_gap() {
        let lease = lease();
        lease.record_renewal(BootInstant::now());
        assert!(!lease.may_sweep());
        lease.unbroken_since.store(BootInstant::now().millis() - 10_001, Ordering::Release);
        assert!(lease.may_sweep());
        lease.valid_until.store(BootInstant::now().millis() - 1, Ordering::Release);
        lease.record_renewal(BootInstant::now());
        assert!(!lease.may_sweep(), "a gap restarts the wait");
    }
}

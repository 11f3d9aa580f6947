//! The outcomes of the last hour, minute by minute.

use std::sync::atomic::{AtomicU64, Ordering};

use super::boot_time::BootInstant;
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_telemetry::metrics::Label;

/// The minutes that are counted apart.
pub const MINUTES: usize = 60;

const STATUSES: usize = OncegateStatus::ALL.len();

/// The bits of a bucket that hold its count; those above hold its minute.
const COUNT_BITS: u32 = 32;

/// The outcomes of one route: a ring of one-minute buckets for each `Oncegate-Status`, 5 KiB. Requests count without a
/// lock.
///
/// A bucket holds its minute beside its count in one number, so that a count of an hour ago is never taken for one of
/// now.
#[derive(Debug)]
pub struct RecentOutcomes([[AtomicU64; STATUSES]; MINUTES]);

/// The counts of one minute, in the order of [`OncegateStatus::ALL`].
pub type MinuteCounts = [u32; STATUSES];

impl Default for RecentOutcomes {
    fn default() -> Self {
        Self(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))))
    }
}

impl RecentOutcomes {
    /// Counts a response.
    pub fn count(&self, status: OncegateStatus, at: BootInstant) {
        let minute = minute_of(at);
        let Some(bucket) = status.index().and_then(|index| self.0[slot(minute)].get(index)) else { return };
        let counted = |before: u64| {
            let count = count_in(before, minute).saturating_add(1);
            Some(u64::from(minute) << COUNT_BITS | u64::from(count))
        };
        let _ = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted);
    }

    /// The counts of each minute of the hour before `at`, the earliest first; the last one is the minute that has
    /// begun.
    pub fn counts(&self, at: BootInstant) -> [MinuteCounts; MINUTES] {
        let now = minute_of(at);
        std::array::from_fn(|index| {
            // A machine that has just started has fewer minutes behind it.
            let Some(minute) = now.checked_sub((MINUTES - 1 - index) as u32) else { return [0; STATUSES] };
            std::array::from_fn(|status| count_in(self.0[slot(minute)][status].load(Ordering::Relaxed), minute))
        })
    }
}

/// The minutes since the machine started, from 1: a bucket that was never used belongs to minute 0.
fn minute_of(at: BootInstant) -> u32 {
    u32::try_from(at.millis() / 60_000).unwrap_or(u32::MAX - 1) + 1
}

fn slot(minute: u32) -> usize {
    minute as usize % MINUTES
}

/// The count that a bucket holds for a minute.
fn count_in(bucket: u64, minute: u32) -> u32 {
    if bucket >> COUNT_BITS == u64::from(minute) { bucket as u32 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: u64) -> BootInstant {
        BootInstant::from_millis(number * 60_000 + 59_999)
    }

    fn executed(outcomes: &RecentOutcomes, at: u64) -> Vec<u32> {
        let index = OncegateStatus::Executed.index().unwrap();
        outcomes.counts(minute(at)).iter().map(|counts| counts[index]).collect()
    }

    #[test]
    fn outcomes_are_counted_by_minute_and_forgotten_after_an_hour() {
        let outcomes = RecentOutcomes::default();
        for at in [0, 3, 3, 62] {
            outcomes.count(OncegateStatus::Executed, minute(at));
        }
        outcomes.count(OncegateStatus::Replayed, minute(3));
        let counts = executed(&outcomes, 62);
        assert_eq!((counts.len(), counts[0], counts[59]), (60, 2, 1));
        assert_eq!(counts.iter().sum::<u32>(), 3);
        assert_eq!(executed(&outcomes, 63)[58], 1);
        assert_eq!(executed(&outcomes, 122).iter().sum::<u32>(), 0);
    }

    #[test]
    fn a_machine_that_has_just_started_has_an_hour_without_requests_behind_it() {
        let outcomes = RecentOutcomes::default();
        assert_eq!(executed(&outcomes, 0), [0; 60]);
        outcomes.count(OncegateStatus::Executed, minute(0));
        assert_eq!(executed(&outcomes, 0)[59], 1);
        assert_eq!(executed(&outcomes, 59)[0], 1);
        assert_eq!(executed(&outcomes, 60).iter().sum::<u32>(), 0);
    }

    #[test]
    fn threads_that_count_at_once_lose_nothing_at_the_turn_of_an_hour() {
        const EACH: u64 = 2_000;
        let outcomes = RecentOutcomes::default();
        outcomes.count(OncegateStatus::Executed, minute(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..EACH).for_each(|_| outcomes.count(OncegateStatus::Executed, minute(60))));
            }
        });
        assert_eq!(executed(&outcomes, 60)[59], 4 * EACH as u32);
    }
}

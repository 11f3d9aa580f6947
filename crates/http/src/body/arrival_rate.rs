//! The slowest rate at which a request's body may arrive, over a sliding window.

use std::collections::VecDeque;
use std::time::Duration;

/// The window. A lost packet costs far less time, and an attacker would like to hold a connection for longer.
const WINDOW: Duration = Duration::from_secs(10);

/// Arrivals this close together count as one, at the time of the first: a body in single bytes needs little memory.
const MERGED_WITHIN: Duration = Duration::from_millis(500);

/// The latest arrivals of a body. It counts only the time for which somebody waited for the body: a service that reads
/// slowly holds its client up.
#[derive(Debug)]
pub struct ArrivalRate {
    /// The bytes that must arrive within each window.
    quota: u64,
    /// Each arrival's time and bytes, the oldest first: the shortest list that has the quota, or all.
    arrivals: VecDeque<(Duration, u64)>,
    /// Their sum.
    bytes: u64,
}

impl ArrivalRate {
    /// A body that has just begun. `bytes_per_second` is the slowest rate.
    pub fn new(bytes_per_second: u64) -> Self {
        Self { quota: bytes_per_second.saturating_mul(WINDOW.as_secs()), arrivals: VecDeque::new(), bytes: 0 }
    }

    /// Notes bytes that arrived when the body had been waited for so long.
    pub fn note(&mut self, waited: Duration, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        match self.arrivals.back_mut() {
            Some((at, sum)) if waited.saturating_sub(*at) < MERGED_WITHIN => *sum += bytes as u64,
            _ => self.arrivals.push_back((waited, bytes as u64)),
        }
        while let Some((_, oldest)) = self.arrivals.front().filter(|(_, oldest)| self.bytes - oldest >= self.quota) {
            self.bytes -= oldest;
            self.arrivals.pop_front();
        }
    }

    /// The time for which the body may have been waited for in all, unless more bytes arrive.
    pub fn deadline(&self) -> Duration {
        let begins = match self.arrivals.front() {
            Some((oldest, _)) if self.bytes >= self.quota => *oldest,
            _ => Duration::ZERO,
        };
        begins + WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time at which a body is refused that sends so many bytes at each of these seconds.
    fn refused_at(bytes_per_second: u64, arrivals: impl IntoIterator<Item = (u64, usize)>) -> u64 {
        let mut rate = ArrivalRate::new(bytes_per_second);
        for (second, bytes) in arrivals {
            let waited = Duration::from_secs(second);
            if waited > rate.deadline() {
                break;
            }
            rate.note(waited, bytes);
        }
        rate.deadline().as_secs()
    }

    #[test]
    fn a_body_must_bring_its_quota_in_every_ten_seconds() {
        assert_eq!(refused_at(512, []), 10, "silence");
        assert_eq!(refused_at(512, [(0, 1 << 20)]), 10, "a megabyte at once, and then silence");
        assert_eq!(refused_at(512, (0..).step_by(8).map(|second| (second, 1))), 10, "a byte every 8 s");
        assert_eq!(refused_at(512, (1..100).map(|second| (second, 511))), 10, "just too slow");
        assert_eq!(refused_at(512, (0..100).map(|second| (second, 512))), 100, "just fast enough, until it stops");
        assert_eq!(refused_at(512, [(9, 5120), (18, 5120)]), 28, "in bursts");
        assert_eq!(refused_at(512, [(5, 5119), (9, 1), (14, 5000)]), 15, "the window slides");
    }

    #[test]
    fn a_body_in_single_bytes_needs_little_memory() {
        let mut rate = ArrivalRate::new(64 << 10);
        (0..1_000_000).for_each(|millisecond| rate.note(Duration::from_millis(millisecond / 10), 1));
        assert!(rate.arrivals.len() <= 200, "{}", rate.arrivals.len());
    }
}

//! The rate of new keys that a route allows.

/// A number of new keys a second, and how many may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{per_second} a second for each caller, {burst} at once")]
pub struct KeyRate {
    per_second: u32,
    burst: u32,
}

impl KeyRate {
    /// The highest rate: one key for each millisecond.
    pub const PER_SECOND_MAX: u32 = 1_000;

    /// A rate of 1 to 1000 keys a second; `burst` of at least 1 may come at once.
    pub fn new(per_second: u32, burst: u32) -> Self {
        Self { per_second: per_second.clamp(1, Self::PER_SECOND_MAX), burst: burst.max(1) }
    }

    /// The time between two keys at the even rate, in µs: whole milliseconds would make 501 a second into 1000.
    pub fn interval_us(self) -> u64 {
        u64::from(1_000_000 / self.per_second)
    }

    /// The time in which a whole burst comes back, in microseconds.
    pub fn burst_us(self) -> u64 {
        self.interval_us() * u64::from(self.burst)
    }
}

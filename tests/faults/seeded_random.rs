//! Repeatable random numbers: the same seed gives the same sequence.

use std::time::Duration;

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns an independent generator.
    pub fn split(&mut self) -> Self {
        Self(self.next_u64())
    }

    /// Returns a number from 0 to `limit - 1`.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next_u64() % limit as u64).unwrap()
    }

    /// Returns true this many times out of a thousand.
    pub fn chance(&mut self, of_a_thousand: usize) -> bool {
        self.below(1_000) < of_a_thousand
    }

    /// Returns a duration between these numbers of milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.next_u64() % (to - from))
    }

    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

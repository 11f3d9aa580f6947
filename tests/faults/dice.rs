//! Chance that can be had again: the same seed rolls the same numbers.

use std::time::Duration;

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Others for somebody else.
    pub fn split(&mut self) -> Self {
        Self(self.roll())
    }

    /// From 0 to `limit - 1`.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.roll() % limit as u64).unwrap()
    }

    /// So many times out of a thousand.
    pub fn chance(&mut self, of_a_thousand: usize) -> bool {
        self.below(1_000) < of_a_thousand
    }

    /// Between so many milliseconds and so many.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.roll() % (to - from))
    }

    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

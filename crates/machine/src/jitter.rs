//! Random spread for pauses: instances and calls that failed or started together must not come back together.

use std::time::Duration;

use crate::random_u32;

/// Returns a random number from 0 to 1, and 0.5 where the operating system gives no random numbers.
pub fn random_fraction() -> f64 {
    random_u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}

/// Returns a random time between half of `pause` and `pause`.
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + random_fraction() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jittered_pause_lies_between_half_and_the_whole() {
        for _ in 0..100 {
            assert!((15_000..=30_000).contains(&jittered(Duration::from_secs(30)).as_millis()));
        }
    }
}

//! The limits and pauses of a delivery's tries.

use std::time::{Duration, SystemTime};

/// One try of a delivery, as its attempt needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryAttempt {
    /// When it was accepted for later; `None` where the attempt repeats one whose outcome is unknown.
    pub accepted_at: Option<SystemTime>,
    /// The try's number, 1 for the first; counted anew after an operator has queued the key again.
    pub number: u32,
    /// The time for which it may still be tried, from the attempt's reservation.
    pub give_up_in: Duration,
}

/// The limits and pauses of a delivery's tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The number of attempts after which the key is dead; at least one.
    pub max_attempts: u32,
    /// The pause after the first attempt; doubled after each.
    pub base: Duration,
    /// The longest pause; not below the base.
    pub cap: Duration,
    /// The time from acceptance after which no other attempt is begun.
    pub give_up_after: Duration,
}

impl RetryPolicy {
    /// The pause before the next try. One half of it is random (`chance` from 0 to 1), so that deliveries that failed
    /// together do not come again together; the other half is fixed, so that a service in trouble gets time. The pause
    /// is not below the one that the service has asked for, and not above the time that is left: the key is then given
    /// up at its end.
    pub fn pause(&self, delivery: &DeliveryAttempt, chance: f64, asked_for: Option<Duration>) -> Duration {
        let doubled = 2_u32.saturating_pow(delivery.number.saturating_sub(1).min(31));
        let pause = self.base.saturating_mul(doubled).min(self.cap);
        let pause = pause.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0);
        pause.max(asked_for.unwrap_or_default()).min(delivery.give_up_in)
    }

    pub fn is_last(&self, delivery: &DeliveryAttempt) -> bool {
        delivery.number >= self.max_attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: RetryPolicy = RetryPolicy {
        max_attempts: 10,
        base: Duration::from_secs(1),
        cap: Duration::from_secs(600),
        give_up_after: Duration::from_secs(86_400),
    };

    fn delivery(number: u32) -> DeliveryAttempt {
        DeliveryAttempt { accepted_at: Some(SystemTime::UNIX_EPOCH), number, give_up_in: Duration::from_secs(86_400) }
    }

    #[test]
    fn a_pause_doubles_up_to_its_cap_and_half_of_it_is_random() {
        for (number, shortest, longest) in
            [(1, 500, 1_000), (2, 1_000, 2_000), (5, 8_000, 16_000), (99, 300_000, 600_000)]
        {
            let pause = |chance| RETRY.pause(&delivery(number), chance, None).as_millis();
            assert_eq!((pause(0.0), pause(1.0)), (shortest, longest), "{number}");
            assert!((shortest..longest).contains(&pause(0.4)));
        }
    }

    #[test]
    fn a_service_that_asks_for_time_gets_it_up_to_the_end_of_the_delivery() {
        let asked_for = Some(Duration::from_secs(1_000));
        assert_eq!(RETRY.pause(&delivery(1), 1.0, asked_for), Duration::from_secs(1_000));
        let late = DeliveryAttempt { give_up_in: Duration::from_secs(7), ..delivery(9) };
        assert_eq!(RETRY.pause(&late, 1.0, asked_for), Duration::from_secs(7));
    }

    #[test]
    fn the_try_that_reaches_the_limit_is_the_last() {
        assert_eq!([9, 10, 11].map(|number| RETRY.is_last(&delivery(number))), [false, true, true]);
    }
}

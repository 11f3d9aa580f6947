//! A request that is accepted now and sent later: what is kept of it, and how long it is tried.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::attempt::{InstanceId, Lease, Token};
use super::policy::OnUnknown;
use super::record::{Ask, Record, RecordId};
use super::sealed::Sealed;

/// A key that is to be accepted, with its request.
#[derive(Clone, Debug)]
pub struct Order {
    /// Whose key, and for what. Its token is the key's until the first attempt has one; no time limit runs yet.
    pub ask: Ask,
    /// The request, as only who has the secret can read it.
    pub sealed: Sealed,
}

/// The store's answer to an [`Order`].
#[derive(Debug)]
pub enum Enqueued {
    /// Accepted, durably: key and request in one transaction.
    Accepted,
    /// Somebody was here before.
    Taken(Record),
}

/// Who delivers, and what is due by which rules.
#[derive(Clone, Debug)]
pub struct PickUp {
    /// By whose deliveries.
    pub service: Arc<str>,
    /// Under whose lease the attempts run.
    pub instance: InstanceId,
    /// One for each attempt that may be begun.
    pub tokens: Vec<Token>,
    /// The routes that are delivered here.
    pub terms: Vec<Terms>,
    /// What has been delivered since: its requests are not needed any more.
    pub delivered: Vec<RecordId>,
    /// What runs here, or has ended here and is still to be stored: it is left out.
    pub busy: Vec<RecordId>,
    /// What an attempt was begun for and not sent: that one does not count.
    pub unsent: Vec<RecordId>,
}

/// By what a route's deliveries go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The route's name.
    pub route: Arc<str>,
    /// Whether an unknown outcome is followed by another attempt.
    pub on_unknown: OnUnknown,
    /// How long past its deadline an attempt cannot be running any more.
    pub quiet_after: Duration,
    /// How long an attempt may take, from its reservation.
    pub time_limit: Duration,
    /// How long it is tried.
    pub retry: Retry,
}

/// What came of looking for deliveries.
#[derive(Debug, Default)]
pub struct PickedUp {
    /// Reserved, each as one attempt, and now to be sent.
    pub jobs: Vec<Job>,
    /// Not tried again.
    pub dead: Vec<Dead>,
}

/// A delivery whose next attempt has begun.
#[derive(Debug)]
pub struct Job {
    /// The attempt.
    pub lease: Lease,
    /// The request.
    pub sealed: Sealed,
}

/// A key that was given up before an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// Which record.
    pub id: RecordId,
    /// Its route's name.
    pub route: Box<str>,
    /// Why, as it stands in the audit.
    pub note: String,
}

/// What an attempt needs to know that delivers what was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When the key was accepted.
    pub accepted_at: SystemTime,
    /// Which try it is, 1 for the first; an operator who queues it anew begins to count anew.
    pub number: u32,
    /// How long it may still be tried, from the attempt's reservation.
    pub give_up_in: Duration,
}

/// How long, and how often, a delivery is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// So many attempts, and it is dead; at least one.
    pub max_attempts: u32,
    /// The pause after the first attempt; doubled after each.
    pub base: Duration,
    /// The longest pause; not below the base.
    pub cap: Duration,
    /// So long after its acceptance no other attempt is begun.
    pub give_up_after: Duration,
}

impl Retry {
    /// The pause before the next try. Half of it is by chance, from 0 to 1, so that what failed together does not come
    /// together again; the other half is sure, so that a service in trouble is left alone. A service that says how long it
    /// wants to be left alone is heard. None is longer than the time that is left: then it is given up at once.
    pub fn pause(&self, delivery: &Delivery, chance: f64, asked_for: Option<Duration>) -> Duration {
        let doubled = 2_u32.saturating_pow(delivery.number.saturating_sub(1).min(31));
        let pause = self.base.saturating_mul(doubled).min(self.cap);
        let pause = pause.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0);
        pause.max(asked_for.unwrap_or_default()).min(delivery.give_up_in)
    }

    /// Whether that was the last try.
    pub fn is_last(&self, delivery: &Delivery) -> bool {
        delivery.number >= self.max_attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Retry = Retry {
        max_attempts: 10,
        base: Duration::from_secs(1),
        cap: Duration::from_secs(600),
        give_up_after: Duration::from_secs(86_400),
    };

    fn delivery(number: u32) -> Delivery {
        Delivery { accepted_at: SystemTime::UNIX_EPOCH, number, give_up_in: Duration::from_secs(86_400) }
    }

    #[test]
    fn a_pause_doubles_up_to_its_cap_and_half_of_it_is_chance() {
        for (number, shortest, longest) in
            [(1, 500, 1_000), (2, 1_000, 2_000), (5, 8_000, 16_000), (99, 300_000, 600_000)]
        {
            let pause = |chance| RETRY.pause(&delivery(number), chance, None).as_millis();
            assert_eq!((pause(0.0), pause(1.0)), (shortest, longest), "{number}");
            assert!((shortest..longest).contains(&pause(0.4)));
        }
    }

    #[test]
    fn a_service_that_asks_for_time_gets_it_and_nobody_waits_past_the_end() {
        let asked = Some(Duration::from_secs(1_000));
        assert_eq!(RETRY.pause(&delivery(1), 1.0, asked), Duration::from_secs(1_000));
        let late = Delivery { give_up_in: Duration::from_secs(7), ..delivery(9) };
        assert_eq!(RETRY.pause(&late, 1.0, asked), Duration::from_secs(7));
    }

    #[test]
    fn the_last_try_is_the_one_that_reaches_the_limit() {
        assert_eq!([9, 10, 11].map(|number| RETRY.is_last(&delivery(number))), [false, true, true]);
    }
}

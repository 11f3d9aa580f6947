//! Counts the unacknowledged messages of a session, and sets those of unknown outcome aside.
//!
//! RabbitMQ gives a consumer messages until its prefetch count is reached, and a message counts until it is settled. A
//! message whose outcome is unknown waits for a late response, a reconciliation or a person. A prefetch of such
//! messages would stop the queue. They cannot go back to it: the broker would put them at its head and give them out
//! again at once. So they stay unacknowledged, and the session registers a new consumer with a prefetch count of its
//! own, called a window here. The messages of the earlier window remain with the channel.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use crate::consumers::disposition::{SET_ASIDE_BYTES_MAX, SET_ASIDE_MAX, doubled_pause};
use oncegate_engine::gate::message::MessageOutcome;
use oncegate_engine::instance::consumer_states::MessageCounts;

/// The places of a session's unacknowledged messages.
pub(super) struct MessagePlaces {
    prefetch: u16,
    counts: Mutex<PlaceCounts>,
    changed: Notify,
    /// Limits the messages that are tried at once.
    pub(super) turns: Semaphore,
}

/// The counts, all of unacknowledged messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PlaceCounts {
    window: u32,
    /// The prefetch count of the current window.
    size: usize,
    /// The messages of the current window.
    taken: usize,
    /// The messages of all windows that are not set aside.
    others: usize,
    set_aside: usize,
    set_aside_bytes: usize,
    /// Whether the limit was exhausted since half of it was free.
    is_exhausted: bool,
    /// Whether an attempt has ended as unknown since the current window began, and none otherwise.
    only_unknown: bool,
    /// The windows in a row during which attempts ended only as unknown.
    failures: u32,
}

impl PlaceCounts {
    /// The places for messages that are not set aside: those that they have, and those that are free.
    fn open(&self) -> usize {
        self.others + self.size.saturating_sub(self.taken)
    }

    fn is_full(&self) -> bool {
        self.set_aside >= SET_ASIDE_MAX || self.set_aside_bytes >= SET_ASIDE_BYTES_MAX
    }

    /// Whether fewer than half of the places are left, and a new window is allowed.
    fn is_crowded(&self, prefetch: u16) -> bool {
        self.open() < usize::from(prefetch).div_ceil(2) && !self.is_full()
    }

    /// The pause before the next window: none, unless the service has failed all along.
    fn pause(&self) -> Duration {
        if self.only_unknown { doubled_pause(self.failures + 1) } else { Duration::ZERO }
    }

    /// Begins a window, and returns its prefetch count: with the messages of earlier ones that are not set aside, never
    /// more than the configured one.
    fn begin_window(&mut self, prefetch: u16) -> u16 {
        let size = prefetch.saturating_sub(u16::try_from(self.others).unwrap_or(u16::MAX)).max(1);
        self.window += 1;
        self.size = usize::from(size);
        self.taken = 0;
        self.failures = if self.only_unknown { self.failures.saturating_add(1) } else { 0 };
        self.only_unknown = false;
        size
    }

    fn note_outcome(&mut self, outcome: &MessageOutcome) {
        match outcome {
            MessageOutcome::Done | MessageOutcome::Refused(_) => (self.only_unknown, self.failures) = (false, 0),
            MessageOutcome::Unknown(_) => self.only_unknown = true,
            // Nothing was executed.
            MessageOutcome::Again(_) | MessageOutcome::StillUnknown(_) => {}
        }
    }
}

impl MessagePlaces {
    /// The places of a new session; its first window has the configured prefetch count.
    pub(super) fn new(prefetch: u16) -> Self {
        let counts = PlaceCounts { size: usize::from(prefetch), ..PlaceCounts::default() };
        let turns = Semaphore::new(usize::from(prefetch));
        Self { prefetch, counts: Mutex::new(counts), changed: Notify::new(), turns }
    }

    pub(super) fn message_counts(&self) -> MessageCounts {
        let counts = self.counts.lock();
        MessageCounts { in_flight: counts.others, set_aside: counts.set_aside }
    }

    /// Counts a message that has arrived in the current window.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> MessagePlace {
        let mut counts = self.counts.lock();
        counts.taken += 1;
        counts.others += 1;
        MessagePlace { places: Arc::clone(self), window: counts.window, bytes, is_set_aside: false }
    }

    /// Waits until set-aside messages leave too few places for others and a new window is due.
    pub(super) async fn crowded(&self) {
        loop {
            // Created before the counts are read, so that no change is missed.
            let changed = self.changed.notified();
            let pause = Some(*self.counts.lock())
                .filter(|counts| counts.is_crowded(self.prefetch))
                .map(|counts| counts.pause());
            let Some(pause) = pause else {
                changed.await;
                continue;
            };
            tokio::time::sleep(pause).await;
            // Some may have been settled meanwhile.
            if self.counts.lock().is_crowded(self.prefetch) {
                return;
            }
        }
    }

    /// Begins a new window. Returns its prefetch count, and the number of messages that are set aside.
    pub(super) fn begin_window(&self) -> (u16, usize) {
        let mut counts = self.counts.lock();
        (counts.begin_window(self.prefetch), counts.set_aside)
    }

    /// Notes how a message ended, as a sign of how the service does.
    pub(super) fn note_outcome(&self, outcome: &MessageOutcome) {
        self.counts.lock().note_outcome(outcome);
    }
}

/// The place of one unacknowledged message, until it is dropped.
pub(super) struct MessagePlace {
    places: Arc<MessagePlaces>,
    window: u32,
    bytes: usize,
    is_set_aside: bool,
}

impl MessagePlace {
    /// Sets the message aside, until it is settled. Returns whether it exhausts the limit, once until half of it is
    /// free again.
    pub(super) fn set_aside(&mut self) -> bool {
        if self.is_set_aside {
            return false;
        }
        self.is_set_aside = true;
        let mut counts = self.places.counts.lock();
        counts.others -= 1;
        counts.set_aside += 1;
        counts.set_aside_bytes += self.bytes;
        let exhausts = counts.is_full() && !counts.is_exhausted;
        counts.is_exhausted |= exhausts;
        drop(counts);
        self.places.changed.notify_one();
        exhausts
    }
}

impl Drop for MessagePlace {
    fn drop(&mut self) {
        let mut counts = self.places.counts.lock();
        if self.is_set_aside {
            counts.set_aside -= 1;
            counts.set_aside_bytes -= self.bytes;
            counts.is_exhausted &=
                2 * counts.set_aside > SET_ASIDE_MAX || 2 * counts.set_aside_bytes > SET_ASIDE_BYTES_MAX;
        } else {
            counts.others -= 1;
        }
        if self.window == counts.window {
            counts.taken -= 1;
        }
        drop(counts);
        // A message of an earlier window leaves its place to none; and the limit may be exhausted no more.
        self.places.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_engine::gate::message::OutcomeReason;

    fn counts(places: &MessagePlaces) -> PlaceCounts {
        *places.counts.lock()
    }

    fn reason() -> OutcomeReason {
        OutcomeReason::new("outcome-unknown", "")
    }

    #[test]
    fn other_messages_have_at_least_half_of_the_places_and_never_more_than_all() {
        for prefetch in [1, 2, 3, 4, 5, 64] {
            let places = Arc::new(MessagePlaces::new(prefetch));
            let mut set_aside = Vec::new();
            let mut others = vec![places.take(0)];
            for _ in 0..3 * prefetch {
                if counts(&places).taken == counts(&places).size {
                    others.pop();
                }
                if counts(&places).taken < counts(&places).size {
                    let mut place = places.take(0);
                    place.set_aside();
                    set_aside.push(place);
                }
                if counts(&places).is_crowded(prefetch) {
                    places.begin_window();
                }
                let PlaceCounts { others, .. } = counts(&places);
                let open = counts(&places).open();
                let half = usize::from(prefetch).div_ceil(2);
                assert!((half..=usize::from(prefetch)).contains(&open), "{prefetch}: {open} with {others} others");
            }
            assert!(set_aside.len() > usize::from(prefetch), "{prefetch}: {}", set_aside.len());
            drop((set_aside, others));
            assert_eq!(counts(&places).open(), counts(&places).size);
        }
    }

    #[test]
    fn the_messages_that_are_set_aside_are_limited_in_number_and_bytes() {
        let full = |bytes: usize| {
            let places = Arc::new(MessagePlaces::new(1));
            let mut all = Vec::new();
            loop {
                let mut place = places.take(bytes);
                let exhausts = place.set_aside();
                all.push(place);
                assert_eq!(counts(&places).is_crowded(1), !exhausts);
                if exhausts {
                    all.swap_remove(0);
                    assert!(counts(&places).is_crowded(1), "a settled one leaves room");
                    places.begin_window();
                    let mut place = places.take(bytes);
                    assert!(!place.set_aside(), "said once");
                    return all.len() + 1;
                }
                places.begin_window();
            }
        };
        assert_eq!((full(0), full(SET_ASIDE_BYTES_MAX / 4)), (SET_ASIDE_MAX, 4));
    }

    #[test]
    fn the_pause_grows_only_while_attempts_end_as_unknown() {
        let mut counts = PlaceCounts::default();
        let mut pause_after = |outcomes: &[MessageOutcome]| {
            outcomes.iter().for_each(|outcome| counts.note_outcome(outcome));
            let pause = counts.pause();
            counts.begin_window(4);
            pause.as_millis()
        };
        let (unknown, still) = (MessageOutcome::Unknown(reason()), MessageOutcome::StillUnknown(reason()));
        let again = MessageOutcome::Again(reason());
        assert_eq!(pause_after(std::slice::from_ref(&still)), 0, "nothing was executed");
        assert_eq!(pause_after(&[unknown.clone(), still.clone()]), 250);
        assert_eq!(pause_after(&[unknown.clone(), again]), 500);
        assert_eq!(pause_after(&[MessageOutcome::Done, unknown.clone()]), 250);
        assert_eq!(pause_after(&[unknown.clone(), MessageOutcome::Done]), 0);
        let long: Vec<_> = (0..10).map(|_| pause_after(std::slice::from_ref(&unknown))).collect();
        assert_eq!(long[7..], [30_000, 30_000, 30_000]);
    }
}

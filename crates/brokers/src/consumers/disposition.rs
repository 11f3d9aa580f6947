//! Decides what happens to a message: acknowledge, hold, return to the queue or dead-letter. Pure, with no clock and no
//! random numbers, so that its test is a table.

use std::time::Duration;

use crate::retry::doubled;
use oncegate_engine::gate::message::{MessageOutcome, OutcomeReason};

/// The first pause; it doubles with each try. An attempt that runs elsewhere has mostly ended by then.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// The longest pause. A fault that lasts this long is repaired by people, and 30 s after the repair is soon enough.
const PAUSE_CAP: Duration = Duration::from_secs(30);
/// The longest pause that a service's `Retry-After` can ask for.
const RETRY_AFTER_CAP: Duration = Duration::from_secs(5 * 60);

/// The messages that one session sets aside: as many as people can decide about in a day. A broken service turns no
/// more messages unknown than these and one prefetch.
// See docs/decisions/0028-hold-messages.md.
pub(super) const SET_ASIDE_MAX: usize = 1000;
/// The bytes of their bodies, which stay in memory.
pub(super) const SET_ASIDE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How long a message is held, and what becomes of it then.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldPolicy {
    pub(super) limit: Duration,
    /// The end of a message of unknown outcome.
    pub(super) unknown: Overdue,
    /// The end of one that was not executed, or is not stored yet.
    pub(super) again: Overdue,
    /// The pause before a dead letter that could not be written is written again. Without it, the message is held like
    /// one that was not executed.
    pub(super) unwritten_pause: Option<Duration>,
}

/// What becomes of a message that was held for as long as its broker allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    DeadLetter,
    /// It is held further: nothing else waits for it.
    Hold,
    /// It returns to its queue, where another consumer may succeed.
    Requeue,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    Acknowledge,
    /// Publish it as a dead letter, for people to look at.
    DeadLetter(OutcomeReason),
    /// Return it to the queue: another consumer may succeed.
    Requeue(OutcomeReason),
    /// Keep it unacknowledged, and try it again after about this time.
    Hold(Duration, OutcomeReason),
    /// The same, without a place: its outcome may stay unknown for long.
    SetAside(Duration, OutcomeReason),
}

/// Decides after `tries` of a delivery that came `held` ago.
pub(super) fn decide(outcome: MessageOutcome, tries: u32, held: Duration, policy: HoldPolicy) -> Disposition {
    let pause = |reason: &OutcomeReason| doubled_pause(tries).max(reason.wait.unwrap_or_default().min(RETRY_AFTER_CAP));
    let (overdue, reason, is_unknown) = match outcome {
        MessageOutcome::Done => return Disposition::Acknowledge,
        MessageOutcome::Refused(reason) => return Disposition::DeadLetter(reason),
        MessageOutcome::Unknown(reason) | MessageOutcome::StillUnknown(reason) => (policy.unknown, reason, true),
        MessageOutcome::Again(reason) => (policy.again, reason, false),
    };
    match overdue {
        // The person who resolves the key finds the message among the dead letters. Requests with the key are refused
        // meanwhile, so the message may be sent again at any time.
        Overdue::DeadLetter if held >= policy.limit => Disposition::DeadLetter(reason),
        Overdue::Requeue if held >= policy.limit => Disposition::Requeue(reason),
        _ if is_unknown => Disposition::SetAside(pause(&reason), reason),
        _ => Disposition::Hold(pause(&reason), reason),
    }
}

/// Decides about a message whose dead letter could not be written.
pub(super) fn decide_unwritten(reason: OutcomeReason, tries: u32, held: Duration, policy: HoldPolicy) -> Disposition {
    match policy.unwritten_pause {
        Some(pause) => Disposition::Hold(pause, reason),
        None => decide(MessageOutcome::Again(reason), tries, held, policy),
    }
}

/// Returns the pause before the next try, after this one: short at first, and up to 30 s where the cause lasts.
pub(super) fn doubled_pause(tries: u32) -> Duration {
    doubled(PAUSE_FIRST, tries, PAUSE_CAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);
    const SHORT: Duration = Duration::from_secs(1);

    fn reason() -> OutcomeReason {
        OutcomeReason::new("in-flight", "")
    }

    #[test]
    fn a_message_is_held_until_it_is_settled_and_never_dropped() {
        for (outcome, held, has_exchange, expected) in [
            (MessageOutcome::Done, LONG, true, Disposition::Acknowledge),
            (MessageOutcome::Refused(reason()), SHORT, false, Disposition::DeadLetter(reason())),
            (MessageOutcome::Again(reason()), SHORT, true, Disposition::Hold(PAUSE_FIRST, reason())),
            (MessageOutcome::Again(reason()), LONG, true, Disposition::Requeue(reason())),
            (MessageOutcome::Unknown(reason()), SHORT, true, Disposition::SetAside(PAUSE_FIRST, reason())),
            (MessageOutcome::StillUnknown(reason()), SHORT, false, Disposition::SetAside(PAUSE_FIRST, reason())),
            (MessageOutcome::StillUnknown(reason()), LONG, true, Disposition::DeadLetter(reason())),
            (MessageOutcome::StillUnknown(reason()), LONG, false, Disposition::Requeue(reason())),
            (MessageOutcome::Unknown(reason()), LONG, true, Disposition::DeadLetter(reason())),
            (MessageOutcome::Unknown(reason()), LONG, false, Disposition::Requeue(reason())),
        ] {
            let unknown = if has_exchange { Overdue::DeadLetter } else { Overdue::Requeue };
            let policy = HoldPolicy { limit: LONG, unknown, again: Overdue::Requeue, unwritten_pause: None };
            assert_eq!(decide(outcome.clone(), 1, held, policy), expected, "{outcome:?} {held:?} {has_exchange}");
        }
    }

    #[test]
    fn pauses_grow_up_to_a_cap_and_respect_retry_after() {
        let pause = |tries, wait: Option<u64>| {
            let reason = OutcomeReason { wait: wait.map(Duration::from_secs), ..reason() };
            let (unknown, again) = (Overdue::Hold, Overdue::Hold);
            let policy = HoldPolicy { limit: SHORT, unknown, again, unwritten_pause: None };
            match decide(MessageOutcome::Again(reason), tries, SHORT, policy) {
                Disposition::Hold(pause, _) => pause.as_millis(),
                other => panic!("{other:?}"),
            }
        };
        let grown = [1, 2, 3, 7, 8, 9, u32::MAX].map(|tries| pause(tries, None));
        assert_eq!(grown, [250, 500, 1_000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!([pause(1, Some(60)), pause(1, Some(0)), pause(1, Some(86_400))], [60_000, 250, 300_000]);
    }
}

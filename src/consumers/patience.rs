//! How long a message is held, and what becomes of it in the end. Pure: no clock, no chance, so that its test is a table.

use std::time::Duration;

use crate::gate::message::{Fate, Reason};

/// The first pause; doubled with each try. An attempt elsewhere is mostly over by then.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// The longest: what has lasted this long is mended by somebody, and found mended soon enough.
const PAUSE_CAP: Duration = Duration::from_secs(30);
/// The longest that a service is left alone because it says so.
const ASKED_CAP: Duration = Duration::from_secs(5 * 60);
/// How long one delivery is held. RabbitMQ closes a channel on which one has stood unacknowledged for half an hour.
pub(super) const HOLD_MAX: Duration = Duration::from_secs(10 * 60);

/// What to do with a delivery.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Acknowledge it.
    Acknowledge,
    /// Put it where it is found by people.
    Bury(Reason),
    /// Give it back to the queue: somebody else may do better.
    GiveBack(Reason),
    /// Keep it, unacknowledged, and try it again after about this long.
    Hold(Duration, Reason),
}

/// After `tries` of a delivery that came `held` ago. `exchange` says whether there is one for dead letters.
pub(super) fn next(fate: Fate, tries: u32, held: Duration, exchange: bool) -> Next {
    let doubled = PAUSE_FIRST.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(PAUSE_CAP);
    match fate {
        Fate::Done => Next::Acknowledge,
        Fate::Refused(reason) => Next::Bury(reason),
        // Whoever resolves it finds the message there. Its key stays closed meanwhile, so that it may be sent again at any time.
        Fate::Unknown(reason) if held >= HOLD_MAX && exchange => Next::Bury(reason),
        Fate::Unknown(reason) | Fate::Again(reason) if held >= HOLD_MAX => Next::GiveBack(reason),
        Fate::Unknown(reason) | Fate::Again(reason) => {
            let asked = reason.wait.unwrap_or_default().min(ASKED_CAP);
            Next::Hold(doubled.max(asked), reason)
        }
    }
}

/// Between half of a pause and the whole, by chance: what failed together does not come back together.
pub(super) fn jittered(pause: Duration) -> Duration {
    let chance = getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX));
    pause.mul_f64(0.5 + chance / 2.0)
}

/// Between two tries to reach a broker: soon after the first failure, and seldom enough for one that is away for long.
pub(super) fn reconnect(failures: u32) -> Duration {
    PAUSE_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(PAUSE_CAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = HOLD_MAX;
    const SHORT: Duration = Duration::from_secs(1);

    fn reason() -> Reason {
        Reason::new("in-flight", "")
    }

    #[test]
    fn a_message_is_held_until_it_is_settled_and_never_dropped() {
        for (fate, held, exchange, expected) in [
            (Fate::Done, LONG, true, Next::Acknowledge),
            (Fate::Refused(reason()), SHORT, false, Next::Bury(reason())),
            (Fate::Again(reason()), SHORT, true, Next::Hold(PAUSE_FIRST, reason())),
            (Fate::Again(reason()), LONG, true, Next::GiveBack(reason())),
            (Fate::Unknown(reason()), SHORT, true, Next::Hold(PAUSE_FIRST, reason())),
            (Fate::Unknown(reason()), LONG, true, Next::Bury(reason())),
            (Fate::Unknown(reason()), LONG, false, Next::GiveBack(reason())),
        ] {
            assert_eq!(next(fate.clone(), 1, held, exchange), expected, "{fate:?} {held:?} {exchange}");
        }
    }

    #[test]
    fn pauses_grow_up_to_a_cap_and_heed_the_service() {
        let pause = |tries, wait: Option<u64>| {
            let reason = Reason { wait: wait.map(Duration::from_secs), ..reason() };
            match next(Fate::Again(reason), tries, SHORT, false) {
                Next::Hold(pause, _) => pause.as_millis(),
                other => panic!("{other:?}"),
            }
        };
        let grown = [1, 2, 3, 7, 8, 9, u32::MAX].map(|tries| pause(tries, None));
        assert_eq!(grown, [250, 500, 1_000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!([pause(1, Some(60)), pause(1, Some(0)), pause(1, Some(86_400))], [60_000, 250, 300_000]);
        for _ in 0..100 {
            assert!((15_000..=30_000).contains(&jittered(PAUSE_CAP).as_millis()));
        }
    }

    #[test]
    fn a_broker_is_tried_again_sooner_or_later_and_for_ever() {
        assert_eq!([1, 2, 8, u32::MAX].map(|failures| reconnect(failures).as_millis()), [250, 500, 30_000, 30_000]);
    }
}

//! What was found decides what is done. Pure: no clock, no I/O, so that its test is a table.

use std::time::Duration;

use super::refuse::{Refusal, RetryAfter};
use crate::domain::policy::OnUnknown;
use crate::domain::record::{Completed, Record, State};
use crate::store::Seen;

/// What happens to a request whose key somebody had before.
#[derive(Debug)]
pub enum Decision {
    /// It was accepted for asynchronous delivery; there may be news by then.
    Accepted(RetryAfter),
    /// The first attempt is running; it should be done by then.
    Join(RetryAfter),
    /// Say no.
    Refuse(Refusal),
    /// Give the stored answer again.
    Replay(Completed),
    /// Become the next attempt, unless somebody else does first.
    TakeOver(Seen),
}

/// What the route says, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// What a retry of an unknown outcome gets.
    pub on_unknown: OnUnknown,
    /// How long after its deadline an attempt cannot be running any more.
    pub quiet_after: Duration,
    /// How long the route's attempts have taken of late.
    pub usual: Duration,
}

/// How long a client is asked to wait for an outcome that only a reconciliation or a person can bring.
pub const ASK_AGAIN: Duration = Duration::from_secs(30);

/// `same` says whether the request has the fingerprint that the record was made with.
pub fn decide(record: Record, same: bool, rules: &Rules) -> Decision {
    let seen = Seen::from(&record);
    // A record past its TTL counts as none, and so does what it was used for.
    if record.past_ttl {
        return Decision::TakeOver(seen);
    }
    if record.late {
        return Decision::Refuse(Refusal::KeyExpired);
    }
    // Before everything else: a reused key is a client's bug in every state.
    if !same {
        return Decision::Refuse(Refusal::KeyReused);
    }
    if record.accepted_at.is_some() && !matches!(record.state, State::Completed(_) | State::Expired) {
        return Decision::Accepted(until_news(&record, rules.usual));
    }
    match record.state {
        State::Completed(Completed { response, .. }) if response.body.is_none() => {
            Decision::Refuse(Refusal::ResponseNotKept)
        }
        State::Completed(completed) => Decision::Replay(completed),
        State::Dead => Decision::Refuse(Refusal::OutcomeUnknown(RetryAfter::new(ASK_AGAIN))),
        State::Expired => Decision::Refuse(Refusal::KeyExpired),
        // None is queued that was not accepted.
        State::Queued => Decision::Accepted(until_news(&record, rules.usual)),
        State::InFlight => Decision::Join(until_done(&record, rules.usual)),
        State::Retryable => Decision::TakeOver(seen),
        State::Unknown => {
            let may_retry = match rules.on_unknown {
                OnUnknown::Hold => false,
                OnUnknown::Retry => true,
                OnUnknown::RetryWhenQuiet => is_quiet(&record, rules.quiet_after),
            };
            if may_retry {
                Decision::TakeOver(seen)
            } else {
                Decision::Refuse(Refusal::OutcomeUnknown(until_known(&record, rules)))
            }
        }
    }
}

/// What attempts usually take less what this one already has, never past its deadline.
fn until_done(record: &Record, usual: Duration) -> RetryAfter {
    RetryAfter::new(usual.saturating_sub(record.running_for).min(until_deadline(record)))
}

/// Of what was accepted: at the pace of its attempts, and once none is coming, when it is worth asking again.
fn until_news(record: &Record, usual: Duration) -> RetryAfter {
    match record.state {
        State::InFlight => until_done(record, usual),
        State::Queued => RetryAfter::new(usual),
        _ => RetryAfter::new(ASK_AGAIN),
    }
}

/// Until the attempt is quiet where that brings the next one, else until it is worth asking again.
fn until_known(record: &Record, rules: &Rules) -> RetryAfter {
    RetryAfter::new(match rules.on_unknown {
        OnUnknown::RetryWhenQuiet => until_quiet(record, rules.quiet_after),
        OnUnknown::Hold | OnUnknown::Retry => ASK_AGAIN,
    })
}

/// Whether the attempt cannot be running any more, whatever has happened to its instance.
fn is_quiet(record: &Record, quiet_after: Duration) -> bool {
    until_quiet(record, quiet_after).is_zero()
}

fn until_quiet(record: &Record, quiet_after: Duration) -> Duration {
    let quiet_after = i64::try_from(quiet_after.as_millis()).unwrap_or(i64::MAX);
    let left = record.deadline_in_ms.saturating_add(quiet_after);
    Duration::from_millis(u64::try_from(left).unwrap_or(0))
}

fn until_deadline(record: &Record) -> Duration {
    Duration::from_millis(u64::try_from(record.deadline_in_ms).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};

    use super::*;
    use crate::domain::attempt::Token;
    use crate::domain::fingerprint::{Fingerprint, Plan, Recipe};
    use crate::domain::record::RecordId;
    use crate::domain::response::StoredResponse;

    const RULES: Rules = Rules {
        on_unknown: OnUnknown::Hold,
        quiet_after: Duration::from_secs(70),
        usual: Duration::from_millis(4_200),
    };

    fn record(state: State) -> Record {
        Record {
            id: RecordId::from_stored(&[1; 32]).unwrap(),
            attempt: 3,
            token: Token::from_random([2; 16]),
            recipe: Recipe::new(Plan::default(), None),
            fingerprint: Fingerprint::from_stored(&[3; 32]).unwrap(),
            running_for: Duration::from_millis(1_100),
            deadline_in_ms: 28_900,
            past_ttl: false,
            late: false,
            recovery_point: None,
            accepted_at: None,
            state,
        }
    }

    fn completed(body: Option<&'static [u8]>) -> State {
        let response = StoredResponse {
            status: StatusCode::CREATED,
            headers: HeaderMap::new(),
            body: body.map(Bytes::from_static),
            trailers: HeaderMap::new(),
        };
        State::Completed(Completed { response, expires_at: Some(SystemTime::UNIX_EPOCH) })
    }

    fn states() -> [State; 7] {
        let completed = [completed(Some(b"paid")), completed(None)];
        let [kept, not_kept] = completed;
        [kept, not_kept, State::Dead, State::Expired, State::InFlight, State::Retryable, State::Unknown]
    }

    /// The decision in one word.
    fn word(record: Record, same: bool, rules: &Rules) -> &'static str {
        match decide(record, same, rules) {
            Decision::Accepted(_) => "accepted",
            Decision::Join(_) => "join",
            Decision::Refuse(refusal) => refusal.slug(),
            Decision::Replay(_) => "replay",
            Decision::TakeOver(_) => "take over",
        }
    }

    #[test]
    fn each_state_has_its_answer_under_each_policy() {
        for (on_unknown, deadline_in_ms, unknown) in [
            (OnUnknown::Hold, -1_000_000, "outcome-unknown"),
            (OnUnknown::Retry, 28_900, "take over"),
            (OnUnknown::RetryWhenQuiet, 28_900, "outcome-unknown"),
            (OnUnknown::RetryWhenQuiet, -69_999, "outcome-unknown"),
            (OnUnknown::RetryWhenQuiet, -70_000, "take over"),
        ] {
            let rules = Rules { on_unknown, ..RULES };
            let decided = states().map(|state| word(Record { deadline_in_ms, ..record(state) }, true, &rules));
            assert_eq!(
                decided,
                ["replay", "response-not-kept", "outcome-unknown", "key-expired", "join", "take over", unknown],
                "{on_unknown:?}"
            );
        }
    }

    #[test]
    fn another_request_is_refused_in_every_state_under_every_policy() {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Retry, OnUnknown::RetryWhenQuiet] {
            for state in states() {
                let quiet = Record { deadline_in_ms: -1_000_000, ..record(state) };
                assert_eq!(word(quiet, false, &Rules { on_unknown, ..RULES }), "key-reused");
            }
        }
    }

    #[test]
    fn a_late_retry_is_refused_whatever_it_asks() {
        for same in [true, false] {
            for state in [completed(Some(b"paid")), State::Expired] {
                assert_eq!(word(Record { late: true, ..record(state) }, same, &RULES), "key-expired");
            }
        }
    }

    #[test]
    fn a_record_past_its_ttl_counts_as_none_whatever_it_was_used_for() {
        for same in [true, false] {
            for state in [completed(Some(b"paid")), completed(None), State::Expired, State::Retryable] {
                let past = Record { past_ttl: true, late: true, ..record(state) };
                assert_eq!(word(past, same, &RULES), "take over");
            }
        }
    }

    #[test]
    fn a_duplicate_is_asked_to_come_back_when_the_first_should_be_done_and_never_past_its_deadline() {
        for (usual, running_for, deadline_in_ms, seconds) in
            [(4_200, 1_100, 28_900, 4), (4_200, 9_000, 28_900, 1), (60_000, 1_100, 28_900, 29), (0, 0, -5, 1)]
        {
            let rules = Rules { usual: Duration::from_millis(usual), ..RULES };
            let running =
                Record { running_for: Duration::from_millis(running_for), deadline_in_ms, ..record(State::InFlight) };
            match decide(running, true, &rules) {
                Decision::Join(wait) => assert_eq!(wait.seconds(), seconds),
                other => panic!("{other:?}"),
            }
        }
    }
}

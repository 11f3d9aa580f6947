//! The decision that follows from a key's record. Pure (no clock, no I/O), so that its test is a table.

use std::time::Duration;

use crate::domain::execution_risk::{RecordSummary, RetryRule};
use crate::domain::record::Record;
use crate::domain::response_policy::OnUnknown;
use crate::domain::state::{CompletedResponse, KeyState};
use crate::instance::metrics::ReservationResult;
use crate::protocol::refusal::{KeyReuse, Refusal, RetryAfter};
use crate::protocol::status::OncegateStatus;
use crate::store::ExpectedRecord;

/// The next step of a request whose key has a record.
#[derive(Debug)]
pub enum Decision {
    /// The key was accepted for asynchronous delivery, and has no response yet.
    Accepted(AcceptedProgress),
    /// An attempt is running. It should end after this time.
    Join(RetryAfter),
    /// Refuse the request.
    Refuse(Refusal),
    /// Replay the stored response.
    Replay(CompletedResponse),
    /// Become the next attempt, unless another request does first.
    TakeOver(ExpectedRecord),
}

/// The state of an accepted key without a response, as its 202 tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedProgress {
    /// The request waits for its delivery or is being delivered. Ask again after this time.
    Pending(RetryAfter),
    /// An attempt may have executed, and a late answer, a report, a reconciliation or an operator may tell. Ask again after this time.
    Unknown(RetryAfter),
    /// Oncegate has given up. Nothing changes until an operator decides.
    Dead,
}

impl AcceptedProgress {
    /// The time after which to ask again; `None` where that is no use.
    pub fn retry_after(self) -> Option<RetryAfter> {
        match self {
            Self::Pending(wait) | Self::Unknown(wait) => Some(wait),
            Self::Dead => None,
        }
    }

    /// The value of `Oncegate-Status`.
    pub fn oncegate_status(self) -> OncegateStatus {
        match self {
            Self::Pending(_) => OncegateStatus::Queued,
            Self::Unknown(_) | Self::Dead => OncegateStatus::Unknown,
        }
    }
}

/// The result of comparing a request with the one that its key's record was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestComparison {
    /// It is the same request.
    Same,
    /// It is another request.
    Different,
    /// It has no body, and is not the same request. It may be the beginning of a retry: some clients send no body until the service has
    /// asked for their credentials.
    DifferentWithoutBody,
    /// The secret of the record's fingerprint is gone: it may be the same request.
    Impossible,
}

/// The route's part in a decision.
#[derive(Clone, Copy, Debug)]
pub struct DecisionRules {
    /// The route's rule for retries of an unknown outcome.
    pub on_unknown: OnUnknown,
    /// The time after its deadline from which an attempt cannot be running any more.
    pub quiet_after: Duration,
    /// The average of the route's recent attempts.
    pub average_latency: Duration,
}

impl DecisionRules {
    /// Whether a further attempt of the key may start: the rule that operators' actions are judged by too.
    fn may_be_executed(&self, record: &RecordSummary) -> bool {
        let &Self { on_unknown, quiet_after, .. } = self;
        record.may_be_executed(&RetryRule { on_unknown, quiet_after })
    }
}

/// The `Retry-After` of an outcome that only a reconciliation or an operator can bring.
pub const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Decides about a request, which was compared with the record's.
pub fn decide(record: Record, comparison: RequestComparison, rules: &DecisionRules) -> Decision {
    let expected = ExpectedRecord::from(&record);
    let may_be_executed = rules.may_be_executed(&RecordSummary::from(&record));
    // A record past its TTL counts as none, and so does what it was used for.
    if record.past_ttl {
        return Decision::TakeOver(expected);
    }
    if record.late {
        return Decision::Refuse(Refusal::KeyExpired);
    }
    // This comes before the state: a reused key is a client's bug in every state.
    match comparison {
        RequestComparison::Same => {}
        RequestComparison::Different => return Decision::Refuse(Refusal::KeyReused(KeyReuse::OtherRequest)),
        RequestComparison::DifferentWithoutBody => return Decision::Refuse(refuse_without_body(&record, rules)),
        // No client may get a response that may belong to another request, and none may be told to take a new key for what may
        // be a retry.
        RequestComparison::Impossible => {
            return Decision::Refuse(Refusal::OutcomeUnknown(RetryAfter::new(DEFAULT_RETRY_AFTER)));
        }
    }
    if record.accepted_at.is_some() && !matches!(record.state, KeyState::Completed(_) | KeyState::Expired) {
        return Decision::Accepted(accepted_progress(&record, rules.average_latency));
    }
    match record.state {
        KeyState::Completed(CompletedResponse { response, .. }) if response.body.is_none() => {
            Decision::Refuse(Refusal::ResponseNotKept)
        }
        KeyState::Completed(completed) => Decision::Replay(completed),
        KeyState::Dead => Decision::Refuse(Refusal::OutcomeUnknown(RetryAfter::new(DEFAULT_RETRY_AFTER))),
        KeyState::Expired => Decision::Refuse(Refusal::KeyExpired),
        // Every queued key was accepted, so this arm is not reached.
        KeyState::Queued => Decision::Accepted(accepted_progress(&record, rules.average_latency)),
        KeyState::InFlight => Decision::Join(until_done(&record, rules.average_latency)),
        KeyState::Retryable | KeyState::Unknown if may_be_executed => Decision::TakeOver(expected),
        KeyState::Retryable | KeyState::Unknown => {
            Decision::Refuse(Refusal::OutcomeUnknown(until_known(&record, rules)))
        }
    }
}

/// The refusal of a request without a body that is not the same as the key's. It never executes anything, waits for nothing and gets no
/// response, and it never tells a client that retries to take a new key.
fn refuse_without_body(record: &Record, rules: &DecisionRules) -> Refusal {
    match record.state {
        KeyState::InFlight => Refusal::InFlight(until_done(record, rules.average_latency)),
        KeyState::Queued => Refusal::InFlight(RetryAfter::new(rules.average_latency)),
        KeyState::Dead => Refusal::OutcomeUnknown(RetryAfter::new(DEFAULT_RETRY_AFTER)),
        KeyState::Unknown => Refusal::OutcomeUnknown(until_known(record, rules)),
        KeyState::Completed(_) | KeyState::Expired | KeyState::Retryable => Refusal::KeyReused(KeyReuse::WithoutBody),
    }
}

impl Decision {
    /// The decision as the reservations metric counts it; `None` for a decision about something else, or a take-over that
    /// has not happened yet.
    pub fn counted_as(&self) -> Option<ReservationResult> {
        match self {
            // An accepted request runs on its own, and its duplicates join it.
            Self::Accepted(AcceptedProgress::Pending(_)) | Self::Join(_) | Self::Refuse(Refusal::InFlight(_)) => {
                Some(ReservationResult::InFlight)
            }
            Self::Accepted(AcceptedProgress::Dead | AcceptedProgress::Unknown(_)) => Some(ReservationResult::Unknown),
            Self::Replay(_) | Self::Refuse(Refusal::ResponseNotKept) => Some(ReservationResult::Replay),
            Self::Refuse(Refusal::KeyExpired) => Some(ReservationResult::Expired),
            Self::Refuse(Refusal::KeyReused(_)) => Some(ReservationResult::KeyMisuse),
            Self::Refuse(Refusal::OutcomeUnknown(_)) => Some(ReservationResult::Unknown),
            Self::Refuse(_) | Self::TakeOver(_) => None,
        }
    }
}

/// The average latency less the time that the attempt has already taken, never past its deadline.
fn until_done(record: &Record, average_latency: Duration) -> RetryAfter {
    RetryAfter::new(average_latency.saturating_sub(record.running_for).min(until_deadline(record)))
}

/// The progress of an accepted key that is neither completed nor expired.
fn accepted_progress(record: &Record, average_latency: Duration) -> AcceptedProgress {
    match record.state {
        KeyState::InFlight => AcceptedProgress::Pending(until_done(record, average_latency)),
        KeyState::Queued => AcceptedProgress::Pending(RetryAfter::new(average_latency)),
        KeyState::Dead => AcceptedProgress::Dead,
        KeyState::Unknown => AcceptedProgress::Unknown(RetryAfter::new(DEFAULT_RETRY_AFTER)),
        // A released key is not accepted any more, and the others are not asked about.
        KeyState::Completed(_) | KeyState::Expired | KeyState::Retryable => {
            AcceptedProgress::Pending(RetryAfter::new(DEFAULT_RETRY_AFTER))
        }
    }
}

/// The time until the attempt is quiet, if that permits the next one; else [`DEFAULT_RETRY_AFTER`].
fn until_known(record: &Record, rules: &DecisionRules) -> RetryAfter {
    RetryAfter::new(match rules.on_unknown {
        OnUnknown::RetryWhenQuiet => RecordSummary::from(record).until_quiet(rules.quiet_after),
        OnUnknown::Hold | OnUnknown::Retry => DEFAULT_RETRY_AFTER,
    })
}

fn until_deadline(record: &Record) -> Duration {
    Duration::from_millis(u64::try_from(record.deadline_in_ms).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};

    use super::RequestComparison::{Different, DifferentWithoutBody, Impossible, Same};
    use super::*;
    use crate::domain::fingerprint::{Fingerprint, FingerprintRules, Recipe};
    use crate::domain::ids::{RecordId, Token};
    use crate::domain::response::StoredResponse;

    const RULES: DecisionRules = DecisionRules {
        on_unknown: OnUnknown::Hold,
        quiet_after: Duration::from_secs(70),
        average_latency: Duration::from_millis(4_200),
    };

    fn record(state: KeyState) -> Record {
        Record {
            id: RecordId::from_stored(&[1; 32]).unwrap(),
            attempt: 3,
            token: Token::from_random([2; 16]),
            recipe: Recipe::new(FingerprintRules::default(), None),
            fingerprint: Fingerprint::from_stored(&[3; 32]).unwrap(),
            running_for: Duration::from_millis(1_100),
            deadline_in_ms: 28_900,
            past_ttl: false,
            late: false,
            recovery_point: None,
            accepted_at: None,
            state,
            reading: None,
        }
    }

    fn completed(body: Option<&'static [u8]>) -> KeyState {
        let response = StoredResponse {
            status: StatusCode::CREATED,
            headers: HeaderMap::new(),
            body: body.map(Bytes::from_static),
            trailers: HeaderMap::new(),
        };
        KeyState::Completed(CompletedResponse { response: response.into(), expires_at: Some(SystemTime::UNIX_EPOCH) })
    }

    fn states() -> [KeyState; 7] {
        let completed = [completed(Some(b"paid")), completed(None)];
        let [kept, not_kept] = completed;
        [kept, not_kept, KeyState::Dead, KeyState::Expired, KeyState::InFlight, KeyState::Retryable, KeyState::Unknown]
    }

    /// The decision in one word.
    fn word(record: Record, comparison: RequestComparison, rules: &DecisionRules) -> &'static str {
        match decide(record, comparison, rules) {
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
            let rules = DecisionRules { on_unknown, ..RULES };
            let decided = states().map(|state| word(Record { deadline_in_ms, ..record(state) }, Same, &rules));
            assert_eq!(
                decided,
                ["replay", "response-not-kept", "outcome-unknown", "key-expired", "join", "take over", unknown],
                "{on_unknown:?}"
            );
        }
    }

    #[test]
    fn an_accepted_key_tells_its_state_until_it_is_completed_or_expired() {
        let accepted = |state| Record { accepted_at: Some(SystemTime::UNIX_EPOCH), ..record(state) };
        for (state, status, seconds, counted) in [
            (KeyState::Queued, OncegateStatus::Queued, Some(5), ReservationResult::InFlight),
            (KeyState::InFlight, OncegateStatus::Queued, Some(4), ReservationResult::InFlight),
            (KeyState::Retryable, OncegateStatus::Queued, Some(30), ReservationResult::InFlight),
            (KeyState::Unknown, OncegateStatus::Unknown, Some(30), ReservationResult::Unknown),
            (KeyState::Dead, OncegateStatus::Unknown, None, ReservationResult::Unknown),
        ] {
            let name = state.name();
            let decision = decide(accepted(state), Same, &RULES);
            assert_eq!(decision.counted_as(), Some(counted), "{name}");
            let Decision::Accepted(progress) = decision else { panic!("{name}: {decision:?}") };
            let wait = progress.retry_after().map(RetryAfter::seconds);
            assert_eq!((progress.oncegate_status(), wait), (status, seconds), "{name}");
        }
        let words = [completed(Some(b"paid")), completed(None), KeyState::Expired];
        let words = words.map(|state| word(accepted(state), Same, &RULES));
        assert_eq!(words, ["replay", "response-not-kept", "key-expired"]);
    }

    #[test]
    fn a_request_that_is_not_known_to_be_the_same_is_refused_in_every_state_under_every_policy() {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Retry, OnUnknown::RetryWhenQuiet] {
            for state in states() {
                let quiet = Record { deadline_in_ms: -1_000_000, ..record(state) };
                let accepted = Record { accepted_at: Some(SystemTime::UNIX_EPOCH), ..quiet.clone() };
                for record in [quiet, accepted] {
                    let rules = DecisionRules { on_unknown, ..RULES };
                    assert_eq!(word(record.clone(), Different, &rules), "key-reused");
                    assert_eq!(word(record, Impossible, &rules), "outcome-unknown");
                }
            }
        }
    }

    #[test]
    fn a_request_without_a_body_learns_the_state_of_the_other_one_and_never_executes_or_advises_a_new_key() {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Retry, OnUnknown::RetryWhenQuiet] {
            for (state, slug, advice, counted) in [
                (completed(Some(b"paid")), "key-reused", "fix", ReservationResult::KeyMisuse),
                (completed(None), "key-reused", "fix", ReservationResult::KeyMisuse),
                (KeyState::Expired, "key-reused", "fix", ReservationResult::KeyMisuse),
                (KeyState::Retryable, "key-reused", "fix", ReservationResult::KeyMisuse),
                (KeyState::InFlight, "in-flight", "same_key", ReservationResult::InFlight),
                (KeyState::Queued, "in-flight", "same_key", ReservationResult::InFlight),
                (KeyState::Dead, "outcome-unknown", "reconcile", ReservationResult::Unknown),
                (KeyState::Unknown, "outcome-unknown", "reconcile", ReservationResult::Unknown),
            ] {
                let quiet = Record { deadline_in_ms: -1_000_000, ..record(state) };
                let accepted = Record { accepted_at: Some(SystemTime::UNIX_EPOCH), ..quiet.clone() };
                for record in [quiet, accepted] {
                    let name = record.state.name();
                    let decision = decide(record, DifferentWithoutBody, &DecisionRules { on_unknown, ..RULES });
                    assert_eq!(decision.counted_as(), Some(counted), "{name}");
                    let Decision::Refuse(refusal) = decision else { panic!("{name}: {decision:?}") };
                    assert_eq!((refusal.slug(), refusal.client_action()), (slug, advice), "{name}");
                }
            }
        }
    }

    #[test]
    fn a_late_retry_is_refused_whatever_it_asks() {
        for comparison in [Same, Different, DifferentWithoutBody, Impossible] {
            for state in [completed(Some(b"paid")), KeyState::Expired] {
                assert_eq!(word(Record { late: true, ..record(state) }, comparison, &RULES), "key-expired");
            }
        }
    }

    #[test]
    fn a_record_past_its_ttl_counts_as_none_whatever_it_was_used_for() {
        for comparison in [Same, Different, DifferentWithoutBody, Impossible] {
            for state in [completed(Some(b"paid")), completed(None), KeyState::Expired, KeyState::Retryable] {
                let past = Record { past_ttl: true, late: true, ..record(state) };
                assert_eq!(word(past, comparison, &RULES), "take over");
            }
        }
    }

    #[test]
    fn a_duplicate_is_asked_to_come_back_when_the_first_should_be_done_and_never_past_its_deadline() {
        for (average_latency, running_for, deadline_in_ms, seconds) in
            [(4_200, 1_100, 28_900, 4), (4_200, 9_000, 28_900, 1), (60_000, 1_100, 28_900, 29), (0, 0, -5, 1)]
        {
            let rules = DecisionRules { average_latency: Duration::from_millis(average_latency), ..RULES };
            let running = Record {
                running_for: Duration::from_millis(running_for),
                deadline_in_ms,
                ..record(KeyState::InFlight)
            };
            match decide(running, Same, &rules) {
                Decision::Join(wait) => assert_eq!(wait.seconds(), seconds),
                other => panic!("{other:?}"),
            }
        }
    }
}

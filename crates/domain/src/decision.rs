//! The decision that follows from a key's record.
//!
//! Pure (no clock, no I/O), so that its test is a table. It knows neither HTTP nor metrics: `Refusal` and `OncegateStatus` say what a
//! client is told, and `ReservationResult` how an answer is counted.

use std::time::Duration;

use super::execution_risk::{RecordSummary, RetryRule};
use super::record::{ExpectedRecord, Record};
use super::response_policy::OnUnknown;
use super::state::{CompletedResponse, KeyState};

/// The next step of a request whose key has a record.
#[derive(Debug)]
pub enum Decision {
    /// The record answers the request, which starts no attempt.
    Answer(KeyAnswer),
    /// Become the next attempt, unless another request does first.
    TakeOver(ExpectedRecord),
}

/// The answer of a key's record.
#[derive(Debug)]
pub enum KeyAnswer {
    /// The key was accepted for asynchronous delivery, and has no response yet.
    Accepted(AcceptedProgress),
    /// An attempt is running. It should end after this time.
    Join(Duration),
    /// Refuse the request.
    Refuse(KeyRefusal),
    /// Replay the stored response.
    Replay(CompletedResponse),
}

/// The reason for which a key's record refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRefusal {
    /// The key is past its TTL, and is remembered.
    Expired,
    /// An attempt is running, and this request may not wait for it. It should end after this time.
    InFlight(Duration),
    /// The key was used for another request.
    OtherRequest,
    /// An attempt may have executed, or nobody can tell whether this is the same request. Ask again after this time.
    OutcomeUnknown(Duration),
    /// The operation was executed, and its response was too large to store.
    ResponseNotKept,
    /// The key was used for another request, or for this one with the key spelled otherwise, in a part that is compared.
    OtherRequestOrSpelling,
    /// The key was used for another request, and this one without a body may be the beginning of a retry.
    WithoutBody,
}

/// The state of an accepted key without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedProgress {
    /// The request waits for its delivery or is being delivered. Ask again after this time.
    Pending(Duration),
    /// An attempt may have executed, and a late answer, a report, a reconciliation or an operator may tell. Ask again after this time.
    Unknown(Duration),
    /// Oncegate has given up. Nothing changes until an operator decides.
    Dead,
}

impl AcceptedProgress {
    /// The time after which to ask again; `None` where that is no use.
    pub fn retry_after(self) -> Option<Duration> {
        match self {
            Self::Pending(wait) | Self::Unknown(wait) => Some(wait),
            Self::Dead => None,
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
    /// It is another request, or the same one with its key spelled otherwise: the key is in a part that is compared.
    DifferentOrRespelled,
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

/// The `Retry-After` of an outcome that only a reconciliation or an operator can bring.
pub const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Decides about a request, which was compared with the record's.
pub fn decide(record: Record, comparison: RequestComparison, rules: &DecisionRules) -> Decision {
    let expected = ExpectedRecord::from(&record);
    // The rule that operators' actions are judged by too.
    let retry_rule = RetryRule { on_unknown: rules.on_unknown, quiet_after: rules.quiet_after };
    let summary = RecordSummary::from(&record);
    let may_be_executed = summary.may_be_executed(&retry_rule);
    // A record past its TTL counts as none, and so does what it was used for.
    if record.past_ttl {
        return Decision::TakeOver(expected);
    }
    let refuse = |refusal| Decision::Answer(KeyAnswer::Refuse(refusal));
    if record.late {
        return refuse(KeyRefusal::Expired);
    }
    // This comes before the state: a reused key is a client's bug in every state.
    match comparison {
        RequestComparison::Same => {}
        RequestComparison::Different => return refuse(KeyRefusal::OtherRequest),
        RequestComparison::DifferentOrRespelled => return refuse(KeyRefusal::OtherRequestOrSpelling),
        RequestComparison::DifferentWithoutBody => return refuse(refuse_without_body(&record, rules)),
        // No client may get a response that may belong to another request, and none may be told to take a new key for what may
        // be a retry.
        RequestComparison::Impossible => return refuse(KeyRefusal::OutcomeUnknown(DEFAULT_RETRY_AFTER)),
    }
    if record.accepted_at.is_some() && !matches!(record.state, KeyState::Completed(_) | KeyState::Expired) {
        return Decision::Answer(KeyAnswer::Accepted(accepted_progress(&record, rules.average_latency)));
    }
    match record.state {
        KeyState::Completed(CompletedResponse { response, .. }) if response.body.is_none() => {
            refuse(KeyRefusal::ResponseNotKept)
        }
        KeyState::Completed(completed) => Decision::Answer(KeyAnswer::Replay(completed)),
        KeyState::Dead => refuse(KeyRefusal::OutcomeUnknown(DEFAULT_RETRY_AFTER)),
        KeyState::Expired => refuse(KeyRefusal::Expired),
        // Every queued key was accepted, so this arm is not reached.
        KeyState::Queued => Decision::Answer(KeyAnswer::Accepted(accepted_progress(&record, rules.average_latency))),
        KeyState::InFlight => Decision::Answer(KeyAnswer::Join(until_done(&record, rules.average_latency))),
        KeyState::Retryable | KeyState::Unknown if may_be_executed => Decision::TakeOver(expected),
        KeyState::Retryable | KeyState::Unknown => refuse(KeyRefusal::OutcomeUnknown(until_known(&record, rules))),
    }
}

/// The refusal of a request without a body that is not the same as the key's. Such a request never executes anything, waits for nothing,
/// gets no response, and never tells a client that retries to take a new key.
fn refuse_without_body(record: &Record, rules: &DecisionRules) -> KeyRefusal {
    match record.state {
        KeyState::InFlight => KeyRefusal::InFlight(until_done(record, rules.average_latency)),
        KeyState::Queued => KeyRefusal::InFlight(rules.average_latency),
        KeyState::Dead => KeyRefusal::OutcomeUnknown(DEFAULT_RETRY_AFTER),
        KeyState::Unknown => KeyRefusal::OutcomeUnknown(until_known(record, rules)),
        KeyState::Completed(_) | KeyState::Expired | KeyState::Retryable => KeyRefusal::WithoutBody,
    }
}

impl Decision {
    /// The answer to a request that does not take the key over, because other requests do so first: one of them is running.
    pub fn answer_without_take_over(self, rules: &DecisionRules) -> KeyAnswer {
        match self {
            Self::Answer(answer) => answer,
            Self::TakeOver(_) => KeyAnswer::Refuse(KeyRefusal::InFlight(rules.average_latency)),
        }
    }
}

/// The average latency less the time that the attempt has already taken, never past its deadline.
fn until_done(record: &Record, average_latency: Duration) -> Duration {
    let until_deadline = Duration::from_millis(u64::try_from(record.deadline_in_ms).unwrap_or(0));
    average_latency.saturating_sub(record.running_for).min(until_deadline)
}

/// The progress of an accepted key that is neither completed nor expired.
fn accepted_progress(record: &Record, average_latency: Duration) -> AcceptedProgress {
    match record.state {
        KeyState::InFlight => AcceptedProgress::Pending(until_done(record, average_latency)),
        KeyState::Queued => AcceptedProgress::Pending(average_latency),
        KeyState::Dead => AcceptedProgress::Dead,
        KeyState::Unknown => AcceptedProgress::Unknown(DEFAULT_RETRY_AFTER),
        // A released key is not accepted any more, and the others are not asked about.
        KeyState::Completed(_) | KeyState::Expired | KeyState::Retryable => {
            AcceptedProgress::Pending(DEFAULT_RETRY_AFTER)
        }
    }
}

/// The time until the attempt is quiet, if that permits the next one; else [`DEFAULT_RETRY_AFTER`].
fn until_known(record: &Record, rules: &DecisionRules) -> Duration {
    match rules.on_unknown {
        OnUnknown::RetryWhenQuiet => RecordSummary::from(record).until_quiet(rules.quiet_after),
        OnUnknown::Hold | OnUnknown::Retry => DEFAULT_RETRY_AFTER,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};

    use super::super::fingerprint::{Fingerprint, FingerprintRules, Recipe};
    use super::super::ids::{RecordId, Token};
    use super::super::response::StoredResponse;
    use super::RequestComparison::{Different, DifferentOrRespelled, DifferentWithoutBody, Impossible, Same};
    use super::*;

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

    fn refusal_word(refusal: KeyRefusal) -> &'static str {
        match refusal {
            KeyRefusal::Expired => "expired",
            KeyRefusal::InFlight(_) => "in flight",
            KeyRefusal::OtherRequest => "other request",
            KeyRefusal::OtherRequestOrSpelling => "other request or spelling",
            KeyRefusal::OutcomeUnknown(_) => "outcome unknown",
            KeyRefusal::ResponseNotKept => "response not kept",
            KeyRefusal::WithoutBody => "without body",
        }
    }

    /// The decision in one word.
    fn word(record: Record, comparison: RequestComparison, rules: &DecisionRules) -> &'static str {
        match decide(record, comparison, rules) {
            Decision::Answer(KeyAnswer::Accepted(_)) => "accepted",
            Decision::Answer(KeyAnswer::Join(_)) => "join",
            Decision::Answer(KeyAnswer::Refuse(refusal)) => refusal_word(refusal),
            Decision::Answer(KeyAnswer::Replay(_)) => "replay",
            Decision::TakeOver(_) => "take over",
        }
    }

    #[test]
    fn each_state_has_its_answer_under_each_policy() {
        for (on_unknown, deadline_in_ms, unknown) in [
            (OnUnknown::Hold, -1_000_000, "outcome unknown"),
            (OnUnknown::Retry, 28_900, "take over"),
            (OnUnknown::RetryWhenQuiet, 28_900, "outcome unknown"),
            (OnUnknown::RetryWhenQuiet, -69_999, "outcome unknown"),
            (OnUnknown::RetryWhenQuiet, -70_000, "take over"),
        ] {
            let rules = DecisionRules { on_unknown, ..RULES };
            let decided = states().map(|state| word(Record { deadline_in_ms, ..record(state) }, Same, &rules));
            assert_eq!(
                decided,
                ["replay", "response not kept", "outcome unknown", "expired", "join", "take over", unknown],
                "{on_unknown:?}"
            );
        }
    }

    #[test]
    fn an_accepted_key_tells_its_state_until_it_is_completed_or_expired() {
        let accepted = |state| Record { accepted_at: Some(SystemTime::UNIX_EPOCH), ..record(state) };
        let (running, average, later) = (Duration::from_millis(3_100), RULES.average_latency, DEFAULT_RETRY_AFTER);
        for (state, expected) in [
            (KeyState::Queued, AcceptedProgress::Pending(average)),
            (KeyState::InFlight, AcceptedProgress::Pending(running)),
            (KeyState::Retryable, AcceptedProgress::Pending(later)),
            (KeyState::Unknown, AcceptedProgress::Unknown(later)),
            (KeyState::Dead, AcceptedProgress::Dead),
        ] {
            let name = state.name();
            let decision = decide(accepted(state), Same, &RULES);
            let Decision::Answer(KeyAnswer::Accepted(progress)) = decision else { panic!("{name}: {decision:?}") };
            assert_eq!(progress, expected, "{name}");
        }
        let words = [completed(Some(b"paid")), completed(None), KeyState::Expired];
        let words = words.map(|state| word(accepted(state), Same, &RULES));
        assert_eq!(words, ["replay", "response not kept", "expired"]);
    }

    #[test]
    fn a_request_that_is_not_known_to_be_the_same_is_refused_in_every_state_under_every_policy() {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Retry, OnUnknown::RetryWhenQuiet] {
            for state in states() {
                let quiet = Record { deadline_in_ms: -1_000_000, ..record(state) };
                let accepted = Record { accepted_at: Some(SystemTime::UNIX_EPOCH), ..quiet.clone() };
                for record in [quiet, accepted] {
                    let rules = DecisionRules { on_unknown, ..RULES };
                    assert_eq!(word(record.clone(), Different, &rules), "other request");
                    let respelled = word(record.clone(), DifferentOrRespelled, &rules);
                    assert_eq!(respelled, "other request or spelling");
                    assert_eq!(word(record, Impossible, &rules), "outcome unknown");
                }
            }
        }
    }

    #[test]
    fn a_request_without_a_body_learns_the_state_of_the_other_one_and_never_executes_or_advises_a_new_key() {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Retry, OnUnknown::RetryWhenQuiet] {
            for (state, expected) in [
                (completed(Some(b"paid")), "without body"),
                (completed(None), "without body"),
                (KeyState::Expired, "without body"),
                (KeyState::Retryable, "without body"),
                (KeyState::InFlight, "in flight"),
                (KeyState::Queued, "in flight"),
                (KeyState::Dead, "outcome unknown"),
                (KeyState::Unknown, "outcome unknown"),
            ] {
                let quiet = Record { deadline_in_ms: -1_000_000, ..record(state) };
                let accepted = Record { accepted_at: Some(SystemTime::UNIX_EPOCH), ..quiet.clone() };
                for record in [quiet, accepted] {
                    let name = record.state.name();
                    let rules = DecisionRules { on_unknown, ..RULES };
                    assert_eq!(word(record, DifferentWithoutBody, &rules), expected, "{name}");
                }
            }
        }
    }

    #[test]
    fn a_late_retry_is_refused_whatever_it_asks() {
        for comparison in [Same, Different, DifferentOrRespelled, DifferentWithoutBody, Impossible] {
            for state in [completed(Some(b"paid")), KeyState::Expired] {
                assert_eq!(word(Record { late: true, ..record(state) }, comparison, &RULES), "expired");
            }
        }
    }

    #[test]
    fn a_record_past_its_ttl_counts_as_none_whatever_it_was_used_for() {
        for comparison in [Same, Different, DifferentOrRespelled, DifferentWithoutBody, Impossible] {
            for state in [completed(Some(b"paid")), completed(None), KeyState::Expired, KeyState::Retryable] {
                let past = Record { past_ttl: true, late: true, ..record(state) };
                assert_eq!(word(past, comparison, &RULES), "take over");
            }
        }
    }

    #[test]
    fn a_duplicate_is_asked_to_come_back_when_the_first_should_be_done_and_never_past_its_deadline() {
        for (average_latency, running_for, deadline_in_ms, wait_ms) in
            [(4_200, 1_100, 28_900, 3_100), (4_200, 9_000, 28_900, 0), (60_000, 1_100, 28_900, 28_900), (0, 0, -5, 0)]
        {
            let rules = DecisionRules { average_latency: Duration::from_millis(average_latency), ..RULES };
            let running = Record {
                running_for: Duration::from_millis(running_for),
                deadline_in_ms,
                ..record(KeyState::InFlight)
            };
            match decide(running, Same, &rules) {
                Decision::Answer(KeyAnswer::Join(wait)) => assert_eq!(wait, Duration::from_millis(wait_ms)),
                other => panic!("{other:?}"),
            }
        }
    }
}

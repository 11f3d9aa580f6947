//! The decision that follows from a key's record.
//!
//! Pure (no clock, no I/O), so that its test is a table. It knows neither HTTP nor metrics: `Refusal` and
//! `OncegateStatus` say what a client is told, and `ReservationResult` how an answer is counted.

use std::time::Duration;

use super::differing_parts::DifferingParts;
use super::execution_risk::{RecordSummary, RetryRule};
use super::record::{ExpectedRecord, Record};
use super::response_policy::OnUnknown;
use super::state::{CompletedResponse, KeyState};
use super::unknown_cause::UnknownCause;

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
    Refuse(KeyRefusal),
    Replay(CompletedResponse),
}

/// The reason for which a key's record refuses a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRefusal {
    /// The key is past its TTL, and is remembered.
    Expired,
    /// An attempt is running, and this request may not wait for it. It should end after this time.
    InFlight(Duration),
    /// The key was used for another request. The caller of [`decide`] looks in which parts they differ.
    KeyReused(DifferingParts),
    /// An attempt may have executed, or nobody can tell whether this is the same request. Ask again after this time;
    /// `None` where only a report of the service or an operator changes that, whenever they do.
    OutcomeUnknown(Option<Duration>),
    /// The operation was executed, and its response was too large to store.
    ResponseNotKept,
}

/// The state of an accepted key without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedProgress {
    /// The request waits for its delivery or is being delivered. Ask again after this time.
    Pending(Duration),
    /// An attempt may have executed. Ask again after this time; `None` as for [`KeyRefusal::OutcomeUnknown`].
    Unknown(Option<Duration>),
    /// Oncegate has given up. Nothing changes until an operator decides.
    Dead,
}

impl AcceptedProgress {
    /// The time after which to ask again; `None` where that is no use.
    pub fn retry_after(self) -> Option<Duration> {
        match self {
            Self::Pending(wait) => Some(wait),
            Self::Unknown(wait) => wait,
            Self::Dead => None,
        }
    }
}

/// The result of comparing a request with the one that its key's record was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestComparison {
    Same,
    /// It is another request.
    Different,
    /// It has no body, and is not the same request. It may be the beginning of a retry: some clients send no body until
    /// the service has asked for their credentials.
    DifferentWithoutBody,
    /// The secret of the record's fingerprint is gone: it may be the same request.
    Impossible,
}

/// The route's part in a decision.
#[derive(Clone, Copy, Debug)]
pub struct DecisionRules {
    /// The route's rule for further attempts, by which operators' actions are judged too.
    pub retry: RetryRule,
    /// The average of the route's recent attempts.
    pub average_latency: Duration,
    /// Whether Oncegate asks the service how unknown attempts ended.
    pub reconciles: bool,
}

/// The `Retry-After` where something changes soon, and nobody knows when.
pub const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The longest pause between two passes of the reconciler. Finding due keys is one look into a small index; 5 s add
/// little to the routes' own times.
pub const INQUIRY_PERIOD_MAX: Duration = Duration::from_secs(5);

/// Decides about a request, which was compared with the record's.
pub fn decide(record: Record, comparison: RequestComparison, rules: &DecisionRules) -> Decision {
    let expected = ExpectedRecord::from(&record);
    let summary = RecordSummary::from(&record);
    let may_be_executed = summary.may_be_executed(&rules.retry);
    // A record past its TTL counts as none, and so does what it was used for.
    if record.past_ttl {
        return Decision::TakeOver(expected);
    }
    let refuse = |refusal| Decision::Answer(KeyAnswer::Refuse(refusal));
    if record.late && !rules.retry.redelivers {
        return refuse(KeyRefusal::Expired);
    }
    // This comes before the state: a reused key is a client's bug in every state.
    match comparison {
        RequestComparison::Same => {}
        RequestComparison::Different => return refuse(KeyRefusal::KeyReused(DifferingParts::default())),
        RequestComparison::DifferentWithoutBody => return refuse(refuse_without_body(&record, rules)),
        // No client may get a response that may belong to another request, and none may be told to take a new key for
        // what may be a retry. An operator has to put the secret back.
        RequestComparison::Impossible => return refuse(KeyRefusal::OutcomeUnknown(None)),
    }
    if record.late {
        return Decision::TakeOver(ExpectedRecord::redelivered(&record));
    }
    if record.accepted_at.is_some() && !matches!(record.state, KeyState::Completed(_) | KeyState::Expired) {
        return Decision::Answer(KeyAnswer::Accepted(accepted_progress(&record, rules)));
    }
    match record.state {
        KeyState::Completed(CompletedResponse { response, .. }) if response.body.is_none() => {
            refuse(KeyRefusal::ResponseNotKept)
        }
        KeyState::Completed(completed) => Decision::Answer(KeyAnswer::Replay(completed)),
        KeyState::Dead => refuse(KeyRefusal::OutcomeUnknown(None)),
        KeyState::Expired => refuse(KeyRefusal::Expired),
        // Every queued key was accepted, so this arm is not reached.
        KeyState::Queued => Decision::Answer(KeyAnswer::Accepted(accepted_progress(&record, rules))),
        KeyState::InFlight => Decision::Answer(KeyAnswer::Join(until_done(&record, rules.average_latency))),
        KeyState::Retryable | KeyState::Unknown if may_be_executed => Decision::TakeOver(expected),
        KeyState::Retryable | KeyState::Unknown => refuse(KeyRefusal::OutcomeUnknown(until_known(&record, rules))),
    }
}

/// The refusal of a request without a body that is not the same as the key's. Such a request never executes anything,
/// waits for nothing, and gets no response.
fn refuse_without_body(record: &Record, rules: &DecisionRules) -> KeyRefusal {
    match record.state {
        KeyState::InFlight => KeyRefusal::InFlight(until_done(record, rules.average_latency)),
        KeyState::Queued => KeyRefusal::InFlight(rules.average_latency),
        KeyState::Dead => KeyRefusal::OutcomeUnknown(None),
        KeyState::Unknown => KeyRefusal::OutcomeUnknown(until_known(record, rules)),
        KeyState::Completed(_) | KeyState::Expired | KeyState::Retryable => {
            KeyRefusal::KeyReused(DifferingParts::default())
        }
    }
}

impl Decision {
    /// The answer to a request that does not take the key over, because other requests do so first: one of them is
    /// running.
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
fn accepted_progress(record: &Record, rules: &DecisionRules) -> AcceptedProgress {
    match record.state {
        KeyState::InFlight => AcceptedProgress::Pending(until_done(record, rules.average_latency)),
        KeyState::Queued => AcceptedProgress::Pending(rules.average_latency),
        KeyState::Dead => AcceptedProgress::Dead,
        KeyState::Unknown => AcceptedProgress::Unknown(until_known(record, rules)),
        // A released key is not accepted any more, and the others are not asked about.
        KeyState::Completed(_) | KeyState::Expired | KeyState::Retryable => {
            AcceptedProgress::Pending(DEFAULT_RETRY_AFTER)
        }
    }
}

/// The time until an unknown outcome may be known, or the request executed: the next attempt that the route permits,
/// the next question to the service, or a late answer that may still come. `None` where none of them is in sight: a
/// client that waits then holds its thread for nothing.
pub fn until_known(record: &Record, rules: &DecisionRules) -> Option<Duration> {
    let until_quiet = RecordSummary::from(record).until_quiet(rules.retry.quiet_after);
    let until_retried = match rules.retry.on_unknown {
        OnUnknown::Hold => None,
        OnUnknown::Vendor => Some(INQUIRY_PERIOD_MAX),
        OnUnknown::Retry => Some(DEFAULT_RETRY_AFTER),
        OnUnknown::RetryWhenQuiet => Some(until_quiet),
    };
    let until_asked = rules.reconciles.then(|| {
        let next = record.reading.and_then(|reading| reading.inquire_at?.duration_since(reading.at).ok());
        until_quiet.max(next.unwrap_or_default()).max(INQUIRY_PERIOD_MAX)
    });
    // Only where its instance lost sight of it, or the store its outcome: after any other end, nobody listens for an
    // answer.
    let cause = record.reading.and_then(|reading| reading.cause);
    let may_answer = matches!(cause, Some(UnknownCause::Crashed | UnknownCause::Store)) && !until_quiet.is_zero();
    let until_answered = may_answer.then(|| until_quiet.min(DEFAULT_RETRY_AFTER));
    [until_retried, until_asked, until_answered].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};

    use super::super::fingerprint::{Fingerprint, FingerprintRules, Recipe};
    use super::super::ids::{RecordId, Token};
    use super::super::record::RecordReading;
    use super::super::response::StoredResponse;
    use super::RequestComparison::{Different, DifferentWithoutBody, Impossible, Same};
    use super::*;

    const RULES: DecisionRules = DecisionRules {
        retry: RetryRule { on_unknown: OnUnknown::Hold, quiet_after: Duration::from_secs(70), redelivers: false },
        average_latency: Duration::from_millis(4_200),
        reconciles: false,
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
            KeyRefusal::KeyReused(_) => "key reused",
            KeyRefusal::OutcomeUnknown(_) => "outcome unknown",
            KeyRefusal::ResponseNotKept => "response not kept",
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
            let rules = DecisionRules { retry: RetryRule { on_unknown, ..RULES.retry }, ..RULES };
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
            (KeyState::Unknown, AcceptedProgress::Unknown(None)),
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

    /// A record that became unknown for this cause, a minute before its attempt is quiet.
    fn unknown(cause: UnknownCause) -> Record {
        let (at, settled_for) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1_000), Duration::ZERO);
        let reading = RecordReading { at, settled_for, cause: Some(cause), inquire_at: None };
        Record { deadline_in_ms: -10_000, reading: Some(reading), ..record(KeyState::Unknown) }
    }

    fn asked_in(record: Record, inquire_in: Duration) -> Record {
        let reading =
            record.reading.map(|reading| RecordReading { inquire_at: Some(reading.at + inquire_in), ..reading });
        Record { reading, ..record }
    }

    #[test]
    fn a_client_is_told_to_ask_again_only_where_something_changes_and_then_when() {
        use OnUnknown::{Hold, Retry, RetryWhenQuiet};
        use UnknownCause::{Body, Broken, Cancelled, Crashed, Service, Store, Timeout};
        let quiet = |cause| Record { deadline_in_ms: -70_000, ..unknown(cause) };
        let (second, minute, hour) = (Duration::from_secs(1), Duration::from_secs(60), Duration::from_secs(3_600));
        let mut cases = vec![
            // Nobody listens for an answer, and nobody asks.
            ("timed out, quiet", quiet(Timeout), Hold, false, None),
            ("crashed, quiet", quiet(Crashed), Hold, false, None),
            ("not stored yet", record(KeyState::Unknown), Hold, false, None),
            // Its instance may be there yet, and store the answer.
            ("crashed", unknown(Crashed), Hold, false, Some(30)),
            ("crashed, soon quiet", Record { deadline_in_ms: -69_000, ..unknown(Crashed) }, Hold, false, Some(1)),
            ("lost by the store", unknown(Store), Hold, false, Some(30)),
            // The next attempt, once the attempt is quiet.
            ("retried when quiet", unknown(Broken), RetryWhenQuiet, false, Some(60)),
            ("crashed, retried when quiet", unknown(Crashed), RetryWhenQuiet, false, Some(30)),
            // The service is asked once the attempt is quiet, and then with pauses.
            ("to be asked", unknown(Broken), Hold, true, Some(60)),
            ("due", quiet(Broken), Hold, true, Some(5)),
            ("overdue", asked_in(quiet(Broken), Duration::ZERO), Hold, true, Some(5)),
            ("asked again in a second", asked_in(quiet(Broken), second), Hold, true, Some(5)),
            ("asked again in an hour", asked_in(quiet(Broken), hour), Hold, true, Some(3_600)),
            ("asked again before it is quiet", asked_in(unknown(Broken), second), Hold, true, Some(60)),
            ("asked again in a minute, no route asks", asked_in(quiet(Broken), minute), Hold, false, None),
            ("crashed, to be asked", unknown(Crashed), Hold, true, Some(30)),
            // Without a body, and with it its retry is executed.
            ("retried", unknown(Broken), Retry, false, Some(30)),
        ];
        for cause in [Body, Broken, Cancelled, Service, Timeout, UnknownCause::Status(StatusCode::BAD_GATEWAY)] {
            cases.push(("ended", unknown(cause), Hold, false, None));
        }
        for (name, record, on_unknown, reconciles, seconds) in cases {
            let (rules, wait) = (
                DecisionRules { retry: RetryRule { on_unknown, ..RULES.retry }, reconciles, ..RULES },
                seconds.map(Duration::from_secs),
            );
            let accepted = Record { accepted_at: Some(SystemTime::UNIX_EPOCH), ..record.clone() };
            let told = decide(accepted, Same, &rules);
            let Decision::Answer(KeyAnswer::Accepted(progress)) = told else { panic!("{name}: {told:?}") };
            assert_eq!(progress.retry_after(), wait, "{name}, accepted");
            for comparison in [Same, DifferentWithoutBody] {
                match decide(record.clone(), comparison, &rules) {
                    Decision::Answer(KeyAnswer::Refuse(KeyRefusal::OutcomeUnknown(told))) => {
                        assert_eq!(told, wait, "{name}, {comparison:?}")
                    }
                    Decision::TakeOver(_) if on_unknown == Retry && comparison == Same => {}
                    other => panic!("{name}, {comparison:?}: {other:?}"),
                }
            }
        }
        // No time brings an operator.
        for (state, comparison) in
            [(KeyState::Dead, Same), (KeyState::Dead, DifferentWithoutBody), (KeyState::InFlight, Impossible)]
        {
            for on_unknown in [Hold, Retry, RetryWhenQuiet] {
                let rules = DecisionRules { retry: RetryRule { on_unknown, ..RULES.retry }, reconciles: true, ..RULES };
                let told = decide(record(state.clone()), comparison, &rules);
                let is_silent = matches!(told, Decision::Answer(KeyAnswer::Refuse(KeyRefusal::OutcomeUnknown(None))));
                assert!(is_silent, "{}, {comparison:?}: {told:?}", state.name());
            }
        }
    }

    #[test]
    fn a_request_that_is_not_known_to_be_the_same_is_refused_in_every_state_under_every_policy() {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Retry, OnUnknown::RetryWhenQuiet] {
            for state in states() {
                let quiet = Record { deadline_in_ms: -1_000_000, ..record(state) };
                let accepted = Record { accepted_at: Some(SystemTime::UNIX_EPOCH), ..quiet.clone() };
                for record in [quiet, accepted] {
                    let rules = DecisionRules { retry: RetryRule { on_unknown, ..RULES.retry }, ..RULES };
                    assert_eq!(word(record.clone(), Different, &rules), "key reused");
                    assert_eq!(word(record, Impossible, &rules), "outcome unknown");
                }
            }
        }
    }

    #[test]
    fn a_request_without_a_body_learns_the_state_of_the_other_one_and_never_executes() {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Retry, OnUnknown::RetryWhenQuiet] {
            for (state, expected) in [
                (completed(Some(b"paid")), "key reused"),
                (completed(None), "key reused"),
                (KeyState::Expired, "key reused"),
                (KeyState::Retryable, "key reused"),
                (KeyState::InFlight, "in flight"),
                (KeyState::Queued, "in flight"),
                (KeyState::Dead, "outcome unknown"),
                (KeyState::Unknown, "outcome unknown"),
            ] {
                let quiet = Record { deadline_in_ms: -1_000_000, ..record(state) };
                let accepted = Record { accepted_at: Some(SystemTime::UNIX_EPOCH), ..quiet.clone() };
                for record in [quiet, accepted] {
                    let name = record.state.name();
                    let rules = DecisionRules { retry: RetryRule { on_unknown, ..RULES.retry }, ..RULES };
                    assert_eq!(word(record, DifferentWithoutBody, &rules), expected, "{name}");
                }
            }
        }
    }

    #[test]
    fn a_late_retry_is_refused_whatever_it_asks() {
        for comparison in [Same, Different, DifferentWithoutBody, Impossible] {
            for state in [completed(Some(b"paid")), KeyState::Expired] {
                assert_eq!(word(Record { late: true, ..record(state) }, comparison, &RULES), "expired");
            }
        }
    }

    #[test]
    fn a_late_retry_of_a_route_that_redelivers_takes_the_key_over_if_it_is_the_same() {
        let rules = DecisionRules { retry: RetryRule { redelivers: true, ..RULES.retry }, ..RULES };
        let (at, settled_for) = (SystemTime::UNIX_EPOCH, Duration::ZERO);
        let reading = Some(RecordReading { at, settled_for, cause: None, inquire_at: None });
        for state in [completed(Some(b"paid")), completed(None), KeyState::Expired] {
            let late = Record { late: true, reading, ..record(state.clone()) };
            for (comparison, expected) in
                [(Different, "key reused"), (DifferentWithoutBody, "key reused"), (Impossible, "outcome unknown")]
            {
                assert_eq!(word(late.clone(), comparison, &rules), expected);
            }
            let decision = decide(late, Same, &rules);
            let Decision::TakeOver(seen) = decision else { panic!("{decision:?}") };
            assert_eq!((seen.past_ttl_at, seen.is_redelivered), (Some(SystemTime::UNIX_EPOCH), true));
            assert_ne!(word(record(state), Same, &rules), "take over", "within its TTL it is replayed");
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

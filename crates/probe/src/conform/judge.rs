//! The rules by which a client's requests become findings. Nothing here does I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;

use super::ConformCounts;
use super::operations::{
    ClientEnd, ContentDifference, LinkAnswer, ObservedOperation, ObservedRequest, OperationLog, is_result,
};
use super::plan::LinkRefusal;
use crate::finding::Conclusion::{Broken, CannotTell, Holds, Info};
use crate::finding::{Finding, IdempotencyCheck, findings};
use crate::report::CheckedExpectation;
use oncegate_http::protocol::refusal::RetryAfter;

/// The operations that a row names, at most.
const NAMES_MAX: usize = 6;
/// A timer that rounds its wait down is no client that does not wait.
const ROUNDING: Duration = Duration::from_millis(50);

impl IdempotencyCheck {
    const KEY: Self = Self::new("key", "each request", "a key (SHOULD)");
    const OWN_KEY: Self = Self::new("own-key", "another operation", "a key of its own (MUST)");
    const SAME_KEY: Self = Self::new("same-key", "a retry: its key", "the first key (SHOULD)");
    const SAME_BYTES: Self = Self::new("same-bytes", "a retry: its bytes", "the same method, target and body (MUST)");
    const NO_ANSWER: Self =
        Self::new("no-answer", "an answer that is lost, cut or late", "asks again, or reports a failure");
    const RETRY_AFTER: Self = Self::new("retry-after", "Retry-After", "waits as long (SHOULD)");
    const IN_FLIGHT: Self = Self::new("in-flight", "409 in flight", "asks again with the same key");
    const REUSED: Self = Self::new("reused", "422 key reused", "stops, without a new key (MUST)");
    const UNKNOWN: Self = Self::new("unknown", "409 outcome unknown", "keeps the key, or reports a failure");
    const RESULT: Self = Self::new("result", "the result, perhaps as a replay", "takes it, and sends nothing more");
    const EXECUTIONS: Self =
        Self { is_optional: true, ..Self::new("executions", "executions", "one for each operation") };
}

findings! {
    KEYED = Holds, "keyed", "each request has a key";
    KEYLESS = Broken, "keyless", "requests without a key";
    OWN_KEYS = Holds, "own-keys", "no key is used for two operations";
    SHARED_KEY = Broken, "shared-key", "the key of an earlier operation";
    SAME_KEY = Holds, "same-key", "each retry has the first key";
    NEW_KEY = Broken, "new-key", "another key: a service executes it again";
    SAME_BYTES = Holds, "same-bytes", "each retry has the first bytes";
    OTHER_SPELLING = CannotTell, "other-spelling", "the same JSON value in other bytes, which some services refuse";
    ASKED_AGAIN = Holds, "asked-again", "asks again";
    REPORTED = Holds, "reported", "reports a failure";
    TAKEN_FOR_SUCCESS = Broken, "taken-for-success", "ends with exit code 0, as after a success";
    STOPPED = CannotTell, "stopped", "stops: from outside, a reported failure and a supposed success look the same";
    GAVE_UP = Broken, "gave-up", "gives up, although the answer would have come";
    WAITED = Holds, "waited", "waits as long";
    SENT_UNCHANGED = Broken, "sent-unchanged", "sends the request again, which is harmless and can never succeed";
    KEPT_KEY = Holds, "kept-key", "asks again with the same key";
    TAKEN = Holds, "taken", "takes it, and sends nothing more";
    SENT_AGAIN = Broken, "sent-again", "sends the operation again";
    RESULT_REFUSED = Broken, "result-refused", "gets the result, and reports a failure";
    NOT_MET = CannotTell, "not-met", "no request has shown it";
}

/// Judges all operations. The checks are in the order of the table.
pub(super) fn judge(log: &OperationLog, retry_after: RetryAfter) -> Vec<CheckedExpectation> {
    type Rule = fn(&ObservedOperation) -> Option<Finding>;
    let check = |check: IdempotencyCheck, rule: Rule| {
        let found = log.operations.iter().filter_map(|operation| Some((&*operation.name, rule(operation)?)));
        worst(check, found.collect(), refusal_statuses(log, check.name))
    };
    vec![
        check(IdempotencyCheck::KEY, judge_key),
        worst(IdempotencyCheck::OWN_KEY, judge_own_keys(&log.operations), vec![]),
        check(IdempotencyCheck::SAME_KEY, judge_same_key),
        check(IdempotencyCheck::SAME_BYTES, judge_same_bytes),
        check(IdempotencyCheck::NO_ANSWER, judge_no_answer),
        check(IdempotencyCheck::IN_FLIGHT, judge_in_flight),
        worst(IdempotencyCheck::RETRY_AFTER, judge_retry_after(log, retry_after), vec![]),
        check(IdempotencyCheck::REUSED, |operation| judge_refused(operation, LinkRefusal::Reused, SENT_UNCHANGED)),
        check(IdempotencyCheck::UNKNOWN, |operation| judge_refused(operation, LinkRefusal::Unknown, KEPT_KEY)),
        check(IdempotencyCheck::RESULT, judge_result),
        worst(IdempotencyCheck::EXECUTIONS, vec![("", count_executions(log))], vec![]),
    ]
}

/// The worst finding of a check, with the operations that it is about.
fn worst(check: IdempotencyCheck, found: Vec<(&str, Finding)>, statuses: Vec<StatusCode>) -> CheckedExpectation {
    let finding = found.iter().map(|(_, finding)| finding).max_by_key(|finding| finding.conclusion);
    let finding = finding.cloned().unwrap_or(NOT_MET);
    let names: Vec<_> = found.iter().filter(|(_, one)| one.name == finding.name).map(|(name, _)| *name).collect();
    let more = names.len().saturating_sub(NAMES_MAX);
    let and_more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named = names[..names.len() - more].join(", ");
    let is_named = matches!(finding.conclusion, Broken | CannotTell) && !names.is_empty();
    let sent = is_named.then(|| format!("in {named}{and_more}"));
    CheckedExpectation { check, finding, statuses, key: None, own_key: None, marker: None, sent }
}

fn refusal_statuses(log: &OperationLog, check: &str) -> Vec<StatusCode> {
    let requests = log.operations.iter().flat_map(|operation| &operation.requests);
    let statuses = requests.filter_map(|request| match request.answer {
        LinkAnswer::Refused(refusal, status) if refusal.check().name == check => Some(status),
        _ => None,
    });
    statuses.collect()
}

impl LinkRefusal {
    fn check(self) -> IdempotencyCheck {
        match self {
            Self::InFlight => IdempotencyCheck::IN_FLIGHT,
            Self::Reused => IdempotencyCheck::REUSED,
            Self::Unknown => IdempotencyCheck::UNKNOWN,
        }
    }
}

fn judge_key(operation: &ObservedOperation) -> Option<Finding> {
    let is_keyless = operation.requests.iter().any(|request| request.key.is_none());
    (!operation.requests.is_empty()).then_some(if is_keyless { KEYLESS } else { KEYED })
}

/// An operation that begins with the key of another one gets its answer, or 422.
fn judge_own_keys(operations: &[ObservedOperation]) -> Vec<(&str, Finding)> {
    let mut users = BTreeMap::<&str, usize>::new();
    let mut found = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        let mut keys = operation.requests.iter().filter_map(|request| request.key.as_deref()).peekable();
        if keys.peek().is_some() {
            let is_shared = keys.any(|key| *users.entry(key).or_insert(index) != index);
            found.push((&*operation.name, if is_shared { SHARED_KEY } else { OWN_KEYS }));
        }
    }
    // One operation says nothing about two.
    if found.len() < 2 { Vec::new() } else { found }
}

fn judge_same_key(operation: &ObservedOperation) -> Option<Finding> {
    let (first, retries) = operation.requests.split_first()?;
    let is_same = retries.iter().all(|retry| retry.key.is_some() && retry.key == first.key);
    (!retries.is_empty()).then_some(if is_same { SAME_KEY } else { NEW_KEY })
}

fn judge_same_bytes(operation: &ObservedOperation) -> Option<Finding> {
    let (_, retries) = operation.requests.split_first()?;
    Some(match retries.iter().map(|retry| retry.difference).max()? {
        ContentDifference::None => SAME_BYTES,
        ContentDifference::Spelling => OTHER_SPELLING,
        ContentDifference::Part(part) => {
            Finding { text: format!("another {part}").into(), ..Finding::new(Broken, "other-content", "") }
        }
    })
}

/// What the client's end means where it sends nothing more.
fn judge_stop(operation: &ObservedOperation) -> Finding {
    match operation.end {
        ClientEnd::Unseen => STOPPED,
        ClientEnd::Succeeded => TAKEN_FOR_SUCCESS,
        ClientEnd::Failed => REPORTED,
    }
}

fn judge_no_answer(operation: &ObservedOperation) -> Option<Finding> {
    let has_no_answer = |request: &ObservedRequest| {
        matches!(request.answer, LinkAnswer::Lost | LinkAnswer::Cut | LinkAnswer::Abandoned)
    };
    let last = operation.requests.iter().rposition(has_no_answer)?;
    let is_last = last + 1 == operation.requests.len();
    Some(if is_last { judge_stop(operation) } else { ASKED_AGAIN })
}

/// The index of the first request with this refusal.
fn refused_at(operation: &ObservedOperation, refusal: LinkRefusal) -> Option<usize> {
    let is_refused =
        |request: &ObservedRequest| matches!(request.answer, LinkAnswer::Refused(one, _) if one == refusal);
    operation.requests.iter().position(is_refused)
}

fn has_new_key(operation: &ObservedOperation, after: usize) -> bool {
    let refused = &operation.requests[after].key;
    operation.requests[after + 1..].iter().any(|request| request.key != *refused)
}

fn judge_in_flight(operation: &ObservedOperation) -> Option<Finding> {
    let at = refused_at(operation, LinkRefusal::InFlight)?;
    Some(match () {
        () if has_new_key(operation, at) => NEW_KEY,
        () if at + 1 < operation.requests.len() => KEPT_KEY,
        () if operation.end == ClientEnd::Succeeded => TAKEN_FOR_SUCCESS,
        () => GAVE_UP,
    })
}

/// Judges a refusal that stays: `sent_again` is the finding on the same key again.
fn judge_refused(operation: &ObservedOperation, refusal: LinkRefusal, sent_again: Finding) -> Option<Finding> {
    let at = refused_at(operation, refusal)?;
    Some(match () {
        () if has_new_key(operation, at) => NEW_KEY,
        () if operation.end == ClientEnd::Succeeded => TAKEN_FOR_SUCCESS,
        () if at + 1 < operation.requests.len() => sent_again,
        () => judge_stop(operation),
    })
}

/// Each refusal with `Retry-After` that another request follows.
fn judge_retry_after(log: &OperationLog, retry_after: RetryAfter) -> Vec<(&str, Finding)> {
    let wait = Duration::from_secs(retry_after.seconds());
    let judge = |pair: &[ObservedRequest]| {
        let is_asked = matches!(pair[0].answer, LinkAnswer::Refused(LinkRefusal::InFlight, _));
        let waited = pair[1].at.saturating_sub(pair[0].answered);
        is_asked.then(|| match waited + ROUNDING >= wait {
            true => WAITED,
            false => {
                let text = format!("asks again after {:.1} s of {} s", waited.as_secs_f64(), wait.as_secs());
                Finding { text: text.into(), ..Finding::new(Broken, "too-early", "") }
            }
        })
    };
    let operations = log.operations.iter();
    operations.flat_map(|one| one.requests.windows(2).filter_map(judge).map(|finding| (&*one.name, finding))).collect()
}

fn judge_result(operation: &ObservedOperation) -> Option<Finding> {
    let has_result =
        |request: &ObservedRequest| matches!(request.answer, LinkAnswer::Given(status) if is_result(status));
    let at = operation.requests.iter().position(has_result)?;
    let is_success = matches!(operation.requests[at].answer, LinkAnswer::Given(status) if status.is_success());
    Some(match operation.end {
        _ if at + 1 < operation.requests.len() => SENT_AGAIN,
        ClientEnd::Failed if is_success => RESULT_REFUSED,
        _ => TAKEN,
    })
}

fn count_executions(log: &OperationLog) -> Finding {
    let counts = ConformCounts::of(log);
    let text = format!(
        "{} executions of {} operations, with {} keys in {} requests",
        counts.executions, counts.operations, counts.keys, counts.requests
    );
    Finding { text: text.into(), ..Finding::new(Info, "counted", "") }
}

//! Histories written by hand, one or more that break each rule: a checker that never finds a breach proves nothing.

use std::time::Duration;

use crate::checker::{Policy, Rule, Rules, check};
use crate::history::{Answer, Attempt, Effect, History, Op, ScopedKey, ServiceCall, TargetRoute};

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn name(key: &str) -> ScopedKey {
    ScopedKey { caller: "ann".to_owned(), key: key.to_owned() }
}

fn hold() -> Rules {
    Rules { policy: Policy::Hold, quotas: vec![("kill".to_owned(), 1)] }
}

fn with(policy: Policy) -> Rules {
    Rules { policy, ..hold() }
}

/// An answer that carries an effect.
pub fn carries(oncegate_status: &str, effect: u64) -> Answer {
    Answer {
        status: 201,
        oncegate_status: oncegate_status.to_owned(),
        slug: String::new(),
        replayed: oncegate_status == "replayed",
        effect: Some(effect),
        operation: None,
        body: format!("effect {effect}"),
        fields: vec![("x-effect".to_owned(), effect.to_string())],
    }
}

pub fn refusal(status: u16, oncegate_status: &str, slug: &str) -> Option<Answer> {
    let (oncegate_status, slug, body) = (oncegate_status.to_owned(), slug.to_owned(), String::new());
    let (effect, operation, fields) = (None, None, Vec::new());
    Some(Answer { status, oncegate_status, slug, replayed: false, effect, operation, body, fields })
}

/// A request sent at its number times ten milliseconds and answered five milliseconds later.
pub fn op(id: u64, key: &str, answer: impl Into<Option<Answer>>) -> Op {
    let (invoked, returned) = (at(id * 10), at(id * 10 + 5));
    let (name, body, answer) = (name(key), "ten".to_owned(), answer.into());
    Op { id, name, route: TargetRoute::Pay, body, proxy: 0, invoked, returned, last: false, answer }
}

pub fn last(id: u64, key: &str, answer: impl Into<Option<Answer>>) -> Op {
    Op { last: true, ..op(id, key, answer) }
}

/// An effect caused by the request of that number, while it waited.
pub fn effect(id: u64, op: u64, key: &str, number: u64) -> Effect {
    let attempt = Attempt { record: format!("record of {key}"), number };
    Effect { id, op, name: name(key), body: "ten".to_owned(), at: at(op * 10 + 2), attempt }
}

/// An attempt at the service that the request of that number caused, from and to these milliseconds.
pub fn call(op: u64, key: &str, number: u64, (began, ended): (u64, u64), was_refused: bool) -> ServiceCall {
    let attempt = Attempt { record: format!("record of {key}"), number };
    ServiceCall { op, name: name(key), attempt, began: at(began), ended: at(ended), was_refused }
}

/// Four keys that are executed once and replayed, plus these requests and effects.
pub fn history(ops: Vec<Op>, effects: Vec<Effect>) -> History {
    let mut history = History { ops, effects, ..History::default() };
    history.faults.insert("kill".to_owned(), 1);
    for (number, key) in (900..).step_by(3).zip(["good", "better", "fine", "well"]) {
        history.ops.push(op(number, key, carries("executed", number)));
        history.ops.push(op(number + 1, key, carries("replayed", number)));
        history.ops.push(last(number + 2, key, carries("replayed", number)));
        history.effects.push(effect(number, number, key, 1));
    }
    history
}

/// Returns the broken rules, each once.
fn broken(history: &History, rules: &Rules) -> Vec<Rule> {
    let mut broken: Vec<_> = check(history, rules).into_iter().map(|breach| breach.rule).collect();
    broken.dedup();
    broken
}

fn breaks(ops: Vec<Op>, effects: Vec<Effect>, rule: Rule) {
    let found = broken(&history(ops, effects), &hold());
    assert!(found.contains(&rule), "{rule:?} is not among {found:?}");
}

fn keeps(ops: Vec<Op>, effects: Vec<Effect>) {
    assert_eq!(broken(&history(ops, effects), &hold()), []);
}

/// A request on an asynchronous route.
pub fn later(op: Op) -> Op {
    Op { route: TargetRoute::Later, ..op }
}

/// A copy of a message.
pub fn published(id: u64, key: &str) -> Op {
    Op { route: TargetRoute::Messages, ..op(id, key, Answer::accepted()) }
}

pub fn accepted(operation: Option<&str>) -> Option<Answer> {
    let operation = operation.map(str::to_owned);
    refusal(202, "queued", "").map(|answer| Answer { operation, ..answer })
}

#[test]
fn a_correct_history_breaks_no_rule() {
    keeps(vec![], vec![]);
    // The connection broke, the outcome was unknown, and the late answer completed it.
    keeps(
        vec![
            op(1, "k", None),
            op(2, "k", refusal(409, "in-flight", "in-flight")),
            op(3, "k", refusal(409, "unknown", "outcome-unknown")),
            op(4, "k", refusal(503, "rejected", "store-unavailable")),
            last(5, "k", carries("replayed", 1)),
        ],
        vec![effect(1, 1, "k", 1)],
    );
    // Released by the service, then executed; another request is refused.
    let other = Op { body: "eleven".to_owned(), ..op(8, "k", refusal(422, "key-reused", "key-reused")) };
    let first = carries("executed", 2);
    keeps(
        vec![op(6, "k", refusal(503, "released", "")), op(7, "k", first), other, last(9, "k", carries("replayed", 2))],
        vec![effect(2, 7, "k", 2)],
    );
    // A different request came first and was executed, so this one is refused.
    let different = |op: Op| Op { body: "eleven".to_owned(), ..op };
    let of_different = Effect { body: "eleven".to_owned(), ..effect(1, 1, "k", 1) };
    keeps(
        vec![different(op(1, "k", carries("executed", 1))), last(2, "k", refusal(422, "key-reused", "key-reused"))],
        vec![of_different],
    );
    // The request was never executed, and its outcome is unknown.
    keeps(vec![op(1, "k", None), last(2, "k", refusal(409, "unknown", "outcome-unknown"))], vec![]);
}

#[test]
fn a_key_that_is_executed_twice_is_found() {
    let ops = vec![op(1, "k", None), op(2, "k", carries("executed", 2)), last(3, "k", carries("replayed", 2))];
    breaks(ops, vec![effect(1, 1, "k", 1), effect(2, 2, "k", 2)], Rule::OneEffect);
}

#[test]
fn an_attempt_that_is_sent_twice_is_found_under_every_policy() {
    let ops = vec![op(1, "k", carries("executed", 2)), last(3, "k", carries("replayed", 2))];
    let history = history(ops, vec![effect(1, 1, "k", 1), effect(2, 1, "k", 1)]);
    for policy in [Policy::Hold, Policy::Retry] {
        assert!(broken(&history, &with(policy)).contains(&Rule::OneEffectForAnAttempt), "{policy:?}");
    }
}

#[test]
fn a_second_attempt_without_an_unknown_outcome_before_it_is_found() {
    let ops = vec![op(1, "k", None), op(30, "k", carries("executed", 2)), last(31, "k", carries("replayed", 2))];
    let mut history = history(ops, vec![effect(1, 1, "k", 1), effect(2, 30, "k", 2)]);
    assert_eq!(broken(&history, &with(Policy::Retry)), [Rule::OnlyWhatIsUnknownIsTakenOver]);
    history.unknown.push(history.effects[0].attempt.clone());
    assert_eq!(broken(&history, &with(Policy::Retry)), []);
}

#[test]
fn a_second_attempt_while_the_first_may_run_is_found() {
    let ops = vec![op(1, "k", None), op(30, "k", carries("executed", 2)), last(31, "k", carries("replayed", 2))];
    let mut history = history(ops, vec![effect(1, 1, "k", 1), effect(2, 30, "k", 2)]);
    history.unknown.push(history.effects[0].attempt.clone());
    let quiet = |millis| with(Policy::RetryWhenQuiet(at(millis)));
    assert_eq!(broken(&history, &quiet(291)), [Rule::NothingIsTakenOverTooSoon]);
    assert_eq!(broken(&history, &quiet(290)), []);
}

/// The broken rules of a key that the service refused, executed, and was called for as these calls say.
fn broken_by_calls(calls: Vec<ServiceCall>, unknown_to_their_proxy: Vec<Attempt>) -> Vec<Rule> {
    let ops = vec![
        op(1, "k", refusal(503, "released", "")),
        op(2, "k", carries("executed", 1)),
        op(3, "k", None),
        last(4, "k", carries("replayed", 1)),
    ];
    let history = History { service_calls: calls, unknown_to_their_proxy, ..history(ops, vec![effect(1, 2, "k", 2)]) };
    broken(&history, &hold())
}

#[test]
fn requests_that_the_service_should_not_get_are_found_also_where_it_refuses_them() {
    let refused = || call(1, "k", 1, (11, 13), true);
    let executed = || call(2, "k", 2, (21, 23), false);
    assert_eq!(broken_by_calls(vec![refused(), executed()], vec![]), []);
    let overlapping = call(1, "k", 1, (11, 22), true);
    assert_eq!(broken_by_calls(vec![overlapping, executed()], vec![]), [Rule::OneAttemptAtATime]);
    let sent_again = call(2, "k", 2, (24, 25), true);
    assert_eq!(broken_by_calls(vec![refused(), executed(), sent_again], vec![]), [Rule::OneCallForAnAttempt]);
    let later = call(3, "k", 3, (31, 32), true);
    assert_eq!(broken_by_calls(vec![refused(), executed(), later], vec![]), [Rule::NothingFollowsAnExecution]);
    let unknown = vec![refused().attempt];
    assert_eq!(broken_by_calls(vec![refused(), executed()], unknown), [Rule::NothingFollowsAnUnknownOutcome]);
}

#[test]
fn answers_that_differ_are_found() {
    for differ in [
        |answer: &mut Answer| answer.body.push('!'),
        |answer: &mut Answer| answer.fields.push(("x-effect".to_owned(), "1".to_owned())),
        |answer: &mut Answer| answer.fields.clear(),
    ] {
        let mut other = carries("replayed", 1);
        differ(&mut other);
        let ops = vec![op(1, "k", carries("executed", 1)), op(2, "k", other), last(3, "k", carries("replayed", 1))];
        breaks(ops, vec![effect(1, 1, "k", 1)], Rule::AnswersAreAlike);
    }
    let ops = vec![op(1, "k", carries("unstored", 1)), last(3, "k", carries("replayed", 2))];
    breaks(ops, vec![effect(1, 1, "k", 1), effect(2, 1, "k", 2)], Rule::AnswersAreAlike);
}

#[test]
fn fields_of_an_unstored_answer_may_differ() {
    let mut kept = carries("replayed", 1);
    kept.fields.push(("idempotency-key-expires".to_owned(), "tomorrow".to_owned()));
    keeps(vec![op(1, "k", carries("unstored", 1)), last(3, "k", kept)], vec![effect(1, 1, "k", 1)]);
}

#[test]
fn an_unstored_answer_after_the_stored_one_must_be_the_same() {
    let again = |effect| Answer { replayed: true, ..carries("unstored", effect) };
    let ops = |effect| {
        let (stored, kept) = (op(2, "k", carries("replayed", 1)), last(4, "k", carries("replayed", 1)));
        vec![op(1, "k", carries("unstored", 1)), stored, op(3, "k", again(effect)), kept]
    };
    keeps(ops(1), vec![effect(1, 1, "k", 1)]);
    breaks(ops(2), vec![effect(1, 1, "k", 1), effect(2, 1, "k", 2)], Rule::NothingAcknowledgedIsLost);
}

#[test]
fn only_the_executing_proxy_may_call_an_acknowledged_key_in_flight_and_not_for_long() {
    let ops = |id, proxy| {
        let in_flight = Op { proxy, ..op(id, "k", refusal(409, "in-flight", "in-flight")) };
        vec![op(1, "k", None), Op { proxy: 1, ..op(2, "k", carries("replayed", 1)) }, in_flight, kept()]
    };
    fn kept() -> Op {
        last(400, "k", carries("replayed", 1))
    }
    keeps(ops(3, 0), vec![effect(1, 1, "k", 1)]);
    breaks(ops(3, 1), vec![effect(1, 1, "k", 1)], Rule::NothingAcknowledgedIsLost);
    breaks(ops(310, 0), vec![effect(1, 1, "k", 1)], Rule::NothingAcknowledgedIsLost);
}

#[test]
fn a_proxy_that_misses_the_reply_to_a_released_attempt_may_call_the_key_in_flight_and_not_for_long() {
    let ops = |id, released_at| {
        let released = Op { returned: at(released_at), ..op(1, "k", refusal(502, "released", "upstream-unreachable")) };
        let in_flight = op(id, "k", refusal(409, "in-flight", "in-flight"));
        let executed = Op { proxy: 1, ..op(2, "k", carries("executed", 1)) };
        vec![released, executed, in_flight, last(900, "k", carries("replayed", 1))]
    };
    let effects = || vec![effect(1, 2, "k", 1)];
    keeps(ops(3, 50), effects());
    breaks(ops(3, 2), effects(), Rule::NothingAcknowledgedIsLost);
    breaks(ops(600, 700), effects(), Rule::NothingAcknowledgedIsLost);
}

#[test]
fn a_correct_history_of_accepted_requests_breaks_no_rule() {
    keeps(
        vec![
            later(op(1, "k", None)),
            later(op(2, "k", refusal(503, "rejected", "store-unavailable"))),
            later(op(3, "k", accepted(None))),
            Op { proxy: 1, ..later(op(4, "k", carries("unstored", 1))) },
            later(op(4, "k", carries("replayed", 1))),
            // The proxy that delivers it has not heard yet that the response is stored.
            later(op(5, "k", accepted(None))),
            later(last(500, "k", carries("replayed", 1))),
        ],
        // A refusal because of the store may have been accepted.
        vec![Effect { at: at(32), ..effect(1, 2, "k", 1) }],
    );
    keeps(vec![later(op(1, "k", accepted(None))), later(last(2, "k", accepted(Some("unknown"))))], vec![]);
    let delivered = later(last(2, "k", accepted(Some("completed"))));
    let ops = vec![later(op(1, "k", accepted(None))), delivered, later(last(3, "k", carries("replayed", 1)))];
    keeps(ops, vec![effect(1, 1, "k", 1)]);
}

#[test]
fn a_correct_history_of_messages_breaks_no_rule() {
    let asked = |answer: Option<Answer>| Op { route: TargetRoute::Messages, ..last(5, "m", answer) };
    // The second copy is executed.
    let copies = || vec![published(1, "m"), published(2, "m")];
    let executed = Effect { at: at(30), ..effect(1, 2, "m", 1) };
    keeps([copies(), vec![asked(Some(carries("replayed", 1)))]].concat(), vec![executed.clone()]);
    let unknown = || asked(refusal(409, "unknown", "outcome-unknown"));
    keeps([copies(), vec![unknown()]].concat(), vec![executed]);
    keeps([copies(), vec![unknown()]].concat(), vec![]);
}

#[test]
fn a_message_that_is_lost_or_executed_twice_is_found() {
    let asked = |answer: Option<Answer>| Op { route: TargetRoute::Messages, ..last(5, "m", answer) };
    let ops = |answer| vec![published(1, "m"), published(2, "m"), asked(answer)];
    // Only the request at the end executes it.
    breaks(ops(Some(carries("executed", 1))), vec![effect(1, 5, "m", 1)], Rule::NothingAcknowledgedIsLost);
    breaks(ops(refusal(409, "in-flight", "in-flight")), vec![], Rule::EveryKeyIsDefinite);
    let twice = vec![effect(1, 1, "m", 1), effect(2, 2, "m", 2)];
    breaks(ops(Some(carries("replayed", 1))), twice, Rule::OneEffect);
}

#[test]
fn a_lost_accepted_request_is_found() {
    for answer in [
        refusal(409, "unknown", "outcome-unknown"),
        refusal(409, "in-flight", "in-flight"),
        refusal(503, "released", ""),
        Some(carries("executed", 1)),
    ] {
        let ops = vec![
            later(op(1, "k", accepted(None))),
            later(op(2, "k", answer)),
            later(last(3, "k", carries("replayed", 1))),
        ];
        breaks(ops, vec![effect(1, 1, "k", 1)], Rule::NothingAcknowledgedIsLost);
    }
    // It was accepted, forgotten, and accepted anew.
    let ops = || vec![later(op(1, "k", accepted(None))), later(op(2, "k", accepted(None)))];
    let kept = later(last(3, "k", carries("replayed", 1)));
    breaks([ops(), vec![kept]].concat(), vec![effect(1, 2, "k", 1)], Rule::NothingAcknowledgedIsLost);
    // It was executed and forgotten, and accepted anew.
    let anew = later(last(400, "k", accepted(Some("unknown"))));
    let replayed = later(op(2, "k", carries("replayed", 1)));
    breaks(vec![later(op(1, "k", None)), replayed, anew], vec![effect(1, 1, "k", 1)], Rule::NothingAcknowledgedIsLost);
}

#[test]
fn an_accepted_request_that_is_never_delivered_is_found() {
    for state in [None, Some("queued"), Some("in_flight"), Some("dead")] {
        let ops = vec![later(op(1, "k", accepted(None))), later(last(2, "k", accepted(state)))];
        breaks(ops, vec![], Rule::EveryKeyIsDefinite);
    }
    // An acceptance on a route that answers with the response is none.
    let ops = vec![op(1, "k", accepted(None)), last(2, "k", carries("replayed", 1))];
    breaks(ops, vec![effect(1, 1, "k", 1)], Rule::AnswersMakeSense);
}

#[test]
fn an_answer_without_its_effect_or_before_it_is_found() {
    let ops = || vec![op(1, "k", carries("executed", 1)), last(2, "k", carries("replayed", 1))];
    breaks(ops(), vec![], Rule::AnAnswerHasItsEffect);
    let late = Effect { at: at(16), ..effect(1, 1, "k", 1) };
    breaks(ops(), vec![late], Rule::AnAnswerHasItsEffect);
    let of_another_key = effect(1, 1, "other", 1);
    breaks(ops(), vec![of_another_key], Rule::AnAnswerHasItsEffect);
    let of_nothing = Answer { effect: None, ..carries("executed", 1) };
    breaks(vec![op(1, "k", of_nothing)], vec![effect(1, 1, "k", 1)], Rule::AnAnswerHasItsEffect);
}

#[test]
fn a_second_first_answer_is_found() {
    for first in ["executed", "unstored"] {
        let ops = vec![
            op(1, "k", carries(first, 1)),
            op(2, "k", carries("executed", 1)),
            last(3, "k", carries("replayed", 1)),
        ];
        breaks(ops, vec![effect(1, 1, "k", 1)], Rule::OneFirstAnswer);
    }
}

#[test]
fn an_effect_of_a_request_that_was_refused_is_found() {
    for (status, oncegate_status, slug) in [
        (503, "rejected", "store-unavailable"),
        (503, "rejected", "draining"),
        (502, "released", "upstream-unreachable"),
        (503, "released", ""),
        (409, "in-flight", "in-flight"),
        (409, "unknown", "outcome-unknown"),
        (422, "key-reused", "key-reused"),
    ] {
        // Long after the refusal too.
        let late = Effect { at: at(500), ..effect(1, 1, "k", 1) };
        let ops = vec![op(1, "k", refusal(status, oncegate_status, slug)), last(90, "k", carries("replayed", 1))];
        breaks(ops, vec![late], Rule::ARefusalHasNoEffect);
    }
    let ops = vec![op(1, "k", carries("replayed", 1)), last(3, "k", carries("replayed", 1))];
    breaks(ops, vec![effect(1, 1, "k", 1)], Rule::ARefusalHasNoEffect);
}

#[test]
fn an_effect_after_an_answer_is_found_under_every_policy() {
    let ops = vec![op(1, "k", carries("executed", 1)), op(2, "k", None), last(3, "k", carries("replayed", 1))];
    let mut history = history(ops, vec![effect(1, 1, "k", 1), effect(2, 2, "k", 2)]);
    history.unknown.push(history.effects[0].attempt.clone());
    assert_eq!(broken(&history, &with(Policy::Retry)), [Rule::NothingAfterAnAnswer]);
}

#[test]
fn a_different_request_that_is_answered_or_executed_is_found() {
    let other = |answer: Answer| Op { body: "eleven".to_owned(), ..op(2, "k", answer) };
    let ops = |answer| vec![op(1, "k", carries("executed", 1)), other(answer), last(3, "k", carries("replayed", 1))];
    breaks(ops(carries("replayed", 1)), vec![effect(1, 1, "k", 1)], Rule::AnotherRequestIsRefused);
    let executed = Effect { body: "eleven".to_owned(), ..effect(2, 2, "k", 2) };
    breaks(ops(carries("executed", 2)), vec![effect(1, 1, "k", 1), executed], Rule::AnotherRequestIsRefused);
}

#[test]
fn a_different_request_that_is_told_to_wait_is_found_once_the_key_has_its_request() {
    let unknown = || refusal(409, "unknown", "outcome-unknown");
    for owner in [Some(carries("executed", 1)), unknown(), refusal(504, "unknown", "upstream-timeout")] {
        for answer in [refusal(409, "in-flight", "in-flight"), unknown(), refusal(503, "released", "")] {
            let other = Op { proxy: 1, body: "eleven".to_owned(), ..op(3, "k", answer) };
            let ops = vec![op(1, "k", None), op(2, "k", owner.clone()), other, last(4, "k", unknown())];
            breaks(ops, vec![effect(1, 1, "k", 1)], Rule::AnotherRequestIsRefused);
        }
    }
    let other = later(Op { body: "eleven".to_owned(), ..op(3, "k", accepted(None)) });
    let ops = vec![later(op(2, "k", accepted(None))), other, later(last(40, "k", accepted(Some("unknown"))))];
    breaks(ops, vec![], Rule::AnotherRequestIsRefused);
    // Before that, its own attempt may have run, and may be called so for a while.
    let other = |id, answer| Op { body: "eleven".to_owned(), ..op(id, "k", answer) };
    let in_flight = || refusal(409, "in-flight", "in-flight");
    let ops = vec![other(1, in_flight()), other(2, None), op(3, "k", unknown()), other(4, in_flight())];
    keeps([ops, vec![last(40, "k", unknown())]].concat(), vec![]);
}

#[test]
fn a_same_request_refused_as_a_mismatch_is_found() {
    let misuse = || refusal(422, "key-reused", "key-reused");
    let ops = vec![op(1, "k", carries("executed", 1)), op(2, "k", misuse()), last(3, "k", carries("replayed", 1))];
    breaks(ops, vec![effect(1, 1, "k", 1)], Rule::TheSameRequestIsNot);
    let ops = vec![op(1, "k", None), op(2, "k", misuse()), last(3, "k", refusal(409, "unknown", "outcome-unknown"))];
    breaks(ops, vec![], Rule::TheSameRequestIsNot);
}

#[test]
fn an_answer_with_another_callers_effect_is_found() {
    let bob = ScopedKey { caller: "bob".to_owned(), key: "k".to_owned() };
    let ops = vec![
        op(1, "k", carries("executed", 1)),
        Op { name: bob.clone(), ..op(2, "k", carries("replayed", 1)) },
        last(3, "k", carries("replayed", 1)),
        Op { name: bob, ..last(4, "k", carries("replayed", 1)) },
    ];
    breaks(ops, vec![effect(1, 1, "k", 1)], Rule::CallersAreApart);
}

#[test]
fn a_lost_acknowledged_answer_is_found() {
    for (status, oncegate_status, slug) in [
        (409, "unknown", "outcome-unknown"),
        (409, "in-flight", "in-flight"),
        (502, "unknown", "upstream-broken"),
        (502, "released", "upstream-unreachable"),
    ] {
        for told_before in ["executed", "replayed"] {
            let ops = vec![
                op(1, "k", None),
                op(2, "k", carries(told_before, 1)),
                Op { proxy: 1, ..op(3, "k", refusal(status, oncegate_status, slug)) },
                last(4, "k", carries("replayed", 1)),
            ];
            breaks(ops, vec![effect(1, 1, "k", 1)], Rule::NothingAcknowledgedIsLost);
        }
    }
    // A second execution loses the acknowledged answer too.
    let ops = vec![op(1, "k", carries("executed", 1)), last(4, "k", carries("executed", 2))];
    breaks(ops, vec![effect(1, 1, "k", 1), effect(2, 4, "k", 1)], Rule::NothingAcknowledgedIsLost);
}

#[test]
fn a_key_that_never_settles_is_found() {
    for answer in [
        None,
        refusal(409, "in-flight", "in-flight"),
        refusal(503, "rejected", "store-unavailable"),
        refusal(504, "unknown", "upstream-timeout"),
    ] {
        breaks(vec![op(1, "k", None), last(2, "k", answer)], vec![], Rule::EveryKeyIsDefinite);
    }
    breaks(vec![op(1, "k", None)], vec![], Rule::EveryKeyIsDefinite);
    let unknown = vec![op(1, "k", None), last(2, "k", refusal(409, "unknown", "outcome-unknown"))];
    assert_eq!(broken(&history(unknown, vec![]), &with(Policy::Retry)), [Rule::EveryKeyIsDefinite]);
}

#[test]
fn a_store_that_does_not_recover_is_found() {
    let rejected = |id| last(id, "k", refusal(503, "rejected", "store-unavailable"));
    let known = |id| last(id, "k", carries("replayed", 1));
    let first = || op(1, "k", carries("executed", 1));
    keeps(vec![first(), rejected(2), known(3)], vec![effect(1, 1, "k", 1)]);
    breaks(vec![first(), rejected(2), rejected(3), known(4)], vec![effect(1, 1, "k", 1)], Rule::TheStoreIsBack);
}

#[test]
fn an_answer_that_oncegate_does_not_promise_is_found() {
    let unlabelled = Answer { replayed: false, ..carries("replayed", 1) };
    let labelled = Answer { replayed: true, ..carries("executed", 1) };
    // A stream whose end told nothing, as a cut one must not pass for.
    let open = carries("streaming", 1);
    for answer in
        [Some(unlabelled), Some(labelled), Some(open), refusal(500, "", ""), refusal(409, "rejected", "in-flight")]
    {
        breaks(vec![op(1, "k", answer)], vec![effect(1, 1, "k", 1)], Rule::AnswersMakeSense);
    }
}

#[test]
fn an_effect_without_a_request_is_found() {
    breaks(vec![op(1, "k", None)], vec![effect(1, 7, "k", 1)], Rule::EffectsHaveACause);
    breaks(vec![op(1, "k", None), op(2, "other", None)], vec![effect(1, 2, "k", 1)], Rule::EffectsHaveACause);
    let changed = Effect { body: "eleven".to_owned(), ..effect(1, 1, "k", 1) };
    breaks(vec![op(1, "k", None)], vec![changed], Rule::EffectsHaveACause);
}

#[test]
fn a_run_without_enough_successes_or_faults_is_found() {
    let unavailable = (1..20).map(|id| op(id, &format!("k-{id}"), refusal(503, "rejected", "store-unavailable")));
    let ops = unavailable.chain([last(20, "k", refusal(409, "unknown", "outcome-unknown"))]).collect();
    breaks(ops, vec![], Rule::NotVacuous);
    let mut peaceful = history(vec![], vec![]);
    peaceful.faults.clear();
    assert_eq!(broken(&peaceful, &hold()), [Rule::NotVacuous]);
    assert_eq!(broken(&History::default(), &Rules { quotas: vec![], ..hold() }), [Rule::NotVacuous]);
}

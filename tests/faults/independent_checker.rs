//! `check_history.py` reads the files that `history_file` writes, and finds a breach of each kind.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::checker_can_fail::{accepted, call, carries, effect, history, last, later, name, op, published, refusal};
use crate::fault::Injection;
use crate::history::{Answer, Effect, History, Op, ServiceCall, TargetRoute};
use crate::history_file;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/check_history.py");

fn injection() -> Injection {
    let (began, ended) = (Duration::from_millis(12), Duration::from_millis(40));
    Injection { fault: "Kill".to_owned(), proxy: Some(0), began, ended }
}

/// Whether the program finds no breach, and what it prints.
fn judge(history: &History) -> (bool, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    history_file::write(file.path(), json!({ "policy": "hold" }), history, &[injection()]).unwrap();
    let ended = Command::new("python3").arg(PROGRAM).arg(file.path()).output().unwrap();
    assert!(ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
    (ended.status.success(), String::from_utf8(ended.stdout).unwrap())
}

fn finds(breach: &str, ops: Vec<Op>, effects: Vec<Effect>) {
    finds_in(breach, &history(ops, effects));
}

fn finds_in(breach: &str, history: &History) {
    let (accepts, printed) = judge(history);
    assert!(!accepts && printed.contains(&format!("  {breach}: ")), "{breach} is not in {printed:?}");
}

#[test]
fn the_independent_checker_accepts_a_correct_history() {
    let ops = vec![
        op(1, "k", None),
        op(2, "k", refusal(409, "in-flight", "in-flight")),
        op(3, "k", refusal(503, "rejected", "store-unavailable")),
        op(4, "k", carries("replayed", 1)),
        // The proxy that executed it has not heard yet that its response is stored.
        op(5, "k", refusal(409, "in-flight", "in-flight")),
        last(120, "k", carries("replayed", 1)),
        last(6, "held", refusal(409, "unknown", "outcome-unknown")),
        later(op(7, "later", accepted(None))),
        later(last(8, "later", accepted(Some("completed")))),
        later(last(9, "later", carries("replayed", 2))),
        later(last(10, "held later", accepted(Some("unknown")))),
        published(11, "m"),
        published(12, "m"),
        Op { route: TargetRoute::Messages, ..last(14, "m", carries("replayed", 3)) },
        published(15, "held m"),
        Op { route: TargetRoute::Messages, ..last(16, "held m", refusal(409, "unknown", "outcome-unknown")) },
    ];
    let (accepts, printed) =
        judge(&history(ops, vec![effect(1, 1, "k", 1), effect(2, 7, "later", 1), effect(3, 12, "m", 1)]));
    assert!(accepts && printed.contains("28 requests, 10 keys, 7 effects, 1 faults, 0 breaches"), "{printed}");
}

#[test]
fn the_independent_checker_finds_each_planted_breach() {
    let done = || vec![op(1, "k", carries("executed", 1)), last(4, "k", carries("replayed", 1))];
    let once = || vec![effect(1, 1, "k", 1)];
    let and = |more: Op| [done(), vec![more]].concat();
    finds("executed_twice", and(op(2, "k", None)), vec![effect(1, 1, "k", 1), effect(2, 2, "k", 2)]);
    finds("differing", and(op(2, "k", carries("replayed", 2))), [once(), vec![effect(2, 1, "k", 2)]].concat());
    finds("lost", and(op(2, "k", refusal(409, "unknown", "outcome-unknown"))), once());
    let elsewhere = Op { proxy: 1, ..op(2, "k", refusal(409, "in-flight", "in-flight")) };
    finds("lost", and(elsewhere), once());
    finds("lost", done(), vec![]);
    let queued = || vec![later(op(1, "k", accepted(None))), later(last(400, "k", carries("replayed", 1)))];
    finds("lost", queued(), vec![effect(1, 400, "k", 1)]);
    finds("lost", [queued(), vec![later(op(2, "k", refusal(503, "released", "")))]].concat(), once());
    finds("lost", [done(), vec![later(last(401, "k", accepted(Some("unknown"))))]].concat(), once());
    finds("indefinite", vec![later(op(1, "k", None)), later(last(2, "k", accepted(Some("queued"))))], vec![]);
    let asked = |op: Op| Op { route: TargetRoute::Messages, ..op };
    let lost_message = vec![published(1, "k"), asked(last(4, "k", carries("executed", 1)))];
    finds("lost", lost_message, vec![effect(1, 4, "k", 1)]);
    let message = vec![published(1, "k"), published(2, "k"), asked(last(4, "k", carries("replayed", 1)))];
    finds("executed_twice", message, vec![effect(1, 1, "k", 1), effect(2, 2, "k", 2)]);
    let bob = crate::history::ScopedKey { caller: "bob".to_owned(), ..name("k") };
    finds("across_scopes", and(Op { name: bob, ..last(3, "k", carries("replayed", 1)) }), once());
    finds("indefinite", vec![op(1, "k", None), last(2, "k", refusal(409, "in-flight", "in-flight"))], once());
    finds("indefinite", vec![op(1, "k", None)], vec![]);
}

#[test]
fn the_independent_checker_finds_answers_and_effects_that_do_not_belong_together() {
    let done = || vec![op(1, "k", carries("executed", 1)), last(4, "k", carries("replayed", 1))];
    let once = || vec![effect(1, 1, "k", 1)];
    let and = |more: Op| [done(), vec![more]].concat();
    // Half an answer, and another response, after the acknowledged one.
    finds("lost", and(op(2, "k", refusal(502, "unknown", "upstream-broken"))), once());
    finds("differing", and(op(2, "k", carries("unstored", 7))), once());
    finds("differing", and(op(2, "k", carries("executed", 1))), once());
    // An effect that comes after its answer, or from nothing, from another request, or from one that was refused.
    finds("lost", done(), vec![Effect { at: Duration::from_millis(16), ..effect(1, 1, "k", 1) }]);
    finds("without_cause", done(), vec![effect(1, 800, "k", 1)]);
    finds("without_cause", done(), vec![Effect { body: "eleven".to_owned(), ..effect(1, 1, "k", 1) }]);
    for answer in [
        refusal(503, "released", ""),
        refusal(503, "rejected", "store-unavailable"),
        refusal(409, "in-flight", "in-flight"),
        refusal(409, "unknown", "outcome-unknown"),
        refusal(422, "key-reused", "key-reused"),
    ] {
        finds("without_cause", vec![op(1, "k", answer), last(4, "k", carries("replayed", 1))], once());
    }
}

#[test]
fn the_independent_checker_finds_another_request_that_is_not_refused_and_the_same_one_that_is() {
    let other = |answer: Option<Answer>| Op { body: "eleven".to_owned(), proxy: 1, ..op(2, "k", answer) };
    let ops = |more| vec![op(1, "k", carries("executed", 1)), more, last(4, "k", carries("replayed", 1))];
    let once = || vec![effect(1, 1, "k", 1)];
    for answer in [
        Some(carries("replayed", 1)),
        accepted(None),
        refusal(409, "in-flight", "in-flight"),
        refusal(409, "unknown", "outcome-unknown"),
    ] {
        finds("another_request", ops(other(answer)), once());
    }
    finds("another_request", ops(op(2, "k", refusal(422, "key-reused", "key-reused"))), once());
    let (accepts, printed) = judge(&history(ops(other(refusal(422, "key-reused", "key-reused"))), once()));
    assert!(accepts, "{printed}");
}

#[test]
fn the_independent_checker_finds_requests_that_the_service_should_not_get() {
    let finds = |calls: Vec<ServiceCall>| {
        let ops = vec![op(2, "k", carries("executed", 1)), last(4, "k", carries("replayed", 1))];
        let history = History { service_calls: calls, ..history(ops, vec![effect(1, 2, "k", 2)]) };
        finds_in("executed_twice", &history);
    };
    let executed = || call(2, "k", 2, (21, 23), false);
    finds(vec![call(1, "k", 1, (11, 22), true), executed()]);
    finds(vec![executed(), call(2, "k", 2, (24, 25), true)]);
    finds(vec![executed(), call(3, "k", 3, (31, 32), true)]);
}

#[test]
fn the_independent_checker_reads_no_history_without_a_policy_or_with_a_request_that_does_not_end() {
    let start = r#"{"index":0,"time":0,"process":"nemesis","type":"info","f":"start","value":{"policy":"hold"}}"#;
    let request = r#"{"index":1,"time":1,"process":0,"type":"invoke","f":"pay","value":{}}"#;
    for (lines, complaint) in [
        (start.replace("hold", "holds"), "the policy 'holds'"),
        (request.replace(r#""index":1"#, r#""index":0"#), "the policy None"),
        (format!("{start}\n{request}"), "have no end"),
    ] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines).unwrap();
        let ended = Command::new("python3").arg(PROGRAM).arg(file.path()).output().unwrap();
        let printed = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && printed.contains(complaint), "{complaint} is not in {printed}");
    }
}

#[test]
fn a_history_file_has_jepsens_lines_in_the_order_of_time() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let ops = vec![op(1, "k", None), op(2, "k", carries("replayed", 1))];
    let history = History { ops, effects: vec![effect(1, 1, "k", 1)], ..History::default() };
    history_file::write(file.path(), json!({ "policy": "hold" }), &history, &[injection()]).unwrap();
    let text = std::fs::read_to_string(file.path()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_lines: Vec<_> =
        lines.iter().map(|line| json!([line["index"], line["process"], line["type"], line["f"]])).collect();
    let expected = json!([
        [0, "nemesis", "info", "start"],
        [1, 0, "invoke", "pay"],
        [2, "nemesis", "info", "Kill"],
        [3, "service", "info", "effect"],
        [4, 0, "info", "pay"],
        [5, 1, "invoke", "pay"],
        [6, 1, "ok", "pay"],
        [7, "nemesis", "info", "Kill"],
    ]);
    assert_eq!(json!(of_lines), expected);
    assert!(lines.is_sorted_by_key(|line| line["time"].as_u64()), "{text}");
}

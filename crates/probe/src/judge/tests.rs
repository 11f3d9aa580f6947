//! The rules, case by case: an executed response is named by its body.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::*;
use crate::finding::Conclusion;

fn reply(status: u16, body: &str) -> ProbedResult {
    let (status, body) = (StatusCode::from_u16(status).unwrap(), Bytes::from(body.to_owned()));
    Ok(ProbedResponse { status, headers: HeaderMap::new(), body })
}

fn replayed(body: &str) -> ProbedResult {
    let mut response = reply(201, body).unwrap();
    response.headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
    Ok(response)
}

fn lost() -> ProbedResult {
    Err("reset".to_owned())
}

/// Judges by a rule, after a first response and the control.
fn judge(first: &str, control: &ProbedResult, rule: impl FnOnce(&Baseline<'_>) -> Finding) -> &'static str {
    let first = reply(201, first).unwrap();
    rule(&Baseline { first: &first, control, ignored: &[] }).name
}

const FIRST: &str = r#"{"id":1,"at":1,"amount":10}"#;
const SECOND: &str = r#"{"id":2,"at":2,"amount":10}"#;

#[test]
fn an_equal_retry_proves_something_only_if_executions_differ_or_it_is_marked() {
    for (first, control, retry, finding) in [
        (FIRST, reply(201, SECOND), reply(201, FIRST), "replayed"),
        ("ok", reply(201, "ok"), reply(201, "ok"), "replayed-or-executed"),
        ("ok", reply(201, "ok"), replayed("ok"), "replayed"),
        // A second execution would be refused.
        ("ok", reply(409, "there is one"), reply(201, "ok"), "replayed"),
        // A limit, an outage or a lost response of the control shows nothing.
        ("ok", reply(429, "slower"), reply(201, "ok"), "replayed-or-executed"),
        ("ok", reply(503, "later"), reply(201, "ok"), "replayed-or-executed"),
        ("ok", lost(), reply(201, "ok"), "replayed-or-executed"),
        (FIRST, reply(201, SECOND), reply(201, r#"{"id":3,"at":3,"amount":10}"#), "executed-again"),
        (FIRST, reply(201, SECOND), reply(200, FIRST), "changed"),
        (FIRST, reply(201, SECOND), reply(201, r#"{"id":1,"at":3,"amount":10}"#), "changed"),
        (FIRST, reply(201, SECOND), replayed(r#"{"id":3,"at":3,"amount":10}"#), "changed"),
        (FIRST, reply(201, SECOND), reply(409, "used"), "retry-refused"),
        (FIRST, reply(201, SECOND), reply(500, ""), "unclear"),
        (FIRST, reply(201, SECOND), lost(), "no-response"),
    ] {
        assert_eq!(judge(first, &control, |baseline| baseline.judge_retry(&retry)), finding, "{control:?} {retry:?}");
    }
}

#[test]
fn another_key_is_executed_anew_if_that_shows() {
    for (first, control, retry, finding) in [
        (FIRST, reply(201, SECOND), reply(201, FIRST), "executed-anew"),
        ("ok", reply(201, "ok"), reply(201, "ok"), "looks-the-same"),
        ("ok", reply(201, "ok"), replayed("ok"), "executed-anew"),
        ("ok", replayed("ok"), replayed("ok"), "replayed-for-other-key"),
        ("ok", reply(409, "there is one"), reply(201, "ok"), "refused-for-other-key"),
        ("ok", reply(429, "slower"), reply(201, "ok"), "unclear"),
        ("ok", lost(), reply(201, "ok"), "no-response"),
    ] {
        assert_eq!(judge(first, &control, |baseline| baseline.judge_other_key(&retry)), finding, "{control:?}");
    }
}

#[test]
fn duplicates_are_executed_once_if_all_but_one_are_refused_or_have_one_result() {
    let (executed, refused) = (|| reply(201, FIRST), || reply(409, "running"));
    for (control, duplicates, finding) in [
        (reply(201, SECOND), vec![executed(), refused(), refused()], "executed-once"),
        (reply(201, SECOND), vec![executed(), executed(), refused()], "executed-once"),
        (reply(201, SECOND), vec![executed(), reply(201, SECOND), refused()], "executed-many-times"),
        (reply(201, SECOND), vec![executed(), reply(201, r#"{"id":1,"at":2,"amount":10}"#)], "changed"),
        (reply(201, FIRST), vec![executed(), executed(), refused()], "executed-once-or-more"),
        (reply(201, FIRST), vec![executed(), refused(), refused()], "executed-once"),
        (reply(201, FIRST), vec![executed(), replayed(FIRST), refused()], "executed-once"),
        (reply(201, FIRST), vec![replayed(FIRST), replayed(FIRST)], "executed-once-or-more"),
        (reply(201, SECOND), vec![refused(), refused()], "never-executed"),
        (reply(201, SECOND), vec![reply(429, ""), reply(429, "")], "unclear"),
        (reply(201, SECOND), vec![executed(), reply(500, ""), refused()], "unclear"),
        (reply(201, SECOND), vec![executed(), lost()], "no-response"),
    ] {
        let judged = judge(FIRST, &control, |baseline| baseline.judge_duplicates(&duplicates));
        assert_eq!(judged, finding, "{control:?} {duplicates:?}");
    }
}

#[test]
fn a_refused_reuse_counts_only_if_the_body_is_accepted_with_a_key_of_its_own() {
    for (control, reuse, own, finding) in [
        (reply(201, SECOND), reply(422, ""), Some(reply(201, SECOND)), "reuse-refused"),
        (reply(201, SECOND), reply(400, ""), Some(reply(201, SECOND)), "reuse-refused"),
        (reply(201, SECOND), reply(422, ""), Some(reply(422, "")), "body-refused"),
        (reply(201, SECOND), reply(422, ""), Some(reply(500, "")), "unclear"),
        (reply(201, SECOND), reply(422, ""), Some(lost()), "no-response"),
        (reply(201, SECOND), reply(201, FIRST), None, "reuse-replayed"),
        (reply(201, SECOND), reply(201, SECOND), None, "reuse-accepted"),
        (reply(201, FIRST), reply(201, FIRST), None, "reuse-accepted"),
        (reply(201, FIRST), replayed(FIRST), None, "reuse-replayed"),
        (reply(201, SECOND), reply(401, ""), None, "unclear"),
    ] {
        let judged = judge(FIRST, &control, |baseline| baseline.judge_other_body(&reuse, own.as_ref()));
        assert_eq!(judged, finding, "{reuse:?} {own:?}");
    }
}

#[test]
fn the_first_request_has_to_be_executed_and_one_without_a_key_may_be() {
    for (status, first, no_key) in [
        (201, "executed", "key-optional"),
        (303, "executed", "key-optional"),
        (301, "not-executed", "unclear"),
        (400, "not-executed", "key-required"),
        (401, "not-executed", "unclear"),
        (503, "not-executed", "unclear"),
    ] {
        assert_eq!((judge_first(&reply(status, "")).name, judge_no_key(&reply(status, "")).name), (first, no_key));
    }
}

#[test]
fn documentation_is_a_problem_type_or_a_link_of_a_refusal() {
    let mut linked = reply(422, "").unwrap();
    linked.headers.insert("link", HeaderValue::from_static("<https://a.example/keys>; rel=\"describedby\""));
    let problem = reply(400, r#"{"type":"https://a.example/missing"}"#).unwrap();
    let (untyped, executed) =
        (reply(400, r#"{"type":"about:blank"}"#).unwrap(), reply(201, r#"{"type":"/a"}"#).unwrap());
    let all = [linked, problem, untyped.clone(), executed.clone()];
    let urls = ["https://a.example/keys", "https://a.example/missing"].map(str::to_owned);
    assert_eq!(judge_policy(all.iter()), Finding::documented(&urls.into()));
    assert_eq!(judge_policy([untyped, executed].iter()), Finding::UNDOCUMENTED);
}

#[test]
fn one_broken_expectation_breaks_the_whole_and_one_doubt_leaves_it_in_doubt() {
    use Conclusion::{Broken, CannotTell, Holds, Info};
    for (all, whole) in [
        (vec![Holds, Info], Holds),
        (vec![Holds, CannotTell, Info], CannotTell),
        (vec![CannotTell, Broken, Holds], Broken),
    ] {
        assert_eq!(all.into_iter().max(), Some(whole));
    }
}

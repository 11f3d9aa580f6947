//! The forms of refusals.

use super::*;

#[test]
fn the_wrong_forms_are_refused_with_their_place() {
    for (form, problem) in [
        ("in-flight = { status = 200 }", "routes[0].refusals.in-flight.status: must be 400 to 599"),
        ("in-flight = { status = 302 }", "must be 400 to 599"),
        ("in-flight = { status = 600 }", "must be 0 to 599"),
        ("in-flight = { call_status = 201 }", "must be 200, or 400 to 599"),
        ("in-flight = { media_type = 'text/plain' }", "needs `body`"),
        ("in-flight = { body = '{' }", "is no JSON"),
        ("in-flight = { body = '{\"a\":\"{wrong}\"}' }", "has no placeholder `{wrong}`"),
        ("in-flight = { body = '{}', media_type = 'xml' }", "is no media type"),
        ("in-flight = { headers = ['a'] }", "is no field"),
        ("in-flight = { headers = ['Content-Length: 1'] }", "is a field that the refusal or its body sets"),
        ("in-flihgt = { status = 503 }", "is no refusal"),
        ("'7xx' = { status = 503 }", "is no refusal"),
        ("'399' = { status = 503 }", "is no refusal"),
        ("in-flight = { state = 503 }", "unknown key; known here are status, call_status"),
        ("in-flight = 503", "must be a table"),
        ("outcome-unknown = { status = 503 }", "must not be 503 Service Unavailable for `outcome-unknown`"),
        ("'retry:reconcile' = { status = 429 }", "must not be 429 Too Many Requests for `outcome-unknown`"),
        ("in-flight = { headers = ['Cache-Control: public'] }", "is a field that the refusal or its body sets"),
        ("outcome-unknown = { status = 402 }", "must not be 402 Payment Required for `outcome-unknown`"),
        ("outcome-unknown = { call_status = 503 }", "refusals.outcome-unknown.call_status: must not be 503"),
        ("'*' = { status = 503 }", "must not be 503 Service Unavailable for `outcome-unknown`"),
    ] {
        let problems = problems(&route(&format!("refusals = {{ {form} }}")));
        assert!(problems.len() == 1 && problems[0].contains(problem), "{form}: {problems:?}");
    }
}

#[test]
fn the_most_specific_form_of_the_nearest_table_comes_first() {
    let own = route("refusals = { '*' = { error_type = 'a' }, '5xx' = { status = 500 } }");
    let config = config(&format!("[defaults]\nrefusals = {{ in-flight = {{ status = 423 }} }}\n{own}"));
    let route = &config.live.routes[0];
    let names: Vec<_> = route.options.refusals.names().collect();
    assert_eq!(names, [RefusalMatch::StatusClass(5), RefusalMatch::All, RefusalMatch::Code("in-flight")]);
}

#[test]
fn a_refusal_of_what_may_have_been_executed_never_says_failed_in_the_dialects_whose_clients_then_begin_anew() {
    for (dialect, form, problem) in [
        ("iceberg", "'retry:reconcile' = { status = 400 }", "must not be 400 Bad Request for"),
        ("iceberg", "in-flight = { status = 409 }", "must not be 409 Conflict for `in-flight`"),
        ("iceberg", "key-expired = { status = 410 }", "must not be 410 Gone for `key-expired`"),
        ("x402", "in-flight = { status = 409 }", "must not be 409 Conflict for `in-flight`"),
        ("ucp", "outcome-unknown = { status = 402 }", "must not be 402 Payment Required for `outcome-unknown`"),
    ] {
        let problems = problems(&route(&format!("dialect = '{dialect}'\nrefusals = {{ {form} }}")));
        assert!(problems.len() == 1 && problems[0].contains(problem), "{form}: {problems:?}");
    }
}

#[test]
fn only_the_id_of_a_request_is_echoed() {
    for name in ["authorization", "cache-control", "oncegate-request-id", "x-api-key", "set-cookie"] {
        one_problem(&route(&format!("replay = {{ echo = ['{name}'] }}")), "");
    }
    config(&route("replay = { echo = ['X-Request-Id', 'x-fapi-interaction-id', 'x-b3-traceid'] }"));
}

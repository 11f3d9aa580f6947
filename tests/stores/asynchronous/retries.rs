//! Retries of deliveries: which outcomes are retried, when, and when a delivery is given up.

use std::time::Instant;

use serde_json::json;

use super::*;
use harness::metrics::{Metrics, more_store_calls};
use harness::operator::Operator;
use harness::{Hold, on_both_stores};

on_both_stores!(a_delivery_is_retried_until_a_failing_service_accepts_it);
async fn a_delivery_is_retried_until_a_failing_service_accepts_it(store: Store) {
    let world = world(store, "").await;
    let asked = Answer::status(429).field("Retry-After", "2");
    world.upstream.then(trouble()).then(Answer::status(408)).then(asked);
    let begun = Instant::now();
    let operation_path = world.accepts("k-1").await;
    let between = async || Some(operation(&world.proxy, &operation_path).await).filter(|reply| reply["attempts"] != 0);
    assert_ne!(eventually(TEST_TIMEOUT, between).await["state"], "completed");
    let done = world.operation_when(&operation_path, "completed").await;
    assert_eq!((&done["attempts"], &done["response"]["body"]), (&json!(4), &json!("effect 4")));
    assert!(begun.elapsed() > Duration::from_secs(2), "the service asked for two seconds");
    let calls = world.upstream.executed();
    let numbers: Vec<_> = calls.iter().map(|call| call.field("oncegate-attempt").unwrap().to_owned()).collect();
    assert_eq!(numbers, ["1", "2", "3", "4"]);
    assert!(calls.iter().all(|call| call.field("idempotency-key") == Some("k-1")));
    let tokens: std::collections::HashSet<_> = calls.iter().map(|call| call.field("oncegate-reservation")).collect();
    assert_eq!(tokens.len(), 4, "each attempt has a token of its own");
    assert!(calls[3].at.duration_since(calls[2].at) >= Duration::from_secs(2));
}

on_both_stores!(a_service_that_leaves_an_outcome_unknown_gets_the_time_that_it_asks_for);
async fn a_service_that_leaves_an_outcome_unknown_gets_the_time_that_it_asks_for(store: Store) {
    let world = world(store, "on_unknown = \"retry\"").await;
    world.upstream.then(Answer::status(504).field("Retry-After", "2"));
    let operation_path = world.accepts("k-1").await;
    world.operation_when(&operation_path, "completed").await;
    let calls = world.upstream.executed();
    assert!(calls[1].at.duration_since(calls[0].at) >= Duration::from_secs(2));
}

on_both_stores!(a_delivery_past_its_limit_is_dead_until_an_operator_requeues_it);
async fn a_delivery_past_its_limit_is_dead_until_an_operator_requeues_it(store: Store) {
    let retry = "retry = { max_attempts = 2, base = \"50ms\", cap = \"50ms\", give_up_after = \"1h\" }";
    let world = world(store, retry).await;
    world.upstream.answer_all(trouble());
    let operation_path = world.accepts("k-1").await;
    let dead = world.operation_when(&operation_path, "dead").await;
    assert_eq!((&dead["attempts"], &dead["response"]), (&json!(2), &Value::Null));
    // A dead delivery still answers 202, and starts nothing.
    assert_eq!(operation_of(&world.pay("k-1").send().await, "unknown"), operation_path);
    more_store_calls(&world.proxy, "pick_up", 2).await;
    assert_eq!(world.upstream.calls(), 2);
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("k-1", "dead").await;
    world.upstream.answer_all(Answer::status(201));
    let (status, reply) = operator.post(&format!("/api/v1/keys/{id}/requeue"), json!({})).await;
    assert_eq!((status, &reply["before"], &reply["after"]), (200, &json!("dead"), &json!("queued")), "{reply}");
    let done = world.operation_when(&operation_path, "completed").await;
    assert_eq!((&done["attempts"], world.upstream.calls()), (&json!(3), 3));
    let audit = operator.audit().await;
    assert_eq!(
        audit,
        [["delivery", "give_up", "queued", "dead"], ["alice (claimed) at 127.0.0.1", "requeue", "dead", "queued"]]
    );
    let (_, log) = operator.get("/api/v1/audit").await;
    assert_eq!(log["entries"][1]["note"], "tried 2 times, last result: answered 503");
}

on_both_stores!(a_202_tells_the_state_of_the_key_and_invites_no_question_that_only_an_operator_can_answer);
async fn a_202_tells_the_state_of_the_key_and_invites_no_question_that_only_an_operator_can_answer(store: Store) {
    let retry = "retry = { max_attempts = 2, base = \"1h\", cap = \"1h\", give_up_after = \"24h\" }";
    let world = world(store, retry).await;
    let told = async |key: &str, wait: &str| {
        let response = world.pay(key).field("Prefer", wait).send().await;
        assert_eq!(response.status, 202, "{key}");
        let status = response.oncegate_status().unwrap().to_owned();
        let operation = world.get(response.field("location").unwrap()).send().await;
        let seconds = |response: &Response| response.field("retry-after").map(str::to_owned);
        (status, seconds(&response), seconds(&operation))
    };
    let says = |status: &str, seconds: Option<&str>, operation: Option<&str>| {
        (status.to_owned(), seconds.map(str::to_owned), operation.map(str::to_owned))
    };
    let hold = Hold::new();
    world.upstream.then(trouble().hold(&hold));
    let operation_path = world.accepts("k-1").await;
    world.upstream.wait_for_executed(1).await;
    assert_eq!(told("k-1", "wait=0").await, says("queued", Some("1"), Some("1")), "it runs");
    hold.release();
    world.operation_when(&operation_path, "queued").await;
    let (status, seconds, _) = told("k-1", "wait=0").await;
    assert!(status == "queued" && seconds.is_some_and(|seconds| seconds != "30"), "it is queued");
    for (key, answered, state, expected) in
        [("k-2", 401, "dead", says("unknown", None, None)), ("k-3", 502, "unknown", says("unknown", None, None))]
    {
        world.upstream.then(Answer::status(answered));
        let operation_path = world.accepts(key).await;
        world.operation_when(&operation_path, state).await;
        assert_eq!(told(key, "wait=0").await, expected, "{state}");
        assert_eq!(told(key, "wait=1").await, expected, "{state}, and the client waits");
    }
    let operation_path = world.accepts("k-4").await;
    world.operation_when(&operation_path, "completed").await;
    assert_eq!(world.pay("k-4").send().await.oncegate_status(), Some("replayed"));
    let metrics = Metrics::of(&world.proxy).await;
    // Each of the four questions about k-2 and k-3.
    assert_eq!(metrics.get("oncegate_reservations_total{route=\"pay\",result=\"unknown\"}"), 4.0);
}

on_both_stores!(a_permanent_failure_makes_a_delivery_dead_at_once);
async fn a_permanent_failure_makes_a_delivery_dead_at_once(store: Store) {
    let world = world(store, "").await;
    world.upstream.then(Answer::status(401));
    let operation_path = world.accepts("k-1").await;
    assert_eq!(world.operation_when(&operation_path, "dead").await["attempts"], 1);
    // The service's directive overrides the status lists, and so does a 4xx that is stored.
    world.upstream.then(Answer::status(401).field("Oncegate-Decision", "store"));
    let operation_path = world.accepts("k-2").await;
    assert_eq!(world.operation_when(&operation_path, "completed").await["response"]["status"], 401);
    world.upstream.then(Answer::status(409).field("Oncegate-Decision", "release"));
    let operation_path = world.accepts("k-3").await;
    assert_eq!(world.operation_when(&operation_path, "completed").await["attempts"], 2);
}

on_both_stores!(a_delivery_past_its_time_limit_is_dead);
async fn a_delivery_past_its_time_limit_is_dead(store: Store) {
    let retry = "retry = { max_attempts = 1000, base = \"100ms\", cap = \"100ms\", give_up_after = \"2s\" }";
    let world = world(store, retry).await;
    world.upstream.answer_all(trouble());
    let begun = Instant::now();
    let operation_path = world.accepts("k-1").await;
    let dead = world.operation_when(&operation_path, "dead").await;
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    let attempts = dead["attempts"].as_u64().unwrap();
    assert!(attempts >= 2, "{attempts}");
    assert_eq!(attempts as usize, world.upstream.calls());
}

#[tokio::test]
async fn deliveries_wait_for_an_unreachable_upstream() {
    let (mut world, address) = World::before_unreachable_service(Store::sqlite()).await;
    assert_eq!(world.proxy.stop().await, Some(0));
    world.setup = later(Proxy::on(&world.store.url()).upstream(address), "");
    world.proxy = world.setup.start().await;
    let operation_path = world.accepts("k-1").await;
    let tried = async || {
        Some(operation(&world.proxy, &operation_path).await).filter(|reply| reply["attempts"].as_u64() > Some(0))
    };
    eventually(TEST_TIMEOUT, tried).await;
    let upstream = harness::Upstream::start_at(address).await;
    world.operation_when(&operation_path, "completed").await;
    assert_eq!(upstream.calls(), 1);
}

on_both_stores!(an_unknown_delivery_is_held_and_answered_with_202);
async fn an_unknown_delivery_is_held_and_answered_with_202(store: Store) {
    let world = world(store, "").await;
    world.upstream.then(Answer::close());
    let operation_path = world.accepts("k-1").await;
    world.operation_when(&operation_path, "unknown").await;
    assert_eq!(operation_of(&world.pay("k-1").send().await, "unknown"), operation_path);
    more_store_calls(&world.proxy, "pick_up", 2).await;
    assert_eq!(world.upstream.calls(), 1);
    // An operator who knows that the attempt was not executed has it delivered again.
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("k-1", "unknown").await;
    let (status, reply) = operator.resolve(&id, harness::operator::not_executed(true)).await;
    assert_eq!((status, &reply["after"]), (200, &json!("queued")), "{reply}");
    assert_eq!(world.operation_when(&operation_path, "completed").await["attempts"], 2);
}

on_both_stores!(an_unknown_delivery_is_retried_where_the_route_allows_it);
async fn an_unknown_delivery_is_retried_where_the_route_allows_it(store: Store) {
    let world = world(store, "on_unknown = \"retry\"").await;
    world.upstream.then(Answer::close()).then(Answer::status(502));
    let operation_path = world.accepts("k-1").await;
    assert_eq!(world.operation_when(&operation_path, "completed").await["attempts"], 3);
    // The attempts are used up, and the outcome stays unknown.
    world.upstream.answer_all(Answer::close());
    let operation_path = world.accepts("k-2").await;
    assert_eq!(world.operation_when(&operation_path, "dead").await["attempts"], 5);
    world.upstream.answer_all(Answer::status(201));
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("k-2", "dead").await;
    // It is delivered again, and may have executed.
    let (status, reply) = operator.post(&format!("/api/v1/keys/{id}/requeue"), json!({})).await;
    assert_eq!((status, &reply["code"]), (409, &json!("wrong-state")), "{reply}");
    let (status, reply) = operator.post(&format!("/api/v1/keys/{id}/requeue"), json!({ "accept_risk": true })).await;
    assert_eq!((status, &reply["after"]), (200, &json!("unknown")), "{reply}");
    assert_eq!(world.operation_when(&operation_path, "completed").await["attempts"], 6);
}

on_both_stores!(with_retry_when_quiet_an_unknown_delivery_waits_for_the_quiet_time);
async fn with_retry_when_quiet_an_unknown_delivery_waits_for_the_quiet_time(store: Store) {
    let lines = "on_unknown = \"retry-when-quiet\"\nreconcile = { after = \"0s\" }";
    let world = hasty(store, lines).await;
    world.upstream.then(Answer::close());
    let operation_path = world.accepts("k-1").await;
    world.operation_when(&operation_path, "unknown").await;
    world.operation_when(&operation_path, "completed").await;
    let calls = world.upstream.executed();
    // From the reservation on: the store's time and a second to send it, the upstream's time, and a lease.
    let quiet = Duration::from_millis(1_000 + 1_000 + 1_000 + 1_000);
    let between = calls[1].at.duration_since(calls[0].at);
    assert!(between >= quiet - Duration::from_millis(300), "{between:?}");
    assert_eq!(calls.len(), 2);
}

on_both_stores!(a_delivery_of_a_route_that_was_renamed_is_delivered_under_the_new_name);
async fn a_delivery_of_a_route_that_was_renamed_is_delivered_under_the_new_name(store: Store) {
    let mut world = world(store, "").await;
    world.upstream.answer_all(trouble());
    let operation_path = world.accepts("k-1").await;
    world.upstream.wait_for_executed(1).await;
    let renamed = "name = \"payments\"\nwas = [\"pay\"]\npath = \"/pay\"\nmethods = [\"POST\"]\ndelivery = \"async\"";
    world.upstream.answer_all(Answer::status(201));
    world.restart_as(|setup| setup.top(&format!("secret = \"{SECRET}\"")).route(renamed)).await;
    world.operation_when(&operation_path, "completed").await;
    world.accepts("k-2").await;
}

on_both_stores!(a_queued_key_whose_route_is_gone_is_reported_and_given_up_in_the_end);
async fn a_queued_key_whose_route_is_gone_is_reported_and_given_up_in_the_end(store: Store) {
    let mut world = world(store, "").await;
    world.upstream.answer_all(trouble());
    let operation_path = world.accepts("k-1").await;
    world.upstream.wait_for_executed(1).await;
    let other = |defaults: &'static str| {
        let (setup, secret) = (route("other", ""), format!("secret = \"{SECRET}\""));
        move |on: Setup| on.top(&secret).store("reap_every = \"100ms\"").defaults(defaults).route(&setup)
    };
    world.restart_as(other("retry = { give_up_after = \"1h\" }")).await;
    let line = world.proxy.wait_for_log("there are keys of a route that is not configured").await;
    assert_eq!((&line["route"], &line["queued"], &line["unknown"]), (&json!("pay"), &json!(1), &json!(0)));
    let operator = Operator::of(&world.proxy);
    let (_, stats) = operator.get("/api/v1/stats").await;
    assert_eq!(stats["without_route"], json!([{ "route": "pay", "keys": { "queued": 1 } }]));
    // Two of the task that gives such keys up; the deliverer looks as well.
    more_store_calls(&world.proxy, "pick_up", 3).await;
    let waiting = operation(&world.proxy, &operation_path).await;
    assert_eq!(waiting["state"], "queued", "its time is not over");
    world.restart_as(other("retry = { give_up_after = \"1s\" }")).await;
    let dead = world.operation_when(&operation_path, "dead").await;
    assert_eq!(dead["attempts"], waiting["attempts"], "nothing was tried any more");
    world.proxy.wait_for_log("the request's route is not configured any more").await;
}

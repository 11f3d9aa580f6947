//! What is tried again, when, and when it is given up.

use std::time::Instant;

use serde_json::json;

use super::*;
use crate::harness::on_both_stores;
use crate::harness::operator::Operator;

on_both_stores!(what_a_service_in_trouble_refuses_is_tried_again_until_it_takes_it);
async fn what_a_service_in_trouble_refuses_is_tried_again_until_it_takes_it(store: Store) {
    let world = world(store, "").await;
    let asked = Answer::status(429).field("Retry-After", "2");
    world.upstream.then(trouble()).then(Answer::status(408)).then(asked);
    let begun = Instant::now();
    let place = world.accepts("k-1").await;
    let between = async || Some(operation(&world.proxy, &place).await).filter(|told| told["attempts"] != 0);
    assert_ne!(eventually(PATIENCE, between).await["state"], "completed");
    let done = world.operation_when(&place, "completed").await;
    assert_eq!((&done["attempts"], &done["response"]["body"]), (&json!(4), &json!("effect 4")));
    assert!(begun.elapsed() > Duration::from_secs(2), "it was asked for two seconds");
    let calls = world.upstream.executed();
    let numbers: Vec<_> = calls.iter().map(|call| call.field("oncegate-attempt").unwrap().to_owned()).collect();
    assert_eq!(numbers, ["1", "2", "3", "4"]);
    assert!(calls.iter().all(|call| call.field("idempotency-key") == Some("k-1")));
    let tokens: std::collections::HashSet<_> = calls.iter().map(|call| call.field("oncegate-reservation")).collect();
    assert_eq!(tokens.len(), 4, "each attempt has a token of its own");
    assert!(calls[3].at.duration_since(calls[2].at) >= Duration::from_secs(2));
}

on_both_stores!(what_is_tried_often_enough_is_dead_and_an_operator_queues_it_anew);
async fn what_is_tried_often_enough_is_dead_and_an_operator_queues_it_anew(store: Store) {
    let retry = "retry = { max_attempts = 2, base = \"50ms\", cap = \"50ms\", give_up_after = \"1h\" }";
    let world = world(store, retry).await;
    world.upstream.answers(trouble());
    let place = world.accepts("k-1").await;
    let dead = world.operation_when(&place, "dead").await;
    assert_eq!((&dead["attempts"], &dead["response"]), (&json!(2), &Value::Null));
    // It still answers 202, and starts nothing.
    assert_eq!(world.accepts("k-1").await, place);
    tokio::time::sleep(LOOKS).await;
    assert_eq!(world.upstream.calls(), 2);
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("k-1", "dead").await;
    world.upstream.answers(Answer::status(201));
    let (status, told) = operator.post(&format!("/api/v1/keys/{id}/requeue"), json!({})).await;
    assert_eq!((status, &told["before"], &told["after"]), (200, &json!("dead"), &json!("queued")), "{told}");
    let done = world.operation_when(&place, "completed").await;
    assert_eq!((&done["attempts"], world.upstream.calls()), (&json!(3), 3));
    let audit = operator.audit().await;
    assert_eq!(
        audit,
        [["delivery", "give_up", "queued", "dead"], ["alice (claimed) at 127.0.0.1", "requeue", "dead", "queued"]]
    );
    let (_, log) = operator.get("/api/v1/audit").await;
    assert_eq!(log["entries"][1]["note"], "tried 2 times, at last: answered 503");
}

on_both_stores!(what_another_try_cannot_change_is_dead_at_once);
async fn what_another_try_cannot_change_is_dead_at_once(store: Store) {
    let world = world(store, "").await;
    world.upstream.then(Answer::status(401));
    let place = world.accepts("k-1").await;
    assert_eq!(world.operation_when(&place, "dead").await["attempts"], 1);
    // The service's own word goes before the list of statuses, and so does a 4xx that is stored.
    world.upstream.then(Answer::status(401).field("Oncegate-Decision", "store"));
    let place = world.accepts("k-2").await;
    assert_eq!(world.operation_when(&place, "completed").await["response"]["status"], 401);
    world.upstream.then(Answer::status(409).field("Oncegate-Decision", "release"));
    let place = world.accepts("k-3").await;
    assert_eq!(world.operation_when(&place, "completed").await["attempts"], 2);
}

on_both_stores!(what_is_not_delivered_in_time_is_dead);
async fn what_is_not_delivered_in_time_is_dead(store: Store) {
    let retry = "retry = { max_attempts = 1000, base = \"100ms\", cap = \"100ms\", give_up_after = \"2s\" }";
    let world = world(store, retry).await;
    world.upstream.answers(trouble());
    let begun = Instant::now();
    let place = world.accepts("k-1").await;
    let dead = world.operation_when(&place, "dead").await;
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    let attempts = dead["attempts"].as_u64().unwrap();
    assert!(attempts >= 2, "{attempts}");
    assert_eq!(attempts as usize, world.upstream.calls());
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_waited_for() {
    let (mut world, address) = World::before_nobody(Store::sqlite()).await;
    assert_eq!(world.proxy.stop().await, Some(0));
    world.setup = later(Proxy::on(&world.store.url()).upstream(address), "");
    world.proxy = world.setup.start().await;
    let place = world.accepts("k-1").await;
    let tried = async || Some(operation(&world.proxy, &place).await).filter(|told| told["attempts"].as_u64() > Some(0));
    eventually(PATIENCE, tried).await;
    let upstream = crate::harness::Upstream::start_at(address).await;
    world.operation_when(&place, "completed").await;
    assert_eq!(upstream.calls(), 1);
}

on_both_stores!(an_unknown_outcome_is_held_and_told_as_accepted);
async fn an_unknown_outcome_is_held_and_told_as_accepted(store: Store) {
    let world = world(store, "").await;
    world.upstream.then(Answer::close());
    let place = world.accepts("k-1").await;
    world.operation_when(&place, "unknown").await;
    assert_eq!(world.accepts("k-1").await, place);
    tokio::time::sleep(LOOKS).await;
    assert_eq!(world.upstream.calls(), 1);
    // Whoever knows that it was not executed has it delivered again.
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("k-1", "unknown").await;
    let (status, told) = operator.resolve(&id, crate::harness::operator::not_executed(true)).await;
    assert_eq!((status, &told["after"]), (200, &json!("queued")), "{told}");
    assert_eq!(world.operation_when(&place, "completed").await["attempts"], 2);
}

on_both_stores!(an_unknown_outcome_is_tried_again_where_the_route_says_so);
async fn an_unknown_outcome_is_tried_again_where_the_route_says_so(store: Store) {
    let world = world(store, "on_unknown = \"retry\"").await;
    world.upstream.then(Answer::close()).then(Answer::status(502));
    let place = world.accepts("k-1").await;
    assert_eq!(world.operation_when(&place, "completed").await["attempts"], 3);
    // As often as it may be, and what it was then it is again.
    world.upstream.answers(Answer::close());
    let place = world.accepts("k-2").await;
    assert_eq!(world.operation_when(&place, "dead").await["attempts"], 5);
    world.upstream.answers(Answer::status(201));
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("k-2", "dead").await;
    let (status, told) = operator.post(&format!("/api/v1/keys/{id}/requeue"), json!({})).await;
    assert_eq!((status, &told["after"]), (200, &json!("unknown")), "{told}");
    assert_eq!(world.operation_when(&place, "completed").await["attempts"], 6);
}

on_both_stores!(where_it_must_be_quiet_first_nothing_is_sent_before);
async fn where_it_must_be_quiet_first_nothing_is_sent_before(store: Store) {
    let lines = "on_unknown = \"retry-when-quiet\"\nreconcile = { after = \"0s\" }";
    let world = hasty(store, lines).await;
    world.upstream.then(Answer::close());
    let place = world.accepts("k-1").await;
    world.operation_when(&place, "unknown").await;
    world.operation_when(&place, "completed").await;
    let calls = world.upstream.executed();
    // The store's time and a second to send it, the upstream's time, and a lease, from its reservation on.
    let quiet = Duration::from_millis(1_000 + 1_000 + 1_000 + 1_000);
    let between = calls[1].at.duration_since(calls[0].at);
    assert!(between >= quiet - Duration::from_millis(300), "{between:?}");
    assert_eq!(calls.len(), 2);
}

//! What clients and the service see of a delivery.

use serde_json::{Value, json};

use super::*;
use crate::harness::relay::remote;
use crate::harness::{Hold, on_both_stores};

on_both_stores!(an_accepted_request_is_delivered_and_its_response_is_there_for_its_caller);
async fn an_accepted_request_is_delivered_and_its_response_is_there_for_its_caller(store: Store) {
    let world = world(store, "").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).field("x-made", "yes").hold(&hold));
    let pay = world.pay("k-1").field("Prefer", "respond-async, return=minimal").field("X-Note", "hello");
    let accepted = pay.send().await;
    let place = place(&accepted);
    for (field, value) in
        [("preference-applied", "respond-async"), ("cache-control", "no-store"), ("idempotency-key", "k-1")]
    {
        assert_eq!(accepted.field(field), Some(value));
    }
    assert!(accepted.field("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert!(place.starts_with("/.oncegate/operations/") && !accepted.is_replay());
    world.upstream.has_executed(1).await;
    let running = operation(&world.proxy, &place).await;
    assert_eq!((&running["state"], &running["attempts"]), (&json!("in_flight"), &json!(1)));
    assert_eq!((&running["response"], place.ends_with(running["id"].as_str().unwrap())), (&Value::Null, true));
    let again = pay.send().await;
    assert_eq!((super::place(&again), again.field("preference-applied")), (place.clone(), Some("respond-async")));
    hold.release();
    let done = world.operation_when(&place, "completed").await;
    assert_eq!((&done["attempts"], &done["created_at"]), (&json!(1), &running["created_at"]));
    assert_eq!((&done["response"]["status"], &done["response"]["body"]), (&json!(201), &json!("effect 1")));
    assert!(done["response"]["headers"].as_array().unwrap().contains(&json!(["x-made", "yes"])), "{done}");
    assert!(done["expires_at"].is_string() && done["created_at"].is_string(), "{done}");
    let replay = pay.send().await;
    assert_eq!((replay.status, replay.told(), replay.text()), (201, Some("replayed"), "effect 1".to_owned()));
    assert_eq!((replay.field("x-made"), replay.is_replay()), (Some("yes"), true));
    let call = world.upstream.last();
    assert_eq!(
        (&*call.method, &*call.target, &*call.body),
        ("POST", "/pay", &br#"{"amount":10,"currency":"EUR"}"#[..])
    );
    assert_eq!((call.field("idempotency-key"), call.field("x-note")), (Some("k-1"), Some("hello")));
    assert_eq!((call.field("prefer"), call.field("oncegate-attempt")), (Some("return=minimal"), Some("1")));
    assert_eq!(call.field("oncegate-reservation").unwrap().len(), 96);
    assert_eq!((call.field("x-forwarded-for"), call.field("accept-encoding")), (Some("127.0.0.1"), Some("identity")));
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(another_request_with_an_accepted_key_is_refused_and_changes_nothing);
async fn another_request_with_an_accepted_key_is_refused_and_changes_nothing(store: Store) {
    let world = world(store, "").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let place = world.accepts("k-1").await;
    let other = world.post("/pay").key("k-1").json("{\"amount\":11}");
    assert_eq!(other.send().await.outcome(), (422, "key-reused".to_owned()));
    hold.release();
    world.operation_when(&place, "completed").await;
    assert_eq!(other.send().await.outcome(), (422, "key-reused".to_owned()));
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(of_fifty_at_once_one_is_accepted_and_delivered);
async fn of_fifty_at_once_one_is_accepted_and_delivered(store: Store) {
    let world = world(store, "").await;
    let requests: Vec<_> = (0..50).map(|_| world.pay("k-1").spawn()).collect();
    let mut places = Vec::new();
    for request in requests {
        let response = request.await.unwrap().unwrap();
        match response.status {
            202 => places.push(place(&response)),
            _ => assert_eq!((response.status, response.told()), (201, Some("replayed"))),
        }
    }
    places.dedup();
    assert_eq!(places.len(), 1);
    world.operation_when(&places[0], "completed").await;
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(who_prefers_an_answer_later_gets_it_later_and_everybody_else_now);
async fn who_prefers_an_answer_later_gets_it_later_and_everybody_else_now(store: Store) {
    let world = world(store, "delivery = \"prefer\"").await;
    let now = world.pay("now").send().await;
    assert_eq!((now.status, now.told(), now.field("preference-applied")), (201, Some("executed"), None));
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let place = place(&world.pay("later").field("Prefer", "wait=0, Respond-Async").send().await);
    world.upstream.has_executed(2).await;
    // What was accepted is told as such to those who say nothing, too.
    assert_eq!(super::place(&world.pay("later").send().await), place);
    hold.release();
    world.operation_when(&place, "completed").await;
    assert_eq!(world.pay("later").send().await.told(), Some("replayed"));
    // What was released for the next request is the next delivery.
    world.upstream.then(trouble());
    assert_eq!(world.pay("released").send().await.told(), Some("released"));
    let place = super::place(&world.pay("released").field("Prefer", "respond-async").send().await);
    let done = world.operation_when(&place, "completed").await;
    assert_eq!((&done["attempts"], world.upstream.executed_for("released")), (&json!(2), 2));
}

on_both_stores!(an_operation_is_its_callers_and_there_for_nobody_else);
async fn an_operation_is_its_callers_and_there_for_nobody_else(store: Store) {
    let world = world(store, "").await;
    let mine = place(&world.as_caller(world.pay("k-1"), "me").send().await);
    let yours = place(&world.as_caller(world.pay("k-1"), "you").send().await);
    assert_ne!(mine, yours, "the same key of two callers is two operations");
    world.upstream.has_executed(2).await;
    let ask = async |who: &str, place: &str| world.as_caller(world.get(place), who).send().await.status;
    let other = |place: &str| {
        let last = if place.ends_with('0') { "1" } else { "0" };
        format!("{}{last}", &place[..place.len() - 1])
    };
    let nowhere = format!("/.oncegate/operations/{}", "0".repeat(96));
    for (who, place, status) in [
        ("me", &mine, 200),
        ("you", &yours, 200),
        ("you", &mine, 404),
        ("me", &yours, 404),
        ("me", &other(&mine), 404),
        ("me", &nowhere, 404),
        ("me", &"/.oncegate/operations/".to_owned(), 404),
    ] {
        assert_eq!(ask(who, place).await, status, "{who} {place}");
    }
    let anonymous = world.get(&mine).send().await;
    assert_eq!((anonymous.status, anonymous.field("content-type")), (404, Some("application/problem+json")));
    assert_eq!(world.as_caller(world.post(&mine), "me").send().await.status, 405);
    // It leads to the same place, however it is spelt, and never to the service.
    assert_eq!(ask("me", &mine.replace("/.oncegate", "/x/../%2eoncegate")).await, 200);
    assert!(world.upstream.executed().iter().all(|call| call.target == "/pay"));
}

on_both_stores!(who_waits_gets_the_end_when_it_comes_and_no_later_than_the_route_allows);
async fn who_waits_gets_the_end_when_it_comes_and_no_later_than_the_route_allows(store: Store) {
    let world = world(store, "wait_timeout = \"1s\"").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let place = world.accepts("k-1").await;
    let waits = world.get(&place).field("Prefer", "wait=30");
    let begun = std::time::Instant::now();
    let early = waits.send().await;
    let early_state: Value = serde_json::from_slice(&early.body).unwrap();
    assert_eq!((&early_state["state"], early.field("retry-after")), (&json!("in_flight"), Some("1")));
    assert!(begun.elapsed() >= Duration::from_secs(1), "it waits");
    let (answer, waiting) = (waits.spawn(), world.pay("k-1").field("Prefer", "wait=30").spawn());
    hold.release();
    let answer: Value = serde_json::from_slice(&answer.await.unwrap().unwrap().body).unwrap();
    assert_eq!(answer["state"], "completed");
    let replay = waiting.await.unwrap().unwrap();
    assert_eq!((replay.status, replay.told()), (201, Some("replayed")));
    // The first of all may wait, too.
    let first = world.pay("k-2").field("Prefer", "wait=30").send().await;
    assert_eq!((first.status, first.told(), first.text()), (201, Some("replayed"), "effect 2".to_owned()));
}

on_both_stores!(past_its_ttl_an_operation_is_gone_and_its_key_means_another);
async fn past_its_ttl_an_operation_is_gone_and_its_key_means_another(store: Store) {
    let world = World::with(store, |setup| later(setup.store("reap_every = \"100ms\""), "ttl = \"1s\"")).await;
    let place = world.accepts("k-1").await;
    world.operation_when(&place, "completed").await;
    let gone = async || Some(world.get(&place).send().await).filter(|response| response.status != 200);
    let gone = eventually(PATIENCE, gone).await;
    assert_eq!((gone.status, &gone.problem()["code"]), (410, &json!("key-expired")));
    assert_eq!(world.accepts("k-1").await, place);
    world.upstream.has_executed(2).await;
}

on_both_stores!(a_response_that_is_no_text_is_shown_in_base64_and_one_too_large_to_keep_not_at_all);
async fn a_response_that_is_no_text_is_shown_in_base64_and_one_too_large_to_keep_not_at_all(store: Store) {
    let world = world(store, "max_response_body = \"1KiB\"").await;
    world.upstream.then(Answer::status(200).body(b"\xff\0".to_vec()));
    let place = world.accepts("bytes").await;
    let response = world.operation_when(&place, "completed").await["response"].clone();
    assert_eq!((&response["body_base64"], &response["body"]), (&json!("/wA="), &Value::Null));
    world.upstream.then(Answer::status(200).padded(4096));
    let place = world.accepts("large").await;
    let response = world.operation_when(&place, "completed").await["response"].clone();
    assert_eq!((&response["status"], &response["body"]), (&json!(200), &Value::Null));
    assert_eq!(world.pay("large").send().await.outcome(), (409, "response-not-kept".to_owned()));
}

#[tokio::test]
async fn a_route_that_is_delivered_later_needs_a_secret() {
    let store = Store::sqlite();
    let setup = Proxy::on(&store.url()).upstream("127.0.0.1:1".parse().unwrap());
    for delivery in ["async", "prefer"] {
        let route = route("pay", &format!("delivery = \"{delivery}\""));
        let ended = setup.clone().route(&route).fails().await;
        assert_eq!(ended.code, 78, "{}", ended.said);
        assert!(ended.said.contains("routes[0].delivery") && ended.said.contains("needs a `secret`"), "{}", ended.said);
    }
}

#[tokio::test]
async fn while_the_store_is_away_nothing_is_accepted_and_nothing_sent_unguarded() {
    let (world, wire) = remote(|setup| later(setup, "store_down = \"bypass\"")).await;
    wire.cut();
    assert_eq!(world.pay("k-1").send().await.outcome(), (503, "store-unavailable".to_owned()));
    wire.mend();
    let accepted = async || Some(world.pay("k-1").send().await).filter(|answer| answer.status == 202);
    let place = place(&eventually(PATIENCE, accepted).await);
    world.operation_when(&place, "completed").await;
    assert_eq!(world.upstream.calls(), 1);
}

//! Deliveries as clients and the service see them.

use serde_json::{Value, json};

use super::*;
use harness::database_link::DatabaseLink;
use harness::relay::remote;
use harness::{Hold, on_both_stores};

on_both_stores!(an_accepted_request_is_delivered_and_its_caller_can_read_the_response);
async fn an_accepted_request_is_delivered_and_its_caller_can_read_the_response(store: Store) {
    let world = world(store, "").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).field("x-made", "yes").hold(&hold));
    let pay = world.pay("k-1").field("Prefer", "respond-async, return=minimal").field("X-Note", "hello");
    let accepted = pay.send().await;
    let operation_path = operation_path(&accepted);
    for (field, value) in
        [("preference-applied", "respond-async"), ("cache-control", "no-store"), ("idempotency-key", "k-1")]
    {
        assert_eq!(accepted.field(field), Some(value));
    }
    assert!(accepted.field("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert!(operation_path.starts_with("/.oncegate/operations/") && !accepted.is_replay());
    world.upstream.wait_for_executed(1).await;
    let running = operation(&world.proxy, &operation_path).await;
    assert_eq!((&running["state"], &running["attempts"]), (&json!("in_flight"), &json!(1)));
    assert_eq!((&running["response"], operation_path.ends_with(running["id"].as_str().unwrap())), (&Value::Null, true));
    let again = pay.send().await;
    assert_eq!(
        (super::operation_path(&again), again.field("preference-applied")),
        (operation_path.clone(), Some("respond-async"))
    );
    hold.release();
    let done = world.operation_when(&operation_path, "completed").await;
    assert_eq!((&done["attempts"], &done["created_at"]), (&json!(1), &running["created_at"]));
    assert_eq!((&done["response"]["status"], &done["response"]["body"]), (&json!(201), &json!("effect 1")));
    assert!(done["response"]["headers"].as_array().unwrap().contains(&json!(["x-made", "yes"])), "{done}");
    assert!(done["expires_at"].is_string() && done["created_at"].is_string(), "{done}");
    let replay = pay.send().await;
    assert_eq!(
        (replay.status, replay.oncegate_status(), replay.text()),
        (201, Some("replayed"), "effect 1".to_owned())
    );
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

#[tokio::test]
async fn preference_applied_answers_a_preference_only() {
    let world = world(Store::sqlite(), "").await;
    for (key, prefer, applied) in [
        ("k-1", None, None),
        ("k-2", Some("return=minimal, wait=1"), None),
        ("k-3", Some("respond-async"), Some("respond-async")),
    ] {
        let pay = world.pay(key);
        let accepted = prefer.iter().fold(pay, |pay, prefer| pay.field("Prefer", prefer)).send().await;
        if accepted.status == 202 {
            assert_eq!(accepted.field("preference-applied"), applied, "{key}");
        } else {
            assert_eq!((key, accepted.status), ("k-2", 201), "it has waited for the answer");
        }
    }
}

on_both_stores!(a_different_request_with_an_accepted_key_is_refused_and_changes_nothing);
async fn a_different_request_with_an_accepted_key_is_refused_and_changes_nothing(store: Store) {
    let world = world(store, "").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let operation_path = world.accepts("k-1").await;
    let other = world.post("/pay").key("k-1").json("{\"amount\":11}");
    assert_eq!(other.send().await.outcome(), (422, "key-reused".to_owned()));
    hold.release();
    world.operation_when(&operation_path, "completed").await;
    assert_eq!(other.send().await.outcome(), (422, "key-reused".to_owned()));
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(one_of_fifty_simultaneous_requests_is_accepted_and_delivered);
async fn one_of_fifty_simultaneous_requests_is_accepted_and_delivered(store: Store) {
    let world = world(store, "").await;
    let requests: Vec<_> = (0..50).map(|_| world.pay("k-1").spawn()).collect();
    let mut operation_paths = Vec::new();
    for request in requests {
        let response = request.await.unwrap().unwrap();
        match response.status {
            202 => operation_paths.push(operation_path(&response)),
            _ => assert_eq!((response.status, response.oncegate_status()), (201, Some("replayed"))),
        }
    }
    operation_paths.dedup();
    assert_eq!(operation_paths.len(), 1);
    world.operation_when(&operation_paths[0], "completed").await;
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(a_client_with_prefer_respond_async_is_answered_later_and_others_at_once);
async fn a_client_with_prefer_respond_async_is_answered_later_and_others_at_once(store: Store) {
    let world = world(store, "delivery = \"prefer\"").await;
    let now = world.pay("now").send().await;
    assert_eq!((now.status, now.oncegate_status(), now.field("preference-applied")), (201, Some("executed"), None));
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let operation_path = operation_path(&world.pay("later").field("Prefer", "wait=0, Respond-Async").send().await);
    world.upstream.wait_for_executed(2).await;
    // An accepted request is answered as such to clients without the preference too.
    assert_eq!(super::operation_path(&world.pay("later").send().await), operation_path);
    hold.release();
    world.operation_when(&operation_path, "completed").await;
    assert_eq!(world.pay("later").send().await.oncegate_status(), Some("replayed"));
    // A key released for the next request becomes the next delivery.
    world.upstream.then(trouble());
    assert_eq!(world.pay("released").send().await.oncegate_status(), Some("released"));
    let operation_path = super::operation_path(&world.pay("released").field("Prefer", "respond-async").send().await);
    let done = world.operation_when(&operation_path, "completed").await;
    assert_eq!((&done["attempts"], world.upstream.executed_for("released")), (&json!(2), 2));
}

on_both_stores!(an_operation_is_visible_to_its_caller_only);
async fn an_operation_is_visible_to_its_caller_only(store: Store) {
    let world = world(store, "").await;
    let mine = operation_path(&world.as_caller(world.pay("k-1"), "me").send().await);
    let yours = operation_path(&world.as_caller(world.pay("k-1"), "you").send().await);
    assert_ne!(mine, yours, "the same key of two callers is two operations");
    world.upstream.wait_for_executed(2).await;
    let ask =
        async |who: &str, operation_path: &str| world.as_caller(world.get(operation_path), who).send().await.status;
    let other = |operation_path: &str| {
        let last = if operation_path.ends_with('0') { "1" } else { "0" };
        format!("{}{last}", &operation_path[..operation_path.len() - 1])
    };
    let nowhere = format!("/.oncegate/operations/{}", "0".repeat(96));
    for (who, operation_path, status) in [
        ("me", &mine, 200),
        ("you", &yours, 200),
        ("you", &mine, 404),
        ("me", &yours, 404),
        ("me", &other(&mine), 404),
        ("me", &nowhere, 404),
        ("me", &"/.oncegate/operations/".to_owned(), 404),
    ] {
        assert_eq!(ask(who, operation_path).await, status, "{who} {operation_path}");
    }
    let anonymous = world.get(&mine).send().await;
    assert_eq!((anonymous.status, anonymous.field("content-type")), (404, Some("application/problem+json")));
    assert_eq!(world.as_caller(world.post(&mine), "me").send().await.status, 405);
    // Every spelling leads to the same operation, and never to the service.
    assert_eq!(ask("me", &mine.replace("/.oncegate", "/x/../%2eoncegate")).await, 200);
    assert!(world.upstream.executed().iter().all(|call| call.target == "/pay"));
}

on_both_stores!(a_waiting_client_gets_the_outcome_within_the_routes_limit);
async fn a_waiting_client_gets_the_outcome_within_the_routes_limit(store: Store) {
    let world = world(store, "wait_timeout = \"1s\"").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let operation_path = world.accepts("k-1").await;
    let waits = world.get(&operation_path).field("Prefer", "wait=30");
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
    assert_eq!((replay.status, replay.oncegate_status()), (201, Some("replayed")));
    // The very first request may wait, too, and its answer is no replay.
    let first = world.pay("k-2").field("Prefer", "wait=30").send().await;
    assert_eq!((first.status, first.oncegate_status(), first.text()), (201, Some("executed"), "effect 2".to_owned()));
    assert!(!first.is_replay());
    assert_eq!(world.pay("k-2").field("Prefer", "wait=30").send().await.comparable(), first.replayed());
}

on_both_stores!(an_operation_past_its_ttl_is_gone_and_its_key_starts_a_new_one);
async fn an_operation_past_its_ttl_is_gone_and_its_key_starts_a_new_one(store: Store) {
    let world = World::with(store, |setup| later(setup.store("reap_every = \"100ms\""), "ttl = \"1s\"")).await;
    let operation_path = world.accepts("k-1").await;
    world.operation_when(&operation_path, "completed").await;
    let gone = async || Some(world.get(&operation_path).send().await).filter(|response| response.status != 200);
    let gone = eventually(TEST_TIMEOUT, gone).await;
    assert_eq!((gone.status, &gone.problem()["code"]), (410, &json!("key-expired")));
    assert_eq!(world.accepts("k-1").await, operation_path);
    world.upstream.wait_for_executed(2).await;
}

on_both_stores!(a_binary_response_is_shown_in_base64_and_an_oversized_one_is_omitted);
async fn a_binary_response_is_shown_in_base64_and_an_oversized_one_is_omitted(store: Store) {
    let world = world(store, "max_response_body = \"1KiB\"").await;
    world.upstream.then(Answer::status(200).body(b"\xff\0".to_vec()));
    let operation_path = world.accepts("bytes").await;
    let response = world.operation_when(&operation_path, "completed").await["response"].clone();
    assert_eq!((&response["body_base64"], &response["body"]), (&json!("/wA="), &Value::Null));
    world.upstream.then(Answer::status(200).padded(4096));
    let operation_path = world.accepts("large").await;
    let response = world.operation_when(&operation_path, "completed").await["response"].clone();
    assert_eq!((&response["status"], &response["body"]), (&json!(200), &Value::Null));
    assert_eq!(world.pay("large").send().await.outcome(), (409, "response-not-kept".to_owned()));
}

#[tokio::test]
async fn an_asynchronous_route_needs_a_secret() {
    let store = Store::sqlite();
    let setup = Proxy::on(&store.url()).upstream("127.0.0.1:1".parse().unwrap());
    for delivery in ["async", "prefer"] {
        let route = route("pay", &format!("delivery = \"{delivery}\""));
        let ended = setup.clone().route(&route).fails().await;
        assert_eq!(ended.code, 78, "{}", ended.stderr);
        assert!(
            ended.stderr.contains("routes[0].delivery") && ended.stderr.contains("needs a `secret`"),
            "{}",
            ended.stderr
        );
    }
}

#[tokio::test]
async fn without_the_store_nothing_is_accepted_and_nothing_is_sent_unguarded() {
    let (world, wire) = remote(|setup| later(setup, "store_down = \"bypass\"")).await;
    wire.cut();
    assert_eq!(world.pay("k-1").send().await.outcome(), (503, "store-unavailable".to_owned()));
    wire.restore();
    let accepted = async || Some(world.pay("k-1").send().await).filter(|answer| answer.status == 202);
    let operation_path = operation_path(&eventually(TEST_TIMEOUT, accepted).await);
    world.operation_when(&operation_path, "completed").await;
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_request_that_is_refused_because_its_acceptance_got_no_reply_is_delivered_once() {
    let store = Store::postgres().await;
    let Store::Postgres(database) = &store else { unreachable!("this test is about PostgreSQL") };
    let link = DatabaseLink::to(database).await;
    let setup = |setup: Setup| later(setup.through(&link.url).store("timeout = \"500ms\""), "");
    let world = World::with(store, setup).await;
    // Opens the connections.
    let before = world.accepts("before").await;
    world.operation_when(&before, "completed").await;
    link.stall_replies_from(1);
    assert_eq!(world.pay("k").send().await.outcome(), (503, "store-unavailable".to_owned()));
    link.stall_replies_from(usize::MAX);
    world.upstream.wait_for_executed(2).await;
    let replay = async || Some(world.pay("k").send().await).filter(Response::is_replay);
    eventually(TEST_TIMEOUT, replay).await;
    assert_eq!(world.upstream.executed_for("k"), 1);
}

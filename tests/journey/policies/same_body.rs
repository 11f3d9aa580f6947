//! `same_body`: an equal request of the same caller under another key.

use std::time::Duration;

use harness::metrics::Metrics;
use harness::operator::Operator;
use harness::{Answer, Hold, Request, Response, Store, World, on_both_stores, route};

fn record(refusal: &Response) -> String {
    assert_eq!(refusal.outcome(), (409, "duplicate-suspected".to_owned()), "{refusal:?}");
    let record = refusal.field("oncegate-duplicate-of").unwrap().to_owned();
    assert!(refusal.problem()["detail"].as_str().unwrap().contains(&record));
    record
}

async fn is(request: Request, status: &str) {
    assert_eq!(request.send().await.oncegate_status(), Some(status));
}

on_both_stores!(an_equal_request_under_another_key_is_counted_logged_and_listed);
async fn an_equal_request_under_another_key_is_counted_logged_and_listed(store: Store) {
    let world =
        World::with(store, |setup| setup.route(&route("pay", "")).route(&route("quiet", "same_body = \"allow\"")))
            .await;
    for (request, pairs) in [
        (world.pay("k-1"), 0.0),
        (world.pay("k-1"), 0.0),
        // Another request, another caller, another path.
        (world.post("/pay").key("k-2").json("{}"), 0.0),
        (world.pay("k-3").field("Authorization", "Bearer another"), 0.0),
        (world.post("/quiet").key("k-1").body("x"), 0.0),
        (world.post("/quiet").key("k-2").body("x"), 0.0),
        (world.pay("k-4"), 1.0),
        (world.pay("k-4"), 1.0),
        (world.pay("k-1"), 1.0),
        (world.pay("k-5"), 2.0),
    ] {
        assert!(matches!(request.send().await.oncegate_status(), Some("executed" | "replayed")));
        assert_eq!(Metrics::of(&world.proxy).await.sum("oncegate_same_body_total"), pairs, "{request:?}");
    }
    let operator = Operator::of(&world.proxy);
    let id_of = async |key: &str| {
        let keys = operator.keys("state=completed").await;
        keys.iter()
            .filter(|found| found["key"] == key)
            .map(|found| found["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let line = world.proxy.wait_for_log("equals an earlier one of its own, under another key").await;
    assert_eq!((&line["route"], &line["level"]), (&"pay".into(), &"WARN".into()));
    assert_eq!(vec![line["record"].as_str().unwrap().to_owned()], id_of("k-4").await);
    assert!(id_of("k-1").await.contains(&line["first"].as_str().unwrap().to_owned()));
    let (_, stats) = operator.get("/api/v1/stats").await;
    let pairs = stats["same_bodies"].as_array().unwrap();
    assert_eq!((pairs.len(), &pairs[0]["first"], &pairs[0]["route"]), (2, &pairs[1]["second"], &"pay".into()));
}

on_both_stores!(a_route_refuses_an_equal_request_until_its_client_confirms_it);
async fn a_route_refuses_an_equal_request_until_its_client_confirms_it(store: Store) {
    let world = World::guarding(store, "same_body = \"refuse\"").await;
    let first = world.pay("k-1").send().await;
    let refusal = world.pay("k-2").send().await;
    let record_1 = record(&refusal);
    // The link leads to the first request's outcome, for its caller alone.
    let link = refusal.field("link").unwrap();
    let target = link.strip_prefix('<').and_then(|rest| rest.strip_suffix(">; rel=\"related\"")).unwrap();
    let operation: serde_json::Value = serde_json::from_slice(&world.get(target).send().await.body).unwrap();
    assert_eq!((&operation["state"], &operation["response"]["body"]), (&"completed".into(), &first.text().into()));
    let stranger = world.get(target).field("Authorization", "Bearer another").send().await;
    assert_eq!(stranger.status, 404);
    // Neither the first key nor the refused one is used up.
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(record(&world.pay("k-2").send().await), record_1);
    is(world.pay("k-2").field("Oncegate-Confirm", "yes"), "rejected").await;
    is(world.pay("k-2").field("Oncegate-Confirm", &record_1), "executed").await;
    assert_eq!(world.upstream.last().field("oncegate-confirm"), None, "it is for Oncegate alone");
    is(world.pay("k-2"), "replayed").await;
    let record_2 = record(&world.pay("k-3").send().await);
    assert_ne!(record_2, record_1, "the confirmed one is the last");
    is(world.pay("k-1").field("Authorization", "Bearer another"), "executed").await;
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn an_equal_request_leads_to_no_response_where_the_key_is_the_only_secret() {
    for scope in ["none", "json:/who"] {
        let lines = format!("same_body = \"refuse\"\nscope = [\"{scope}\"]");
        let world = World::guarding(Store::sqlite(), &lines).await;
        let pay = |key: &str| world.post("/pay").key(key).json(r#"{"who":"ann"}"#);
        is(pay("k-1"), "executed").await;
        let refusal = pay("k-2").send().await;
        let first = record(&refusal);
        assert_eq!(refusal.field("link"), None, "{scope}");
        is(pay("k-2").field("Oncegate-Confirm", &first), "executed").await;
    }
}

on_both_stores!(only_a_request_that_may_have_been_executed_is_one_that_another_equals);
async fn only_a_request_that_may_have_been_executed_is_one_that_another_equals(store: Store) {
    let lines = "same_body = \"refuse\"\nupstream_timeout = \"300ms\"\nconnect_timeout = \"100ms\"";
    let world = World::guarding(store, lines).await;
    for (key, answer, status) in [("k-1", Answer::status(503), "released"), ("k-2", Answer::status(401), "released")] {
        world.upstream.then(answer);
        is(world.pay(key), status).await;
    }
    world.upstream.then(Answer::never());
    // The next attempt of a released key.
    is(world.pay("k-1"), "unknown").await;
    record(&world.pay("k-4").send().await);
    assert_eq!(world.upstream.executed().len(), 3);
}

#[tokio::test]
async fn of_two_equal_requests_at_once_one_is_refused() {
    let world = World::guarding(Store::sqlite(), "same_body = \"refuse\"").await;
    let hold = Hold::new();
    world.upstream.answer_all(Answer::status(201).hold(&hold));
    let requests: Vec<_> = (0..8).map(|number| world.pay(&format!("k-{number}")).spawn()).collect();
    world.upstream.wait_for_executed(1).await;
    hold.release();
    let mut refused = 0;
    for request in requests {
        refused += usize::from(request.await.unwrap().unwrap().status == 409);
    }
    assert_eq!((refused, world.upstream.executed().len()), (7, 1));
}

#[tokio::test]
async fn after_the_window_an_equal_request_is_another_operation() {
    let world = World::guarding(Store::sqlite(), "same_body = \"refuse\"\nsame_body_window = \"300ms\"").await;
    is(world.pay("k-1"), "executed").await;
    let executed = || async { (world.pay("k-2").send().await.oncegate_status() == Some("executed")).then_some(()) };
    harness::eventually(Duration::from_secs(10), executed).await;
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn an_accepted_request_is_one_that_another_equals() {
    let lines = route("pay", "same_body = \"refuse\"\ndelivery = \"async\"");
    let world =
        World::with(Store::sqlite(), |setup| setup.top("secret = \"a secret of some length\"").route(&lines)).await;
    assert_eq!(world.pay("k-1").send().await.status, 202);
    let first = record(&world.pay("k-2").send().await);
    assert!(matches!(world.pay("k-1").send().await.status, 201 | 202), "it is its own duplicate");
    assert_eq!(world.pay("k-2").field("Oncegate-Confirm", &first).send().await.status, 202);
}

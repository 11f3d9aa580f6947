//! Routes in observe mode: they refuse, delay and alter nothing, and log the decision that enforcement would make.

use crate::harness::{
    Answer, Hold, Request, Response, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route,
};
use crate::telemetry::Metrics;

/// Sends a request, and returns its answer and its log line.
async fn observed(world: &World, request: Request) -> (Response, String) {
    let before = words(world).len();
    let response = request.send().await;
    let seen = eventually(TEST_TIMEOUT, async || words(world).get(before).cloned()).await;
    (response, seen)
}

/// The logged decisions so far.
fn words(world: &World) -> Vec<String> {
    let lines = world.proxy.logged().into_iter().filter(|line| line["message"] == "observed");
    lines.map(|line| line["would"].as_str().unwrap().to_owned()).collect()
}

fn is_untouched(response: &Response) {
    assert_eq!(response.oncegate_status(), Some("observed"));
    let ours: Vec<_> = response
        .fields
        .iter()
        .filter(|(name, _)| {
            (name.starts_with("oncegate-") && name != "oncegate-status")
                || name.starts_with("idempotency-key")
                || name == "idempotent-replayed"
        })
        .collect();
    assert!(ours.is_empty(), "{ours:?}");
}

const OBSERVE: &str = "mode = \"observe\"";

on_both_stores!(in_observe_mode_every_request_passes_and_the_decision_is_logged);
async fn in_observe_mode_every_request_passes_and_the_decision_is_logged(store: Store) {
    let world = World::guarding(store, "mode = \"observe\"\nkey = { required = true }").await;
    let other = || world.pay("k-1").json(r#"{"amount":11}"#);
    for (number, (request, would)) in [
        (world.pay("k-1"), "executed"),
        (world.pay("k-1"), "replayed"),
        (other(), "key-reused"),
        (world.post("/pay").body("x"), "key-missing"),
        (world.pay("\"k-1"), "key-invalid"),
        (world.pay("k-2").anonymous(), "scope-missing"),
        (world.pay("k-3"), "executed"),
    ]
    .into_iter()
    .enumerate()
    {
        let (response, seen) = observed(&world, request).await;
        assert_eq!((&*seen, response.status), (would, 201));
        is_untouched(&response);
        assert_eq!(response.text(), format!("effect {}", number + 1), "each is executed");
    }
}

on_both_stores!(a_duplicate_passes_while_the_first_attempt_runs);
async fn a_duplicate_passes_while_the_first_attempt_runs(store: Store) {
    let world = World::guarding(store, "mode = \"observe\"\nin_flight = \"wait\"").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    // The first request's record is written beside the request. A duplicate that came before would be recorded itself.
    let created = "oncegate_reservations_total{route=\"pay\",result=\"created\"}";
    let is_recorded = async || Metrics::of(&world.proxy).await.get(created) == 1.0;
    eventually(TEST_TIMEOUT, async || is_recorded().await.then_some(())).await;
    let (response, seen) = observed(&world, world.pay("k-1")).await;
    is_untouched(&response);
    assert_eq!(seen, "in-flight");
    hold.release();
    is_untouched(&first.await.unwrap().unwrap());
    eventually(TEST_TIMEOUT, async || (observed(&world, world.pay("k-1")).await.1 == "replayed").then_some(())).await;
}

#[tokio::test]
async fn a_request_that_enforcement_would_execute_again_is_logged_as_such() {
    let world = World::guarding(Store::sqlite(), OBSERVE).await;
    world.upstream.then(Answer::status(500)).then(Answer::status(502));
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "executed");
    assert_eq!(observed(&world, world.pay("k-2")).await.1, "executed");
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "executed", "the first attempt was released");
    assert_eq!(observed(&world, world.pay("k-2")).await.1, "outcome-unknown");
}

#[tokio::test]
async fn in_observe_mode_a_body_over_the_limit_passes() {
    let world = World::guarding(Store::sqlite(), "mode = \"observe\"\nmax_request_body = \"1KiB\"").await;
    let large = "x".repeat(1_000_000);
    let (response, seen) = observed(&world, world.pay("k-1").body(large.clone())).await;
    is_untouched(&response);
    assert!(seen.contains("too large"), "{seen}");
    assert!(world.upstream.last().body == large.as_bytes());
}

#[tokio::test]
async fn in_observe_mode_requests_stream_unchanged() {
    const PIECE: usize = 128 * 1024;
    let world = World::guarding(Store::sqlite(), OBSERVE).await;
    let upload = world.pay("k-1").field("Accept-Encoding", "gzip").body(vec![7; 4 * PIECE]);
    let mut exchange = upload.open_head().await;
    for pieces in 1..=4 {
        exchange.write(&[7; PIECE]).await;
        world.upstream.wait_until(|seen| seen.body_bytes > (pieces - 1) * PIECE).await;
    }
    is_untouched(&exchange.response().await);
    let call = world.upstream.last();
    assert_eq!((call.field("idempotency-key"), call.field("accept-encoding")), (Some("k-1"), Some("gzip")));
    assert_eq!((call.field("oncegate-reservation"), call.field("oncegate-attempt")), (None, None));
    assert_eq!(call.field("content-length"), Some("524288"));
}

#[tokio::test]
async fn in_observe_mode_responses_stream_unchanged() {
    let world = World::guarding(Store::sqlite(), OBSERVE).await;
    let hold = Hold::new();
    let answer = Answer::status(418).field("Set-Cookie", "a=1").field("Age", "7").field("X-Request-Id", "x");
    world.upstream.then(answer.chunks(&["first", "second"]).hold_midway(&hold));
    let mut exchange = world.pay("k-1").open().await.unwrap();
    let head = exchange.any_head().await.unwrap();
    assert!(head.start.contains("418"));
    for (name, value) in [("set-cookie", "a=1"), ("age", "7"), ("oncegate-status", "observed")] {
        assert_eq!(head.all(name).collect::<Vec<_>>(), [value]);
    }
    assert_eq!(exchange.piece().await.unwrap().unwrap(), b"first");
    hold.release();
    assert_eq!(exchange.piece().await.unwrap().unwrap(), b"second");
    assert_eq!(exchange.piece().await.unwrap(), None);
}

on_both_stores!(a_route_changed_to_enforce_starts_without_records);
async fn a_route_changed_to_enforce_starts_without_records(store: Store) {
    let mut world = World::guarding(store, OBSERVE).await;
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "executed");
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "replayed");
    world.restart_as(|setup| setup.route(&route("pay", "mode = \"enforce\""))).await;
    let first = world.pay("k-1").send().await;
    assert_eq!((first.oncegate_status(), &*first.text()), (Some("executed"), "effect 3"));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
}

#[tokio::test]
async fn in_observe_mode_the_services_directives_count() {
    let world = World::guarding(Store::sqlite(), OBSERVE).await;
    let says = |status: u16, decision: &str| Answer::status(status).field("Oncegate-Decision", decision);
    for (status, decision, would) in
        [(201, "release", "executed"), (500, "store", "replayed"), (200, "unknown", "outcome-unknown")]
    {
        world.upstream.then(says(status, decision));
        assert_eq!(observed(&world, world.pay(decision)).await.1, "executed");
        assert_eq!(observed(&world, world.pay(decision)).await.1, would, "{decision}");
    }
}

on_both_stores!(in_observe_mode_the_attempt_after_a_released_one_is_recorded);
async fn in_observe_mode_the_attempt_after_a_released_one_is_recorded(store: Store) {
    let world = World::guarding(store, OBSERVE).await;
    world.upstream.then(Answer::status(500));
    for would in ["executed", "executed", "replayed"] {
        assert_eq!(observed(&world, world.pay("k-1")).await.1, would);
    }
    assert_eq!(observed(&world, world.pay("k-1").body("other")).await.1, "key-reused");
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_has_executed_nothing() {
    let nowhere = Upstream::unused_address().await;
    let lines = format!("mode = \"observe\"\nupstream = \"http://{nowhere}\"");
    let world = World::guarding(Store::sqlite(), &lines).await;
    let empty = || world.post("/pay").key("k-1");
    for _ in 0..2 {
        let (response, seen) = observed(&world, empty()).await;
        assert_eq!((response.outcome(), &*seen), ((502, "upstream-unreachable".to_owned()), "executed"));
        is_untouched(&response);
        let (_, seen) = observed(&world, world.pay("k-2")).await;
        assert!(seen.starts_with("not compared"), "nobody has asked for the body: {seen}");
    }
    let _there = Upstream::start_at(nowhere).await;
    for would in ["executed", "replayed"] {
        assert_eq!(observed(&world, empty()).await.1, would);
        assert_eq!(observed(&world, world.pay("k-2")).await.1, would);
    }
}

#[tokio::test]
async fn in_observe_mode_late_retries_and_old_requests_are_logged() {
    let lines = "mode = \"observe\"\nttl = \"1s\"\nafter_ttl = \"refuse\"\nmax_age = \"1h\"";
    let world = World::guarding(Store::sqlite(), lines).await;
    let old = world.pay("k-1").field("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
    assert_eq!(observed(&world, old).await.1, "request-too-old");
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "executed");
    let late = async || Some(observed(&world, world.pay("k-1")).await.1).filter(|would| would != "replayed");
    assert_eq!(eventually(TEST_TIMEOUT, late).await, "key-expired");
}

#[tokio::test]
async fn in_observe_mode_a_retry_is_compared_by_the_first_requests_recipe() {
    let mut world = World::guarding(Store::sqlite(), OBSERVE).await;
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "executed");
    let raw = "mode = \"observe\"\nfingerprint = { body = \"raw\" }";
    world.restart_as(|setup| setup.route(&route("pay", raw))).await;
    let spaced = world.post("/pay").key("k-1").json(r#"{ "currency": "EUR", "amount": 10 }"#);
    assert_eq!(observed(&world, spaced).await.1, "replayed");
}

//! Duplicates that wait for the first attempt's answer.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::task::JoinSet;

use harness::{Answer, Hold, Response, Store, World, on_both_stores};

/// A world whose first attempt is held, and the hold that releases it.
async fn held(store: Store, lines: &str, answer: Answer) -> (World, Hold, tokio::task::JoinHandle<Response>) {
    let world = World::guarding(store, lines).await;
    let hold = Hold::new();
    world.upstream.then(answer.hold(&hold));
    let request = world.pay("k-1");
    let first = tokio::spawn(async move { request.send().await });
    world.upstream.wait_for_executed(1).await;
    (world, hold, first)
}

/// Returns when all duplicates sent before have long been waiting: it sends one after them, which waits a second
/// itself.
async fn all_are_waiting(world: &World) {
    let probe = world.pay("k-1").field("Prefer", "wait=1").send().await;
    assert!(matches!(probe.status, 202 | 409), "{probe:?}");
}

const IN_FLIGHT: (u16, &str) = (409, "in-flight");

fn outcome(response: &Response) -> (u16, String) {
    response.outcome()
}

fn is(response: &Response, expected: (u16, &str)) {
    assert_eq!(outcome(response), (expected.0, expected.1.to_owned()));
}

on_both_stores!(hundreds_of_waiting_duplicates_get_the_first_answer);
async fn hundreds_of_waiting_duplicates_get_the_first_answer(store: Store) {
    let (world, hold, first) = held(store, "in_flight = \"wait\"", Answer::status(201)).await;
    let mut duplicates = JoinSet::new();
    for _ in 0..300 {
        let request = world.pay("k-1");
        duplicates.spawn(async move { request.send().await });
    }
    all_are_waiting(&world).await;
    hold.release();
    let first = first.await.unwrap();
    assert_eq!(first.oncegate_status(), Some("executed"));
    while let Some(duplicate) = duplicates.join_next().await {
        assert_eq!(duplicate.unwrap().comparable(), first.replayed());
    }
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_waiting_duplicate_at_another_proxy_gets_the_first_answer() {
    let (world, hold, first) = held(Store::postgres().await, "in_flight = \"wait\"", Answer::status(201)).await;
    let other = world.setup.start().await;
    let body = r#"{"amount":10,"currency":"EUR"}"#;
    let duplicates: Vec<_> = (0..20).map(|_| other.post("/pay").key("k-1").json(body).spawn()).collect();
    all_are_waiting(&world).await;
    hold.release();
    let first = first.await.unwrap();
    for duplicate in duplicates {
        assert_eq!(duplicate.await.unwrap().unwrap().comparable(), first.replayed());
    }
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(a_duplicate_past_its_wait_limit_gets_409);
async fn a_duplicate_past_its_wait_limit_gets_409(store: Store) {
    let lines = "in_flight = \"wait\"\nwait_timeout = \"300ms\"";
    let (world, hold, first) = held(store, lines, Answer::status(201)).await;
    let begun = Instant::now();
    let duplicate = world.pay("k-1").send().await;
    assert!(begun.elapsed() >= Duration::from_millis(300));
    is(&duplicate, IN_FLIGHT);
    assert!(duplicate.field("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    assert_eq!(duplicate.oncegate_status(), Some("in-flight"));
    hold.release();
    assert_eq!(first.await.unwrap().oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(in_flight_accepted_answers_202_without_a_location);
async fn in_flight_accepted_answers_202_without_a_location(store: Store) {
    let (world, hold, first) = held(store, "in_flight = \"accepted\"", Answer::status(201)).await;
    let duplicate = world.pay("k-1").send().await;
    assert_eq!((duplicate.status, duplicate.oncegate_status()), (202, Some("in-flight")));
    assert!(duplicate.field("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    assert_eq!((duplicate.field("location"), duplicate.field("cache-control")), (None, Some("no-store")));
    assert_eq!((duplicate.field("idempotency-key"), duplicate.field("idempotency-key-expires")), (Some("k-1"), None));
    assert!(!duplicate.is_replay());
    hold.release();
    let first = first.await.unwrap();
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
}

#[tokio::test]
async fn a_client_may_ask_to_wait_in_every_mode() {
    for mode in ["conflict", "wait", "accepted"] {
        let (world, hold, first) = held(Store::sqlite(), &format!("in_flight = \"{mode}\""), Answer::status(201)).await;
        let patient = world.pay("k-1").field("Prefer", "respond-async, WAIT=9").spawn();
        all_are_waiting(&world).await;
        hold.release();
        let first = first.await.unwrap();
        assert_eq!(patient.await.unwrap().unwrap().comparable(), first.replayed(), "{mode}");
        assert_eq!(world.upstream.calls(), 1);
    }
}

#[tokio::test]
async fn no_duplicate_waits_longer_than_the_routes_limit() {
    for (mode, status) in [("conflict", 409), ("wait", 409), ("accepted", 202)] {
        let lines = format!("in_flight = \"{mode}\"\nwait_timeout = \"200ms\"");
        let (world, hold, first) = held(Store::sqlite(), &lines, Answer::status(201)).await;
        let begun = Instant::now();
        let duplicate = world.pay("k-1").field("Prefer", "wait=15").send().await;
        assert_eq!((duplicate.status, duplicate.oncegate_status()), (status, Some("in-flight")), "{mode}");
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_millis(200) && waited < Duration::from_secs(10), "{mode}: {waited:?}");
        hold.release();
        first.await.unwrap();
    }
}

#[tokio::test]
async fn a_client_with_prefer_wait_0_is_answered_at_once() {
    let (world, hold, first) = held(Store::sqlite(), "in_flight = \"wait\"", Answer::status(201)).await;
    let begun = Instant::now();
    is(&world.pay("k-1").field("Prefer", "wait=0").send().await, IN_FLIGHT);
    assert!(begun.elapsed() < Duration::from_secs(8), "the route's own limit is not waited for");
    hold.release();
    first.await.unwrap();
}

on_both_stores!(a_waiting_duplicate_never_becomes_an_attempt);
async fn a_waiting_duplicate_never_becomes_an_attempt(store: Store) {
    let (world, hold, first) = held(store, "in_flight = \"wait\"", Answer::status(500)).await;
    let waiters: Vec<_> = (0..10).map(|_| world.pay("k-1").spawn()).collect();
    all_are_waiting(&world).await;
    hold.release();
    assert_eq!(first.await.unwrap().oncegate_status(), Some("released"));
    for waiter in waiters {
        let waiter = waiter.await.unwrap().unwrap();
        is(&waiter, IN_FLIGHT);
        assert!(waiter.field("retry-after").is_some());
    }
    assert_eq!(world.upstream.calls(), 1);
    assert_eq!(
        world.pay("k-1").send().await.oncegate_status(),
        Some("executed"),
        "who comes after it is the next attempt"
    );
}

on_both_stores!(waiting_duplicates_are_answered_when_the_outcome_is_unknown);
async fn waiting_duplicates_are_answered_when_the_outcome_is_unknown(store: Store) {
    let (world, hold, first) = held(store, "in_flight = \"wait\"", Answer::close()).await;
    let waiters: Vec<_> = (0..10).map(|_| world.pay("k-1").spawn()).collect();
    all_are_waiting(&world).await;
    hold.release();
    is(&first.await.unwrap(), (502, "upstream-broken"));
    for waiter in waiters {
        is(&waiter.await.unwrap().unwrap(), (409, "outcome-unknown"));
    }
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_waiting_duplicate_does_not_retry_an_unknown_outcome() {
    let lines = "in_flight = \"wait\"\non_unknown = \"retry\"";
    let (world, hold, first) = held(Store::sqlite(), lines, Answer::close()).await;
    let waiter = world.pay("k-1").spawn();
    all_are_waiting(&world).await;
    hold.release();
    is(&first.await.unwrap(), (502, "upstream-broken"));
    is(&waiter.await.unwrap().unwrap(), IN_FLIGHT);
    assert_eq!(world.upstream.calls(), 1);
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn a_different_request_under_the_key_is_refused_without_waiting() {
    for mode in ["conflict", "wait", "accepted"] {
        let (world, hold, first) = held(Store::sqlite(), &format!("in_flight = \"{mode}\""), Answer::status(201)).await;
        // The first attempt is held, so an answer after it would never come.
        let other = world.pay("k-1").field("Prefer", "wait=9").body("something else").send().await;
        assert_eq!(
            (other.outcome(), other.oncegate_status()),
            ((422, "key-reused".to_owned()), Some("key-reused")),
            "{mode}"
        );
        hold.release();
        assert_eq!(first.await.unwrap().oncegate_status(), Some("executed"));
    }
}

on_both_stores!(a_waiting_duplicate_that_disconnects_disturbs_no_other);
async fn a_waiting_duplicate_that_disconnects_disturbs_no_other(store: Store) {
    let (world, hold, first) = held(store, "in_flight = \"wait\"", Answer::status(201)).await;
    let leaving = world.pay("k-1").open().await.unwrap();
    let staying = world.pay("k-1").spawn();
    all_are_waiting(&world).await;
    drop(leaving);
    is(&world.pay("k-1").field("Prefer", "wait=0").send().await, IN_FLIGHT);
    hold.release();
    let first = first.await.unwrap();
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(staying.await.unwrap().unwrap().comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_drain_answers_waiting_duplicates_and_finishes_the_first_attempt() {
    let (world, hold, first) =
        held(Store::sqlite(), "in_flight = \"wait\"\nwait_timeout = \"15s\"", Answer::status(201)).await;
    let waiter = world.pay("k-1").spawn();
    all_are_waiting(&world).await;
    let begun = Instant::now();
    world.proxy.signal(Signal::TERM);
    is(&waiter.await.unwrap().unwrap(), IN_FLIGHT);
    assert!(begun.elapsed() < Duration::from_secs(10));
    hold.release();
    assert_eq!(first.await.unwrap().oncegate_status(), Some("executed"));
    assert_eq!(world.proxy.ended().await, Some(0));
}

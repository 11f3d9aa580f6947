//! Signals: the listener closes, and running attempts finish.

use rustix::process::Signal;
use serde_json::Value;

use harness::{Answer, Hold, Store, TEST_TIMEOUT, World, eventually, on_both_stores};

/// Waits until the readiness probe refuses traffic, and returns its reasons.
async fn is_not_ready(world: &World) -> Vec<Value> {
    let reasons = eventually(TEST_TIMEOUT, async || {
        let (status, body) = world.proxy.readyz().await;
        (status == 503).then(|| body["reasons"].as_array().unwrap().clone())
    });
    reasons.await
}

on_both_stores!(a_draining_proxy_finishes_and_stores_running_attempts);
async fn a_draining_proxy_finishes_and_stores_running_attempts(store: Store) {
    let mut world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    assert_eq!(world.proxy.readyz().await.0, 200);
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    world.proxy.signal(Signal::TERM);
    world.proxy.wait_for_log("draining").await;
    let reasons = is_not_ready(&world).await;
    assert_eq!(reasons, ["draining"]);
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.status, first.oncegate_status()), (201, Some("executed")));
    assert_eq!(world.proxy.ended().await, Some(0));
    world.crash_and_restart().await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn an_idle_proxy_stops_at_once() {
    for signal in [Signal::TERM, Signal::INT] {
        let world = World::start(Store::sqlite()).await;
        world.pay("k-1").send().await;
        world.proxy.signal(signal);
        assert_eq!(world.proxy.ended().await, Some(0));
    }
}

#[tokio::test]
async fn an_idle_connection_does_not_delay_the_shutdown() {
    let world = World::start(Store::sqlite()).await;
    let mut idle = world.pay("k-1").open().await.unwrap();
    idle.response().await;
    let _silent = world.proxy.client().connect().await;
    assert_eq!(world.proxy.stop().await, Some(0));
    idle.wait_until_closed().await;
}

#[tokio::test]
async fn a_proxy_serves_requests_during_its_drain_delay() {
    let world = World::with(Store::sqlite(), |setup| setup.top("drain_delay = \"2s\"")).await;
    world.proxy.signal(Signal::TERM);
    world.proxy.wait_for_log("draining").await;
    is_not_ready(&world).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.proxy.ended().await, Some(0));
}

#[tokio::test]
async fn a_draining_proxy_starts_no_new_attempt() {
    let world = World::start(Store::sqlite()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let late = world.pay("k-2").body("10 EUR");
    // Its head arrives before the signal, its body after.
    let mut early = late.open_head().await;
    eventually(TEST_TIMEOUT, async || Some(world.get("/").send().await)).await;
    world.proxy.signal(Signal::TERM);
    world.proxy.wait_for_log("draining").await;
    eventually(TEST_TIMEOUT, async || world.proxy.client().try_connect().await.err()).await;
    early.write(b"10 EUR").await;
    let answer = early.response().await;
    assert_eq!(answer.outcome(), (503, "draining".to_owned()));
    assert_eq!(answer.field("connection"), Some("close"));
    assert!(answer.field("retry-after").is_some());
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.executed().iter().filter(|call| call.target == "/pay").count(), 1);
    assert_eq!(world.proxy.ended().await, Some(0));
}

on_both_stores!(a_drain_waits_for_attempts_of_disconnected_clients);
async fn a_drain_waits_for_attempts_of_disconnected_clients(store: Store) {
    let mut world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let gone = world.pay("k-1").open().await.unwrap();
    world.upstream.wait_for_executed(1).await;
    drop(gone);
    world.proxy.signal(Signal::TERM);
    world.proxy.wait_for_log("draining").await;
    eventually(TEST_TIMEOUT, async || world.proxy.client().try_connect().await.err()).await;
    hold.release();
    assert_eq!(world.proxy.ended().await, Some(0));
    world.crash_and_restart().await;
    let replay = world.pay("k-1").send().await;
    assert_eq!((replay.oncegate_status(), &*replay.text()), (Some("replayed"), "effect 1"));
}

#[tokio::test]
async fn a_second_signal_ends_a_proxy_at_once() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.then(Answer::never());
    let _first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    world.proxy.signal(Signal::TERM);
    world.proxy.wait_for_log("draining").await;
    world.proxy.signal(Signal::TERM);
    world.proxy.ended().await;
}

on_both_stores!(an_attempt_past_the_drain_timeout_becomes_unknown);
async fn an_attempt_past_the_drain_timeout_becomes_unknown(store: Store) {
    let more = "drain_timeout = \"300ms\"";
    let mut world = World::with(store, |setup| setup.short_leases().top(more)).await;
    world.upstream.then(Answer::never());
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    world.proxy.signal(Signal::TERM);
    world.proxy.wait_for_log("the drain's time is up").await;
    world.proxy.ended().await;
    first.await.unwrap().expect_err("it gets no answer any more");
    world.crash_and_restart().await;
    let slug = eventually(TEST_TIMEOUT, async || {
        let (status, slug) = world.pay("k-1").send().await.outcome();
        assert_eq!(status, 409);
        Some(slug).filter(|slug| slug != "in-flight")
    });
    assert_eq!(slug.await, "outcome-unknown");
    assert_eq!(world.upstream.calls(), 1);
}

//! Signals: the door closes, what runs ends well.

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Answer, Hold, PATIENCE, Store, World, eventually, on_both_stores};

/// Waits until the operators' listener says that nothing should be sent here, and why.
async fn is_not_ready(world: &World) -> Vec<Value> {
    let reasons = eventually(PATIENCE, async || {
        let (status, body) = world.proxy.readyz().await;
        (status == 503).then(|| body["reasons"].as_array().unwrap().clone())
    });
    reasons.await
}

on_both_stores!(told_to_stop_a_proxy_finishes_what_runs_and_stores_it);
async fn told_to_stop_a_proxy_finishes_what_runs_and_stores_it(store: Store) {
    let mut world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    assert_eq!(world.proxy.readyz().await.0, 200);
    let first = world.pay("k-1").spawn();
    world.upstream.has_executed(1).await;
    world.proxy.signal(Signal::TERM);
    world.proxy.logs("draining").await;
    let reasons = is_not_ready(&world).await;
    assert_eq!(reasons, ["draining"]);
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.status, first.told()), (201, Some("executed")));
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
async fn an_idle_connection_does_not_hold_the_proxy_up() {
    let world = World::start(Store::sqlite()).await;
    let mut idle = world.pay("k-1").open().await.unwrap();
    idle.response().await;
    let _silent = world.proxy.client().connect().await;
    assert_eq!(world.proxy.stop().await, Some(0));
    idle.closed().await;
}

#[tokio::test]
async fn while_it_waits_for_the_balancers_a_proxy_serves_on() {
    let world = World::with(Store::sqlite(), |setup| setup.top("drain_delay = \"2s\"")).await;
    world.proxy.signal(Signal::TERM);
    world.proxy.logs("draining").await;
    is_not_ready(&world).await;
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"));
    assert_eq!(world.proxy.ended().await, Some(0));
}

#[tokio::test]
async fn a_draining_proxy_starts_no_new_attempt() {
    let world = World::start(Store::sqlite()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.has_executed(1).await;
    let late = world.pay("k-2").body("10 EUR");
    // Its head is in before the signal, its body comes after.
    let mut early = late.open_head().await;
    eventually(PATIENCE, async || Some(world.get("/").send().await)).await;
    world.proxy.signal(Signal::TERM);
    world.proxy.logs("draining").await;
    eventually(PATIENCE, async || world.proxy.client().try_connect().await.err()).await;
    early.write(b"10 EUR").await;
    if let Ok(answer) = early.try_response().await {
        match answer.told() {
            // It had come through the door already.
            Some("executed") => {}
            _ => {
                assert_eq!(answer.outcome(), (503, "draining".to_owned()));
                assert_eq!(answer.field("connection"), Some("close"));
                assert!(answer.field("retry-after").is_some());
            }
        }
    }
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().told(), Some("executed"));
    assert_eq!(world.proxy.ended().await, Some(0));
}

on_both_stores!(an_attempt_whose_client_has_gone_is_waited_for_too);
async fn an_attempt_whose_client_has_gone_is_waited_for_too(store: Store) {
    let mut world = World::start(store).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let gone = world.pay("k-1").open().await.unwrap();
    world.upstream.has_executed(1).await;
    drop(gone);
    world.proxy.signal(Signal::TERM);
    world.proxy.logs("draining").await;
    eventually(PATIENCE, async || world.proxy.client().try_connect().await.err()).await;
    hold.release();
    assert_eq!(world.proxy.ended().await, Some(0));
    world.crash_and_restart().await;
    let replay = world.pay("k-1").send().await;
    assert_eq!((replay.told(), &*replay.text()), (Some("replayed"), "effect 1"));
}

#[tokio::test]
async fn a_second_signal_ends_a_proxy_at_once() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.then(Answer::never());
    let _first = world.pay("k-1").spawn();
    world.upstream.has_executed(1).await;
    world.proxy.signal(Signal::TERM);
    world.proxy.logs("draining").await;
    world.proxy.signal(Signal::TERM);
    world.proxy.ended().await;
}

on_both_stores!(what_the_drain_does_not_wait_for_becomes_unknown);
async fn what_the_drain_does_not_wait_for_becomes_unknown(store: Store) {
    let more = "drain_timeout = \"300ms\"";
    let mut world = World::with(store, |setup| setup.short_leases().top(more)).await;
    world.upstream.then(Answer::never());
    let first = world.pay("k-1").spawn();
    world.upstream.has_executed(1).await;
    world.proxy.signal(Signal::TERM);
    world.proxy.logs("the drain's time is up").await;
    world.proxy.ended().await;
    first.await.unwrap().expect_err("nobody answers it any more");
    world.crash_and_restart().await;
    let slug = eventually(PATIENCE, async || {
        let (status, slug) = world.pay("k-1").send().await.outcome();
        assert_eq!(status, 409);
        Some(slug).filter(|slug| slug != "in-flight")
    });
    assert_eq!(slug.await, "outcome-unknown");
    assert_eq!(world.upstream.calls(), 1);
}

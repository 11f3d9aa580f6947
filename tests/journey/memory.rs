//! Answers without the store: completed responses from the cache, and the instance's own running attempts.

use std::time::Duration;

use tokio::time::Instant;

use harness::operator::Operator;
use harness::proxy::Setup;
use harness::relay::remote;
use harness::{Answer, Hold, Store, TEST_TIMEOUT, World, eventually};

/// So rare that no heartbeat occurs during a test.
fn long_heartbeats(setup: Setup) -> Setup {
    setup.store("lease = { heartbeat = \"20s\", expiry = \"60s\" }")
}

#[tokio::test]
async fn a_replay_from_memory_equals_the_stored_one_byte_for_byte() {
    let (world, wire) = remote(long_heartbeats).await;
    world.upstream.then(
        Answer::status(201).field("x-two", "a").field("x-two", "b").field("date", "Sat, 01 Jan 2000 00:00:00 GMT"),
    );
    let first = world.pay("k-1").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    wire.silence();
    let remembered = world.pay("k-1").send().await;
    assert_eq!(remembered.comparable(), first.replayed());
    assert_eq!(remembered.field("idempotency-key-expires"), first.field("idempotency-key-expires"));
    wire.restore();
    assert_eq!(world.upstream.calls(), 1);
    // The same response from the store, through another instance.
    let other = world.setup.start().await;
    let stored = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#).send().await;
    assert_eq!(stored.comparable(), remembered.comparable());
}

#[tokio::test]
async fn another_instances_answer_is_cached_after_its_first_replay() {
    let (world, wire) = remote(long_heartbeats).await;
    let other = world.setup.start().await;
    let request = || other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#);
    let first = world.pay("k-1").send().await;
    assert_eq!(request().send().await.comparable(), first.replayed());
    wire.silence();
    assert_eq!(request().send().await.comparable(), first.replayed());
}

#[tokio::test]
async fn a_cached_key_is_refused_to_a_different_request() {
    let (world, wire) = remote(long_heartbeats).await;
    world.pay("k-1").send().await;
    wire.silence();
    let other = world.post("/pay").key("k-1").json(r#"{"amount":11,"currency":"EUR"}"#).send().await;
    assert_eq!(other.outcome(), (422, "key-reused".to_owned()));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_duplicate_of_a_local_attempt_is_answered_without_the_store() {
    let (world, wire) = remote(long_heartbeats).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    wire.silence();
    let duplicate = world.pay("k-1").send().await;
    assert_eq!(duplicate.outcome(), (409, "in-flight".to_owned()));
    assert!((1..=30).contains(&duplicate.field("retry-after").unwrap().parse::<u64>().unwrap()));
    let other = world.post("/pay").key("k-1").json(r#"{"amount":11}"#).send().await;
    assert_eq!(other.outcome(), (422, "key-reused".to_owned()));
    wire.restore();
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().status, 201);
}

#[tokio::test]
async fn the_cache_serves_nothing_while_the_heartbeat_fails() {
    let beats = "lease = { heartbeat = \"200ms\", expiry = \"60s\" }";
    let (world, wire) = remote(|setup| setup.store(beats)).await;
    let first = world.pay("k-1").send().await;
    wire.cut();
    // The first heartbeat after the cut fails, or none comes: either way the cache is silent two heartbeats later.
    eventually(TEST_TIMEOUT, async || (world.pay("k-1").send().await.status == 503).then_some(())).await;
    wire.restore();
    let again =
        eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|answer| answer.status != 503));
    assert_eq!(again.await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn without_the_cache_every_replay_reads_the_store() {
    let (world, wire) = remote(|setup| long_heartbeats(setup).top("cache = { memory = \"0B\" }")).await;
    let first = world.pay("k-1").send().await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    wire.silence();
    assert_eq!(world.pay("k-1").send().await.status, 503);
}

#[tokio::test]
async fn a_cached_response_expires_with_its_ttl() {
    let world = World::guarding(Store::postgres().await, "ttl = \"1s\"").await;
    let begun = Instant::now();
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("replayed"));
    let told =
        async || Some(world.pay("k-1").send().await).filter(|answer| answer.oncegate_status() == Some("executed"));
    eventually(TEST_TIMEOUT, told).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "not before");
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_purge_or_release_returns_after_every_instances_cache_dropped_the_key() {
    let world = World::with(Store::postgres().await, |setup| setup.short_leases()).await;
    let other = world.setup.start().await;
    let operator = Operator::of(&other);
    for (key, verb) in [("k-1", "purge"), ("k-2", "release")] {
        let first = world.pay(key).send().await;
        assert_eq!(first.oncegate_status(), Some("executed"));
        assert_eq!(world.pay(key).send().await.comparable(), first.replayed());
        let id = operator.id(key).await;
        let (status, told) = match verb {
            "purge" => operator.delete(&format!("/api/v1/keys/{id}?accept_risk=true")).await,
            _ => {
                let risk = serde_json::json!({ "accept_risk": true });
                operator.post(&format!("/api/v1/keys/{id}/release"), risk).await
            }
        };
        assert_eq!((status, &told["instances_behind"]), (200, &serde_json::json!(0)), "{told}");
        assert_eq!(world.pay(key).send().await.oncegate_status(), Some("executed"), "{verb}");
    }
    assert_eq!(world.upstream.calls(), 4);
}

//! What an instance tells without asking the store: what is completed, and what it is running itself.

use std::time::Duration;

use tokio::time::Instant;

use crate::harness::operator::Operator;
use crate::harness::proxy::Setup;
use crate::harness::relay::remote;
use crate::harness::{Answer, Hold, PATIENCE, Store, World, eventually};

/// So seldom that no heartbeat falls into a test.
fn long_heartbeats(setup: Setup) -> Setup {
    setup.store("lease = { heartbeat = \"20s\", expiry = \"60s\" }")
}

#[tokio::test]
async fn a_replay_comes_from_memory_and_is_the_stored_one_byte_for_byte() {
    let (world, wire) = remote(long_heartbeats).await;
    world.upstream.then(
        Answer::status(201).field("x-two", "a").field("x-two", "b").field("date", "Sat, 01 Jan 2000 00:00:00 GMT"),
    );
    let first = world.pay("k-1").send().await;
    assert_eq!(first.told(), Some("executed"));
    wire.silence();
    let remembered = world.pay("k-1").send().await;
    assert_eq!(remembered.comparable(), first.replayed());
    assert_eq!(remembered.field("idempotency-key-expires"), first.field("idempotency-key-expires"));
    wire.mend();
    assert_eq!(world.upstream.calls(), 1);
    // The same from the store, told by another instance.
    let other = world.setup.start().await;
    let stored = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#).send().await;
    assert_eq!(stored.comparable(), remembered.comparable());
}

#[tokio::test]
async fn another_instances_answer_is_remembered_after_its_first_replay() {
    let (world, wire) = remote(long_heartbeats).await;
    let other = world.setup.start().await;
    let request = || other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#);
    let first = world.pay("k-1").send().await;
    assert_eq!(request().send().await.comparable(), first.replayed());
    wire.silence();
    assert_eq!(request().send().await.comparable(), first.replayed());
}

#[tokio::test]
async fn a_key_that_is_remembered_is_refused_to_another_request() {
    let (world, wire) = remote(long_heartbeats).await;
    world.pay("k-1").send().await;
    wire.silence();
    let other = world.post("/pay").key("k-1").json(r#"{"amount":11,"currency":"EUR"}"#).send().await;
    assert_eq!(other.outcome(), (422, "key-reused".to_owned()));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_duplicate_of_what_runs_here_is_told_so_without_the_store() {
    let (world, wire) = remote(long_heartbeats).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.has_executed(1).await;
    wire.silence();
    let duplicate = world.pay("k-1").send().await;
    assert_eq!(duplicate.outcome(), (409, "in-flight".to_owned()));
    assert!((1..=30).contains(&duplicate.field("retry-after").unwrap().parse::<u64>().unwrap()));
    let other = world.post("/pay").key("k-1").json(r#"{"amount":11}"#).send().await;
    assert_eq!(other.outcome(), (422, "key-reused".to_owned()));
    wire.mend();
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().status, 201);
}

#[tokio::test]
async fn memory_says_nothing_while_the_heartbeat_fails() {
    let beats = "lease = { heartbeat = \"200ms\", expiry = \"60s\" }";
    let (world, wire) = remote(|setup| setup.store(beats)).await;
    let first = world.pay("k-1").send().await;
    wire.cut();
    // Its first try after the cut fails, or it comes no more: either way it is silent two beats later.
    eventually(PATIENCE, async || (world.pay("k-1").send().await.status == 503).then_some(())).await;
    wire.mend();
    let again =
        eventually(PATIENCE, async || Some(world.pay("k-1").send().await).filter(|answer| answer.status != 503));
    assert_eq!(again.await.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn without_memory_every_replay_asks_the_store() {
    let (world, wire) = remote(|setup| long_heartbeats(setup).top("cache = { memory = \"0B\" }")).await;
    let first = world.pay("k-1").send().await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    wire.silence();
    assert_eq!(world.pay("k-1").send().await.status, 503);
}

#[tokio::test]
async fn memory_forgets_when_the_ttl_ends() {
    let world = World::guarding(Store::postgres().await, "ttl = \"1s\"").await;
    let begun = Instant::now();
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"));
    assert_eq!(world.pay("k-1").send().await.told(), Some("replayed"));
    let told = async || Some(world.pay("k-1").send().await).filter(|answer| answer.told() == Some("executed"));
    eventually(PATIENCE, told).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "not before");
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn what_is_purged_or_released_by_one_instance_is_in_no_others_memory_when_that_returns() {
    let world = World::with(Store::postgres().await, |setup| setup.short_leases()).await;
    let other = world.setup.start().await;
    let operator = Operator::of(&other);
    for (key, verb) in [("k-1", "purge"), ("k-2", "release")] {
        let first = world.pay(key).send().await;
        assert_eq!(first.told(), Some("executed"));
        assert_eq!(world.pay(key).send().await.comparable(), first.replayed());
        let id = operator.id(key).await;
        let (status, told) = match verb {
            "purge" => operator.delete(&format!("/api/v1/keys/{id}")).await,
            _ => operator.post(&format!("/api/v1/keys/{id}/release"), serde_json::json!({})).await,
        };
        assert_eq!((status, &told["instances_behind"]), (200, &serde_json::json!(0)), "{told}");
        assert_eq!(world.pay(key).send().await.told(), Some("executed"), "{verb}");
    }
    assert_eq!(world.upstream.calls(), 4);
}

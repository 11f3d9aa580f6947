//! More messages of unknown outcome than a consumer may have unacknowledged: the queue goes on beside them.

use std::collections::BTreeSet;

use lapin::types::{AMQPValue, FieldTable};
use serde_json::json;

use super::{acknowledged, consumer, route};
use harness::operator::{Operator, completed};
use harness::rabbitmq::{self, Queue, message};
use harness::{Answer, Store, TEST_TIMEOUT, World, eventually};

/// More than twice the prefetch of these tests.
const UNKNOWN: usize = 9;

fn unknown_keys() -> impl Iterator<Item = String> {
    (0..UNKNOWN).map(|n| format!("u-{n}"))
}

async fn world(queue: &Queue, url: &str) -> World {
    World::with(Store::postgres().await, |setup| {
        setup.route(&route("")).consumer(&consumer(url, queue, "prefetch = 4"))
    })
    .await
}

/// Publishes messages that the service breaks off, and waits until the outcome of each is unknown.
async fn publish_unknown(world: &World, queue: &Queue) {
    world.upstream.answer_all(Answer::close());
    queue.publish(unknown_keys().map(|key| message(&key))).await;
    are_unknown(world, UNKNOWN).await;
    world.upstream.answer_all(Answer::status(201));
}

async fn are_unknown(world: &World, count: usize) {
    let operator = Operator::of(&world.proxy);
    eventually(2 * TEST_TIMEOUT, async || (operator.keys("state=unknown").await.len() == count).then_some(())).await;
}

fn executed_once(world: &World, keys: impl Iterator<Item = String>) {
    for key in keys {
        assert_eq!(world.upstream.executed_for(&key), 1, "{key}");
    }
}

#[tokio::test]
async fn messages_behind_more_unknown_ones_than_the_prefetch_are_executed() {
    let Some(broker) = rabbitmq::shared().await else { return };
    for kind in ["classic", "quorum"] {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.as_bytes().into()));
        let queue = broker.queue_with(arguments).await;
        let world = world(&queue, &broker.url()).await;
        publish_unknown(&world, &queue).await;
        let honest = || (0..20).map(|n| format!("h-{n}"));
        queue.publish(honest().map(|key| message(&key))).await;
        acknowledged(&world.proxy, 20).await;
        executed_once(&world, honest().chain(unknown_keys()));
        // None was lost, and none is given out again.
        assert_eq!(queue.waiting().await, 0);
        let operator = Operator::of(&world.proxy);
        for (number, key) in operator.keys("state=unknown").await.into_iter().enumerate() {
            let outcome = match number % 2 {
                0 => completed(201, "paid"),
                _ => json!({ "outcome": "not_executed", "accept_risk": true }),
            };
            assert_eq!(operator.resolve(key["id"].as_str().unwrap(), outcome).await.0, 200);
        }
        // Those that were completed by hand are acknowledged, and the others are executed.
        acknowledged(&world.proxy, 20 + UNKNOWN).await;
        assert_eq!(world.upstream.calls(), 20 + UNKNOWN + UNKNOWN / 2, "{kind}");
        assert_eq!(world.proxy.stop().await, Some(0));
        assert_eq!(queue.waiting().await, 0);
    }
}

#[tokio::test]
async fn messages_that_are_set_aside_return_to_their_queue_with_the_end_of_their_proxy() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let mut world = world(&queue, &broker.url()).await;
    publish_unknown(&world, &queue).await;
    world.proxy.kill9().await;
    queue.has_waiting(UNKNOWN as u32).await;
    // Again they are first, and are not executed again.
    world.proxy = world.setup.start().await;
    queue.publish([message("honest")]).await;
    acknowledged(&world.proxy, 1).await;
    executed_once(&world, unknown_keys().chain(["honest".to_owned()]));
    assert_eq!(world.proxy.stop().await, Some(0));
    queue.has_waiting(UNKNOWN as u32).await;
    let mut left = BTreeSet::new();
    for _ in 0..UNKNOWN {
        let headers = queue.next().await.properties.headers().clone().unwrap();
        let AMQPValue::LongString(key) = &headers.inner()["x-idempotency-key"] else { panic!("{headers:?}") };
        left.insert(key.to_string());
    }
    assert_eq!(left, unknown_keys().collect());
}

#[tokio::test]
async fn at_most_the_prefetch_of_other_messages_is_unacknowledged_beside_unknown_ones() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let world = world(&queue, &broker.url()).await;
    publish_unknown(&world, &queue).await;
    let hold = harness::Hold::new();
    world.upstream.answer_all(Answer::status(201).hold(&hold));
    queue.publish((0..20).map(|n| message(&format!("h-{n}")))).await;
    // Between half of the prefetch and all of it.
    world.upstream.wait_for_executed(UNKNOWN + 2).await;
    assert!((16..=18).contains(&queue.waiting().await));
    hold.release();
    acknowledged(&world.proxy, 20).await;
}

//! Messages that become dead letters.

use lapin::types::{AMQPValue, FieldTable};

use super::{acknowledged, consumer, consumer_world, route};
use harness::rabbitmq::{self, dead_letter_header, message};
use harness::{Answer, Store, World};

#[tokio::test]
async fn an_invalid_message_becomes_a_dead_letter_with_its_reason() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let (exchange, dead_letter_queue) = broker.exchange().await;
    let lines = format!("dead_letter_exchange = {exchange:?}\nprefetch = 1");
    let world = World::with(Store::sqlite(), |setup| {
        setup.route(&route("max_request_body = \"64B\"")).consumer(&consumer(&broker.url(), &queue, &lines))
    })
    .await;
    // The order is fixed, since only one message at a time is unacknowledged.
    for (sent, reason, status, calls) in [
        (message("k").without_headers(), "key-missing", None, 0),
        (message("a,b"), "key-invalid", None, 0),
        (message("k-0").body("x".repeat(65)), "request-too-large", None, 0),
        (message("k-1"), "status", Some("422"), 1),
        (message("k-1"), "status", Some("422"), 1),
        (message("k-1").body("{\"amount\":11}"), "key-reused", None, 1),
    ] {
        world.upstream.answer_all(Answer::status(422));
        queue.publish([sent.clone()]).await;
        let dead_letter = dead_letter_queue.next().await;
        assert_eq!(dead_letter_header(&dead_letter, "x-oncegate-reason").as_deref(), Some(reason));
        assert_eq!(dead_letter_header(&dead_letter, "x-oncegate-status").as_deref(), status, "{reason}");
        assert_eq!(dead_letter_header(&dead_letter, "x-oncegate-queue").as_deref(), Some(&*queue.name));
        assert_eq!(dead_letter_header(&dead_letter, "x-oncegate-route").as_deref(), Some("pay"));
        assert!(dead_letter_header(&dead_letter, "x-oncegate-detail").is_some_and(|detail| detail.ends_with('.')));
        assert_eq!(dead_letter.properties.content_type().as_ref().map(|kind| kind.as_str()), Some("application/json"));
        assert_eq!(dead_letter.routing_key.as_str(), queue.name);
        assert_eq!(world.upstream.calls(), calls, "{reason}");
    }
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(queue.waiting().await, 0);
}

#[tokio::test]
async fn without_a_dead_letter_exchange_a_message_is_rejected_to_the_queues_own_one() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let (exchange, dead_letter_queue) = broker.exchange().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString(exchange.as_bytes().into()));
    let queue = broker.queue_with(arguments).await;
    let world =
        World::with(Store::sqlite(), |setup| setup.route(&route("")).consumer(&consumer(&broker.url(), &queue, "")))
            .await;
    world.upstream.then(Answer::status(404));
    queue.publish([message("k-1")]).await;
    let dead_letter = dead_letter_queue.next().await;
    assert_eq!(&dead_letter.data, br#"{"amount":10}"#);
    let line = world.proxy.wait_for_log("is rejected").await;
    assert_eq!((&line["level"], &line["reason"], &line["status"]), (&"WARN".into(), &"status".into(), &404.into()));
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(queue.waiting().await, 0);
}

#[tokio::test]
async fn an_unroutable_dead_letter_is_held_until_the_exchange_routes_it() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let (exchange, dead_letter_queue) = broker.exchange().await;
    dead_letter_queue.delete().await;
    let lines = format!("dead_letter_exchange = {exchange:?}");
    let world = World::with(Store::sqlite(), |setup| {
        setup.route(&route("")).consumer(&consumer(&broker.url(), &queue, &lines))
    })
    .await;
    world.upstream.answer_all(Answer::status(422));
    queue.publish([message("k-1")]).await;
    let line = world.proxy.wait_for_log("could not be published as a dead letter").await;
    assert!(line["cause"].as_str().unwrap().contains("no queue is bound"), "{line}");
    dead_letter_queue.declare().await;
    dead_letter_queue.bind(&exchange).await;
    assert_eq!(dead_letter_header(&dead_letter_queue.next().await, "x-oncegate-reason").as_deref(), Some("status"));
    assert_eq!(world.upstream.calls(), 1);
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(queue.waiting().await, 0);
}

#[tokio::test]
async fn a_queue_with_a_missing_dead_letter_exchange_is_not_consumed() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let lines = "dead_letter_exchange = \"nowhere\"";
    let world =
        World::with(Store::sqlite(), |setup| setup.route(&route("")).consumer(&consumer(&broker.url(), &queue, lines)))
            .await;
    let line = world.proxy.wait_for_log("not consumed at the moment").await;
    let cause = line["cause"].as_str().unwrap();
    assert!(cause.contains("dead_letter_exchange `nowhere`: NOT_FOUND"), "{cause}");
    assert_eq!(queue.consumers().await, 0);
}

#[tokio::test]
async fn an_oversized_answer_counts_by_its_status_on_a_redelivery_too() {
    let lines = "max_response_body = \"1KiB\"";
    let Some(consumer_world) = consumer_world(Store::sqlite(), lines, "").await else { return };
    consumer_world.world.upstream.then(Answer::status(201).padded(5_000)).then(Answer::status(404).padded(5_000));
    consumer_world.queue.publish([message("k-1")]).await;
    acknowledged(&consumer_world.world.proxy, 1).await;
    consumer_world.queue.publish([message("k-2")]).await;
    consumer_world.world.proxy.wait_for_logs("is rejected", 1).await;
    consumer_world.queue.publish([message("k-1"), message("k-2")]).await;
    consumer_world.world.proxy.wait_for_logs("is rejected", 2).await;
    acknowledged(&consumer_world.world.proxy, 2).await;
    assert_eq!(consumer_world.left_after_drain().await, 0);
    assert_eq!(consumer_world.world.upstream.calls(), 2);
}

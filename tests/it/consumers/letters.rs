//! Messages that will never do.

use lapin::types::{AMQPValue, FieldTable};

use super::{acknowledged, consumer, office, route};
use crate::harness::rabbitmq::{self, message, told};
use crate::harness::{Answer, Store, World};

#[tokio::test]
async fn what_will_never_do_becomes_a_dead_letter_with_its_reason() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let (exchange, letters) = broker.exchange().await;
    let lines = format!("dead_letter_exchange = {exchange:?}\nprefetch = 1");
    let world = World::with(Store::sqlite(), |setup| {
        setup.route(&route("max_request_body = \"64B\"")).consumer(&consumer(&broker.url(), &queue, &lines))
    })
    .await;
    // In their order, as one is in hand at a time.
    for (sent, reason, status, calls) in [
        (message("k").without_headers(), "key-missing", None, 0),
        (message("a,b"), "key-invalid", None, 0),
        (message("k-0").body("x".repeat(65)), "request-too-large", None, 0),
        (message("k-1"), "status", Some("422"), 1),
        (message("k-1"), "status", Some("422"), 1),
        (message("k-1").body("{\"amount\":11}"), "key-reused", None, 1),
    ] {
        world.upstream.answers(Answer::status(422));
        queue.publish([sent.clone()]).await;
        let letter = letters.next().await;
        assert_eq!(told(&letter, "x-oncegate-reason").as_deref(), Some(reason));
        assert_eq!(told(&letter, "x-oncegate-status").as_deref(), status, "{reason}");
        assert_eq!(told(&letter, "x-oncegate-queue").as_deref(), Some(&*queue.name));
        assert_eq!(told(&letter, "x-oncegate-route").as_deref(), Some("pay"));
        assert!(told(&letter, "x-oncegate-detail").is_some_and(|detail| detail.ends_with('.')));
        assert_eq!(letter.properties.content_type().as_ref().map(|kind| kind.as_str()), Some("application/json"));
        assert_eq!(letter.routing_key.as_str(), queue.name);
        assert_eq!(world.upstream.calls(), calls, "{reason}");
    }
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(queue.waiting().await, 0);
}

#[tokio::test]
async fn without_an_exchange_it_is_rejected_and_the_queues_own_one_takes_it() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let (exchange, letters) = broker.exchange().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString(exchange.as_bytes().into()));
    let queue = broker.queue_with(arguments).await;
    let world =
        World::with(Store::sqlite(), |setup| setup.route(&route("")).consumer(&consumer(&broker.url(), &queue, "")))
            .await;
    world.upstream.then(Answer::status(404));
    queue.publish([message("k-1")]).await;
    let letter = letters.next().await;
    assert_eq!(&letter.data, br#"{"amount":10}"#);
    let line = world.proxy.logs("is rejected").await;
    assert_eq!((&line["level"], &line["reason"], &line["status"]), (&"WARN".into(), &"status".into(), &404.into()));
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(queue.waiting().await, 0);
}

#[tokio::test]
async fn what_the_exchange_routes_nowhere_is_held_until_it_does() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let (exchange, letters) = broker.exchange().await;
    letters.delete().await;
    let lines = format!("dead_letter_exchange = {exchange:?}");
    let world = World::with(Store::sqlite(), |setup| {
        setup.route(&route("")).consumer(&consumer(&broker.url(), &queue, &lines))
    })
    .await;
    world.upstream.answers(Answer::status(422));
    queue.publish([message("k-1")]).await;
    let line = world.proxy.logs("could not be put among the dead letters").await;
    assert!(line["cause"].as_str().unwrap().contains("no queue is bound"), "{line}");
    letters.declare().await;
    letters.bind(&exchange).await;
    assert_eq!(told(&letters.next().await, "x-oncegate-reason").as_deref(), Some("status"));
    assert_eq!(world.upstream.calls(), 1);
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(queue.waiting().await, 0);
}

#[tokio::test]
async fn without_its_exchange_a_queue_is_not_consumed() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let lines = "dead_letter_exchange = \"nowhere\"";
    let world =
        World::with(Store::sqlite(), |setup| setup.route(&route("")).consumer(&consumer(&broker.url(), &queue, lines)))
            .await;
    let line = world.proxy.logs("not consumed at the moment").await;
    let cause = line["cause"].as_str().unwrap();
    assert!(cause.contains("dead_letter_exchange `nowhere`: NOT_FOUND"), "{cause}");
    assert_eq!(queue.consumers().await, 0);
}

#[tokio::test]
async fn a_large_answer_counts_by_its_status_on_a_later_delivery_too() {
    let lines = "max_response_body = \"1KiB\"";
    let Some(office) = office(Store::sqlite(), lines, "").await else { return };
    office.world.upstream.then(Answer::status(201).padded(5_000)).then(Answer::status(404).padded(5_000));
    office.queue.publish([message("k-1")]).await;
    acknowledged(&office.world.proxy, 1).await;
    office.queue.publish([message("k-2")]).await;
    office.world.proxy.logs_times("is rejected", 1).await;
    office.queue.publish([message("k-1"), message("k-2")]).await;
    office.world.proxy.logs_times("is rejected", 2).await;
    acknowledged(&office.world.proxy, 2).await;
    assert_eq!(office.left_after_drain().await, 0);
    assert_eq!(office.world.upstream.calls(), 2);
}

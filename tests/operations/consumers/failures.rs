//! Failures of the service, the store and the proxy: a message waits, and is executed once in the end.

use serde_json::json;

use super::{acknowledged, consumer, consumer_world, consumer_world_with, route};
use harness::metrics::Metrics;
use harness::operator::{Operator, completed};
use harness::rabbitmq::{self, message};
use harness::relay::{Relay, remote};
use harness::{Answer, Hold, Proxy, Store, TEST_TIMEOUT, Upstream, eventually, on_both_stores};

on_both_stores!(a_message_is_retried_until_the_service_accepts_it);
async fn a_message_is_retried_until_the_service_accepts_it(store: Store) {
    let Some(consumer_world) = consumer_world(store, "", "").await else { return };
    consumer_world.world.upstream.then(Answer::status(503)).then(Answer::status(429).field("Retry-After", "1"));
    consumer_world.queue.publish([message("k-1")]).await;
    acknowledged(&consumer_world.world.proxy, 1).await;
    let executed = consumer_world.world.upstream.executed();
    let attempts: Vec<_> = executed.iter().map(|call| call.field("oncegate-attempt").unwrap()).collect();
    assert_eq!(attempts, ["1", "2", "3"]);
    assert!(executed[2].at - executed[1].at >= std::time::Duration::from_millis(500), "as the service has asked for");
    let line = consumer_world.world.proxy.wait_for_log("a message is held").await;
    assert_eq!(line["reason"], "released");
    assert_eq!(consumer_world.left_after_drain().await, 0);
    assert_eq!(consumer_world.world.upstream.calls(), 3);
}

#[tokio::test]
async fn messages_wait_for_an_unreachable_service() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let (queue, address) = (broker.queue().await, Upstream::unused_address().await);
    let store = Store::sqlite();
    let setup =
        Proxy::on(&store.url()).upstream(address).route(&route("")).consumer(&consumer(&broker.url(), &queue, ""));
    let proxy = setup.start().await;
    queue.publish([message("k-1")]).await;
    assert_eq!(proxy.wait_for_log("a message is held").await["reason"], "upstream-unreachable");
    let upstream = Upstream::start_at(address).await;
    acknowledged(&proxy, 1).await;
    assert_eq!(proxy.stop().await, Some(0));
    assert_eq!((queue.waiting().await, upstream.calls()), (0, 1));
}

on_both_stores!(a_message_with_an_unknown_outcome_is_held_until_the_outcome_is_known);
async fn a_message_with_an_unknown_outcome_is_held_until_the_outcome_is_known(store: Store) {
    let Some(consumer_world) = consumer_world(store, "", "prefetch = 2").await else { return };
    consumer_world.world.upstream.then(Answer::close()).then(Answer::end_unread());
    consumer_world.queue.publish([message("k-1"), message("k-2")]).await;
    let operator = Operator::of(&consumer_world.world.proxy);
    let (first, second) = (operator.id_when("k-1", "unknown").await, operator.id_when("k-2", "unknown").await);
    consumer_world.world.proxy.wait_for_logs("a message is held", 2).await;
    let looked_up = "oncegate_reservations_total{route=\"pay\",result=\"unknown\"}";
    let metrics = async || Metrics::of(&consumer_world.world.proxy).await;
    eventually(TEST_TIMEOUT, async || (metrics().await.get(looked_up) >= 5.0).then_some(())).await;
    assert_eq!(consumer_world.world.upstream.calls(), 2, "its outcome is unknown");
    assert_eq!(consumer_world.queue.waiting().await, 0, "they are held, and not dealt out again and again");
    assert_eq!(operator.resolve(&first, completed(201, "paid")).await.0, 200);
    let not_executed = json!({ "outcome": "not_executed", "accept_risk": true });
    assert_eq!(operator.resolve(&second, not_executed).await.0, 200);
    consumer_world.world.upstream.wait_until(|seen| seen.begun == 3).await;
    assert_eq!(consumer_world.world.upstream.last().field("oncegate-attempt"), Some("2"));
    // The first message is asked as well and then acknowledged, so there is room for two more.
    eventually(TEST_TIMEOUT, async || (operator.keys("state=completed").await.len() == 2).then_some(())).await;
    let hold = Hold::new();
    consumer_world.world.upstream.answer_all(Answer::status(201).hold(&hold));
    consumer_world.queue.publish([message("k-3"), message("k-4")]).await;
    consumer_world.world.upstream.wait_until(|seen| seen.begun == 5).await;
    hold.release();
    acknowledged(&consumer_world.world.proxy, 4).await;
    assert_eq!(consumer_world.left_after_drain().await, 0);
}

#[tokio::test]
async fn without_a_store_no_message_is_executed_even_with_bypass() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let (world, wire) =
        remote(|setup| setup.route(&route("store_down = \"bypass\"")).consumer(&consumer(&broker.url(), &queue, "")))
            .await;
    world.proxy.wait_for_log("messages are consumed").await;
    wire.cut();
    queue.publish([message("k-1")]).await;
    assert_eq!(world.proxy.wait_for_log("a message is held").await["reason"], "store-unavailable");
    assert_eq!(world.upstream.calls(), 0);
    assert_eq!(world.pay("k-2").send().await.oncegate_status(), Some("bypassed"), "requests are forwarded");
    wire.restore();
    acknowledged(&world.proxy, 1).await;
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!((queue.waiting().await, world.upstream.executed_for("k-1")), (0, 1));
}

#[tokio::test]
async fn a_redelivery_does_not_execute_a_stored_message_again() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let wire = Relay::to(broker.address()).await;
    let url = format!("amqp://{}", wire.address);
    let store = Store::postgres().await;
    let upstream = Upstream::start().await;
    let setup = Proxy::on(&store.url()).upstream(upstream.address).short_leases().route(&route(""));
    let first = setup.clone().consumer(&consumer(&url, &queue, "")).start().await;
    let hold = Hold::new();
    upstream.then(Answer::status(201).hold(&hold));
    queue.publish([message("k-1")]).await;
    upstream.wait_for_executed(1).await;
    // From now on nothing from the proxy reaches the broker.
    wire.drop_existing();
    hold.release();
    eventually(TEST_TIMEOUT, async || (store.states().await == ["completed"]).then_some(())).await;
    first.kill9().await;
    wire.cut();
    queue.has_waiting(1).await;
    let second = setup.consumer(&consumer(&broker.url(), &queue, "")).start().await;
    queue.has_waiting(0).await;
    assert_eq!(second.stop().await, Some(0));
    assert_eq!((queue.waiting().await, upstream.calls()), (0, 1));
}

#[tokio::test]
async fn a_duplicate_message_is_held_while_the_first_one_runs() {
    let Some(consumer_world) = consumer_world_with(Store::sqlite(), "", "", |setup| setup).await else { return };
    let hold = Hold::new();
    consumer_world.world.upstream.then(Answer::status(201).hold(&hold));
    consumer_world.queue.publish([message("k-1"), message("k-1")]).await;
    assert_eq!(consumer_world.world.proxy.wait_for_log("a message is held").await["reason"], "in-flight");
    hold.release();
    acknowledged(&consumer_world.world.proxy, 2).await;
    assert_eq!(consumer_world.left_after_drain().await, 0);
    assert_eq!(consumer_world.world.upstream.calls(), 1);
}
